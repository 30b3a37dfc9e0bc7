"""The kit for a machine with a GPU: packed, unpacked and rehearsed, and copied incompletely."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import kit
import pytest
import run
from host_driver import build_driver
from page import findings
from txport.runtime.errors import InputError, MissingLibrary

ROOT = Path(__file__).parents[2]
THIS = "{}.{}".format(*sys.version_info)


def command(directory: Path, *arguments: str | Path) -> list[str]:
    """start.py of a kit, in an environment that holds nothing else."""
    return [
        "env",
        "-i",
        f"PATH={os.environ['PATH']}",
        sys.executable,
        str(directory / "start.py"),
        *map(str, arguments),
    ]


def said(directory: Path, *arguments: str | Path) -> str:
    """What it says when it refuses."""
    done = subprocess.run(command(directory, *arguments), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == "", done.stdout + done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("start.py: ") and "Traceback" not in done.stderr, done.stderr
    return last


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kit of three parts for a Python that nobody has."""
    monkeypatch.setattr(kit, "PART_BYTES", 1000)
    (tmp_path / "root" / "python2.0").mkdir(parents=True)
    (tmp_path / "root" / "python2.0" / "noise").write_bytes(os.urandom(2500))
    (tmp_path / "kit").mkdir()
    assert [part.name for part in kit.pack(tmp_path / "root", tmp_path / "kit")] == ["kit.000", "kit.001", "kit.002"]
    return tmp_path / "kit"


@pytest.fixture(scope="module")
def wheel() -> Path:
    if not (wheels := list((ROOT / "build/dist").glob("txport-*.whl"))):
        pytest.skip("needs txport's wheel: make wheel")
    return wheels[0]


def test_a_kit_is_rehearsed_in_an_environment_that_holds_nothing_else(
    tmp_path: Path, wheel: Path, float16_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice at once into one directory; then with packages that must, and must not, take the place of others."""
    pytest.importorskip("cuda.bindings", reason="needs cuda-python: pip install 'txport[trt]'")
    monkeypatch.setattr(kit, "PART_BYTES", 100_000)
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "tiny").symlink_to(float16_bundle)
    options = ["--wheel", str(wheel), "--bundles", str(tmp_path / "bundles"), "--python", THIS, "--no-dependencies"]
    kit.main([*options, "-o", str(tmp_path / "kit")])
    scratch, driver = tmp_path / "scratch", build_driver(tmp_path)
    start = command(tmp_path / "kit", scratch, "--driver", driver, "--step", "device")
    both = [subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    for process in both:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    found = findings(scratch / "results")
    assert found["device"]["outcome"] == "passed" and len(found) > 5
    (unpacked,) = scratch.glob("kit-*")
    assert {path.name for path in unpacked.iterdir()} >= {"app", "bundles", "tests", "pyproject.toml", f"python{THIS}"}
    (unpacked / f"python{THIS}" / "numpy.py").write_text("raise SystemExit('numpy of the kit')")
    assert subprocess.run([*start, "--minutes", "0"], stdout=subprocess.DEVNULL).returncode == 0, "the machine has it"
    (tmp_path / "numpy.py").write_text("raise SystemExit('numpy of --libraries')")
    done = subprocess.run([*start, "--libraries", tmp_path], capture_output=True, text=True)
    assert done.stderr == "numpy of --libraries\n"


def test_a_kit_that_is_copied_incompletely_names_the_part(tmp_path: Path, parts: Path) -> None:
    part, scratch = parts / "kit.001", tmp_path / "scratch"
    data = part.read_bytes()
    part.write_bytes(data[:-1])
    assert "kit.001 is damaged" in (words := said(parts, scratch)) and "copy it again" in words
    part.unlink()
    assert "kit.001 is missing: copy it again" in said(parts, scratch)
    part.write_bytes(data)
    listed = (parts / "kit.sha256").read_text()
    (parts / "kit.sha256").write_text(listed[: listed.index("\n") + 1])
    assert "kit.sha256 cut off" in said(parts, scratch)
    (parts / "kit.sha256").unlink()
    assert "kit.sha256 is missing or empty: copy it again" in said(parts, scratch)
    assert list(scratch.iterdir()) == [], "nothing half unpacked is left"


def test_bad_use_is_one_sentence(tmp_path: Path, parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"this kit is for python2.0, and this is python{THIS}" in said(parts, tmp_path / "scratch")
    assert "there is no such directory" in said(parts, tmp_path, "--libraries", "nowhere")
    with pytest.raises(InputError, match="holds no bundles"):
        kit.gather(tmp_path / "root", tmp_path, None)
    with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        kit.main(["--bundles", str(tmp_path), "-o", str(tmp_path / "other")])
    assert capsys.readouterr().err == "kit.py: build/dist holds 0 wheels of txport and not one: run make wheel\n"


def test_programs_come_with_their_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: apt install g++")
    (tmp_path / "tiny.cpp").write_text("int tiny() { return 0; }")
    (tmp_path / "main.cpp").write_text("int tiny();\nint main() { return tiny(); }")
    library, program = tmp_path / "libtiny.so", tmp_path / "program"
    soname = ["-shared", "-fPIC", "-Wl,-soname,libtiny.so"]
    subprocess.run([compiler, *soname, "-o", library, tmp_path / "tiny.cpp"], check=True)
    linked = [library, f"-Wl,-rpath,{tmp_path}", "-Wl,--no-as-needed", "-lm"]
    subprocess.run([compiler, "-o", program, tmp_path / "main.cpp", *linked], check=True)
    monkeypatch.setattr(kit, "PROGRAMS", ("program",))
    kit.copy_programs(tmp_path, tmp_path / "kit")
    assert [path.name for path in (tmp_path / "kit" / "lib").iterdir()] == ["libtiny.so"], "the rest is the system's"
    library.unlink()
    assert subprocess.run([tmp_path / "kit" / "program"], env=run.surroundings(tmp_path / "kit")).returncode == 0
    with pytest.raises(MissingLibrary, match=r"program needs libtiny\.so, which is not here"):
        kit.copy_programs(tmp_path, tmp_path / "other")


def test_programs_find_what_pip_has_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia/cublas/lib", "tensorrt_libs", "onnxruntime/capi"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "onnxruntime/capi/libonnxruntime.so.1.99.0").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    monkeypatch.delenv("TXPORT_ONNXRUNTIME", raising=False)
    found = run.surroundings(Path("/programs"))
    places = ["/mine", f"{tmp_path}/nvidia/cublas/lib", f"{tmp_path}/tensorrt_libs", "/programs/lib"]
    assert found["LD_LIBRARY_PATH"].split(":") == places
    assert found["TXPORT_ONNXRUNTIME"] == f"{tmp_path}/onnxruntime/capi/libonnxruntime.so.1.99.0"
    monkeypatch.setenv("TXPORT_ONNXRUNTIME", "/mine/libonnxruntime.so")
    assert run.surroundings(Path("/programs"))["TXPORT_ONNXRUNTIME"] == "/mine/libonnxruntime.so"


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
    kit.install(tmp_path / "kit", wheel, ["3.12"], dependencies=True)
    assert (tmp_path / "kit/app/txport/__init__.py").exists()
    assert not list((tmp_path / "kit/python3.12").iterdir()), "it is in app/"
