"""tx-verify of one engine, over a device whose memory is the host's, and against golden.json without PyTorch."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from memory_device import MemoryDevice
from toy import BUNDLE, answer
from txport.exporter.golden import verify_golden
from txport.exporter.verify_command import main as command
from txport.runtime.bundle.manifest import Manifest, list_files
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.choice import choose
from txport.runtime.engines.native import missing
from txport.runtime.engines.ort_cuda import OrtProgram
from txport.runtime.errors import CheckFailed, InputError
from txport.runtime.translator import Translator


def engine_of(bundle: Path, manifest: Manifest) -> DeviceEngine:
    device = MemoryDevice(lazy=False)
    return DeviceEngine(device, manifest, OrtProgram(bundle, manifest, manifest.lowerings, device, provider="cpu"))


def test_an_engine_over_device_memory_says_what_pytorch_says(bundle: Path, checkpoint: Path) -> None:
    from txport.exporter.sample import choose_sample
    from txport.exporter.verification.verify import Verifier
    from txport.models.checkpoint import load_checkpoint
    from txport.runtime.console.progress import Stages

    manifest, loaded = Manifest.load(bundle), load_checkpoint(checkpoint)
    sample = choose_sample(loaded, 48, manifest.limits.source, manifest.limits.target, None, None)
    engine = engine_of(bundle, manifest)
    verifier = Verifier(loaded, sample, 5, Stages(enabled=False))
    report = verifier.verify_engine(bundle, manifest, engine)
    assert report.passed and report.token_identical == report.sentences == 48
    assert 0 < report.max_logit_error < 1e-3
    assert "ONNX Runtime" in report.arithmetic
    engine.limits = type(engine.limits)(8, engine.limits.source, engine.limits.target)
    with pytest.raises(InputError, match="tx-build --max-batch 32"):
        verifier.verify_engine(bundle, manifest, engine)


def test_golden_cases_are_enough_where_there_is_no_pytorch(bundle: Path, tmp_path: Path) -> None:
    assert (report := verify_golden(bundle, "cpu")).passed
    assert report.cases == report.batch_identical == report.refill_identical > 0
    wrong = Path(shutil.copytree(bundle, tmp_path / "wrong"))
    golden = json.loads((wrong / "golden.json").read_text())
    golden["cases"][3]["target_ids"][-2] += 1
    (wrong / "golden.json").write_text(json.dumps(golden))

    dataclasses.replace(Manifest.load(bundle), files=list_files(wrong)).write(wrong)
    report = verify_golden(wrong, "cpu")
    assert not report.passed and report.batch_identical == report.refill_identical == report.cases - 1
    assert report.differences[0].startswith("case 3, ids in batches of 64")
    command = "import sys; sys.argv[0] = 'tx-verify'; from txport.exporter.entry import verify; verify()"
    done = subprocess.run([sys.executable, "-I", "-c", command, wrong], capture_output=True, text=True, timeout=500)
    assert done.returncode == 1 and "case 3, ids in batches of 64" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")
def test_golden_cases_admit_the_fused_engine(bundle: Path, tmp_path: Path) -> None:
    """Of a bundle that was exported where the engine is not: it runs on ONNX Runtime until tx-verify has been there."""
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    manifest = Manifest.load(copy)
    assert manifest.verification is not None
    unverified = dataclasses.replace(manifest.verification, engines=("ort",))
    dataclasses.replace(manifest, verification=unverified).write(copy)
    assert Translator(copy).engine.name != "fused" and "tx-verify BUNDLE" in choose(Manifest.load(copy), "cpu").reason
    before = (copy / "manifest.json").read_bytes()
    assert CliRunner().invoke(command, [str(copy), "--no-write"], catch_exceptions=False).exit_code == 0
    assert (copy / "manifest.json").read_bytes() == before
    result = CliRunner().invoke(command, [str(copy)], catch_exceptions=False)
    assert result.exit_code == 0 and choose(Manifest.load(copy), "cpu").engine == "fused"
    Manifest.load(copy).check_files(copy, hashes=lambda name: True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


@pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")
def test_a_wrong_case_does_not_admit_it(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    golden = json.loads((copy / "golden.json").read_text())
    golden["cases"][3]["target_ids"][-2] += 1
    (copy / "golden.json").write_text(json.dumps(golden))
    manifest = Manifest.load(bundle)
    assert manifest.verification is not None
    unverified = dataclasses.replace(manifest.verification, engines=("ort",))
    dataclasses.replace(manifest, verification=unverified, files=list_files(copy)).write(copy)
    before = (copy / "manifest.json").read_bytes()
    with pytest.raises(CheckFailed, match="case 3, ids in batches of 64"):
        CliRunner().invoke(command, [str(copy)], catch_exceptions=False)
    assert (copy / "manifest.json").read_bytes() == before


def test_text_needs_a_checkpoint(bundle: Path) -> None:
    command = "import sys; sys.argv[0] = 'tx-verify'; from txport.exporter.entry import verify; verify()"
    arguments = [sys.executable, "-I", "-c", command, bundle, "--text", "lines.txt"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=500)
    assert done.returncode == 2 and "needs a CHECKPOINT" in done.stderr


def test_a_forced_beginning_is_part_of_every_answer(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    manifest = Manifest.load(copy)
    cases = []
    for source in ("the cat sees a bird", "one"):
        ids = Translator(copy).tokenizer.encode(source)
        cases.append({"source": source, "source_ids": ids, "target_ids": answer(ids, prefix=[7])[0]})
    (copy / "golden.json").write_text(json.dumps({"format_version": 1, "cases": cases}))
    tokenizer = dataclasses.replace(manifest.tokenizer, target_prefix=(7,))
    dataclasses.replace(manifest, tokenizer=tokenizer, files=list_files(copy)).write(copy)
    report = verify_golden(copy, "cpu")
    assert report.passed and report.refill_identical == report.cases == 2, report.differences
