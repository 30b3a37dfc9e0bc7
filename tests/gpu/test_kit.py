"""The kit for a machine with a GPU: packed, unpacked as tests/gpu/README.md says, and rehearsed."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import grown_weights
import pytest
import run
from host_driver import build_driver
from page import findings
from txport.runtime.bundle.manifest import WEIGHTS
from txport.runtime.errors import CheckFailed

ROOT = Path(__file__).parents[2]
THIS = "{}.{}".format(*sys.version_info)


def pack(*arguments: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "tests/gpu/kit.sh"), *map(str, arguments)]
    variables = {**os.environ, "PYTHON": sys.executable, "PYTHONS": "", **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=500)


def unpack(parts: Path) -> Path:
    """The kit, by the commands of the README."""
    commands = "sha256sum --quiet -c kit.sha256 && mkdir kit && cat kit.0* | tar xz -C kit"
    subprocess.run(["bash", "-c", commands], cwd=parts, check=True, capture_output=True)
    return parts / "kit"


def tiny_wheel(directory: Path, name: str, version: str, tag: str = "py3-none-any") -> Path:
    """A wheel that holds nothing but a module."""
    wheel = directory / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: trt\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def bundles(tmp_path: Path, float16_bundle: Path) -> Path:
    """A directory with a link to one bundle."""
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "tiny").symlink_to(float16_bundle)
    return tmp_path / "bundles"


def test_a_kit_is_rehearsed_in_an_environment_that_holds_nothing_else(tmp_path: Path, bundles: Path) -> None:
    """Twice at once into one directory; what the machine has comes before what the kit brings."""
    pytest.importorskip("cuda.bindings", reason="needs cuda-python: pip install 'txport[trt]'")
    if not (wheels := list((ROOT / "build/dist").glob("txport-*.whl"))):
        pytest.skip("needs txport's wheel: make wheel")
    done = pack(tmp_path / "parts", wheels[0], bundles, PART_BYTES="100000")
    assert done.returncode == 0 and len(list((tmp_path / "parts").glob("kit.0*"))) > 2, done.stderr
    kit = unpack(tmp_path / "parts")
    scratch = tmp_path / "scratch"
    (kit / f"python{THIS}").mkdir()
    (kit / f"python{THIS}" / "numpy.py").write_text("raise SystemExit('numpy of the kit')")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(kit / "app")}
    last = subprocess.check_output(
        [sys.executable, "-c", "import sys; print(sys.path[-1])"], env=environment, text=True
    )
    assert last.strip() == str(kit / f"python{THIS}")
    driver = str(build_driver(tmp_path))
    start = [sys.executable, str(kit / "tests/gpu/run.py"), str(scratch), "--bundles", str(kit / "bundles")]
    both = [
        subprocess.Popen([*start, "--driver", driver, "--step", "device"], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in both:
        output, _ = process.communicate(timeout=500)
        assert process.returncode == 0, output
    found = findings(scratch / "results")
    assert found["device"]["outcome"] == "passed" and len(found) > 5


def test_a_part_that_is_damaged_or_missing_is_named(tmp_path: Path, bundles: Path) -> None:
    done = pack(tmp_path / "parts", tiny_wheel(tmp_path, "txport", "1"), bundles, PART_BYTES="100000")
    assert done.returncode == 0, done.stderr
    part = tmp_path / "parts" / "kit.001"
    for change in (lambda: part.write_bytes(part.read_bytes()[:-1]), part.unlink):
        change()
        with pytest.raises(subprocess.CalledProcessError) as caught:
            unpack(tmp_path / "parts")
        assert b"kit.001" in caught.value.stdout + caught.value.stderr and not (tmp_path / "parts/kit").exists()


def test_programs_come_with_their_libraries(tmp_path: Path, bundles: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: apt install g++")
    (tmp_path / "tiny.cpp").write_text("int tiny() { return 0; }")
    (tmp_path / "main.cpp").write_text("int tiny();\nint main() { return tiny(); }")
    library, program = tmp_path / "libtiny.so", tmp_path / "txport-bench"
    soname = ["-shared", "-fPIC", "-Wl,-soname,libtiny.so"]
    subprocess.run([compiler, *soname, "-o", library, tmp_path / "tiny.cpp"], check=True)
    linked = [library, f"-Wl,-rpath,{tmp_path}", "-Wl,--no-as-needed", "-lm"]
    subprocess.run([compiler, "-o", program, tmp_path / "main.cpp", *linked], check=True)
    shutil.copy(program, tmp_path / "txport-translate")
    wheel = tiny_wheel(tmp_path, "txport", "1")
    done = pack(tmp_path / "parts", wheel, bundles, tmp_path)
    assert done.returncode == 0, done.stderr
    kit = unpack(tmp_path / "parts")
    assert [path.name for path in (kit / "programs/lib").iterdir()] == ["libtiny.so"], "the rest is the system's"
    library.unlink()
    assert subprocess.run([kit / "programs/txport-bench"], env=run.surroundings(kit / "programs")).returncode == 0
    done = pack(tmp_path / "parts", wheel, bundles, tmp_path)
    assert done.returncode == 2 and "libtiny.so => not found" in done.stdout and "needs it: install it" in done.stderr


def test_a_wheel_of_a_new_glibc_is_installed_for_any_python(tmp_path: Path, bundles: Path) -> None:
    """As the one with the fused engine is: pip would take it for no wheel of the platforms that the others are of."""
    packages = {"pytest": "8", "rich": "13", "nvidia_ml_py": "12", "exceptiongroup": "1", "tomli": "2"}
    for name, version in {**packages, "cuda_bindings": "12.9"}.items():
        tiny_wheel(tmp_path, name, version)
    tiny_wheel(tmp_path, "cuda_bindings", "13")
    wheel = tiny_wheel(tmp_path, "txport", "1", f"py3-none-manylinux_2_99_{platform.machine()}")
    done = pack(tmp_path / "parts", wheel, bundles, PYTHONS="3.12 3.10", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    kit = unpack(tmp_path / "parts")
    assert (kit / "app/txport/__init__.py").exists()
    for version in ("3.10", "3.12"):
        assert {path.name for path in (kit / f"python{version}").iterdir()} >= packages.keys()
        assert (kit / f"python{version}" / "cuda_bindings-12.9.dist-info").exists()
        assert not list((kit / f"python{version}").glob("txport*")), "it is in app/"


def call(parts: Path, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A call of the runbook in the folder of the parts."""
    variables = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, **environment}
    return subprocess.run(
        ["bash", "calls.sh", name], cwd=parts, env=variables, capture_output=True, text=True, timeout=300
    )


