"""What ships, and what no file may hold."""

import importlib
import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ["benchmarks", "exporter", "models", "runtime", "training"]
GENERATED = {"build", "dist", "__pycache__"}


def repository_files() -> Iterator[Path]:
    """Every file of the repository: hidden folders other than .ci hold no work of ours."""
    for folder, names, files in os.walk(ROOT):
        names[:] = [
            name
            for name in names
            if name not in GENERATED and not name.endswith(".egg-info") and (name == ".ci" or not name.startswith("."))
        ]
        yield from (Path(folder, name) for name in files if name != ".git")  # a file in a further work tree


def pyproject() -> dict:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return toml.loads((ROOT / "pyproject.toml").read_text())


# --- the wheel -------------------------------------------------------------------------------------------------------

BUILD = """
import sys
from setuptools import build_meta
output = sys.argv[1]  # setuptools writes its own sys.argv
print(build_meta.build_sdist(output), build_meta.build_wheel(output))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """Names of the files in the sdist and in the wheel, built from a clean copy."""
    pytest.importorskip("setuptools", minversion="77", reason="needs setuptools 77: pip install 'txport[dev]'")
    copy, output = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("output")
    for file in repository_files():
        target = copy / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    done = subprocess.run([sys.executable, "-c", BUILD, output], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sdist, wheel = (output / name for name in done.stdout.split()[-2:])
    with tarfile.open(sdist) as archive, zipfile.ZipFile(wheel) as zipped:
        return [name.partition("/")[2] for name in archive.getnames()], zipped.namelist()


def test_nothing_but_txport_lands_in_site_packages(built: tuple[list[str], list[str]]) -> None:
    _, wheel = built
    assert {re.sub(r"^txport-[\d.]+\.dist-info$", "dist-info", name.split("/")[0]) for name in wheel} == {
        "txport",
        "dist-info",
    }
    assert "txport/__init__.py" not in wheel, "a namespace package has none"
    assert {name.split("/")[1] for name in wheel if name.startswith("txport/")} == set(FOLDERS)


def test_the_wheel_holds_every_module_and_its_data(built: tuple[list[str], list[str]]) -> None:
    _, wheel = built
    found = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    elsewhere = (("runtime", "cpp"), ("benchmarks", "examples"))  # programs to copy
    sources = [path for path in found if path.parts[:2] not in elsewhere]
    data = [*(ROOT / "training/recipes").glob("*.toml"), *(ROOT / "training/spoken").glob("*.txt")]
    data += [*(ROOT / "training/recipes").glob("*.tsv"), *(ROOT / "benchmarks").glob("*.tsv")]
    data += [*(ROOT / "runtime/serve").glob("*.tsv"), *(ROOT / "runtime/serve").glob("*.html")]
    typed = [Path(folder, "py.typed") for folder in FOLDERS]
    assert {path.suffix for path in data} == {".toml", ".txt", ".tsv", ".html"}
    data = [path.relative_to(ROOT) for path in data]
    missing = {f"txport/{path.as_posix()}" for path in sources + data + typed} - set(wheel)
    assert not missing


def test_the_wheel_holds_neither_tests_nor_sources_of_other_languages(built: tuple[list[str], list[str]]) -> None:
    _, wheel = built
    shipped = {Path(name).suffix for name in wheel if name.startswith("txport/")}
    assert shipped <= {".py", ".typed", ".toml", ".txt", ".tsv", ".html", ".inc", ""}
    assert [name for name in wheel if not Path(name).suffix and name.startswith("txport/")] == [
        "txport/runtime/cpp/VERSION"
    ]
    assert not [name for name in wheel if re.search(r"(^|/)tests?(_|/|\.)", name)]


TRY = """
import sys
from pathlib import Path
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines import native
assert Path(native.find_library()).parent == Path(native.__file__).parent, native.find_library()
try:
    native.NativeEngine(Path(sys.argv[1]), Manifest.load(Path(sys.argv[1])))
except native.EngineError as error:  # the toy bundle has no parameters: the library was loaded, and says so
    print(error)
