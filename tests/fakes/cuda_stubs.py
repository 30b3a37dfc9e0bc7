"""Stand-ins for CUDA's libraries, so that ONNX Runtime's own CUDA provider runs on a machine without a GPU.

    python tests/fakes/cuda_stubs.py DIRECTORY
    LD_LIBRARY_PATH=DIRECTORY/cudnn ...                       # with cuDNN; DIRECTORY/no-cudnn: without

The driver, libcuda.so.1, has the functions of all of them: tests/cuda_provider/cuda_runtime.cpp over the driver in host
memory, tests/cpp/cuda_driver.cpp, and one that returns 0 for whatever else the provider needs. Kernels compute nothing,
so tokens are meaningless. What ONNX Runtime decides on the host is real: where operators run, which it fuses, what it
allocates, and every call of CUDA.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1]
SOURCES = [TESTS / "cuda_provider" / "cuda_runtime.cpp", TESTS / "cpp" / "cuda_driver.cpp"]
DRIVER, CUDNN_LIBRARY = "libcuda.so.1", "libcudnn.so.9"
CUDNN, NO_CUDNN = "cudnn", "no-cudnn"


def build_stubs(provider: Path, directory: Path) -> None:
    """Build the libraries that a CUDA provider, libonnxruntime_providers_cuda.so, needs.

    Args:
        provider: file of the provider, which is not loaded.
        directory: output. Put `directory/cudnn` or `directory/no-cudnn` on LD_LIBRARY_PATH.
    """
    names = _names(provider)
    libraries = {library for library in names if library} | _needed(provider) | {CUDNN_LIBRARY}
    major = next(re.findall(r"\d+", name)[0] for name in libraries if name.startswith("libcudart"))
    for kind in (CUDNN, NO_CUDNN):
        (directory / kind).mkdir(parents=True, exist_ok=True)
    generated, script, driver = directory / "generated.cpp", directory / "versions", directory / CUDNN / DRIVER
    generated.write_text(_generated(names))
    script.write_text(_script(names))
    sources = [str(source) for source in [*SOURCES, generated]]
    warnings = ["-Wall", "-Wextra", "-Werror", f"-DCUDA_MAJOR={major}"]
    _link(driver, "-std=c++17", "-O1", *warnings, *sources, f"-Wl,--version-script={script}", "-ldl")
    for library in libraries - {DRIVER}:
        script.write_text(f"{library} {{ }};\n")
        _link(directory / CUDNN / library, "-Wl,--no-as-needed", str(driver), f"-Wl,--version-script={script}")
    for library in libraries | {DRIVER}:
        link = directory / NO_CUDNN / library
        link.unlink(missing_ok=True)
        if library != CUDNN_LIBRARY:
            link.symlink_to(Path("..") / CUDNN / library)


def _link(library: Path, *arguments: str) -> None:
    """Link a shared library of this name."""
    named = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", str(library)]
    subprocess.run([_compiler(), *named, *arguments], check=True)


def _compiler() -> str:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise SystemExit("the stubs of CUDA's libraries need a C++ compiler: apt install g++")
    return compiler


def _needed(provider: Path) -> set[str]:
    """Return the CUDA libraries that the loader needs for the provider."""
    listed = subprocess.run(["readelf", "-d", str(provider)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(libcu\S+)\]", listed))


def _names(provider: Path) -> dict[str, set[str]]:
    """Return the functions that the provider needs by their library; "" for functions of any library.

    From 1.31 on, the provider looks up functions of cuDNN by name at their first use.
    """
    found = defaultdict[str, set[str]](set)
    listed = subprocess.run(["nm", "-D", "--undefined-only", str(provider)], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        name, _, library = line.split()[-1].partition("@")
        if library.startswith("libcu") or name.startswith("cu"):
            found[library].add(name)
    found[""] |= {name.decode() for name in re.findall(rb"(?<=\0)cudnn[A-Z]\w+(?=\0)", provider.read_bytes())}
    for name in found[""] & set.union(*(found[library] for library in found if library)):
        found[""].remove(name)
    return dict(found)


def _generated(names: dict[str, set[str]]) -> str:
    """Return a weak function for each name, which a real definition replaces."""
    functions = [
        f'int __attribute__((weak)) {name}() {{ txport_test_count("{name}"); return 0; }}'
        for name in sorted(set.union(*names.values()))
    ]
    return "\n".join(['extern "C" {', "void txport_test_count(const char*);", *functions, "}", ""])


def _script(names: dict[str, set[str]]) -> str:
    """Return the linker script. The version of each function is the name of its library."""
    versions = [
        f"{library} {{ global: {' '.join(f'{name};' for name in sorted(functions))} }};"
        for library, functions in sorted(names.items())
        if library
    ]
    return "\n".join([*versions, "txport { global: cu*; txport_test_*; local: *; };", ""])


def main() -> None:
    """Build the stubs for the installed ONNX Runtime."""
    from txport.runtime.libraries import cuda_provider

    provider = cuda_provider()
    if provider is None or len(sys.argv) != 2:
        raise SystemExit("usage: cuda_stubs.py DIRECTORY, where onnxruntime-gpu is installed")
    build_stubs(provider, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
