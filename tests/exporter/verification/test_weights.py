"""A bundle of another state of its checkpoint: one short sentence, before anything else is compared."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from txport.exporter.verification import weights
from txport.exporter.verification.report import WeightsReport
from txport.exporter.verify_command import main
from txport.models.checkpoint import load_checkpoint
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.errors import CheckFailed


def test_a_bundle_of_another_state_is_one_short_sentence(bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    trained = shutil.copytree(checkpoint, tmp_path / "trained")
    file = trained / "model.safetensors"
    save_file({name: tensor * 1.01 for name, tensor in load_file(file).items()}, file)
    done = CliRunner().invoke(main, [str(bundle), str(trained), "--no-write"])
    assert isinstance(done.exception, CheckFailed) and done.output == ""
    words = str(done.exception)
    assert f"{bundle} has other weights than {trained}" in words and "and" in words and len(words) < 600
    assert words.endswith("it was exported from another state, export it again") and words.count("weight") < 8


def compared(bundle: Path, checkpoint: Path) -> WeightsReport:
    manifest, model = Manifest.load(bundle), load_checkpoint(checkpoint).model
    longest = max(manifest.limits.source, manifest.limits.target)
    model.lengthen(longest)
    assert manifest.parameters is not None
    return weights.compare_weights(model, manifest.parameters, bundle / WEIGHTS, longest)


def test_each_part_of_a_large_tensor_has_its_own_scales(
    int8_bundle: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of a million numbers are compared in parts: here are small ones, in parts of a few rows."""
    monkeypatch.setattr(weights, "_BLOCK", 256)
    assert compared(int8_bundle, checkpoint).failures == []


def test_a_weight_that_is_no_number_is_another_one(bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(bundle, tmp_path / "bundle")
    parameters = Manifest.load(changed).parameters
    assert parameters is not None
    name, offset = next((each.name, each.offset) for each in parameters.tensors if each.name.endswith("outer.weight"))
    with (changed / WEIGHTS).open("r+b") as file:
        file.seek(offset)
        file.write(np.float32(np.nan).tobytes())
    (failure,) = compared(changed, checkpoint).failures
    assert failure.startswith("1 of ") and f"weights of {name} are not" in failure and "nan instead of" in failure


@pytest.mark.parametrize("mistake", ["nowhere", "bundle", "text"])
def test_mistakes_are_said_before_pytorch_is_imported(bundle: Path, checkpoint: Path, mistake: str) -> None:

    more, words = {
        "nowhere": (["nowhere"], "nowhere does not exist"),
        "bundle": ([str(bundle)], "is a bundle: give the checkpoint it was exported from"),
        "text": ([str(checkpoint), "--text", "nowhere.txt"], "nowhere.txt cannot be read"),
    }[mistake]
    for name, first in (("verify", [str(bundle)]), ("export", ["-o", "/nowhere/x"])):
        code = f"import sys; sys.modules['torch'] = None; from txport.exporter.entry import {name}; {name}()"
        done = subprocess.run([sys.executable, "-c", code, *first, *more], capture_output=True, text=True)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
