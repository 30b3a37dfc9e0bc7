"""arm64 against x86: the C++ runtime under qemu gives the ids of the Python runtime here. `make arm64` runs these."""

import itertools
import json
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from parity import Difference, by_cpp, by_python, compare
from txport.runtime.engines.native import missing
from txport.training.spoken import corpus as spoken

SOURCE = Path(__file__).parents[2] / "runtime" / "cpp"
# What qemu runs as: a Jetson Nano's processor, one with dot products in int8 as an Orin's has, and all that qemu knows.
CPUS = ("cortex-a57", "cortex-a76", "max")
# Log-probabilities that are nearer to each other than this are a tie, by the bundle's fixture.
TIES = {"bundle": 1e-3, "int8_bundle": 0.1}
LINES = 500


def answers(*lines: tuple[Sequence[int], Sequence[float]]) -> list[bytes]:
    return [json.dumps({"text": "", "ids": ids, "scores": scores}).encode() for ids, scores in lines]


def test_a_difference_is_where_answers_part() -> None:
    expected = answers(([5, 6, 3], [-0.1, -0.2, -0.3]), ([5, 3], [-0.5, -0.5]), ([7], [-1.0]))
    found = answers(([5, 6, 3], [-0.1, -0.25, -0.3]), ([5, 8, 3], [-0.5, -0.7, -9.0]), ([7, 3], [-1.0, -0.1]))
    result = compare(expected, found)
    assert result.lines == 3 and result.deviation == pytest.approx(0.05)
    assert result.differences == (Difference(1, 1, pytest.approx(0.2)), Difference(2, 1, math.inf))
    assert [difference.line for difference in result.beyond(0.3)] == [2] and len(result.beyond(0.1)) == 2
    assert str(result).startswith(
        "1 of 3 lines have the same ids, the others up to two ids that are inf apart or less; "
    )
    assert str(compare(expected, expected)) == (
        "3 of 3 lines have the same ids; the log-probabilities of equal ids differ by 0 at most"
    )
    with pytest.raises(ValueError, match="shorter"):
        compare(expected, found[:2])


@pytest.mark.skipif("TXPORT_ARM64" not in os.environ, reason="needs the C++ build for arm64: make arm64")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", TIES)
@pytest.mark.parametrize("engine", ["ort", "fused"])
def test_arm64_gives_the_ids_of_x86(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    kind: str,
    cpu: str,
) -> None:
    if engine == "fused" and (reason := missing()) is not None:
        pytest.skip(reason)
    bundle: Path = request.getfixturevalue(kind)
    lines = [written for written, _ in itertools.islice(spoken.sentences(3, "test"), LINES)]
    expected = by_python(bundle, lines, {"engine": engine}, 32)
    monkeypatch.setenv("QEMU_CPU", cpu)
    tool = Path(os.environ["TXPORT_ARM64"]) / "txport-translate"
    result = compare(expected, by_cpp(tool, bundle, lines, {"engine": engine}, 32))
    with capsys.disabled():
        print(f"\n{bundle.name} by {engine}, arm64 ({cpu}) and x86: {result}")
    assert result.beyond(TIES[kind]) == []
    assert len(result.differences) <= (0 if kind == "bundle" else 0.02 * LINES)


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs CMake: make cpp")
@pytest.mark.parametrize("folder", ["relative", "/nowhere"])
def test_the_toolchain_wants_libraries_for_the_device(tmp_path: Path, folder: str) -> None:
    command = [
        "cmake",
        "-S",
        SOURCE,
        "-B",
        tmp_path,
        "--toolchain",
        "cmake/aarch64.cmake",
        f"-DTXPORT_SYSROOT={folder}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    said = " ".join(done.stderr.split())
    assert done.returncode == 1
    assert f"TXPORT_SYSROOT is '{folder}': give the absolute path of a folder with usr/lib/aarch64-linux-gnu" in said


def test_arm64_is_prepared_from_four_things() -> None:
    done = subprocess.run([SOURCE / "arm64.sh", "build"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 2 and done.stdout.endswith("arm64.sh FOLDER PYTHON WHEEL CONSTRAINTS\n")
