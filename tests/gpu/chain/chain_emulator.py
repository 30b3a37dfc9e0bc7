"""The chain of kernels on the CPU: chain.cu compiled by a C++ compiler, with fibers for the threads of a block."""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from chain_plan import Address, Array, Chain, Launch
from small_models import decode_small_models

SOURCES = Path(__file__).parent
# Also with other chunks in registers, which must change nothing.
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1", "-DEMULATED_CHUNKS=4")


def missing() -> str | None:
    """Return what the emulator needs and this machine lacks."""
    if platform.machine() != "x86_64":
        return "needs x86-64: the emulator's fibers are written for it"
    if "f16c" not in Path("/proc/cpuinfo").read_text():
        return "needs a processor with half precision (F16C)"
    if shutil.which("g++") is None:
        return "needs a C++ compiler: apt install g++"
    return None


def build_emulator(directory: Path, options: Sequence[str] = ()) -> Path:
    """Compile the emulator, unless it is there; returns the library."""
    library = directory / "libchain.so"
    if library.exists():
        return library
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unknown-pragmas"]
    command = ["g++", "-std=c++17", "-O1", "-mf16c", "-fPIC", "-shared", *warnings, *options]
    subprocess.run([*command, str(SOURCES / "emulator.cpp"), "-o", str(library)], check=True)
    return library


def sizes_text(constants: Mapping[str, int | float]) -> str:
    """Return sizes as the library reads them."""
    return "".join(f"{name}={value}\n" for name, value in constants.items())


class HostMemory:
    """Arrays of the process, each an allocation of its own."""

    def __init__(self) -> None:
        self._arrays: dict[Address, Array] = {}

    def place(self, array: Array) -> Address:
        copy = np.array(array, order="C")
        address = int(copy.ctypes.data)
        assert address % 16 == 0, "kernels read 16 bytes at once"
        self._arrays[address] = copy
        return address

    def write(self, address: Address, array: Array) -> None:
        stored = self._arrays[address]
        assert stored.dtype == array.dtype, f"{array.dtype} into {stored.dtype}"
        stored[...] = array

    def read(self, address: Address, shape: tuple[int, ...], dtype: Any) -> Array:
        stored = self._arrays[address]
        assert (stored.shape, stored.dtype) == (shape, dtype)
        return stored.copy()


class Emulator:
    """The compiled library.

    Args:
        library: from `build_emulator`.
    """

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.launch.argtypes = [
            *(ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p),
            *(ctypes.c_size_t, ctypes.c_int, ctypes.c_uint),
        ]

    def step(
        self, launches: Sequence[Launch], constants: dict[str, int | float], times: int = 1, seed: int = 0
    ) -> None:
        """Run all kernels. Each block runs `times` times; a seed other than 0 shuffles blocks and threads."""
        self._library.set_sizes(sizes_text(constants).encode())
        for number, launch in enumerate(launches):
            arguments = launch.arguments
            order = seed and seed + number
            size = ctypes.sizeof(arguments)
            name = launch.kernel.encode()
            self._library.launch(name, launch.blocks, ctypes.byref(arguments), size, times, order)


def decode_emulated(library: Path, *claimed_cache: int, times: int = 2) -> list[list[float]]:
    """Decode the small models, blocks in any order, each `times` times, which must change nothing."""
    emulator = Emulator(library)

    def run(chain: Chain, step: int) -> None:
        emulator.step(chain.launches, chain.constants, times, seed=step + 1)

    return decode_small_models(run, HostMemory(), *claimed_cache)


def sanitized(library: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this file in a process with the sanitizers' libraries."""
    names = ("libasan.so", "libubsan.so")
    paths = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names]
    environment = {**os.environ, "LD_PRELOAD": ":".join(paths), "ASAN_OPTIONS": "detect_leaks=0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, __file__, str(library), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


if __name__ == "__main__":
    print(json.dumps(decode_emulated(Path(sys.argv[1]), *map(int, sys.argv[2:]), times=1)))
