"""Searches of the C++ runtime against those of the Python one: the same bytes, hypotheses and scores among them."""

import itertools
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import commands
import pytest
from numpy_runner import random_model
from toy import BUNDLE as TOY
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.checkpoint import save_checkpoint
from txport.runtime import entry
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Generation
from txport.training.spoken import corpus as spoken

PIECES, SIZE = TOY / "tokenizer", 96
TOOL = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere")) / "txport-translate"

pytestmark = pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")

BEAM = "--beam 4 --n-best 4 --scores"
SEARCHES = [
    BEAM,
    "--beam 2 --early-stopping true --length-penalty 0.6 --prefix a",
    "--beam 5 --n-best 3 --early-stopping never --length-penalty 2 --min-length 9",
    "--beam 3 --n-best 2 --length-penalty -1 --early-stopping true --patience 2 --max-length 8",
    f"{BEAM} --repetition-penalty 1.4 --renormalize",
    f"{BEAM} --no-repeat-ngram 2 --forced-end 3 --max-length 9",
    f"{BEAM} --suppress 7 --suppress 9 --begin-suppress 3 --bad-words the --bad-words 'a big' --end-ids 12",
    "--scores --repetition-penalty 1.4 --no-repeat-ngram 3 --end-ids 12 --begin-suppress 7",
    "--sample --n-best 3 --scores --seed 5",
    "--sample --n-best 2 --temperature 1.7 --top-k 9 --top-p 0.9 --min-p 0.01 --seed 9223372036854775807",
    "--sample --temperature 2.5 --suppress 7 --no-repeat-ngram 1 --max-length 20",
    "--alternatives 3 --scores --prefix a",
    "--alternatives 4 --bad-words the",
    "--generation model --n-best 2",
    "--generation model --beam 1 --max-length 4",
]
REFUSED = [
    "--n-best 2",
    "--n-best 2 --json",
    "--beam 3 --n-best 4 --json",
    "--beam 999",
    "--sample --n-best 999 --json",
    "--alternatives 999 --json",
    "--beam 2 --sample",
    "--beam 2 --patience 2",
    "--max-length 5 --full-length",
    "--document --window 5",
    "--beam 2 --length-penalty nan",
    "--temperature 0",
    "--repetition-penalty -1.5",
    "--sample --top-p 1.5",
    "--min-p inf",
    "--bad-words ''",
    "--suppress 4000000",
    "--forced-end 100000",
]


def both(*arguments: object, text: bytes) -> "list[subprocess.CompletedProcess[bytes]]":
    words = [str(each) for each in arguments]
    cpp = subprocess.run([TOOL, *words], input=text, capture_output=True)
    return [commands.run_bytes(entry, "tx-translate", *words, stdin=text), cpp]


def said(done: "subprocess.CompletedProcess[bytes]") -> bytes:
    return done.stderr.replace(b"txport-translate", b"tx-translate")


def with_settings(bundle: Path, directory: Path, **settings: Any) -> Path:
    """A copy of a bundle whose model has settings of its own."""
    copy = Path(shutil.copytree(bundle, directory / "bundle"))
    Manifest(**{**vars(Manifest.load(copy)), "generation": Generation(**settings)}).write(copy)
    return copy


