"""Mistakes in a call are reported before a heavy library is imported, in one process for all commands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
HEAVY = ("torch", "lightning", "torchmetrics", "transformers", "onnxruntime", "onnx", "datasets")
# The working directory contains t.en with two lines, t.fr with one, the directories empty/ and busy/ (with a file), and
# r.toml, whose corpus is t; checkpoint and bundle are links.
CALLS = {
    "tx-train --recipe r.toml --data nope -o out": "nope/t.en does not exist",
    "tx-train --recipe r.toml -o out": "t.en has 2 lines and t.fr has 1",
    "tx-train --recipe nope -o out": "recipe nope cannot be read",
    "tx-train --recipe tiny -o t.en": "t.en exists",
    "tx-train --recipe tiny -o busy --force": "busy is not replaced",
    "tx-train --recipe tiny -o t.en/out": "t.en/out.run cannot be written (Not a directory)",
    "tx-train --recipe tiny -o out --resume": "holds no run to resume",
    "tx-train --recipe tiny -o out --from nope": "nope does not exist",
    "tx-train --recipe tiny -o out --from empty": "empty/config.json is missing",
    "tx-train --recipe tiny -o out --from bundle": "is a bundle",
    "tx-train --recipe tiny -o out --precision 17": "training.precision is '17'",
    "tx-train --recipe tiny -o out --set training.step=1": "did you mean",
    "tx-train --recipe tiny -o out --setp 1": "No such option '--setp'",
    "tx-export nope -o out": "nope does not exist",
    "tx-export empty -o out": "empty/config.json is missing",
    "tx-export t.en -o out": "t.en is not a checkpoint directory",
    "tx-export bundle -o out": "is a bundle",
    "tx-export checkpoint -o t.en": "t.en exists and is not a directory",
    "tx-export checkpoint -o busy": "busy exists already",
    "tx-export checkpoint -o t.en/out": "t.en/out cannot be written (Not a directory)",
    "tx-export checkpoint -o out --fp16 --int8": "--int8 and --fp16 exclude each other",
    "tx-export checkpoint -o out --int8 --lowering scatter": "--int8 is for CPUs through ONNX Runtime",
    "tx-export checkpoint -o out --lowering foo": "--lowering foo is unknown",
    "tx-export checkpoint -o out --lowering ,": "--lowering is empty",
    "tx-export checkpoint -o out --max-batch 0": "--max-batch 0 is not possible",
    "tx-export checkpoint -o out --text nope": "nope cannot be read",
    "tx-export checkpoint -o out --ids nope": "nope cannot be read",
    "tx-export checkpoint -o out --features nope": "nope cannot be read",
    "tx-export checkpoint -o out --ids t.en --reference-ids nope": "nope cannot be read",
    "tx-export checkpoint -o out --references t.en": "give them with --text",
    "tx-export checkpoint -o out --reference-ids t.en": "give them with --ids",
    "tx-export checkpoint -o out --ids t.en --text t.en": "--ids and --text exclude each other",
    "tx-export checkpoint -o out --features t.en --text t.en": "--features excludes --text and --ids",
    "tx-import nope -o out": "nope is neither a file nor a directory",
    "tx-import checkpoint -o out": "is a checkpoint of txport already",
    "tx-import bundle -o out": "is a bundle",
    "tx-import empty -o busy": "busy exists already",
    "tx-import empty -o t.en/out": "t.en/out cannot be written (Not a directory)",
    "tx-import empty -o out --adapter nope": "--adapter nope is not a directory",
    "tx-import empty -o out --vocabulary nope": "--vocabulary nope is not a directory",
    "tx-import empty -o out --heads 3 --from marian": "--heads 3 is for annotated and d2l",
    "tx-verify nope": "nope does not exist",
    "tx-verify empty": "empty has no manifest.json",
    "tx-verify bundle nope": "nope does not exist",
    "tx-verify bundle empty": "empty/config.json is missing",
    "tx-verify bundle bundle": "is a bundle",
    "tx-verify bundle checkpoint --ids nope": "nope cannot be read",
    "tx-verify bundle checkpoint --features nope": "nope cannot be read",
    "tx-verify bundle checkpoint --references t.en": "give them with --text",
    "tx-verify bundle checkpoint --device tpu": "device 'tpu' is not supported",
    "tx-evaluate nope": "nope does not exist",
    "tx-evaluate empty": "empty is neither a bundle (manifest.json) nor a checkpoint",
    "tx-evaluate checkpoint --source nope --reference t.en": "nope cannot be read",
    "tx-evaluate checkpoint --source t.en --reference t.fr": "t.en has 2 lines and t.fr has 1",
    "tx-evaluate checkpoint --source t.en": "--source and --reference belong together",
    "tx-evaluate checkpoint --source t.en --reference t.en --output t.fr/out": "t.fr/out cannot be written",
    "tx-get nope": "nope is not a model name",
    "tx-build empty": "empty has no manifest.json",
}
RUN = """
import contextlib, importlib.metadata, io, json, sys
entries = {entry.name: entry for entry in importlib.metadata.entry_points(group="console_scripts")}
calls, heavy = json.load(sys.stdin)
results = {}
for call in calls:
    sys.argv = call.split()
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            code = entries[sys.argv[0]].load()()
        except SystemExit as leaving:
            code = leaving.code
    results[call] = code, errors.getvalue(), [name for name in heavy if name in sys.modules]
    if results[call][2]:
        break
json.dump(results, sys.stdout)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, list[str]]]:
    """The exit code, the message and the heavy libraries of each call, up to the first that imports one."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
    directory = tmp_path_factory.mktemp("calls")
    for name, text in (("t.en", "a\nb\n"), ("t.fr", "a\n"), ("busy/x", "x\n")):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    (directory / "empty").mkdir()
    (directory / "checkpoint").symlink_to(DATA / "checkpoints" / "batch")
    (directory / "bundle").symlink_to(DATA / "toy_bundle")
    languages = 'source_language = "en"\ntarget_language = "fr"\n'
    (directory / "r.toml").write_text(
        f'[corpus]\nkind = "parallel"\ntrain = "t"\n{languages}[training]\nmax_steps = 1\n'
    )
    before = sorted(directory.iterdir())
    given = json.dumps([list(CALLS), HEAVY])
    run = subprocess.run(
        [sys.executable, "-c", RUN], input=given, cwd=directory, capture_output=True, text=True, check=True
    )
    assert sorted(directory.iterdir()) == before
    return dict(json.loads(run.stdout).items())


@pytest.mark.parametrize("call", CALLS)
def test_a_mistake_is_one_sentence_before_heavy_imports(
    results: dict[str, tuple[int, str, list[str]]], call: str
) -> None:
    assert call in results, f"a call before this one imported {list(results.values())[-1][2]}"
    code, message, heavy = results[call]
    assert (code, heavy) == (2, [])
    assert CALLS[call] in message
    assert "Traceback" not in message
