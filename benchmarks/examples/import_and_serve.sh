#!/usr/bin/env bash
# Import a model, export it, verify it, serve it and send one request.
#
#     ./import_and_serve.sh Helsinki-NLP/opus-mt-en-de en de "How are you?" sentences.txt
#
# The last argument is a file with some of your own sentences, one a line: verification runs on them.
set -euo pipefail

model=$1 source=$2 target=$3 text=$4 sentences=$5
folder=${FOLDER:-build/served} port=${PORT:-5000}

# 1. Import: the weights become a checkpoint. Nothing in the model's files is executed.
tx-import "$model" -o "$folder/checkpoint" --force

# 2. Export: the checkpoint becomes a bundle, and every token is compared with PyTorch. Exit code 1 if they differ.
tx-export "$folder/checkpoint" -o "$folder/bundle" --text "$sentences" --force

# 3. Verify once more, as after a copy: hashes and self-check, without PyTorch.
tx-inspect "$folder/bundle" --check

# 4. Serve, and wait until the model is loaded.
tx-serve "$source-$target=$folder/bundle" --port "$port" &
server=$!
trap 'kill $server; wait $server' EXIT
python - "$port" << 'WAIT'
import sys, time, urllib.request

for _ in range(300):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health/ready")
        break
    except OSError:
        time.sleep(0.2)
else:
    sys.exit("the server did not become ready within a minute")
WAIT

# 5. A request of LibreTranslate's API.
python - "$port" "$source" "$target" "$text" << 'REQUEST'
import json, sys, urllib.parse, urllib.request

port, source, target, text = sys.argv[1:]
form = urllib.parse.urlencode({"q": text, "source": source, "target": target}).encode()
with urllib.request.urlopen(f"http://127.0.0.1:{port}/translate", form) as response:
    print(json.load(response)["translatedText"])
REQUEST
