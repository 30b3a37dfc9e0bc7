#!/usr/bin/env bash
# Fine-tune a checkpoint on your own sentence pairs, and compare it with the original.
#
#     tx-import Helsinki-NLP/opus-mt-en-de -o build/opus
#     ./fine_tune.sh build/opus pairs.tsv 10
#
# pairs.tsv contains a source sentence, a tab and its translation in each line. The third argument limits the
# minutes, and further ones go to tx-train.
set -euo pipefail

checkpoint=$1 pairs=$(realpath "$2") minutes=$3
folder=${FOLDER:-build/fine-tuned}
mkdir -p "$folder"

# One pair in twenty is held out for validation, and one for the test. The rest is chosen to fit the pairs and the time.
cat > "$folder/recipe.toml" << RECIPE
[corpus]
kind = "table"
train = "$(basename "$pairs")"

[training]
max_minutes = $minutes
RECIPE

tx-train --recipe "$folder/recipe.toml" --data "$(dirname "$pairs")" --from "$checkpoint" -o "$folder/checkpoint" "${@:4}"

# BLEU of both on the same held-out pairs, with the probability that the difference is chance.
tx-evaluate "$checkpoint" "$folder/checkpoint" --recipe "$folder/recipe.toml" --data "$(dirname "$pairs")"

# The checkpoint contains held-out sentences, so the bundle is verified on your kind of text.
tx-export "$folder/checkpoint" -o "$folder/bundle"
