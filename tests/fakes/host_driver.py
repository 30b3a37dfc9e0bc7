"""A fake of CUDA's driver in host memory, tests/cpp/cuda_driver.cpp, as a library that replaces the real one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "cpp" / "cuda_driver.cpp"


def build_driver(directory: Path) -> Path:
    """Build libcuda.so.1, with $CXX if set, into a directory, and return the directory for LD_LIBRARY_PATH."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: apt install g++")
    library = directory / "libcuda.so.1"
    command = [compiler, "-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", str(SOURCE)]
    subprocess.run([*command, "-shared", "-o", str(library), "-ldl"], check=True)
    for header in Path("/usr/local").glob("cuda*/include/cuda.h"):  # the prototypes of the fake must be those of CUDA
        subprocess.run([*command, "-fsyntax-only", "-DWITH_CUDA_H", f"-I{header.parent}"], check=True)
    return directory
