"""A bundle of another state of its checkpoint: one short sentence, before anything else is compared."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from txport.exporter.verify_command import main
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
