"""What CMake says when something is missing, and that it makes no runtime without an engine."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "runtime" / "cpp"
BUILD = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere"))

pytestmark = pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")


def configure(folder: Path, *options: str, source: Path = SOURCE) -> tuple[int, str]:
    """The exit code of CMake, and all that it says in one line."""
    environment = {name: value for name, value in os.environ.items() if name != "ONNXRUNTIME_ROOT"}
    command = ["cmake", "-S", str(source), "-B", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def cached(name: str) -> str:
    """A variable of the build that is tested."""
    match = re.search(rf"^{name}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def test_no_runtime_without_an_engine(tmp_path: Path) -> None:
    code, said = configure(tmp_path, "-DTXPORT_WITH_ORT=OFF", "-DTXPORT_WITH_FUSED=OFF", "-DTXPORT_WITH_TENSORRT=OFF")
    assert code != 0 and "No engine is compiled: leave out -DTXPORT_WITH_FUSED=OFF" in said


def test_without_onnx_runtime_the_fused_engine_is_compiled(tmp_path: Path) -> None:
    """Highway is found here; where it is not it is fetched, as with -DTXPORT_WITH_FUSED=ON."""
    code, said = configure(tmp_path, "-DTXPORT_WITH_ORT=OFF", f"-DHIGHWAY_ROOT={cached('HIGHWAY_ROOT')}")
    assert code == 0 and "Fused engine: compiled" in said


def test_a_folder_that_is_not_onnx_runtimes_is_named(tmp_path: Path) -> None:
    code, said = configure(tmp_path, f"-DONNXRUNTIME_ROOT={tmp_path}/nowhere")
    if "cannot find" not in said and code == 0:
        pytest.skip("needs a machine on which ONNX Runtime is not installed")
    assert f"-DONNXRUNTIME_ROOT={tmp_path}/nowhere has no include/onnxruntime_cxx_api.h" in said
    assert "-DTXPORT_WITH_ORT=OFF" in said


def test_the_example_says_what_to_set(tmp_path: Path) -> None:
    project = SOURCE / "examples" / "project"
    code, said = configure(tmp_path, "-DCMAKE_DISABLE_FIND_PACKAGE_txport=ON", source=project)
    assert code != 0 and "set -DTXPORT_GIT=URL to fetch it" in said and "FetchContent" not in said


def test_pkg_config_links_the_installed_library(tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("needs pkg-config: apt install pkg-config")
    done = subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(tmp_path)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("needs a whole build: make cpp")
    (folder,) = {file.parent for file in tmp_path.rglob("txport.pc")}
    environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "txport"], check=True, capture_output=True, text=True,
                           env=environment).stdout.split()  # fmt: skip
    program = tmp_path / "translate"
    source = SOURCE / "examples" / "translate.cpp"
    subprocess.run(["c++", "-std=c++17", str(source), *flags, "-o", str(program)], check=True)
    toy = Path(__file__).parents[2] / "data" / "toy_bundle"
    library = next((Path(cached("ONNXRUNTIME_ROOT")) / "lib").glob("libonnxruntime.so.1*"))
    environment = {**os.environ, "TXPORT_ONNXRUNTIME": str(library)}
    done = subprocess.run([program, toy], input="one\n", capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
