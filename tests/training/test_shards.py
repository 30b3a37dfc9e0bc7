"""Pairs in shards: read by streaming, held out as those of a list are, trained on with less memory than they take."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from corpora import all_rows, content, parts_of
from hypothesis import given
from hypothesis import strategies as st
from toy import BUNDLE
from txport.runtime.corpus.shards import Shards
from txport.runtime.errors import InputError
from txport.training import corpora as training_corpora
from txport.training.corpora import Pair, hold_out, load
from txport.training.distill_command import main
from txport.training.examples import Examples
from txport.training.loop import train
from txport.training.options import ShardsOptions
from txport.training.recipe import read
from txport.training.tokenizers import load_tokenizer, train_tokenizer

pyarrow = pytest.importorskip("pyarrow", reason="needs Arrow, zstd and fsspec: pip install 'txport[corpus]'")
WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
TEXTS = [" ".join(WORDS[(i * step) % 12] for i in range(1, 2 + step % 5)) for step in range(1, 90)]


def shards(folder: Path, pairs: Sequence[tuple[object, object]], size: int = 7) -> list[str]:
    """Files of both formats in turn, with some rows each."""
    import pyarrow.parquet

    folder.mkdir()
    files = []
    for number, start in enumerate(range(0, len(pairs), size)):
        rows = [dict(zip(("source", "target"), pair, strict=True)) for pair in pairs[start : start + size]]
        files.append(folder / f"{number:03d}.{('parquet', 'jsonl')[number % 2]}")
        if number % 2:
            files[-1].write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        else:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), files[-1])
    return list(map(str, files))


def test_all_pairs_in_order_as_often_as_asked(tmp_path: Path) -> None:
    pairs = [(text, f"{text}!") for text in TEXTS]
    found = Shards(shards(tmp_path / "a", pairs), ("source", "target"))
    assert list(found) == pairs == list(found) and len(found) == len(pairs)
    assert list(Shards(shards(tmp_path / "b", pairs), ("source", "target"), first=10)) == pairs[:10]
    assert next(iter(found.without(frozenset([TEXTS[0]]), 1).with_targets(str.upper))) == (
        TEXTS[1],
        f"{TEXTS[1]}!".upper(),
    )


def test_rows_without_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'{"source": "one", "target": "eins"}\n{"source": null, "target": "x"}\n{"source": "two"}\nno JSON\n'
        b'{"source": "\xff", "target": "x"}\n{"source": " ", "target": "x"}\n{"source": "a\\n b", "target": "c\\td"}\n'
        b'{"source": 3, "target": "x"}\n{"source": "x", "target": 3}\n'
    )
    assert list(Shards([str(tmp_path / "a.jsonl")], ("source", "target"))) == [("one", "eins"), ("a b", "c d")]
    with pytest.raises(InputError, match=r"the shards a\.jsonl hold no pair of sentences"):
        load(ShardsOptions(train="a.jsonl", source_column="none"), tmp_path)
    with pytest.raises(InputError, match=r"corpus\.unique_sources would keep all sources of the shards in memory"):
        load(ShardsOptions(train="a.jsonl", unique_sources=True), tmp_path)
    (tmp_path / "b.txt").write_text("one\n")
    with pytest.raises(InputError, match=r"b\.txt has no columns: give \.jsonl or \.parquet"):
        load(ShardsOptions(train="b.txt"), tmp_path)
    with pytest.raises(InputError, match="nowhere does not exist"):
        load(ShardsOptions(train="nowhere"), tmp_path)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz")), min_size=2, max_size=40), st.data())
def test_held_out_are_the_sources_with_the_smallest_hashes(pairs: list[Pair], data: st.DataObject) -> None:
    """By the definition, over the whole list at once."""
    import hashlib

    count = data.draw(st.integers(1, len(pairs) // 2))
    order = sorted({source for source, _ in pairs}, key=lambda text: hashlib.sha256(f"s\n{text}".encode()).digest())
    held: list[Pair] = []
    taken = set()
    for source in order:
        if len(held) < count:
            held += [pair for pair in pairs if pair[0] == source]
            taken.add(source)
    if taken == {source for source, _ in pairs}:
        with pytest.raises(InputError, match="too many share a source"):
            hold_out(pairs, count, "s")
    else:
        assert hold_out(pairs, count, "s") == ([pair for pair in pairs if pair[0] not in taken], held[:count])


def test_shards_give_the_splits_the_tokenizer_and_the_ids_of_a_list(tmp_path: Path) -> None:
    pairs = [(text, text[::-1]) for text in TEXTS] * 3
    shards(tmp_path / "shards", pairs)
    (tmp_path / "table.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    streamed = load(ShardsOptions(train="shards", held_out=9), tmp_path)
    listed = load(training_corpora.TableOptions(train="table.tsv", held_out=9), tmp_path)
    assert isinstance(streamed.train, Shards) and list(streamed.train) == listed.train
    assert (streamed.validation, streamed.test) == (listed.validation, listed.test)
    assert len(streamed.train) == len(listed.train)
    options = read(str(recipe(tmp_path))).tokenizer
    for name, corpus in (("a", streamed), ("b", listed)):
        train_tokenizer(corpus.train, options, tmp_path / name)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    tokenizer = load_tokenizer(tmp_path / "a")
    on_disk = Examples.of(streamed.train, tokenizer, 64, folder=tmp_path)
    in_memory = Examples.of(listed.train, tokenizer, 64)
    assert isinstance(on_disk.sources.flat, np.memmap) and not list(tmp_path.glob("tmp*")), "a file without a name"
    for side in ("sources", "targets"):
        for part in ("flat", "starts"):
            ours, theirs = (getattr(getattr(each, side), part) for each in (on_disk, in_memory))
            np.testing.assert_array_equal(ours, theirs)


def recipe(folder: Path, corpus: str = 'kind = "shards"\ntrain = "pairs"\nheld_out = 2') -> Path:
    sizes = 'preset = "tiny"\nd_model = 16\nffn = 24\nheads = 2\n'
    limits = "max_steps = 2\nbatch_tokens = 256\nvalidation_sentences = 1\nmax_length = 128\n"
    (folder / "recipe.toml").write_text(
        f"[corpus]\n{corpus}\n[tokenizer]\nvocabulary = 40\n[model]\n{sizes}[training]\n{limits}"
    )
    return folder / "recipe.toml"


def distill(*arguments: object) -> Result:
    line = [BUNDLE, *arguments, "--threads", 1, "--workers", 1, "--max-ratio", 1000, "--min-score", -1000]
    return CliRunner().invoke(main, list(map(str, line)), catch_exceptions=False)


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_a_student_learns_from_distilled_parts(tmp_path: Path, to: str) -> None:
    (tmp_path / "text").write_text("\n".join(TEXTS) + "\n")
    table = distill("--source", tmp_path / "text", "-o", tmp_path / "pairs.tsv")
    parts = ["--source", tmp_path / "text", "-o", tmp_path / "pairs", "--to", to, "--part-rows", 20]
    distill(*parts, "--shard", "2/2")
    said = distill(*parts, "--resume").output
    pairs = [f"{row['source']}\t{row['target']}" for row in all_rows(tmp_path / "pairs")]
    assert pairs == (tmp_path / "pairs.tsv").read_text().splitlines() and len(parts_of(tmp_path / "pairs")) == 5
    kept = table.output.split(": ")[1].split()[0]
    assert f", {kept} kept" in said and "3 parts made, 2 there already; 89 rows" in said
    outcome = train(read(str(recipe(tmp_path))), tmp_path / "student", tmp_path)
    assert outcome is not None and outcome.steps == 2
    with pytest.raises(InputError, match="choose --to jsonl or --to parquet"):
        distill("--source", tmp_path / "text", "-o", tmp_path / "new", "--resume")


LIMITED = """
import resource, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import txport.runtime.corpus.parquet
from txport.training import tokenizers
from txport.training.loop import train
from txport.training.recipe import read

