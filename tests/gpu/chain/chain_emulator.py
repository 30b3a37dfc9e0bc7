"""The chain of kernels on the CPU: chain.cu compiled by a C++ compiler, with fibers for the threads of a block."""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from chain_plan import Address, Array, Chain, Launch, random_chain_model

SOURCES = Path(__file__).parent
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1")
# Sizes that are no multiples of 8 or 32, and an FFN of more chunks than a warp holds.
SMALL_MODELS: tuple[dict[str, Any], ...] = (
    {"d_model": 36, "heads": 3, "ffn": 600, "layers": 2, "vocabulary": 75, "norm": "pre", "gated": True},
    {"d_model": 64, "heads": 2, "ffn": 128, "layers": 1, "vocabulary": 64, "norm": "post_final", "gated": False},
)


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
        for name, value in constants.items():
            kind = ctypes.c_float if name == "EPSILON" else ctypes.c_int
            kind.in_dll(self._library, name).value = value
        for number, launch in enumerate(launches):
            arguments = launch.arguments
            order = seed and seed + number
            size = ctypes.sizeof(arguments)
            name = launch.kernel.encode()
            self._library.launch(name, launch.blocks, ctypes.byref(arguments), size, times, order)


def decode(emulator: Emulator, chain: Chain, steps: int, seed: int = 0) -> list[float]:
    """Run greedy steps over random sources; returns sums of the logits of each step."""
    random = np.random.default_rng(seed)
    shape = (chain.rows, chain.model.heads, chain.source, int(chain.constants["HEAD_DIM"]))
    cross = [tuple(random.standard_normal((2, *shape))) for _ in range(chain.model.layers)]
    chain.place_sources(cross, 1 + np.arange(chain.rows) % chain.source)
    chain.place_rows(np.arange(chain.rows) + 4, np.zeros(chain.rows), np.full(chain.rows, steps))
    sums = []
    for step in range(steps):
        chain.poison()
        emulator.step(chain.launches, chain.constants, times=2, seed=step)
        sums.append(float(np.abs(chain.logits()).sum()))
    return sums


def decode_small_models(library: Path, capacity: int | None = None) -> list[list[float]]:
    """Sums of logits of small models; a larger `capacity` of the caches is a mistake, by which kernels read too far."""
    emulator = Emulator(library)
    found = []
    for number, options in enumerate(SMALL_MODELS):
        for rows in (3, 18):
            model = random_chain_model(seed=number, cache=6, **options)
            chain = Chain(model, HostMemory(), rows=rows, cache=6, source=5, blocks=3, half_caches=rows > 8)
            chain.constants["CACHE"] = capacity or 6
            found.append(decode(emulator, chain, steps=3))
    return found


def sanitized(library: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this file in a process with the sanitizers' libraries."""
    names = ("libasan.so", "libubsan.so")
    paths = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names]
    environment = {**os.environ, "LD_PRELOAD": ":".join(paths), "ASAN_OPTIONS": "detect_leaks=0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, __file__, str(library), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


if __name__ == "__main__":
    print(json.dumps(decode_small_models(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
