"""Verification on ids that the user gives, for models without a tokenizer."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from foreign_models import import_here
from tiny_marian import EOS, tiny_marian
from txport.exporter.export_command import main
from txport.exporter.sample import choose_sample
from txport.models.checkpoint import Checkpoint
from txport.runtime.errors import InputError

pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("marian")
    tiny_marian(directory / "theirs")
    return import_here(directory / "theirs", directory / "checkpoint", tokenizer=False)


def write_ids(file: Path, rows: list[list[int]]) -> Path:
    file.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    return file


ROWS = [[5, 6, 7, EOS], [], [8, 9, EOS], [20, 21, 22, 23, EOS]]


def test_the_sentences_are_those_of_the_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    ids = write_ids(tmp_path / "ids", ROWS)
    answers = write_ids(tmp_path / "answers", [[4, 3, EOS], [], [60, 2, EOS], [7, 60]])
    sample = choose_sample(checkpoint, 2, 20, 20, None, None, ids, answers)
    assert sample.sources == [ROWS[0], ROWS[2]] and sample.is_real and sample.origin == str(ids)
    assert sample.references == ["4 3", "2"]  # neither eos nor pad, which is 60 here, has a text
    assert sample.tokenizer.decode([60, 4, 3, EOS]) == "4 3"


@pytest.mark.parametrize("int8", [False, True])
def test_export_and_its_report(checkpoint: Checkpoint, int8: bool, tmp_path: Path) -> None:
    """BLEU of the numbers where there are references; a report says where the sentences come from."""
    rows = [[2 + (7 * i + j) % 50 for j in range(3 + i % 6)] + [EOS] for i in range(24)]
    ids = write_ids(tmp_path / "ids", rows)
    command = [str(checkpoint.directory), "-o", str(tmp_path / "bundle"), "--max-source", "20", "--max-target", "16"]
    given = ["--ids", str(ids), "--reference-ids", str(ids)]
    done = CliRunner().invoke(main, [*command, *given, "--json", *(["--int8"] if int8 else []), "--force"])
    report = json.loads(done.stdout)["verification"]
    assert report["origin"] == str(ids) and report["sentences"] == 24
    assert not any("random" in note for note in report["notes"])
    if int8:
        assert {each["quality"]["bleu"] is None for each in report["lowerings"]} == {False}
    assert f"on 24 sentences: {ids}." in (tmp_path / "bundle" / "README.md").read_text()
    done = CliRunner().invoke(main, [*command, "--lowering", "scatter", "--sentences", "12", "--json", "--force"])
    report = json.loads(done.stdout)["verification"]
    assert report["origin"].startswith("random ids") and any("were random" in note for note in report["notes"])


@pytest.mark.parametrize(
    ("ids", "more", "words"),
    [
        ("5 x 7\n", {}, "line 1 of .* contains something other than ids: '5 x 7'"),
        ("5 1_0 7\n", {}, "line 1 of .* contains something other than ids: '5 1_0 7'"),
        ("5 6\n61\n", {}, "line 2 of .* has an id outside the vocabulary of 61"),
        ("-1\n", {}, "line 1 of .* has an id outside"),
        ("\n\n", {}, "holds no sentence"),
        ("5 " * 30 + "\n", {}, "line 1 of .* has 30 ids, more than --max-source 20"),
        ("5\n6\n", {"reference_ids": "5\n"}, "has 1 line, but .* has 2"),
        (None, {"reference_ids": "5\n"}, "needs the sentences that it translates: give them with --ids"),
        ("5\n", {"text": "a\n"}, "--ids and --text exclude each other"),
    ],
)
def test_files_that_do_not_fit(
    checkpoint: Checkpoint, ids: str | None, more: dict[str, str], words: str, tmp_path: Path
) -> None:
    files = {}
    for name, content in {"ids": ids, **more}.items():
        if content is not None:
            files[name] = tmp_path / name
            files[name].write_text(content)
    with pytest.raises(InputError, match=words) as refused:
        choose_sample(checkpoint, 4, 20, 20, **files)
    assert not re.search("\n", str(refused.value))
