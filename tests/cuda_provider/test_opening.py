"""What a user sees whose machine lacks something that ONNX Runtime's CUDA provider needs, and what comes instead."""

import os
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

pytestmark = pytest.mark.cuda_provider
STUBS = Path(os.environ.get("TXPORT_CUDA_STUBS", ""))
TRANSLATE = "import sys; sys.argv[0] = 'tx-translate'; from txport.runtime.entry import translate; translate()"
LINES = "it cost $12.50\nroom 7\n"
NO_CUDNN = (
    "ONNX Runtime cannot start its CUDA provider: libcudnn.so.9 is missing, "
    "pip install 'onnxruntime-gpu[cuda,cudnn]' brings it; or use --device cpu"
)


def translate(
    bundle: Path, device: str, *options: str, libraries: Path = STUBS / "cudnn", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run tx-translate where the loader looks for CUDA's libraries in one folder."""
    command = [sys.executable, "-c", TRANSLATE, str(bundle), "--device", device, *options]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), **environment}
    return subprocess.run(command, input=LINES, env=environment, capture_output=True, text=True, timeout=500)


def check_refused(done: subprocess.CompletedProcess[str], reason: str) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"tx-translate: {reason}\n")


def check_on_cpu(done: subprocess.CompletedProcess[str], bundle: Path, reason: str) -> None:
    """The CPU's translations and nothing else, and one warning."""
    expected = translate(bundle, "cpu")
    assert done.stdout == expected.stdout and done.stdout.count("\n") == LINES.count("\n")
    assert done.stderr.replace(expected.stderr, "") == f"tx-translate: {reason}; the CPU is used instead\n"
    assert done.returncode == 0


def test_with_everything_there_it_is_used_and_says_nothing(float16_bundle: Path) -> None:
    program = "import sys; from txport.runtime.translator import Translator; print(Translator(sys.argv[1]).engine.name)"
    command = [sys.executable, "-c", program, str(float16_bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.stdout == f"ONNX Runtime {onnxruntime.__version__} on cuda, lowering ort\n" and not done.stderr


def test_without_cudnn_one_sentence_says_so(float16_bundle: Path) -> None:
    """1.23 is linked to it; from 1.31 on it is looked for by the first operator that needs it, in the first step."""
    check_refused(translate(float16_bundle, "cuda", libraries=STUBS / "no-cudnn"), NO_CUDNN)
    check_on_cpu(translate(float16_bundle, "auto", libraries=STUBS / "no-cudnn"), float16_bundle, NO_CUDNN)


def test_a_driver_for_an_older_cuda_is_named(float16_bundle: Path) -> None:
    built = int(onnxruntime.cuda_version.partition(".")[0])
    driver = {12: 525, 13: 580}[built]
    reason = (
        f"ONNX Runtime cannot start its CUDA provider: ONNX Runtime {onnxruntime.__version__} is built for CUDA "
        f"{built} and the NVIDIA driver supports CUDA {built - 1}.4 at most: update the driver to {driver} or newer, "
        f"or install an onnxruntime-gpu for CUDA {built - 1}; or use --device cpu"
    )
    older = str((built - 1) * 1000 + 40)
    check_refused(translate(float16_bundle, "cuda", TXPORT_TEST_CUDA_VERSION=older), reason)
    check_on_cpu(translate(float16_bundle, "auto", TXPORT_TEST_CUDA_VERSION=older), float16_bundle, reason)


def test_libraries_of_another_site_directory_are_found(float16_bundle: Path, tmp_path: Path) -> None:
    """Lay libraries out as pip does: a folder for each until CUDA 12, one for all but cuDNN from 13 on."""
    drivers, site = tmp_path / "drivers", tmp_path / "site"
    drivers.mkdir()
    for library in (STUBS / "cudnn").iterdir():
        name = library.name.partition(".")[0].removeprefix("lib")
        package = "cudnn" if name == "cudnn" else "cu13" if library.name.endswith(".13") else name
        folder = drivers if name == "cuda" else site / "nvidia" / package / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / library.name).symlink_to(library)
    done = translate(float16_bundle, "cuda", libraries=drivers, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    without = translate(float16_bundle, "cuda", libraries=drivers)
    assert without.returncode == 2 and "libcublasLt.so." in without.stderr and "is missing" in without.stderr
