"""The kit for a machine with a GPU, no network and no compiler: `python -m txport.benchmarks.gpu.kit -o build/gpu-kit`.

One archive in parts that are small enough to be copied one by one, their SHA-256, and run.sh, which unpacks them there
and runs the report. ONNX Runtime and TensorRT are not in it: they are large, and belong to the machine's CUDA.
"""

import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import click
from txport.runtime.errors import InputError, MissingLibrary, TxportError
from txport.runtime.files import new_directory, sha256

PART, LIST = "kit.{:03}", "kit.sha256"
PART_BYTES = 48_000_000
PYTHONS = ("3.12", "3.10")  # for ONNX Runtime's wheels, and for TensorRT 8.6's
PROGRAMS = ("txport-translate", "txport-bench")
# Beside the wheel's own extras. cuda-bindings 13 wants a driver of 580 or newer, and 12 runs on these too. The last two
# are pytest's on 3.10: pip looks at this interpreter where a requirement names a version of Python.
PACKAGES = ("rich>=13", "nvidia-ml-py>=12", "cuda-bindings<13", "exceptiongroup", "tomli")
_GLIBC = ("2_28", "2_27", "2_24", "2_17")
# Of the system: glibc, and the libraries of GCC that are as new as it.
_SYSTEM = re.compile(r"(ld-linux[\w-]*|linux-vdso|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so")
# Put behind what the machine has, so that its own NumPy or PyTorch is used; PYTHONPATH would put it before.
_APPEND = """import os, sys
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(root, "python%d.%d" % sys.version_info[:2]))
"""
PATH = click.Path(path_type=Path)
GIVEN = click.Path(path_type=Path, exists=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("-o", "--output", type=PATH, default=Path("build/gpu-kit"), help="Directory for the kit; replaced.")
@click.option("--wheel", type=GIVEN, help="txport's wheel.  [default: the one in build/dist]")
@click.option(
    "--bundles",
    type=GIVEN,
    help="A directory of bundles.  [default: build/gpu/bundles: presets with random weights, made if missing, and "
    "those of `make demo` if it has run]",
)
@click.option("--programs", type=GIVEN, help="The directory of the C++ tools, if they are built.")
@click.option("--python", "pythons", multiple=True, default=PYTHONS, help="A version of CPython; may be repeated.")
@click.option("--dependencies/--no-dependencies", default=True, help="Leave them out where the machine has them.")
def main(
    output: Path,
    wheel: Path | None,
    bundles: Path | None,
    programs: Path | None,
    pythons: tuple[str, ...],
    dependencies: bool,
) -> None:
    """Gather what a machine with a GPU needs for the report, in parts to copy there; run it in txport's folder."""
    try:
        wheel, bundles = wheel or _wheel(Path("build/dist")), bundles or _made(Path("build/gpu/bundles"))
        with tempfile.TemporaryDirectory(prefix="txport-kit-") as scratch:
            root = Path(scratch)
            gather(root, bundles, programs)
            install(root, wheel, pythons, dependencies)
            with new_directory(output, replace=True, marker=LIST) as directory:
                parts = pack(root, directory)
        click.echo(f"{output}: {parts} parts; copy all of it, then on the machine: sh run.sh SCRATCH_DIRECTORY")
    except TxportError as error:
        click.echo(f"gpu-kit: {error}", err=True)
        sys.exit(error.exit_code)


def gather(root: Path, bundles: Path, programs: Path | None) -> None:
    """Put bundles, tests and programs into `root`, as run.sh expects them.

    Raises:
        InputError: there are no bundles.
        MissingLibrary: the programs need a library that is not here.
    """
    if not any(bundles.glob("*/manifest.json")):
        raise InputError(f"{bundles} holds no bundles: give a directory of directories that tx-export wrote")
    passing = shutil.ignore_patterns("engines", "__pycache__")
    shutil.copytree(bundles, root / "bundles", ignore=passing)
    shutil.copytree("tests", root / "tests", ignore=passing)
    shutil.copy("pyproject.toml", root)
    for manifest in Path("build/test").glob("bundle*/manifest.json"):  # of the tests, as `make test` leaves them
        shutil.copytree(manifest.parent, root / "test" / manifest.parent.name, ignore=passing)
    if programs is not None:
        copy_programs(programs, root / "programs")


def pack(root: Path, output: Path) -> int:
    """Write the archive of `root` in parts, their SHA-256 and run.sh; returns how many parts there are."""
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=6) as archive:
            archive.add(root, ".")
        whole.seek(0)
        parts: list[Path] = []
        while data := whole.read(PART_BYTES):
            parts.append(output / PART.format(len(parts)))
            parts[-1].write_bytes(data)
    (output / LIST).write_text("".join(f"{sha256(part)}  {part.name}\n" for part in parts))
    shutil.copy(Path(__file__).with_name("run.sh"), output)
    return len(parts)


def install(root: Path, wheel: Path, pythons: tuple[str, ...], dependencies: bool) -> None:
    """Put the wheel into `root`/app and, for each version of CPython, what it needs beside it.

    Raises:
        InputError: pip found no packages.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root / "app")
    (root / "app" / "sitecustomize.py").write_text(_APPEND)
    # The wheel's own comes last: it may be of a newer glibc, without which it runs, too, but for its fused engine.
    names = [*(f"manylinux_{glibc}_{platform.machine()}" for glibc in _GLIBC), wheel.stem.rpartition("-")[2]]
    platforms = [word for name in names for word in ("--platform", name)]
    options = ["-q", "--no-compile", "--no-warn-conflicts", "--only-binary=:all:", *platforms]
    for python in pythons:
        target = root / f"python{python}"
        target.mkdir(parents=True)
        if dependencies:
            here = ["--python-version", python, "--target", str(target), f"{wheel}[trt,test]", *PACKAGES]
            if subprocess.run([sys.executable, "-m", "pip", "install", *options, *here]).returncode:
                raise InputError(f"pip found no packages for CPython {python}: it says above why")
            for ours in target.glob("txport*"):  # it is in app/
                shutil.rmtree(ours)


def copy_programs(programs: Path, target: Path) -> None:
    (target / "lib").mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy(programs / name, target)
        for line in subprocess.run(["ldd", programs / name], capture_output=True, text=True).stdout.splitlines():
            library, _, found = line.strip().partition(" => ")
            if found == "not found":
                raise MissingLibrary(f"{programs / name} needs {library}, which is not here: install it")
            if found and not _SYSTEM.match(library):
                shutil.copy(found.rpartition(" (")[0], target / "lib" / library)


def _wheel(directory: Path) -> Path:
    if len(wheels := list(directory.glob("txport-*.whl"))) != 1:
        raise InputError(f"{directory} holds {len(wheels)} wheels of txport and not one: run make wheel")
    return wheels[0]


def _made(bundles: Path) -> Path:
    from txport.benchmarks.gpu.bundles import make_bundles  # which needs PyTorch

    make_bundles(bundles, demo=Path("build/demo"))
    return bundles


if __name__ == "__main__":
    main()