@pytest.fixture(scope="module")
def modelled(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {
        "beam": 3,
        "length_penalty": 2.0,
        "early_stopping": "never",
        "bad_words": ((9,), (5, 6)),
        "max_length": 11,
    }
    return with_settings(bundle, tmp_path_factory.mktemp("modelled"), **settings)


@pytest.mark.parametrize("engine", ["fused", "ort"])
@pytest.mark.parametrize("search", SEARCHES)
def test_python_and_cpp_find_the_same(modelled: Path, search: str, engine: str) -> None:
    written = [line for line, _ in itertools.islice(spoken.sentences(3, "test"), 40)]
    text = "\n".join(["", *written, "x", "word " * 60]).encode()
    expected, found = both(modelled, "--device", "cpu", "--engine", engine, "--json", *shlex.split(search), text=text)
    assert expected.returncode == found.returncode == 0, expected.stderr + found.stderr
    assert found.stdout.splitlines() == expected.stdout.splitlines()
    assert said(found) == said(expected)


@pytest.mark.parametrize("search", [BEAM, "--beam 9 --scores", SEARCHES[6], "--sample --n-best 3 --scores"])
def test_python_and_cpp_find_the_same_by_the_step_of_beam_search(attention_bundle: Path, search: str) -> None:
    """And the fused engine, which has no graphs: the same ids, and scores but for the last digits."""
    text = "\n".join(line for line, _ in itertools.islice(spoken.sentences(3, "test"), 40)).encode()
    where = ["--device", "cpu", "--engine", "ort", "--lowering", "ort"]
    expected, found = both(attention_bundle, *where, "--batch", 12, "--json", *shlex.split(search), text=text)
    assert expected.returncode == found.returncode == 0, expected.stderr + found.stderr
    assert found.stdout.splitlines() == expected.stdout.splitlines()
    _, fused = both(attention_bundle, "--device", "cpu", "--engine", "fused", "--json", *shlex.split(search), text=text)
    assert fused.returncode == 0, fused.stderr
    for ours, theirs in zip(*(map(json.loads, done.stdout.splitlines()) for done in (found, fused)), strict=True):
        for one, other in zip(ours.get("hypotheses", [ours]), theirs.get("hypotheses", [theirs]), strict=True):
            assert one["ids"] == other["ids"]
            assert one["scores"] == pytest.approx(other["scores"], abs=1e-4)


def test_hypotheses_may_reach_the_last_position(tmp_path: Path) -> None:
    """The longest text reaches it while two others, which were started later, continue; no text may end before."""
    model = random_model(positions="learned", max_positions=40, source_vocabulary=SIZE, target_vocabulary=SIZE)
    save_checkpoint(tmp_path / "checkpoint", model, PIECES, [], {})
    options = ExportOptions(lowerings=("ort",), beams=True, verify=False)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    text = "\n".join(["the cat sees a bird and a dog and a tree", "the cat", "the dog", "a cat", "a dog"]).encode()
    words = shlex.split(f"--device cpu --engine ort --workers 1 --batch 3 --json {BEAM} --suppress 3")
    expected, found = both(tmp_path / "bundle", *words, text=text)
    assert found.stdout.splitlines() == expected.stdout.splitlines() != []
    lengths = [len(json.loads(line)["hypotheses"][0]["ids"]) for line in found.stdout.splitlines()]
    assert lengths[0] == 40 and all(20 < length < 34 for length in lengths[1:]), "the limits of the case"


@pytest.mark.parametrize("int8", [False, True])
def test_large_attention_scores(int8: bool, tmp_path: Path) -> None:
    """Of hundreds of thousands: padding and empty cache slots have no weight in C++ either."""
    pytest.importorskip("torch", reason="needs PyTorch to export a bundle")
    from bundles import recorded_checkpoint
    from safetensors.torch import load_file, save_file
    from txport.exporter.export import ExportOptions, export_bundle

    recorded_checkpoint("tiny", tmp_path / "checkpoint")
    (file,) = (tmp_path / "checkpoint").glob("*.safetensors")
    weights = load_file(file)
    scaled = {name: 3e4 * tensor for name, tensor in weights.items() if ".query." in name}
    assert len(scaled) >= 6
    save_file({**weights, **scaled}, file)
    options = ExportOptions(lowerings=("ort",), beams=True, attention=True, verify=False, int8=int8)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    lines = [line for line, _ in itertools.islice(spoken.sentences(3, "test"), 30)]
    for engine, search in itertools.product(("ort", "fused"), (["--attention"], ["--beam", 3])):
        where = ["--device", "cpu", "--engine", engine, "--batch", 7, "--threads", 1, "--json"]
        expected, found = both(tmp_path / "bundle", *where, *search, text="\n".join(lines).encode())
        assert expected.returncode == found.returncode == 0, expected.stderr + found.stderr
        assert found.stdout.splitlines() == expected.stdout.splitlines(), (engine, search)


def test_beams_on_a_device_are_those_of_the_cpu(attention_bundle: Path) -> None:
    """In C++ alone, over a device in memory: Python's are compared with the CPU's in tests/runtime/device."""
    command = [TOOL.parent / "tests" / "txport_tests", "--no-intro", "--test-case=ONNX Runtime's beams over a device*"]
    done = subprocess.run(
        command, env={**os.environ, "TXPORT_TEST_BEAMS": str(attention_bundle)}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("search", REFUSED)
def test_python_and_cpp_refuse_alike(search: str) -> None:
    expected, found = both(TOY, "--device", "cpu", *shlex.split(search), text=b"the cat\n")
    assert (found.returncode, found.stdout, said(found)) == (2, b"", said(expected))
    assert expected.returncode == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beam": 4, "unsupported": ("num_beam_groups = 2", "top_h = 0.3")}, b"num_beam_groups = 2, top_h = 0.3"),
        ({"beam": 0}, b"--beam 0 is not 1 or more"),
        ({"temperature": 0.0}, b"--temperature 0.0 is not a number above 0"),
        ({"top_p": 1e16}, b"--top-p 1e+16 is not a number above 0, at most 1"),
        ({"beam": 2, "sample": True}, b"--beam excludes --sample"),
        ({"bad_words": ((),)}, b"--bad-words has"),
    ],
)
def test_settings_of_a_model_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, Any], words: bytes) -> None:
    bundle = with_settings(TOY, tmp_path, **settings)
    expected, found = both(bundle, "--device", "cpu", "--generation", "model", text=b"the cat\n")
    assert found.returncode == expected.returncode == 2
    assert words in found.stderr and said(found) == said(expected)
