#!/usr/bin/env bash
# An ML engineer with Hugging Face models: models/README.md, with random models of three classes, which a hub cannot refuse.
. "$(dirname "$0")/pages.sh"
page=models/README.md

paste README.md 'apt install make'
paste $page 'env/bin/activate'
. env/bin/activate
step pip install -q transformers protobuf
step env PYTHONPATH=tests/foreign:tests/helpers:tests/data python tests/foreign/hugging_face_models.py build/theirs
cp build/theirs/sentences.txt .

# imported NAME OPTIONS: the commands of the page, with this model instead of that of the hub; translations are those of generate().
imported() {
  local commands
  commands=$(block $page 'tx-import Helsinki-NLP/opus-mt-en-de -o build/opus')
  commands=${commands//Helsinki-NLP\/opus-mt-en-de/build\/theirs\/$1 ${2:-}}
  step bash -euo pipefail -c "${commands//build\/opus/build\/$1}"
  tx-translate "build/$1-bundle" sentences.txt --generation model | sed 's/ *$//' > "$1.txt"  # Hugging Face strips texts
  cmp "$1.txt" "build/theirs/$1.txt" || failed "$1: other translations than those of generate()"
}
imported marian
imported byt5
imported m2m100 '--target-language fr'
step tx-inspect build/m2m100-bundle --check
expect 'fr'

refused 2 6 'build/nope' tx-import build/nope -o build/new
refused 2 3 'build/marian' tx-import build/theirs/marian -o build/marian
refused 2 3 'tx-import' tx-export build/theirs/marian -o build/new
refused 2 3 'bundle' tx-import build/marian-bundle -o build/new
refused 2 6 'target language' tx-import build/theirs/m2m100 -o build/new --target-language xx
refused 2 6 'someone/nothing' env HF_ENDPOINT=http://127.0.0.1:9 tx-get someone/nothing
echo '== The way of an ML engineer: passed'
