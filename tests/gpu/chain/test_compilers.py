"""The chain of kernels compiled for GPUs: no spills, little shared memory, no headers.

Without TXPORT_WHOLE_GRID these are the oldest and the newest architecture, at base's size.
"""

import os
from pathlib import Path

import pytest
from chain_compilers import (
    ARCHITECTURES,
    compile_by_nvcc,
    compile_by_nvrtc,
    compile_in_advance,
    cubin_file,
    cubin_of,
    find_nvcc,
)
from chain_plan import CLASSES
from small_models import constants_of_small_models

BASE = {"D_MODEL": 512, "HEADS": 8, "HEAD_DIM": 64, "FFN": 2048, "VOCABULARY": 32000, "CACHE": 128}
LARGE = {**BASE, "D_MODEL": 1024, "HEADS": 16, "FFN": 4096}
POST = {"PRE_NORM": 0, "GATED": 0, "HALF_CACHES": 1, "NORM": 0, "ACTIVATION": 0, "EPSILON": 1e-5}
T5 = {**POST, "PRE_NORM": 1, "GATED": 1, "NORM": 1, "ACTIVATION": 2}
GELU = {**POST, "PRE_NORM": 1, "ACTIVATION": 1}
WHOLE = os.environ.get("TXPORT_WHOLE_GRID") == "1"
KERNELS = 10


@pytest.mark.parametrize("architecture", ARCHITECTURES if WHOLE else (ARCHITECTURES[0], ARCHITECTURES[-1]))
def test_no_kernel_spills_registers(architecture: int, tmp_path: Path) -> None:
    """Shared memory below 48 kB needs no attribute of the kernel."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("needs nvcc: pip install nvidia-cuda-nvcc")
    grid = [(rows, sizes, POST) for rows in CLASSES for sizes in (BASE, LARGE)]
    grid += [(8, BASE, options) for options in (T5, GELU)]
    for rows, sizes, options in grid if WHOLE else [(8, BASE, POST)]:
        constants = {"ROWS": rows, **sizes, **options}
        found = compile_by_nvcc(nvcc, constants, architecture, tmp_path / "chain.cubin")
        assert len(found) == KERNELS
        assert [each for each in found if each.spilt or each.shared > 48 << 10] == [], constants


@pytest.mark.parametrize("architecture", ARCHITECTURES if WHOLE else (ARCHITECTURES[-1],))
def test_nvrtc_needs_no_header(architecture: int) -> None:
    """What tx-build would do on a device without a compiler."""
    pytest.importorskip("cuda.bindings", reason="needs cuda-python: pip install 'txport[trt]'")
    try:
        cubin = compile_by_nvrtc({"ROWS": 8, **BASE, **POST}, architecture)
    except RuntimeError as error:
        if "libnvrtc" not in str(error):
            raise
        pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")
    assert cubin.startswith(b"\x7fELF")


def test_programs_are_compiled_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a machine needs no compiler. Another architecture, size or source has another file."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("needs nvcc: pip install nvidia-cuda-nvcc")
    small = next(constants_of_small_models())
    monkeypatch.setattr("chain_compilers.constants_of_small_models", lambda: [small])
    assert compile_in_advance(tmp_path / "no bundles", [90], tmp_path / "cubins") == 1
    (file,) = (tmp_path / "cubins").iterdir()
    assert cubin_of(small, 90, tmp_path / "cubins") == file.read_bytes()
    assert file.read_bytes().startswith(b"\x7fELF")
    for constants, architecture in ((small, 80), ({**small, "CACHE": 7}, 90)):
        assert not cubin_file(constants, architecture, tmp_path / "cubins").exists()
    monkeypatch.setattr("chain_compilers.find_nvcc", lambda: None)
    with pytest.raises(RuntimeError, match="needs nvcc: pip install nvidia-cuda-nvcc"):
        compile_in_advance(tmp_path / "no bundles", [90], tmp_path / "cubins")
