"""The chain of kernels on the CPU: chain.cu compiled by a C++ compiler, with fibers for the threads of a block."""

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from chain_plan import Address, Array, Launch

SOURCES = Path(__file__).parent
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g")


def missing() -> str | None:
    """Return what the emulator needs and this machine lacks."""
    if platform.machine() != "x86_64":
        return "needs x86-64: the emulator's fibers are written for it"
    if shutil.which("g++") is None:
        return "needs a C++ compiler: apt install g++"
    return None


def build_emulator(directory: Path, options: Sequence[str] = ()) -> Path:
    """Compile the emulator; returns the library."""
    library = directory / "libchain.so"
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unknown-pragmas"]
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", *warnings, *options]
    subprocess.run([*command, str(SOURCES / "emulator.cpp"), "-o", str(library)], check=True)
    return library


class HostMemory:
    """Arrays of the process, each an allocation of its own."""

    def __init__(self) -> None:
        self._arrays: dict[Address, Array] = {}

    def place(self, array: Array) -> Address:
        # Kernels read 16 bytes at once.
        memory = np.empty(array.nbytes + 16, np.uint8)
        start = -memory.ctypes.data % 16
        copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        self._arrays[copy.ctypes.data] = copy
        return int(copy.ctypes.data)

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
        for name, value in constants.items():
            kind = ctypes.c_float if name == "EPSILON" else ctypes.c_int
            kind.in_dll(self._library, name).value = value
        for number, launch in enumerate(launches):
            arguments = launch.arguments
            order = seed and seed + number
            size = ctypes.sizeof(arguments)
            name = launch.kernel.encode()
            self._library.launch(name, launch.blocks, ctypes.byref(arguments), size, times, order)
