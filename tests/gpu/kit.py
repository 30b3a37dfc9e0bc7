"""Packs a kit for a machine with a GPU, no network and no compiler: python tests/gpu/kit.py -o build/gpu-kit

The kit is one archive, in parts that are small enough to be copied one by one, their SHA-256, and start.py, which
unpacks them there and runs them. In it are txport's wheel, what that needs on each version of CPython, bundles, the
tests and the C++ tools. ONNX Runtime and TensorRT are not: they are large, and belong to the machine's CUDA.
"""

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from txport.runtime.errors import InputError, MissingLibrary, TxportError
from txport.runtime.files import new_directory, sha256

PART, LIST, PART_BYTES = "kit.{:03}", "kit.sha256", 48_000_000
PYTHONS = ["3.12", "3.10"]  # for ONNX Runtime's wheels, and for TensorRT 8.6's
PROGRAMS = ("txport-translate", "txport-bench")
# Beside the wheel's own extras. cuda-bindings 13 wants a driver of 580 or newer, and 12 runs on these too. The last two
# are pytest's on 3.10: pip looks at this interpreter where a requirement names a version of Python.
PACKAGES = ("pytest>=8", "rich>=13", "nvidia-ml-py>=12", "cuda-bindings<13", "exceptiongroup", "tomli")
GLIBC = ("2_28", "2_27", "2_24", "2_17")
# Of the system: glibc, and the libraries of GCC that are as new as it.
SYSTEM = re.compile(r"(ld-linux[\w-]*|linux-vdso|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so")
# Put behind what the machine has, so that its own NumPy or PyTorch is used; PYTHONPATH would put it before.
APPEND = """import os, sys
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(root, "python%d.%d" % sys.version_info[:2]))
"""
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def gather(root: Path, bundles: Path, programs: Path | None) -> None:
    """Put bundles, tests and programs into `root`, as start.py and run.py expect them.

    Raises:
        InputError: there are no bundles.
        MissingLibrary: the programs need a library that is not here.
    """
    if not any(bundles.glob("*/manifest.json")):
        raise InputError(f"{bundles} holds no bundles: give a directory of directories that tx-export wrote")
    passing = shutil.ignore_patterns("engines", "__pycache__")
    shutil.copytree(bundles, root / "bundles", ignore=passing)
    shutil.copytree(ROOT / "tests", root / "tests", ignore=passing)
    shutil.copy(ROOT / "pyproject.toml", root)
    if programs is not None:
        copy_programs(programs, root / "programs")


def copy_programs(programs: Path, target: Path) -> None:
    """The C++ tools with the libraries that no machine need have."""
    (target / "lib").mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy(programs / name, target)
        for line in subprocess.run(["ldd", programs / name], capture_output=True, text=True).stdout.splitlines():
            library, _, found = line.strip().partition(" => ")
            if found == "not found":
                raise MissingLibrary(f"{programs / name} needs {library}, which is not here: install it")
            if found and not SYSTEM.match(library):
                shutil.copy(found.rpartition(" (")[0], target / "lib" / library)


def install(root: Path, wheel: Path, pythons: list[str], dependencies: bool) -> None:
    """Put the wheel into `root`/app and, for each version of CPython, what it needs beside it.

    Raises:
        InputError: pip found no packages.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root / "app")
    (root / "app" / "sitecustomize.py").write_text(APPEND)
    # The wheel's own comes last: it may be of a newer glibc, without which it runs, too, but for its fused engine.
    names = [*(f"manylinux_{glibc}_{platform.machine()}" for glibc in GLIBC), wheel.stem.rpartition("-")[2]]
    platforms = [word for name in names for word in ("--platform", name)]
    options = ["-q", "--no-compile", "--no-warn-conflicts", "--only-binary=:all:", *platforms]
    for python in pythons:
        target = root / f"python{python}"
        target.mkdir(parents=True)
        if dependencies:
            here = ["--python-version", python, "--target", str(target), f"{wheel}[trt]", *PACKAGES]
            if subprocess.run([sys.executable, "-m", "pip", "install", *options, *here]).returncode:
                raise InputError(f"pip found no packages for CPython {python}: it says above why")
            for ours in target.glob("txport*"):  # it is in app/
                shutil.rmtree(ours)


def pack(root: Path, output: Path) -> list[Path]:
    """Write the archive of `root` in parts, their SHA-256 and start.py; returns the parts."""
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=6) as archive:
            archive.add(root, ".")
        whole.seek(0)
        parts: list[Path] = []
        while data := whole.read(PART_BYTES):
            parts.append(output / PART.format(len(parts)))
            parts[-1].write_bytes(data)
    (output / LIST).write_text("".join(f"{sha256(part)}  {part.name}\n" for part in parts))
    shutil.copy(HERE / "start.py", output)
    return parts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="Directory for the kit; replaced.")
    parser.add_argument("--wheel", type=Path, help="txport's wheel.  [default: the one in build/dist]")
    parser.add_argument("--bundles", type=Path, required=True, help="A directory of bundles.")
    parser.add_argument("--programs", type=Path, help="The directory of the C++ tools, if they are built.")
    parser.add_argument("--python", dest="pythons", action="append", help="A version of CPython; may be repeated.")
    parser.add_argument("--no-dependencies", action="store_true", help="The machine has what txport needs.")
    options = parser.parse_args(arguments)
    try:
        wheels = [options.wheel] if options.wheel else list(Path("build/dist").glob("txport-*.whl"))
        if len(wheels) != 1:
            raise InputError(f"build/dist holds {len(wheels)} wheels of txport and not one: run make wheel")
        with tempfile.TemporaryDirectory(prefix="txport-kit-") as scratch:
            gather(Path(scratch), options.bundles, options.programs)
            install(Path(scratch), wheels[0], options.pythons or PYTHONS, not options.no_dependencies)
            with new_directory(options.output, replace=True, marker=LIST) as directory:
                sizes = [part.stat().st_size for part in pack(Path(scratch), directory)]
    except TxportError as error:
        print(f"kit.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"{options.output}: {len(sizes)} parts, {sum(sizes) / 1e6:.0f} MB; copy all of it, then on the machine:")
    print("python3 start.py SCRATCH")


if __name__ == "__main__":
    main()