"""


@pytest.mark.parametrize("named", [True, False], ids=["named", "after make fused"])
def test_the_wheel_with_the_fused_engine_runs_where_nothing_else_is(named: bool, tmp_path: Path) -> None:
    """Built with the library, it is for one platform; in an empty place it finds the library beside itself.

    `pip install .` takes the library of `make fused`, as runtime/README.md has it.
    """
    from txport.runtime.engines.native import LIBRARY, find_library

    library = find_library()
    if library is None:
        pytest.skip("needs the fused engine's library: make fused")
    copy, files = tmp_path / "copy", list(repository_files())
    for file in files:
        target = copy / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    environment = {**os.environ, "PYTHONPATH": ""}
    environment.pop("TXPORT_WHEEL_ENGINE", None)
    if named:
        environment["TXPORT_WHEEL_ENGINE"] = str(library)
    else:
        (copy / "build/cpp/engine").mkdir(parents=True)
        shutil.copyfile(library, copy / "build/cpp/engine" / LIBRARY)
    build = BUILD.replace("build_meta.build_sdist(output), ", "")
    command = [sys.executable, "-c", build, tmp_path]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"txport-[\d.]+-py3-none-(manylinux_2_\d+|linux)_(x86_64|aarch64)\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as zipped:
        extra = {name for name in zipped.namelist() if name.endswith(".so")}
        zipped.extractall(tmp_path / "site")
    assert extra == {f"txport/runtime/engines/{LIBRARY}"}
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": os.environ["PATH"]}
    command = [
        sys.executable,
        "-P" if sys.version_info >= (3, 11) else "-B",
        "-c",
        TRY,
        str(ROOT / "tests/data/toy_bundle"),
    ]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "the fused engine cannot run" in ran.stdout, ran.stderr


def test_a_library_says_what_it_needs_of_a_machine() -> None:
    """The tag is computed from the newest symbol of glibc, and from libraries that no wheel may expect."""
    setup = (ROOT / "setup.py").read_text()
    scope: dict[str, Any] = {"__file__": str(ROOT / "setup.py")}
    exec(compile(setup[: setup.index("class Build")], "setup.py", "exec"), scope)
    head = b"\x7fELF" + bytes(14)
    names = b"\0libc.so.6\0libm.so.6\0GLIBC_2.4\0GLIBC_2.28\0"
    assert scope["platform"](head + b"\x3e\0" + names) == "manylinux_2_28_x86_64"
    assert scope["platform"](head + b"\xb7\0" + b"\0libc.so.6\0GLIBC_2.4\0") == "manylinux_2_17_aarch64"
    assert scope["platform"](head + b"\x3e\0" + names + b"libmd.so.0\0") == "linux_x86_64"
    assert scope["platform"](b"MZ" + bytes(62)) == "win_amd64"
    assert scope["platform"](bytes.fromhex("cffaedfe0c000001") + bytes(24)) == "macosx_11_0_arm64"
    assert scope["platform"](bytes.fromhex("cffaedfe07000001") + bytes(24)) == "macosx_11_0_x86_64"


def test_the_source_archive_can_be_built_from(built: tuple[list[str], list[str]]) -> None:
    sdist, _ = built
    assert {"runtime/cpp/VERSION", "pyproject.toml", "LICENSE", "README.md"} <= set(sdist)


def test_one_version() -> None:
    version = (ROOT / "runtime/cpp/VERSION").read_text().strip()
    assert importlib.metadata.version("txport") == version
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_every_package_is_declared() -> None:
    declared = pyproject()["tool"]["setuptools"]["packages"]
    found = [init.parent.relative_to(ROOT) for folder in FOLDERS for init in (ROOT / folder).rglob("__init__.py")]
    assert sorted(declared) == sorted("txport." + ".".join(path.parts) for path in found)


def test_exact_versions_stand_in_constraints_only() -> None:
    """A library that pins cannot be installed beside others."""
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    pinned = [
        line for line in [*project["dependencies"], *itertools.chain(*extras.values())] if "==" in line.split(";")[0]
    ]
    assert not pinned
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def pins(file: str) -> dict[str, set[str]]:
    """The lines of a file of exact versions, by package, without hashes."""
    text = (ROOT / file).read_text().replace("\\\n", "")
    lines = [line.partition("--hash")[0].strip() for line in text.splitlines() if line and not line.startswith("#")]
    found: dict[str, set[str]] = {}
    for line in lines:
        found.setdefault(line.partition("==")[0], set()).add(line)
    return found


# The last version of a library with a vulnerability that strangers' input reaches.
VULNERABLE = {
    "datasets": "3.6.0",  # runs scripts of data sets
    "h11": "0.14.0",  # CVE-2025-43859
    "lightning": "2.6.3",  # GHSA-w37p-236h-pfx3
    "sentencepiece": "0.2.0",  # CVE-2026-1260
    "torch": "2.9.1",  # CVE-2026-24747
}


@pytest.mark.parametrize("name", VULNERABLE)
def test_vulnerable_versions_are_not_installed(name: str) -> None:
    requirements = importlib.import_module("packaging.requirements")
    version = importlib.import_module("packaging.version").Version
    project = pyproject()["project"]
    lines = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    found = [each for each in map(requirements.Requirement, lines) if each.name == name]
    assert found and not any(VULNERABLE[name] in each.specifier for each in found)
    for line in pins("constraints.txt").get(name, ()):
        assert version(line.partition("==")[2].partition(" ")[0]) > version(VULNERABLE[name])


@pytest.mark.parametrize(("file", "extras"), [("demo", ("train", "export", "bench")), ("dev", ("dev", "docs"))])
def test_hashes_are_of_the_versions_of_constraints(file: str, extras: tuple[str, ...]) -> None:
    requirements = importlib.import_module("packaging.requirements")
    text = (ROOT / ".ci" / f"{file}.txt").read_text()
    hashed = pins(f".ci/{file}.txt")
    versions = {name: {line.partition(" ;")[0] for line in lines} for name, lines in pins("constraints.txt").items()}
    for name, lines in hashed.items():
        assert {line.partition(" ;")[0] for line in lines} <= versions[name], "run make constraints"
    first = r"^[\w.-]+==.* \\\n    --hash=sha256:[0-9a-f]{64}"
    assert len(re.findall(first, text, re.MULTILINE)) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE)) > 50
    others = re.compile(r"torch|triton|cuda-[a-z]+|nvidia-(cu|n).*|txport")
    project = pyproject()["project"]
    for line in itertools.chain(
        project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)
    ):
        name = requirements.Requirement(line).name.lower()
        assert name in hashed or others.fullmatch(name), name
    if file == "dev":
        missing = versions.keys() - hashed.keys()
        assert all(others.fullmatch(name) for name in missing), missing


@pytest.mark.parametrize("extra", ["ort-gpu", "trt"])
def test_on_python_3_10_cuda_bindings_are_those_of_cuda_12(extra: str) -> None:
    """JetPack 6 never has a driver of CUDA 13, and onnxruntime-gpu for 3.10 is built for 12, too."""
    requirements = importlib.import_module("packaging.requirements")
    extras = pyproject()["project"]["optional-dependencies"]
    assert "txport[cuda-bindings]" in extras[extra]
    taken = {
        (python, version)
        for line in map(requirements.Requirement, extras["cuda-bindings"])
        for python in ("3.10", "3.12")
        for version in ("12.6.0", "12.9.10", "13.5.0")
        if line.marker.evaluate({"python_version": python}) and version in line.specifier
    }
    assert taken == {("3.10", "12.9.10"), ("3.12", "12.9.10"), ("3.12", "13.5.0")}


# --- what no file may hold -------------------------------------------------------------------------------------------

# Written so that this file does not match itself.
FOREIGN = {
    "a path of somebody's machine": r"(?<![\w.}])/(?:work|root|opt|Users)/|/home/(?!user\b)\w",
    "a host of a package registry": r"\bpypi[.](?:org|nvidia)|pythonhosted|download[.]pytorch|index[-]url",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_names(what: str) -> None:
    pattern = re.compile(FOREIGN[what])
    hits = []
    for file in repository_files():
        text = file.read_bytes().decode("utf-8", errors="ignore")
        if file != Path(__file__):
            hits += [f"{file.relative_to(ROOT)}: {match.group()}" for match in pattern.finditer(text)]
    assert not hits


def test_continuous_integration_can_be_started() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)
