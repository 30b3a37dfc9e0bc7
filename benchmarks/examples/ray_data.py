"""Translate a data set of Ray Data with one actor for each core or GPU.

pip install 'txport[ray]'
python ray_data.py BUNDLE rows.jsonl translated
"""

import sys

import ray
from txport.runtime.corpus.batches import translate_dataset

if __name__ == "__main__":
    bundle, source, target = sys.argv[1:]
    rows = ray.data.read_json(source)  # with a column `text`
    rows = translate_dataset(rows, bundle, actors=(1, 4), cpus=1)
    rows.write_json(target)
