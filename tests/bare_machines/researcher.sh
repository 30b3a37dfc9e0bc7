#!/usr/bin/env bash
# A researcher with 4,000 sentence pairs: training/README.md, with short runs. MINUTES: of the first one.
. "$(dirname "$0")/pages.sh"
minutes=${MINUTES:-4}

paste README.md 'apt install make'
paste training/README.md 'env/bin/activate'
. env/bin/activate
mkdir -p data
for language in en de; do
  head -n 4000 "/data/multi30k/train.$language" > "data/train.$language"
  head -n 200 "/data/multi30k/val.$language" > "test.$language"
done
block training/README.md 'source_language = "en"' > mine.toml
train=$(line training/README.md 'tx-train --recipe mine.toml --data data -o build/mine')

# Mistakes: one sentence each, before PyTorch is imported.
refused 2 3 'nope' bash -c "${train/--data data/--data nope}"
mkdir -p wrong && head -n 10 data/train.en > wrong/train.en && head -n 9 data/train.de > wrong/train.de
refused 2 3 '10' bash -c "${train/--data data/--data wrong}"
sed 's/max_minutes/max_minute/' mine.toml > misspelt.toml
refused 2 3 'max_minutes' bash -c "${train/mine.toml/misspelt.toml}"
refused 2 3 'resume' bash -c "$train --resume"

# Interrupted in the middle, continued, finished.
refused 130 600 '--resume' timeout --preserve-status --foreground -s INT $((minutes * 40)) $train --max-minutes "$minutes"
step bash -c "$train --max-minutes $minutes --resume"
weak=$(grep -c 'the run made .* steps, and a model needs' "$output" || true)  # on a busy machine
refused 2 3 'build/mine' bash -c "$train"
step bash -c "$train --max-minutes $minutes --resume"
expect 'finished'

paste_line training/README.md 'tx-evaluate build/mine --recipe mine.toml --data data'
expect 'BLEU' 'chrF'
paste_line training/README.md 'tx-export build/mine -o build/mine-bundle'
paste_line exporter/README.md 'tx-export build/mine -o build/mine-fp16'
paste_line exporter/README.md 'tx-export build/mine -o build/mine-int8'
paste_line exporter/README.md 'tx-export build/mine -o build/mine-maps'
paste_line exporter/README.md 'tx-verify build/mine-fp16 build/mine'
paste_line training/README.md 'tx-evaluate build/mine-bundle --source test.en --reference test.de'
expect 'BLEU'
for kind in bundle maps; do step tx-translate "build/mine-$kind" test.en -o "$kind.de"; done
cmp bundle.de maps.de || failed 'two bundles of one checkpoint translate differently'
[ "$(wc -l < bundle.de)" = 200 ] || failed 'bundle.de has not 200 lines'

# More training makes another checkpoint: fine-tuning, and a bundle that is not of this checkpoint.
cp mine.toml new.toml
paste_line training/README.md 'tx-train --recipe new.toml --data data --from build/mine' --max-minutes 2
step tx-evaluate build/mine build/newer --source test.en --reference test.de
refused 1 60 'export' tx-verify build/mine-bundle build/newer
refused 2 3 'tx-export' tx-translate build/mine test.en
refused 2 3 'bundle' tx-train --recipe new.toml --data data --from build/mine-bundle -o build/other

# A full disk.
mkdir -p small && mount -t tmpfs -o size=3m tmpfs small
refused 2 120 'the disk is full' tx-train --recipe mine.toml --data data -o small/mine --max-minutes 1
refused 2 60 'the disk is full' tx-export build/mine -o small/bundle
umount small
head -n 50 data/train.en > text.en
# No translation of a weak model ends, so it gives no pair.
step bash -c "$(line training/README.md 'tx-distill build/mine-bundle --source text.en') || [ $weak = 1 ]"
[ "$weak" = 1 ] || [ -s data/pairs.tsv ] || failed 'no pairs'
echo '== The way of a researcher: passed'