def test_calls_come_with_the_kit(tmp_path: Path, bundles: Path) -> None:
    """They unpack it with its patterns, wait for the builds, and name what is missing."""
    patterns = tmp_path / "patterns"
    patterns.mkdir()
    (patterns / "cases.json").write_text("[]")
    parts = tmp_path / "parts"
    done = pack(parts, tiny_wheel(tmp_path, "tiny", "1"), bundles, PATTERNS=str(patterns))
    assert done.returncode == 0, done.stderr
    done = call(parts, "unpack")
    assert done.returncode == 0, done.stderr
    assert (parts / "kit/patterns/cases.json").exists() and (parts / "kit/bundles/tiny/onnx/weights.bin").exists()
    done = call(parts, "builds")
    assert done.returncode == 2 and f"there is no TensorRT in {parts.resolve()}/trt: unpack it" in done.stderr
    for log, code, words in (
        ("patterns ... passed in 2 s\nended: 0\n", 0, "patterns ... passed"),
        ("tensorrt ... failed in 2 s: why\nended: 0\n", 1, "failed in 2 s: why"),
        (done.stderr + "ended: 2\n", 1, "there is no TensorRT"),
        ("patterns ... passed in 2 s\n", 0, "the builds have not ended: run call c again"),
    ):
        (parts / "runs/builds.log").write_text(log)
        done = call(parts, "c", WAIT="1")
        assert done.returncode == code and words in done.stdout, (log, done.stdout)
    done = call(parts, "g")
    assert done.returncode == 2 and done.stderr.startswith("calls.sh: there is no call g: choose unpack, a,")


def test_weights_that_follow_from_names_are_left_out_and_grown(
    tmp_path: Path, float16_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 and float16, packed, transposed, tied and scaled; those of other checkpoints are carried."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[export]'")
    from txport.exporter import export as exporter

    monkeypatch.setattr(exporter, "choose_islands", lambda *_: [])
    grown_weights.write_checkpoint(tmp_path / "checkpoint", "tiny", 600)
    for half in (False, True):
        bundle = tmp_path / f"bundle-{half}"
        options = exporter.ExportOptions(sentences=2, singles=1, float16=half, verify=False)
        exporter.export_bundle(tmp_path / "checkpoint", bundle, options)
        before = (bundle / WEIGHTS).read_bytes()
        assert grown_weights.strip(bundle) and not (bundle / WEIGHTS).exists()
        assert (bundle / grown_weights.CHANGES).stat().st_size < len(before) / 5, "positions, and float16's biases"
        assert grown_weights.grow(bundle) and (bundle / WEIGHTS).read_bytes() == before
        assert not grown_weights.grow(bundle), "a second time"
    other = Path(shutil.copytree(float16_bundle, tmp_path / "other"))
    assert not grown_weights.strip(other) and (other / WEIGHTS).exists()
    assert grown_weights.strip(bundle)
    right = grown_weights.random_tensor
    monkeypatch.setattr(grown_weights, "random_tensor", lambda name, shape: right(f"{name}_", shape))
    with pytest.raises(CheckFailed, match="grew otherwise than on the machine that packed it"):
        grown_weights.grow(bundle)


def test_a_directory_without_bundles_is_refused(tmp_path: Path) -> None:
    done = pack(tmp_path / "parts", tiny_wheel(tmp_path, "txport", "1"), tmp_path)
    assert done.returncode == 2 and done.stderr == f"kit.sh: {tmp_path} holds no bundles of tx-export\n"
    assert not (tmp_path / "parts").exists()


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


def test_make_builds_what_the_kit_needs() -> None:
    """The demo's bundle and the C++ tools, before they are packed."""
    if shutil.which("make") is None:
        pytest.skip("needs make: apt install make")
    demo, tools, pack = "build/demo/bundle-fp16/manifest.json ||", "--target txport-translate txport-bench", "kit.sh"
    for variables, wanted in (((), (demo, tools, pack)), (("PROGRAMS=0", "BUNDLES=mine"), (pack,))):
        done = subprocess.run(["make", "-n", "gpu-kit", *variables], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        places = [done.stdout.find(part) for part in (demo, tools, pack)]
        assert [place for place in places if place >= 0] == sorted(places)[-len(wanted) :], variables
        assert all(part in done.stdout for part in wanted)