def size():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
    return int(line.split()[1]) * 1024

tokenizers.MAX_SENTENCES = 2_000  # of 2,000,000: it keeps so many, whatever the corpus has
# What the process may have besides what is imported: its own memory, without what it maps of files.
limit = size() + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
outcome = train(read(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[1]).parent)
print(outcome.steps)
"""


def small_stacks() -> None:
    """A thread takes as much as a stack may have, of which it uses next to nothing."""
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 19, 1 << 19))


def test_a_corpus_larger_than_memory_can_be_trained_on(tmp_path: Path) -> None:
    """The same pairs as a table need more than there is."""
    import pyarrow.parquet

    lines = 80_000
    draw = np.random.default_rng(0)
    (tmp_path / "pairs").mkdir()
    with (tmp_path / "pairs.tsv").open("w") as table:
        for number in range(4):
            words = draw.integers(0, 12, (lines // 4, 16))
            texts = [" ".join(WORDS[word] for word in row) for row in words]
            pyarrow.parquet.write_table(
                pyarrow.table({"source": texts, "target": texts}), tmp_path / "pairs" / f"{number}.parquet"
            )
            table.writelines(f"{text}\t{text}\n" for text in texts)
    assert (tmp_path / "pairs.tsv").stat().st_size > 12e6
    done = {}
    for name, corpus in {
        "shards": 'kind = "shards"\ntrain = "pairs"\nheld_out = 2',
        "table": 'kind = "table"\ntrain = "pairs.tsv"\nheld_out = 2',
    }.items():
        line = [sys.executable, "-c", LIMITED, recipe(tmp_path, corpus), tmp_path / name, MEMORY]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "1",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
        }
        done[name] = subprocess.run(
            list(map(str, line)), capture_output=True, text=True, env=environment, preexec_fn=small_stacks
        )
    assert done["shards"].returncode == 0 and done["shards"].stdout.split()[-1] == "2", done["shards"].stderr
    assert done["table"].returncode != 0 and "MemoryError" in done["table"].stderr


# Bytes for all of it: 13 million characters, which as pairs of texts take twice that, and their ids.
MEMORY = 60_000_000
