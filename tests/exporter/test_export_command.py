"""tx-export and tx-verify as a user meets them: exit codes, one sentence, and nothing half-written."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import commands
import pytest
import torch
from numpy_runner import random_model
from safetensors.torch import load_file, save_file
from txport.exporter import entry
from txport.exporter.reference import answers
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.transformer import Transformer
from txport.runtime.bundle.archive import write_archive
from txport.runtime.bundle.manifest import NAME, Manifest
from txport.runtime.translator import Translator

SCRIPTS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ids only and untrained: its choices are ties by and large, which float16 does not survive."""
    directory = tmp_path_factory.mktemp("random") / "checkpoint"
    save_checkpoint(directory, random_model(encoder_layers=1, decoder_layers=1), None, [], {})
    return directory


def start(command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A process of its own, as of a user; nearly all of its time are PyTorch's imports."""
    return subprocess.run([SCRIPTS / command, *map(str, arguments)], capture_output=True, text=True)


run = partial(commands.run, entry)


def refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One sentence on standard error, after lines of progress at most, the exit code, and the words."""
    lines = result.stderr.strip().splitlines()
    assert result.returncode == code, result.stderr
    assert lines and all(line.startswith("tx-") for line in lines), result.stderr
    for word in words:
        assert word in lines[-1]


@pytest.mark.parametrize("precision", [[], ["--fp16"]], ids=["float32", "float16"])
def test_one_file_is_verified_but_not_written(random_checkpoint: Path, tmp_path: Path, precision: list[str]) -> None:
    bundle, packed = tmp_path / "bundle", tmp_path / "model.txb"
    options = ("--sentences", "4", "--singles", "1")
    exported = run("tx-export", random_checkpoint, "-o", bundle, *options, "--lowering", "scatter", *precision)
    assert exported.returncode == 0, exported.stderr
    with packed.open("wb") as file:
        write_archive(file, bundle, [NAME, *Manifest.load(bundle).files])
    for arguments in ([], [random_checkpoint, *options], ["--engine", "ort"]):
        done = run("tx-verify", packed, *arguments, "--no-write")
        assert done.returncode == 0, done.stderr
    refused(run("tx-verify", packed), 2, "is one file, which is not changed: give --no-write")
    refused(run("tx-build", packed), 2, f"{packed} is one file", f"needs a directory: unzip {packed} -d DIRECTORY")
    refused(run("tx-push", packed, "someone/model"), 2, f"needs a directory: unzip {packed} -d DIRECTORY")


def test_attention_is_added_and_verified(random_checkpoint: Path, tmp_path: Path) -> None:
    """Two more graphs, compared with PyTorch; no other file of the graphs is another one for that."""
    options = ("--sentences", "4", "--singles", "1", "--lowering", "scatter", "--max-target", "12")
    plain, bundle = tmp_path / "plain", tmp_path / "bundle"
    assert run("tx-export", random_checkpoint, "-o", plain, *options).returncode == 0
    done = run("tx-export", random_checkpoint, "-o", bundle, *options, "--with-attention", "--json")
    assert done.returncode == 0, done.stderr
    attention = json.loads(done.stdout)["verification"]["attention"]
    assert attention["sentences"] == 4 and attention["failures"] == []
    assert attention["mean_weight_error"] < 1e-6 and attention["mean_own_score_error"] < 1e-5
    assert json.loads((plain / "verification.json").read_text())["attention"] is None
    names = [graph.name for graph in Manifest.load(bundle).graphs]
    assert names == ["encoder", "decoder_step.scatter", "decoder", "encoder_attention"]
    for file in (plain / "onnx").iterdir():
        assert file.read_bytes() == (bundle / "onnx" / file.name).read_bytes(), file.name


def test_a_step_of_beam_search_is_added_and_verified(random_checkpoint: Path, tmp_path: Path) -> None:
    options = ("--sentences", "4", "--singles", "1", "--lowering", "scatter", "--max-target", "12")
    done = run("tx-export", random_checkpoint, "-o", tmp_path / "bundle", *options, "--with-beams", "--json")
    assert done.returncode == 0, done.stderr
    beams = json.loads(done.stdout)["verification"]["beams"]
    assert beams["sentences"] == 4 and beams["max_score_error"] < 1e-5 and beams["failures"] == []
    graphs = Manifest.load(tmp_path / "bundle").graphs
    assert [graph.name for graph in graphs] == ["encoder", "decoder_step.scatter", "decoder_beams"]


def test_export_prints_its_report_and_refuses_to_overwrite(random_checkpoint: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    options = ("--sentences", "16", "--singles", "2", "--lowering", "ort,scatter", "--max-target", "12")
    done = start("tx-export", random_checkpoint, "-o", bundle, *options, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["verification"]
    assert report["passed"] and report["sentences"] == report["token_identical"] == 16
    assert json.loads((bundle / "verification.json").read_text()) == report
    manifest = Manifest.load(bundle)
    manifest.check_files(bundle, hashes=lambda name: True)
    assert [graph.name for graph in manifest.graphs] == ["encoder", "decoder_step.ort", "decoder_step.scatter"]
    assert manifest.limits.target == 12 and manifest.limits.source == 32
    before = (bundle / "manifest.json").read_bytes()
    refused(run("tx-export", random_checkpoint, "-o", bundle), 2, str(bundle), "--force")
    assert (bundle / "manifest.json").read_bytes() == before
    again = run("tx-verify", bundle, random_checkpoint, "--sentences", "8", "--singles", "1")
    assert again.returncode == 0, again.stderr
    assert "passed" in again.stdout
    assert json.loads((bundle / "verification.json").read_text())["sentences"] == 8


def test_a_failed_verification_leaves_no_bundle(random_checkpoint: Path, tmp_path: Path) -> None:
    """Where no error at all is allowed, nothing passes."""
    bundle, options = tmp_path / "bundle", ("--sentences", "20", "--singles", "1")
    with patch("txport.exporter.verification.verify.allowance", return_value=0.0):
        failed = run("tx-export", random_checkpoint, "-o", bundle, *options, "--lowering", "scatter")
        refused(failed, 1, "verification failed", "logits differ from PyTorch's", "--force")
        assert list(tmp_path.iterdir()) == []
        forced = run("tx-export", random_checkpoint, "-o", bundle, *options, "--lowering", "scatter", "--force")
        assert forced.returncode == 1 and "was kept because of --force" in forced.stderr
        assert json.loads((bundle / "verification.json").read_text())["passed"] is False
        assert Manifest.load(bundle).verification is not None
        refused(run("tx-verify", bundle, random_checkpoint, *options), 1, "verification failed")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lowering", "ort,best"], ["--lowering best", "scatter"]),
        (["--lowering", ","], ["--lowering is empty"]),
        (["--max-source", "65537"], ["--max-source 65537", "2 to 65536"]),
        (["--max-source", "0"], ["--max-source 0", "2 to 65536"]),
        (["--max-target", "0"], ["--max-target 0", "2 to 65536"]),
        (["--max-target", "1"], ["--max-target 1", "2 to 65536"]),
        (["--max-batch", "0"], ["--max-batch 0"]),
        (["--text", "absent.txt"], ["absent.txt", "cannot be read"]),
    ],
)
def test_bad_options(random_checkpoint: Path, tmp_path: Path, options: list[str], words: list[str]) -> None:
    refused(run("tx-export", str(random_checkpoint), "-o", str(tmp_path / "bundle"), *options), 2, *words)
    assert not (tmp_path / "bundle").exists()


def test_sinusoids_go_on_beyond_the_positions_of_the_model(random_checkpoint: Path, tmp_path: Path) -> None:
    """The oracle is the same model, made with more positions."""
    bundle = tmp_path / "bundle"
    options = ("--sentences", "4", "--singles", "1", "--lowering", "scatter", "--max-source", "100")
    done = run("tx-export", random_checkpoint, "-o", bundle, *options, "--max-target", "90")
    assert done.returncode == 0, done.stderr
    limits = Manifest.load(bundle).limits
    assert (limits.source, limits.target) == (100, 90)
    again = run("tx-verify", bundle, random_checkpoint, "--sentences", "4", "--singles", "1")
    assert again.returncode == 0, again.stderr
    model = load_checkpoint(random_checkpoint).model
    longer = Transformer(replace(model.config, max_positions=100)).eval()
    longer.load_state_dict(model.state_dict())
    sources = [[4 + (7 * i + j) % 60 for j in range(95)] for i in range(4)]
    expected = {
        i: t
        for answer in answers(longer, sources, 90)
        for i, t in zip(answer.batch.indices, answer.batch.targets, strict=True)
    }
    made = Translator(bundle, "cpu").translate_ids(sources, max_length=90)
    assert [list(result.ids) for result in made] == [expected[i] for i in range(4)]
    assert max(map(len, expected.values())) > 32


def test_learned_positions_end(tmp_path: Path) -> None:
    model = random_model(encoder_layers=1, decoder_layers=1, positions="learned")
    save_checkpoint(tmp_path / "learned", model, None, [], {})
    arguments = (str(tmp_path / "learned"), "-o", str(tmp_path / "bundle"), "--max-source", "33")
    refused(run("tx-export", *arguments), 2, "--max-source 33", "this model has learned positions for 2 to 32")


def test_the_help_names_every_lowering() -> None:
    """It does not import them, because they import PyTorch."""
    from txport.exporter.export_command import READ_BY
    from txport.exporter.graphs.lowerings import LOWERINGS
    from txport.runtime.bundle import schema

    assert tuple(READ_BY) == tuple(LOWERINGS) == schema.LOWERINGS


def test_threads_wait_actively_for_a_moment_only(tmp_path: Path) -> None:
    """PyTorch's OpenMP reads the variable when it is loaded."""
    program = (
        "import sys, os; from txport.exporter.entry import export\n"
        "class Watch:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'torch': print(os.environ.get('GOMP_SPINCOUNT'))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "sys.argv = ['tx-export', 'empty', '-o', 'bundle']; export()"
    )
    (tmp_path / "empty").mkdir()  # without weights, which are missed when PyTorch is there
    shutil.copy(Path(__file__).parents[1] / "data/checkpoints/batch/config.json", tmp_path / "empty")
    environment = {name: value for name, value in os.environ.items() if "OMP_" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 2 and done.stdout.splitlines() == ["1000"], done.stderr


def test_bad_checkpoints(random_checkpoint: Path, tmp_path: Path) -> None:
    def export(checkpoint: Path) -> subprocess.CompletedProcess[str]:
        return run("tx-export", str(checkpoint), "-o", str(tmp_path / "bundle"))

    refused(export(tmp_path / "absent"), 2, "absent does not exist")
    spoiled = tmp_path / "spoiled"
    shutil.copytree(random_checkpoint, spoiled)
    tensors = load_file(spoiled / "model.safetensors")
    name = "decoder.0.feed_forward.inner.weight"
    for change, words in (
        ({name: None}, f"lacks {name}"),
        ({"stranger": torch.zeros(1)}, "has stranger"),
        ({name: torch.zeros(3, 3)}, f"{name} has shape (3, 3)"),
    ):
        save_file({k: v for k, v in {**tensors, **change}.items() if v is not None}, spoiled / "model.safetensors")
        refused(export(spoiled), 2, "model.safetensors", words)
    (spoiled / "model.safetensors").write_bytes(b"\x80\x04not safetensors")
    refused(export(spoiled), 2, "model.safetensors", "not a whole safetensors file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spoiled"]


def test_kill_in_the_middle_leaves_nothing_that_looks_like_a_bundle(random_checkpoint: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    command = [SCRIPTS / "tx-export", random_checkpoint, "-o", bundle, "--sentences", "2000", "--lowering", "scatter"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob(".bundle.*/golden.json")):  # in the middle: graphs written, verification runs
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not bundle.exists()
    done = run("tx-export", random_checkpoint, "-o", bundle, "--no-verify", "--lowering", "scatter", "--sentences", "4")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"], "the next run clears what was left"


def test_full_disk(random_checkpoint: Path, small_disk: Path) -> None:
    result = run("tx-export", str(random_checkpoint), "-o", str(small_disk / "bundle"), "--no-verify")
    refused(result, 2, "disk is full", str(small_disk / "bundle"))
    assert os.listdir(small_disk) == []
