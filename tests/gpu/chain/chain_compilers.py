"""chain.cu for GPUs: by nvcc, with its report of registers, or by NVRTC, without a header.

`python chain_compilers.py BUNDLES FOLDER ARCHITECTURE...` compiles it in advance, for machines without compilers.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chain_bundle import constants_of
from small_models import constants_of_small_models

SOURCES = Path(__file__).parent
CUBINS = SOURCES / "cubins"  # compiled in advance
# From Turing to Blackwell; 87 and 110 are Jetson Orin and Thor.
ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 110, 120)


def source() -> str:
    """Return the program, which includes nothing."""
    return "".join((SOURCES / name).read_text() for name in ("ptx.cuh", "chain.cu"))


def definitions(constants: Mapping[str, int | float]) -> list[str]:
    """Return the compiler's options for these sizes."""
    return [f"-D{name}={value}{'f' if isinstance(value, float) else ''}" for name, value in constants.items()]


def find_nvcc() -> str | None:
    """Return nvcc of the system or of pip's nvidia-cuda-nvcc."""
    packages = (str(path) for place in sys.path for path in Path(place or ".").glob("nvidia/c*/bin/nvcc"))
    return shutil.which("nvcc") or next(packages, None)


@dataclass(frozen=True)
class Usage:
    """Resources of a kernel: registers of a thread, spilt bytes, bytes of shared memory."""

    kernel: str
    registers: int
    spilt: int
    shared: int


def usages(report: str) -> Iterator[Usage]:
    """Read the report of `ptxas -v`."""
    for part in re.split(r"Compiling entry function '", report)[1:]:
        stores, loads = map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", part)[:2])
        shared = re.search(r"(\d+) bytes smem", part)
        registers = re.search(r"Used (\d+) registers", part)
        assert registers is not None, part
        yield Usage(part.partition("'")[0], int(registers[1]), stores + loads, int(shared[1]) if shared else 0)


def compile_by_nvcc(nvcc: str, constants: Mapping[str, int | float], architecture: int, output: Path) -> list[Usage]:
    """Compile to a cubin; returns the resources of each kernel."""
    file = output.with_suffix(".cu")
    file.write_text(source())
    options = ["-std=c++17", f"-arch=sm_{architecture}", "-cubin", "-Xptxas", "-v", *definitions(constants)]
    done = subprocess.run([nvcc, *options, "-o", output, file], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return list(usages(done.stdout + done.stderr))


def compile_by_nvrtc(constants: Mapping[str, int | float], architecture: int) -> bytes:
    """Compile to a cubin in this process.

    Raises:
        RuntimeError: NVRTC is missing, or has failed; the message is its log.
    """
    from cuda.bindings import nvrtc  # needs the library when it is imported

    error, program = nvrtc.nvrtcCreateProgram(source().encode(), b"chain.cu", 0, [], [])
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC failed: {error.name}")
    options = ["-std=c++17", f"-arch=sm_{architecture}", *definitions(constants)]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"NVRTC failed: {log.decode(errors='replace')}")
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    cubin = b" " * size
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(program)
    return cubin


def cubin_file(constants: Mapping[str, int | float], architecture: int, folder: Path) -> Path:
    """Return where a program that was compiled in advance is; its name is a hash of all it depends on."""
    text = "\n".join([source(), str(architecture), *sorted(definitions(constants))])
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.cubin"


def cubin_of(constants: Mapping[str, int | float], architecture: int, folder: Path = CUBINS) -> bytes:
    """Return the program: compiled in advance, or now by NVRTC.

    Raises:
        RuntimeError: NVRTC is missing, or has failed.
    """
    file = cubin_file(constants, architecture, folder)
    if file.exists():
        return file.read_bytes()
    return compile_by_nvrtc(constants, architecture)


def compile_in_advance(bundles: Path, architectures: list[int], folder: Path) -> int:
    """Compile for all bundles of a directory that the chain can compute; returns the number of programs.

    Raises:
        RuntimeError: nvcc is not installed.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise RuntimeError("compiling the chain of kernels needs nvcc: pip install nvidia-cuda-nvcc")
    wanted = list(constants_of_small_models())
    for manifest in sorted(bundles.glob("*/manifest.json")):
        try:
            wanted += constants_of(manifest.parent)
        except ValueError as reason:
            print(f"{manifest.parent.name}: {reason}")
    folder.mkdir(parents=True, exist_ok=True)
    files = set()
    for constants in wanted:
        for architecture in architectures:
            file = cubin_file(constants, architecture, folder)
            files.add(file)
            if not file.exists():
                compile_by_nvcc(nvcc, constants, architecture, file)
                file.with_suffix(".cu").unlink()
    return len(files)


if __name__ == "__main__":
    print(compile_in_advance(Path(sys.argv[1]), [int(each) for each in sys.argv[3:]], Path(sys.argv[2])), "programs")
