"""The kit for a machine with a GPU: unpacked and rehearsed over a driver in host memory, and copied incompletely."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from host_driver import build_driver
from txport.benchmarks.gpu import cpp, kit
from txport.benchmarks.gpu.report import REPORT
from txport.benchmarks.gpu.schema import GpuReport
from txport.runtime.bundle.strict_json import decode, read
from txport.runtime.errors import InputError, MissingLibrary

ROOT = Path(__file__).parents[3]
RUN = ROOT / "benchmarks/gpu/run.sh"
PART_BYTES = kit.PART_BYTES
THIS = f"{sys.version_info[0]}.{sys.version_info[1]}"


def run(directory: Path, *arguments: str | Path) -> list[str]:
    """run.sh of a kit, in an environment that holds nothing else."""
    path = ["env", "-i", f"PATH={os.environ['PATH']}", f"PYTHON={sys.executable}"]
    return [*path, "sh", str(directory / "run.sh"), *map(str, arguments)]


def said(directory: Path, *arguments: str | Path) -> str:
    """What it says when it refuses."""
    done = subprocess.run(run(directory, *arguments), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == "", done.stdout + done.stderr
    *before, last = done.stderr.splitlines()  # tar says why, too
    assert last.startswith("run.sh: ") and all("run.sh" not in line for line in before), done.stderr
    return last


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kit of three parts for a Python that nobody has."""
    monkeypatch.setattr(kit, "PART_BYTES", 1000)
    (tmp_path / "root" / "python2.0").mkdir(parents=True)
    (tmp_path / "root" / "python2.0" / "noise").write_bytes(os.urandom(2500))
    (tmp_path / "kit").mkdir()
    assert kit.pack(tmp_path / "root", tmp_path / "kit") == 3
    return tmp_path / "kit"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Path:
    """The kit of one bundle, in many parts, for this Python, which has what it needs."""
    if not (wheels := list((ROOT / "build/dist").glob("txport-*.whl"))):
        pytest.skip("needs txport's wheel: make wheel")
    directory = tmp_path_factory.mktemp("kit")
    (directory / "bundles").mkdir()
    (directory / "bundles" / "tiny-float32").symlink_to(bundle)
    sources = ["--wheel", str(wheels[0]), "--bundles", str(directory / "bundles")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(kit, "PART_BYTES", 100_000)
        options = [*sources, "--python", THIS, "--no-dependencies", "-o", str(directory / "kit")]
        kit.main(options, standalone_mode=False)
    return directory / "kit"


def test_a_kit_is_rehearsed_in_an_environment_that_holds_nothing_else(tmp_path: Path, whole: Path) -> None:
    """Twice at once into one directory; then with packages that must, and must not, take the place of others."""
    pytest.importorskip("cuda.bindings", reason="needs cuda-python: pip install 'txport[trt]'")
    scratch = tmp_path / "scratch"
    stages = ["--driver", build_driver(tmp_path), "--stage", "environment", "--stage", "device"]
    command = run(whole, scratch, *stages)
    both = [subprocess.Popen([*command, "-o", tmp_path / name], stdout=subprocess.PIPE) for name in ("one", "two")]
    for process, name in zip(both, ("one", "two"), strict=True):
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        report = decode(GpuReport, read(tmp_path / name / REPORT), REPORT)
        assert report.passed and [stage.status for stage in report.stages] == ["passed"] * 2
    (unpacked,) = scratch.iterdir()
    assert {path.name for path in unpacked.iterdir()} >= {"app", "bundles", "tests", "pyproject.toml", f"python{THIS}"}
    (unpacked / f"python{THIS}" / "click.py").write_text("raise SystemExit('click of the kit')")
    assert subprocess.run(command, timeout=120, stdout=subprocess.DEVNULL).returncode == 0, "the machine has its own"
    assert (scratch / "report" / REPORT).exists()
    (tmp_path / "click.py").write_text("raise SystemExit('click of --libraries')")
    done = subprocess.run(run(whole, scratch, "--libraries", tmp_path, *stages), capture_output=True, text=True)
    assert done.stderr == "click of --libraries\n"


def test_parts_are_small(small: Path) -> None:
    assert PART_BYTES <= 48_000_000
    sizes = [path.stat().st_size for path in sorted(small.glob("kit.0*"))]
    assert sizes[:-1] == [1000, 1000] and sizes[-1] <= 1000


def test_a_kit_that_is_copied_incompletely_names_the_part(tmp_path: Path, small: Path) -> None:
    part, scratch = small / "kit.001", tmp_path / "scratch"
    data = part.read_bytes()
    part.write_bytes(data[:-1])
    assert "kit.001 is damaged" in (words := said(small, scratch)) and "copy it again" in words
    part.unlink()
    assert "kit.001 is missing: copy it again" in said(small, scratch)
    part.write_bytes(data)
    listed = (small / "kit.sha256").read_text()
    (small / "kit.sha256").write_text(listed[: listed.index("\n") + 1])
    assert "kit.sha256 cut off" in said(small, scratch)
    (small / "kit.sha256").unlink()
    assert "kit.sha256 is missing or empty: copy it again" in said(small, scratch)
    assert list(scratch.iterdir()) == [], "nothing half unpacked is left"


def test_bad_use_of_the_script_is_one_sentence(tmp_path: Path, small: Path) -> None:
    assert f"this kit is for python2.0, and {sys.executable} is {THIS}" in said(small, tmp_path / "scratch")
    assert "name a directory to unpack into" in said(small)
    assert "name a directory to unpack into" in said(small, "--stage", "device")
    assert "there is no such directory" in said(small, tmp_path, "--libraries", "nowhere")


def test_the_script_is_plain_shell() -> None:
    done = subprocess.run(["sh", "-n", RUN], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck: apt install shellcheck")
def test_shellcheck_finds_nothing_in_the_script() -> None:
    done = subprocess.run(["shellcheck", RUN], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_bad_use_of_the_command_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="holds no bundles"):
        kit.gather(tmp_path / "root", tmp_path, None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        kit.main(["--bundles", str(tmp_path)], standalone_mode=False)
    assert capsys.readouterr().err == "gpu-kit: build/dist holds 0 wheels of txport and not one: run make wheel\n"


def test_programs_come_with_their_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: apt install g++")
    (tmp_path / "tiny.cpp").write_text("int tiny() { return 0; }")
    (tmp_path / "main.cpp").write_text("int tiny();\nint main() { return tiny(); }")
    library, program = tmp_path / "libtiny.so", tmp_path / "program"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wl,-soname,libtiny.so", "-o", library, tmp_path / "tiny.cpp"], check=True
    )
    linked = [library, f"-Wl,-rpath,{tmp_path}", "-Wl,--no-as-needed", "-lm"]
    subprocess.run([compiler, "-o", program, tmp_path / "main.cpp", *linked], check=True)
    monkeypatch.setattr(kit, "PROGRAMS", ("program",))
    kit.copy_programs(tmp_path, tmp_path / "kit")
    assert [path.name for path in (tmp_path / "kit" / "lib").iterdir()] == ["libtiny.so"], "the rest is the system's"
    library.unlink()
    assert subprocess.run([tmp_path / "kit" / "program"], env=cpp.surroundings(tmp_path / "kit")).returncode == 0
    with pytest.raises(MissingLibrary, match=r"program needs libtiny\.so, which is not here"):
        kit.copy_programs(tmp_path, tmp_path / "other")


def test_a_wheel_of_a_new_glibc_is_installed_for_any_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the one with the fused engine is: pip would take it for no wheel of the platforms that the others are of."""
    wheel = tmp_path / f"txport-1-py3-none-manylinux_2_99_{platform.machine()}.whl"
    files = {
        "txport/__init__.py": "",
        "txport-1.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {wheel.stem[9:]}\n",
        "txport-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: txport\nVersion: 1\nProvides-Extra: trt\n",
        "txport-1.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    monkeypatch.setattr(kit, "PACKAGES", ())
    kit.install(tmp_path / "kit", wheel, ("3.12",), dependencies=True)
    assert (tmp_path / "kit/app/txport/__init__.py").exists()
    assert not list((tmp_path / "kit/python3.12").iterdir()), "it is in app/"


def test_programs_find_what_pip_has_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia/cublas/lib", "tensorrt_libs", "onnxruntime/capi"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "onnxruntime/capi/libonnxruntime.so.1.99.0").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    monkeypatch.delenv("TXPORT_ONNXRUNTIME", raising=False)
    found = cpp.surroundings(Path("/programs"))
    places = ["/mine", f"{tmp_path}/nvidia/cublas/lib", f"{tmp_path}/tensorrt_libs", "/programs/lib"]
    assert found["LD_LIBRARY_PATH"].split(":") == places
    assert found["TXPORT_ONNXRUNTIME"] == f"{tmp_path}/onnxruntime/capi/libonnxruntime.so.1.99.0"
    monkeypatch.setenv("TXPORT_ONNXRUNTIME", "/mine/libonnxruntime.so")
    assert cpp.surroundings(Path("/programs"))["TXPORT_ONNXRUNTIME"] == "/mine/libonnxruntime.so"
