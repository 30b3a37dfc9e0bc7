"""tx-distill: what it writes, what it leaves out and says, and that a student learns from it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from toy import BUNDLE
from txport.models.checkpoint import load_checkpoint
from txport.runtime.errors import InputError
from txport.runtime.translator import Translation, Translator
from txport.training.corpora import read_table
from txport.training.distill_command import Filter, main
from txport.training.loop import train
from txport.training.recipe import read

WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
TEXTS = [" ".join(WORDS[(i * step) % 12] for i in range(1, 2 + step % 5)) for step in range(1, 90)]
ALL = ("--max-ratio", "1000", "--min-score", "-1000")


def distill(source: Path, output: Path, *arguments: str) -> Result:
    line = [str(BUNDLE), "--source", str(source), "-o", str(output), "--threads", "1", "--workers", "1", *arguments]
    return CliRunner().invoke(main, line, catch_exceptions=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text("\n".join(TEXTS) + "\n")
    return tmp_path / "text"


def test_the_pairs_are_what_the_translator_says(source: Path, tmp_path: Path) -> None:
    done = distill(source, tmp_path / "pairs.tsv", *ALL)
    with Translator(BUNDLE, threads=1) as translator:
        results = translator.translate(TEXTS, scores=True)
    ended = [(text, " ".join(r.text.split())) for text, r in zip(TEXTS, results, strict=True) if r.ids[-1] == 3]
    expected = [pair for pair, text in ((pair, pair[1]) for pair in ended) if text]
    found = [(text, " ".join(answer.split())) for text, answer in read_table(tmp_path / "pairs.tsv")]
    assert found == expected and len(found) > 5
    assert done.output.startswith(f"{tmp_path / 'pairs.tsv'}: {len(found)} of {len(TEXTS)} sentences kept")


def test_what_is_left_out_is_counted(source: Path, tmp_path: Path) -> None:
    """The filter by hand, in NumPy, on every line."""
    source.write_bytes(source.read_bytes() + b"\n   \n" + b"five " * 80 + b"\n\xff\xfe\n")
    limits = ("--max-ratio", "5", "--min-score", "-0.5875", "--errors", "skip")
    done = distill(source, tmp_path / "pairs.tsv", *limits)
    kept = 0
    with Translator(BUNDLE, threads=1) as translator:
        for text in TEXTS:
            (result,) = translator.translate([text], scores=True)
            assert result.scores is not None
            sizes = np.array([len(translator.tokenizer.encode(text)) - 1, len(result.ids) - 1])
            good = result.ids[-1] == 3 and result.text.strip() and sizes.min() > 0
            kept += bool(good and sizes.max() / sizes.min() <= 5 and np.mean(result.scores) >= -0.5875)
    assert f"{kept} of {len(TEXTS) + 4} sentences kept (" in done.output and 0 < kept < len(TEXTS)
    assert all(
        fault in done.output for fault in ("3 blank", "above --max-ratio 5", "below --min-score -0.5875", " cut")
    )


@pytest.mark.parametrize(
    ("source", "prefix", "ids", "scores", "fault"),
    [
        (2, 0, [7, 8, 3], [-0.1, -0.1, -0.1], None),
        (2, 0, [7, 8], [-0.1, -0.1], "cut"),
        (0, 0, [], [], "blank"),
        (2, 0, [3], [-0.1], "empty"),
        (2, 0, [7, 8, 9, 9, 9, 9, 9, 3], [-0.1] * 8, "above --max-ratio 3"),
        (7, 0, [7, 8, 3], [-0.1] * 3, "above --max-ratio 3"),
        (6, 0, [7, 8, 3], [-0.1] * 3, None),
        (2, 0, [7, 8, 3], [-0.1, -2.9, -0.1], "below --min-score -1"),
        (2, 1, [5, 7, 8, 3], [-99.0, -0.1, -0.1, -0.1], None),  # a language token is nobody's choice
    ],
)
def test_the_filter(source: int, prefix: int, ids: list[int], scores: list[float], fault: str | None) -> None:
    result = Translation("text", ids, scores, truncated=False, finished=ids[-1:] == [3])
    assert Filter(3.0, -1.0).fault(source, prefix, result) == fault


def test_tabs_and_line_ends_do_not_make_columns(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("".join(text.replace(" ", "\t", 1) + "\r\n" for text in TEXTS).encode())
    distill(tmp_path / "text", tmp_path / "pairs.tsv", *ALL)
    sources = {text for text, _ in read_table(tmp_path / "pairs.tsv")}
    assert len(sources) > 2 and sources <= set(TEXTS)


def test_nothing_left_and_bad_files_are_one_sentence_and_no_file(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gives no pair: 0 of 89 sentences kept \(8 above --max-ratio 3, "):
        distill(source, tmp_path / "pairs.tsv", "--min-score", "0")
    with pytest.raises(InputError, match="nowhere cannot be read"):
        distill(tmp_path / "nowhere", tmp_path / "pairs.tsv")
    source.write_bytes(b"one\n\xff\n")
    with pytest.raises(InputError, match="text, line 2 is not UTF-8"):
        distill(source, tmp_path / "pairs.tsv")
    assert [file.name for file in tmp_path.iterdir()] == ["text"]


def test_a_run_that_is_stopped_leaves_the_file_of_before(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(TEXTS * 3_000) + "\n")
    (tmp_path / "pairs.tsv").write_text("of before")
    code = "import sys; sys.argv[0] = 'tx-distill'; from txport.training.entry import distill; distill()"
    line = [
        sys.executable,
        "-c",
        code,
        str(BUNDLE),
        "--source",
        str(tmp_path / "text"),
        "-o",
        str(tmp_path / "pairs.tsv"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def heed() -> None:
        """What a shell runs in the background ignores SIGINT, and so does all that it starts."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(line, stderr=subprocess.PIPE, env=environment, preexec_fn=heed) as process:
        while not (part := list(tmp_path.glob(".pairs.tsv*"))) or part[0].stat().st_size == 0:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None and process.stderr.read().endswith(b"tx-distill: interrupted\n")
    assert process.returncode == 130 and (tmp_path / "pairs.tsv").read_text() == "of before"
    assert not list(tmp_path.glob(".pairs.tsv*"))


def test_a_deep_shallow_student_learns_from_the_pairs(source: Path, tmp_path: Path) -> None:
    distill(source, tmp_path / "pairs.tsv", *ALL)
    sizes = ["model.preset=deep_shallow", "model.d_model=16", "model.ffn=24", "model.heads=2", "model.encoder_layers=3"]
    limits = ["training.max_steps=2", "training.batch_tokens=256", "training.validation_sentences=1"]
    recipe = '[corpus]\nkind = "table"\ntrain = "pairs.tsv"\nheld_out = 2\n[tokenizer]\nvocabulary = 40\n'
    (tmp_path / "student.toml").write_text(f"{recipe}[training]\nmax_length = 128\n")
    values = [*sizes, *limits, "tokenizer.byte_fallback=false"]
    outcome = train(read(str(tmp_path / "student.toml"), values), tmp_path / "student", tmp_path)
    assert outcome is not None and outcome.steps == 2
    config = load_checkpoint(tmp_path / "student").config
    assert config.encoder_layers == 3 and config.decoder_layers == 1
    assert json.loads((tmp_path / "student" / "training.json").read_text())["corpus"]["test"] == 2
