"""Mistakes in a call are reported before a heavy library is imported, in one process for all commands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from txport.training.recipe import read

DATA = Path(__file__).parent / "data"
HEAVY = ("torch", "lightning", "torchmetrics", "transformers", "onnxruntime", "onnx", "datasets")
# The working directory contains these files, the directory empty/, and r.toml, whose corpus is t. checkpoint, tiny (one
# with a tokenizer) and bundle are links.
FILES = {
    "t.en": "a\nb\n",
    "t.fr": "a\n",
    "blank": "\n \n",
    "latin": "\xe9\n",
    "ids": "4 3\n",
    "ids2": "4 3\n4 4 3\n",
    "busy/x": "x\n",
    "damaged/config.json": "{",
    "onnx/a.onnx": "x",
    "marian/config.json": '{"model_type": "marian"}',
    "gpt2/config.json": '{"model_type": "gpt2"}',
}
CALLS = {
    "tx-train --recipe r.toml --data nope -o out": "nope/t.en does not exist",
    "tx-train --recipe r.toml -o out": "t.en has 2 lines and t.fr has 1",
    "tx-train --recipe nope -o out": "recipe nope cannot be read",
    "tx-train --recipe tiny -o t.en": "t.en exists",
    "tx-train --recipe tiny -o busy --force": "busy is not replaced",
    "tx-train --recipe tiny -o t.en/out": "t.en/out.run cannot be written (Not a directory)",
    "tx-train --recipe tiny -o out --resume": "holds no run to resume",
    "tx-train --recipe digits -o begun --resume": "begun.run/recipe.json has another [corpus] than this recipe",
    "tx-train --recipe tiny -o begun --resume --batch-tokens 800": "has another [training] than this recipe",
    "tx-train --recipe tiny -o out --from nope": "nope does not exist",
    "tx-train --recipe tiny -o out --from empty": "empty/config.json is missing",
    "tx-train --recipe tiny -o out --from bundle": "is a bundle",
    "tx-train --recipe tiny -o out --precision 17": "training.precision is '17'",
    "tx-train --recipe tiny -o out --from checkpoint": "checkpoint has no tokenizer",
    "tx-train --recipe tiny -o out --from tiny --preset base": "the recipe's model.",
    "tx-train --recipe tiny -o out --from tiny --set training.max_length=100000 --batch-tokens 100000": "is above",
    "tx-train --recipe tiny -o out --accelerator foo": "training.accelerator is 'foo', not one of auto, cpu, gpu",
    "tx-train --recipe tiny -o out --strategy dpp": "training.strategy is 'dpp': did you mean ddp?",
    "tx-train --recipe tiny -o out --devices two": "training.devices is 'two': give a number (2)",
    "tx-train --recipe tiny -o out --devices 0": "training.devices is '0': give a number (2)",
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
    "tx-export checkpoint -o out --max-source 1": "--max-source 1 is not possible: this model has",
    "tx-export checkpoint -o out --max-target 1000000": "--max-target 1000000 is not possible: this model has",
    "tx-export damaged -o out": "damaged/config.json",
    "tx-export checkpoint -o out --text t.en": "t.en cannot be used: checkpoint has no tokenizer",
    "tx-export tiny -o out --text t.en --references t.fr": "t.fr has 1 line, but t.en has 2",
    "tx-export tiny -o out --text blank": "blank holds no sentence",
    "tx-export tiny -o out --text latin": "latin, line 1",
    "tx-export checkpoint -o out --ids t.en": "line 1 of t.en contains something other than ids",
    "tx-export checkpoint -o out --ids ids --reference-ids t.fr": "line 1 of t.fr contains something other than ids",
    "tx-export checkpoint -o out --ids ids --reference-ids ids2": "ids2 has 2 lines, but ids has 1",
    "tx-export checkpoint -o out --ids ids2 --max-source 2": "line 2 of ids2 has 3 ids, more than --max-source 2",
    "tx-export checkpoint -o out --features ids": "ids cannot be used: checkpoint reads text",
    "tx-export checkpoint -o out --text nope": "nope cannot be read",
    "tx-export checkpoint -o out --ids nope": "nope cannot be read",
    "tx-export checkpoint -o out --features nope": "nope cannot be read",
    "tx-export checkpoint -o out --ids t.en --reference-ids nope": "nope cannot be read",
    "tx-export checkpoint -o out --references t.en": "give them with --text",
    "tx-export checkpoint -o out --reference-ids t.en": "give them with --ids",
    "tx-export checkpoint -o out --ids t.en --text t.en": "--ids and --text exclude each other",
    "tx-export checkpoint -o out --features t.en --text t.en": "--features excludes --text and --ids",
    "tx-import nope -o out": "nope is neither a file nor a directory",
    "tx-import busy/nope -o out": "busy/nope does not exist, but the directory busy does: correct the path, or run",
    "tx-import ./nope -o out": "./nope does not exist",
    "tx-import ../nope -o out": "../nope does not exist",
    "tx-import /nope/nope -o out": "/nope/nope does not exist",
    "tx-import checkpoint -o out": "is a checkpoint of txport already",
    "tx-import bundle -o out": "is a bundle",
    "tx-import empty -o out": "empty: its kind was not recognised",
    "tx-import gpt2 -o out": "model_type 'gpt2' is not supported",
    "tx-import damaged -o out": "is not JSON",
    "tx-import empty -o busy": "busy exists already",
    "tx-import empty -o t.en/out": "t.en/out cannot be written (Not a directory)",
    "tx-import empty -o out --adapter nope": "--adapter nope is not a directory",
    "tx-import empty -o out --vocabulary nope": "--vocabulary nope is not a directory",
    "tx-import empty -o out --heads 3 --from marian": "--heads 3 is for annotated and d2l",
    "tx-verify nope": "nope does not exist",
    "tx-verify empty": "empty has no manifest.json",
    "tx-verify t.en": "t.en is not a bundle: give a directory of tx-export or a file of tx-pack",
    "tx-verify packed.txb": "packed.txb is one file, which is not changed: give --no-write",
    "tx-verify bundle packed.txb": "packed.txb is a bundle: give the checkpoint it was exported from",
    "tx-import packed.txb -o out": "packed.txb is a bundle: it needs no import",
    "tx-export packed.txb -o out": "packed.txb is a bundle: give the checkpoint",
    "tx-import onnx -o out": "onnx is an ONNX model, which txport does not read: give the model that it was converted",
    "tx-translate onnx/a.onnx": "onnx/a.onnx is an ONNX model, which txport does not read",
    "tx-pack t.en -o out": "t.en is not a bundle: give a directory of tx-export or a file of tx-pack",
    "tx-pack packed.txb -o out": "packed.txb is one file, and tx-pack needs a directory: unzip packed.txb -d DIRECTORY",
    "tx-push onnx/a.onnx a/b": "onnx/a.onnx is an ONNX model",
    "tx-shortlist t.en --source t.en --target t.en": "t.en is not a bundle",
    "tx-build t.en": "t.en is not a bundle",
    "tx-verify bundle nope": "nope does not exist",
    "tx-verify bundle empty": "empty/config.json is missing",
    "tx-verify bundle bundle": "is a bundle",
    "tx-verify bundle checkpoint --ids nope": "nope cannot be read",
    "tx-verify bundle checkpoint --features nope": "nope cannot be read",
    "tx-verify bundle checkpoint --text t.en": "t.en cannot be used: checkpoint has no tokenizer",
    "tx-verify bundle tiny --text t.en --references t.fr": "t.fr has 1 line, but t.en has 2",
    "tx-verify bundle damaged": "damaged/config.json",
    "tx-verify bundle checkpoint --references t.en": "give them with --text",
    "tx-verify bundle checkpoint --device tpu": "device 'tpu' is not supported",
    "tx-evaluate nope": "nope does not exist",
    "tx-evaluate empty": "empty is neither a bundle (manifest.json) nor a checkpoint",
    "tx-evaluate checkpoint --source nope --reference t.en": "nope cannot be read",
    "tx-evaluate checkpoint --source t.en --reference t.fr": "t.en has 2 lines and t.fr has 1",
    "tx-evaluate checkpoint --source t.en --reference t.en --device foo": "device 'foo' is not supported",
    "tx-evaluate checkpoint --source t.en --reference t.en --engine foo": "engine 'foo' is not supported",
    "tx-evaluate checkpoint --source t.en --reference t.en --engine ort": "is a checkpoint, which PyTorch runs",
    "tx-evaluate checkpoint --source t.en": "--source and --reference belong together",
    "tx-evaluate checkpoint --source t.en --reference t.en --output t.fr/out": "t.fr/out cannot be written",
    "tx-get nope": "nope is not a model name",
    "tx-get a/b --source busy/nope": "busy/nope does not exist, but the directory busy does",
    "tx-get a/b --source ./nope": "./nope does not exist",
    "tx-get a/b --source nope": "nope is neither a file nor a directory",
    "tx-get a/b --source checkpoint": "is a checkpoint of txport already",
    "tx-translate busy/nope": "busy/nope does not exist",
    "tx-inspect busy/nope": "busy/nope does not exist",
    "tx-translate-corpus busy/nope t.en -o out": "busy/nope does not exist",
    "tx-pack busy/nope -o out": "busy/nope does not exist",
    "tx-attention checkpoint hello -o t.en/a.svg": "t.en/a.svg cannot be written (Not a directory)",
    "tx-attention checkpoint hello -o a.jpg": "a.jpg is not a supported picture format",
    "tx-attention checkpoint hello -o a.svg --kind foo": "there is no attention of the kind 'foo'",
    "tx-attention empty hello -o a.svg": "empty is neither a bundle",
    "tx-attention nope hello -o a.svg": "nope does not exist",
    "tx-shortlist bundle --source nope --target t.en --no-check": "nope cannot be read",
    "tx-shortlist bundle --source t.en --target t.fr --no-check": "t.en has 2 lines and t.fr has 1",
    "tx-shortlist bundle --source t.en --target t.en --no-check --alignments nope": "nope cannot be read",
    "tx-shortlist bundle --source t.en --target t.en --no-check --table nope": "nope cannot be read",
    "tx-shortlist bundle --source t.en --target t.en --check-source nope --check-reference t.en": "nope cannot be read",
    "tx-shortlist bundle --source t.en --target t.en --check-source t.en --check-reference t.fr": "t.en has 2 lines",
    "tx-distill bundle --source nope -o out.tsv": "nope cannot be read",
    "tx-distill bundle --source t.en -o t.en/out.tsv": "t.en/out.tsv cannot be written",
    "tx-distill empty --source t.en -o out.tsv": "empty has no manifest.json",
    "tx-triton bundle -o busy": "busy exists already",
    "tx-pack bundle -o t.en/out": "t.en/out cannot be written (Not a directory)",
    "tx-evaluate checkpoint --recipe nope": "recipe nope cannot be read",
    "tx-verify bundle tiny": "was not exported from tiny",
    "tx-import marian -o out": "marian holds no weights (model.safetensors, pytorch_model.bin, or shards",
    "tx-bench nope -o out": "nope does not exist",
    "tx-bench empty -o out": "empty has no manifest.json",
    "tx-bench old -o out --text nope": "nope cannot be read",
    "tx-bench old -o out --peer pytorch --checkpoint nope": "nope/config.json is missing",
    "tx-bench old -o out --against nope": "nope does not exist",
    "tx-bench old -o t.en/out": "t.en/out cannot be written",
    "tx-push bundle name": "name is not OWNER/NAME",
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
    for name, text in FILES.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text, encoding="latin-1")
    (directory / "empty").mkdir()
    (directory / "checkpoint").symlink_to(DATA / "checkpoints" / "batch")
    (directory / "tiny").symlink_to(DATA / "checkpoints" / "tiny")
    (directory / "bundle").symlink_to(DATA / "toy_bundle")
    (directory / "old").symlink_to(DATA / "before_t5" / "bundle")
    (directory / "packed.txb").symlink_to(DATA / "toy_bundle.txb")
    languages = 'source_language = "en"\ntarget_language = "fr"\n'
    (directory / "r.toml").write_text(
        f'[corpus]\nkind = "parallel"\ntrain = "t"\n{languages}[training]\nmax_steps = 1\n'
    )
    (directory / "begun.run/state").mkdir(parents=True)
    (directory / "begun.run/recipe.json").write_text(json.dumps(read("tiny").to_json()))
    (directory / "begun.run/state/last.ckpt").touch()
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
