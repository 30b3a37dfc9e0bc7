"""The C++ runtime from outside: against the Python one, installed, and linked by others. `make cpp` runs these."""

import ctypes
import itertools
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from parity import by_cpp, by_python
from patches import manifests
from toy import BUNDLE as TOY
from txport.runtime import entry
from txport.runtime.bundle.manifest import WEIGHTS, Manifest, list_files
from txport.runtime.engines.choice import choose
from txport.runtime.translator import Translator
from txport.training.spoken import corpus as spoken

SOURCE = Path(__file__).parents[2] / "runtime" / "cpp"
VERSION = (SOURCE / "VERSION").read_text().strip()
BUILD = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere"))
TOOL = BUILD / "txport-translate"
WHOLE_GRID = os.environ.get("TXPORT_WHOLE_GRID") == "1"

pytestmark = pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")

ODD = [
    "the cat sees a bird",
    "",
    "   \t ",
    "café 漢字 🙂 naïve",
    "a\rb\x0bc\x1cd\u2028e",
    "tab\tand  blanks ",
    '"quotes" \\ and / {json}',
    "word " * 300,
    "x",
    "\u00a0",
    "▁a▁",
    "<s> </s> <unk>",
]


def run(*arguments: object, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([str(item) for item in arguments], capture_output=True, timeout=600, **options)


def by_both(*arguments: object, text: bytes = b"") -> "tuple[subprocess.CompletedProcess[bytes], ...]":
    """Run tx-translate in this process, and txport-translate."""
    return commands.run_bytes(entry, "tx-translate", *arguments, stdin=text), run(TOOL, *arguments, input=text)


def check(*arguments: object, **options: Any) -> str:
    done = run(*arguments, **options)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """1,000 held-out sentences of the demo's corpus, and odd ones."""
    return [*ODD, *(written for written, _ in itertools.islice(spoken.sentences(3, "test"), 1000))]


def test_scores_that_are_not_finite_are_null(tmp_path: Path) -> None:
    broken = Path(shutil.copytree(TOY, tmp_path / "broken"))
    weights = broken / WEIGHTS
    data = np.frombuffer(weights.read_bytes(), np.float32).copy()
    data[data.size // 2 :] = np.nan
    weights.write_bytes(data.tobytes())
    replace(Manifest.load(TOY), files=list_files(broken)).write(broken)
    chosen, where = ["the cat sees a bird", "one"], {"lowering": "scatter"}
    found, expected = by_cpp(TOOL, broken, chosen, where, 1), by_python(broken, chosen, where, 1)
    assert found == expected
    for line in found:
        value = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert None in value["scores"]


@pytest.mark.parametrize(("lowering", "batch"), [("ort", 1), ("ort", 32), ("scatter", 32), ("tensorscatter", 32)])
def test_python_and_cpp_give_the_same_bytes(bundle: Path, lines: list[str], lowering: str, batch: int) -> None:
    chosen = lines if batch > 1 else lines[:300]
    where = {"lowering": lowering}
    found, expected = by_cpp(TOOL, bundle, chosen, where, batch), by_python(bundle, chosen, where, batch)
    assert found == expected


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--json"],
        ["--json", "--scores", "--max-length", "7"],
        ["--scores", "--min-length", "30", "--json", "--max-length", "40"],
        ["--prefix", "a dog", "--window", "2"],
        ["-", str(SOURCE / "README.md"), "-", "--max-length", "3"],
        ["--batch", "3", "--batch-tokens", "50", "--threads", "1", "--lowering", "scatter"],
        ["--document"],
        ["--document", "--json", "--max-length", "9", "-", str(SOURCE / "README.md")],
        ["--document", "--json", "--beam", "2", "--n-best", "2", "--scores", "--max-length", "5"],
    ],
    ids=" ".join,
)
def test_the_tools_write_the_same_bytes(options: list[str]) -> None:
    # No line end after the last line, and some in Windows style.
    text = "\n".join([*ODD, "one\r", "the last"]).encode()
    expected, found = by_both(TOY, *options, text=text)
    assert expected.returncode == found.returncode == 0
    assert found.stdout == expected.stdout
    assert found.stderr.replace(b"txport-translate", b"tx-translate") == expected.stderr


def test_names_do_not_control_the_terminal(tmp_path: Path) -> None:
    controls = "".join(map(chr, [*range(1, 10), *range(11, 32), *range(0x7F, 0xA0)]))
    for name in (controls, "a\u202e\u2066\u2069\u200d🙂"):
        expected, found = by_both(tmp_path / name)
        assert not {*b"\x1b\x7f\x9b"} & {*found.stderr} and "\u202e".encode() not in found.stderr
        assert expected.returncode == found.returncode == 2
        assert found.stderr.replace(b"txport-translate", b"tx-translate") == expected.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([TOY], b"one\ntwo\nbad \xff line\nfour\n"),
        ([TOY, "--strict"], b"one\n" + b"cat " * 40 + b"\n"),
        ([TOY, "--scores"], b"one\n"),
        ([TOY, "--batch", "9"], b"one\n"),
        ([TOY, "-", "/nothing/here"], b"one\n"),
        ([TOY, TOY], b"one\n"),
        ([TOY, "-o", "/nothing/here"], b"one\n"),
        ([TOY, "-o", "/dev/null"], b"one\n"),
        ([TOY, TOY / "onnx" / "weights.bin", "--max-length", "2"], b""),
        ([TOY, "--max-length", "1000"], b"one\n"),
        ([TOY, "--device", "tpu"], b""),
        ([TOY, "--device", "trt"], b""),
        ([TOY, "--engine", "fused"], b""),
        ([TOY, "--engine", "swift"], b""),
        ([TOY, "--lowering", "fused"], b""),
        ([TOY, "--lowering", "swift"], b""),
        ([TOY, "--target-language", "fra"], b"one\n"),
        ([TOY, "--document"], b"one\r\n\ntwo \xff\nthree"),
        ([TOY, "--document", "--strict"], b"one\n\n" + b"cat " * 40),
        ([TOY, "--document", "--alignments"], b"one\n"),
        (["/nothing/here"], b""),
        ([TOY.parent], b""),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_the_tools_refuse_alike(arguments: list[object], text: bytes) -> None:
    expected, found = by_both(*arguments, text=text)
    assert expected.returncode == found.returncode == 2
    assert found.stdout == expected.stdout
    assert found.stderr.replace(b"txport-translate", b"tx-translate") == expected.stderr


@pytest.mark.parametrize("errors", ["replace", "skip"])
def test_lines_that_are_not_utf8(tmp_path: Path, errors: str) -> None:
    """Every pair of kinds of bytes, between others, and Python's decoder for what they become."""
    kinds = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF]
    cases = [bytes(case) for length in (1, 2, 3) for case in itertools.product(kinds, repeat=length)]
    assert sum(case.decode("utf-8", "replace") != case.decode("utf-8", "ignore") for case in cases) > 5000
    (tmp_path / "in").write_bytes(b"".join(b"one " + case + b" two\n" for case in cases))
    options = ["--errors", errors, "--json", "--max-length", "2"]
    expected, found = by_both(TOY, tmp_path / "in", *options)
    assert (found.returncode, found.stderr) == (0, b"")
    assert found.stdout.count(b"\n") == len(cases) and found.stdout == expected.stdout
    some = b"\r\n".join(b"One " + case + b". Two" for case in cases[:: len(cases) // 500])
    expected, found = by_both(TOY, "--document", *options, text=some)
    assert (found.returncode, found.stdout) == (0, expected.stdout)
    assert found.stderr.replace(b"txport-translate", b"tx-translate") == expected.stderr


def test_the_tools_have_the_same_flags_and_words() -> None:
    def flags(tool: object) -> set[str]:
        text = re.sub(r"-\n +", "-", check(tool, "--help"))  # click breaks lines at hyphens
        return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))

    assert flags(TOOL) == flags("tx-translate")
    said = check(TOOL, "--help") + check(BUILD / "txport-bench", "--help")
    assert "9223372036854775807" not in said and "2147483647" not in said
    assert "--window INT at least 1" in said and "--threads INT at least 0" in said
    done = run(TOOL, TOY, "--window", "0", input=b"")
    assert b"--window: 0 is not a whole number, at least 1" in done.stderr


def test_an_output_file_is_whole_or_not_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(TOOL, TOY, "-o", out, input=b"one\n\xff\n").returncode == 2
    assert not list(tmp_path.iterdir())
    assert run(TOOL, TOY, "-o", out, input=b"one\ntwo\n").stdout == b""
    assert out.read_bytes() == run(TOOL, TOY, input=b"one\ntwo\n").stdout
    (tmp_path / "link").symlink_to(out)
    assert run(TOOL, TOY, "-o", tmp_path / "link", input=b"a cat\n").returncode == 0
    assert (tmp_path / "link").is_symlink() and out.read_bytes() == run("tx-translate", TOY, input=b"a cat\n").stdout


def test_control_c_is_one_line_and_130(tmp_path: Path) -> None:
    def listen() -> None:
        """Jobs in the background of a shell ignore Ctrl-C, and so would what they start."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipe = subprocess.PIPE
    command = [TOOL, TOY, "-o", tmp_path / "out"]
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, preexec_fn=listen) as process:
        assert process.stderr is not None
        while not list(tmp_path.iterdir()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"txport-translate: interrupted\n"
    assert process.returncode == 130 and not list(tmp_path.iterdir())


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\n" * 40 + "one two " * 40)
    ours, theirs = pty.openpty()
    done = subprocess.run([TOOL, TOY, tmp_path / "in"], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = [part for part in os.read(ours, 1 << 16).decode().split("\r\x1b[K") if part]
    os.close(ours)
    assert done.returncode == 0
    assert re.fullmatch(r"32 lines, \d+ per second", shown[0])
    assert shown[1].startswith(f"txport-translate: {tmp_path}/in, line 41 has")
    assert re.fullmatch(r"41 lines, \d+ per second\s+", shown[2])


def test_bad_options_and_closed_pipes() -> None:
    for arguments in ([], [TOY, "--window", "0"], [TOY, "--nothing"], [TOY, "--threads", "-1"]):
        done = run(TOOL, *arguments, input=b"")
        assert done.returncode == 2 and not done.stdout and done.stderr
    assert (
        run("bash", "-c", f"yes one | {TOOL} {TOY} --max-length 2 | head -n 3; exit ${{PIPESTATUS[1]}}").returncode
        == 141
    )
    assert VERSION in check(TOOL, "--version")


def test_without_onnxruntime() -> None:
    done = run(TOOL, TOY, input=b"one\n", env={"TXPORT_ONNXRUNTIME": "/nowhere/libonnxruntime.so"})
    assert done.returncode == 2
    assert b"ONNX Runtime cannot be loaded (/nowhere" in done.stderr and b"TXPORT_ONNXRUNTIME" in done.stderr


def test_nothing_is_reported_or_kept_elsewhere(tmp_path: Path) -> None:
    done = run(TOOL, TOY, input=b"one\n", env={"HOME": str(tmp_path)})
    assert done.returncode == 0 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["bundle", "int8_bundle"])
def test_the_library_checks_itself(request: pytest.FixtureRequest, kind: str) -> None:
    """By the golden cases of a bundle that was exported."""
    library, translator = ctypes.CDLL(str(BUILD / "libtxport.so")), ctypes.c_void_p()
    library.txport_message.restype = ctypes.c_char_p
    path = str(request.getfixturevalue(kind)).encode()
    assert library.txport_open(path, None, ctypes.byref(translator)) == 0, library.txport_message()
    code = library.txport_self_check(translator)
    library.txport_close(translator)
    assert code == 0, library.txport_message()


def test_two_processes_on_one_bundle(bundle: Path, lines: list[str]) -> None:
    text = "\n".join(lines[:100]).encode()
    processes = [subprocess.Popen([TOOL, bundle], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
    first, second = (process.stdout.read() for process in processes if process.stdout is not None)
    assert first == second == run(TOOL, bundle, input=text).stdout != b""
    assert [process.wait() for process in processes] == [0, 0]


def test_a_bundle_whose_tokenizer_is_only_in_python(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(TOY, tmp_path / "bundle"))
    (directory / "manifest.json").write_bytes(manifests().data("without_tokenizer"))
    done = run(TOOL, directory, input=b"one\n")
    assert done.returncode == 2
    assert b"give it ids" in done.stderr


def test_tx_bench_measures_it_beside_the_python_runtime(bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="needs what tx-bench prints with: pip install 'txport[bench]'")
    from txport.benchmarks.report.report import read_report

    sizes = ("--batch", 2, "--source", 6, "--target", 5, "--calls", 3, "--seconds", 0.3, "--threads", 1, "--lines", 4)
    options = ("--cpp", BUILD / "txport-bench", "--no-plots", "--no-roofline", "-o", tmp_path / "out")
    command = ("-c", "from txport.benchmarks.entry import bench; bench()")
    check(sys.executable, *command, bundle, *sizes, *options)
    report = read_report(tmp_path / "out/bench.json")
    fixed = {each.contestant: each for each in report.measurements if each.workload == "2 x 6 -> 5"}
    cpp = next(each for each in report.contestants if each.kind == "cpp")
    measured = fixed[cpp.name]
    assert "txport-bench" in cpp.engine and cpp.startup_ms is not None
    assert measured.ratio is not None and 0.001 < measured.ratio.p50 < 1000
    assert measured.encoder_ms is not None and measured.peak_resident_bytes is not None
    assert cpp.skipped is not None and "fixed workloads only" in cpp.skipped, "it takes no text"


def test_bench(bundle: Path) -> None:
    arguments = ["--batch", "2", "--source", "8", "--target", "16", "--calls", "5"]
    found = json.loads(check(BUILD / "txport-bench", bundle, *arguments))
    assert found["format"] == "txport-bench" and found["format_version"] == 1
    assert found["workload"] == {"batch": 2, "source": 8, "target": 16}
    assert found["reason"] == choose(Manifest.load(bundle), bundle=bundle).reason
    asked = json.loads(check(BUILD / "txport-bench", bundle, *arguments, "--device", "cpu", "--lowering", "scatter"))
    assert (
        asked["reason"] == "device cpu was requested; lowering scatter was requested" and "scatter" in asked["engine"]
    )
    figures = found["figures"]
    assert figures["calls"] == 5 and 2 <= figures["tokens_per_call"] <= 32
    assert 0 < figures["ms_per_token"]["p50"] <= figures["ms_per_token"]["p90"] <= figures["ms_per_token"]["p99"]
    assert 0 < figures["open_ms"] < figures["startup_ms"]
    assert figures["peak_resident_bytes"] > (bundle / WEIGHTS).stat().st_size
    done = run(BUILD / "txport-bench", bundle, "--source", "100000")
    assert done.returncode == 2 and b"this bundle supports up to" in done.stderr


def test_nothing_but_the_c_abi_can_be_seen() -> None:
    declared = {name: declarations(name) for name in ("txport", "engine")}
    assert len(declared["txport"]) > 15 and symbols("libtxport.so") == declared["txport"] | declared["engine"]
    alone = declared["engine"] - {"txport_engine_open"} | {"txport_version", "txport_message"}
    assert symbols("libtxport_engine.so") == alone


def symbols(library: str) -> set[str]:
    """Names that a library shows."""
    lines = check("nm", "-D", "--defined-only", BUILD / library).split("\n")
    return {line.split()[-1] for line in lines if line}


def declarations(header: str) -> set[str]:
    text = (SOURCE / "include" / "txport" / f"{header}.h").read_text()
    return set(re.findall(r"^TXPORT_API [^(]*?(\w+)\(", text, re.MULTILINE))


@pytest.mark.native("the README's sizes are those of x86-64")
def test_the_library_that_is_installed_is_as_small_as_the_readme_says(tmp_path: Path) -> None:
    check("cmake", "--install", BUILD, "--prefix", tmp_path, "--strip")
    library = next(tmp_path.rglob("libtxport.so.*.*.*"))
    says = re.search(r"^\| library, stripped, MB.* \| ([\d.]+) \|", (SOURCE / "README.md").read_text(), re.MULTILINE)
    assert says is not None
    assert library.stat().st_size / 1e6 == pytest.approx(float(says[1]), rel=0.1)
    for file in (library, *(tmp_path / "bin").iterdir()):
        assert str(SOURCE.parents[1]).encode() not in file.read_bytes()


needs_own_compiler = pytest.mark.native("CMake here builds for x86, and would have to build for arm64 and to run it")
PROJECT = SOURCE / "examples" / "project" / "CMakeLists.txt"


def consumer(folder: Path, *options: object) -> Path:
    """Build the README's example by the project to copy, outside the repository, as somebody else would."""
    folder.mkdir(exist_ok=True)
    (folder / "main.cpp").write_text(readme_example())
    shutil.copyfile(PROJECT, folder / "CMakeLists.txt")
    check("cmake", "-S", folder, "-B", folder / "build", *options, env=builder())
    check("cmake", "--build", folder / "build")
    return folder / "build" / "app"


def builder() -> dict[str, str]:
    """The environment of somebody who has Highway and ninja."""
    highway = Path(os.environ["ONNXRUNTIME_ROOT"]).with_name("highway")
    here = {"HIGHWAY_ROOT": str(highway)} if highway.exists() else {}
    return {**here, "CMAKE_GENERATOR": "Ninja", **os.environ}


def readme_example() -> str:
    blocks = re.findall(r"```cpp\n(.*?)```", (SOURCE / "README.md").read_text(), re.DOTALL)
    return str(blocks[0])


def translates(program: Path, bundle: Path) -> bool:
    """Whether it says what the Python runtime says, of a bundle that the fused engine runs."""
    text = "It cost $12.50."
    return Translator(bundle, "cpu").translate([text])[0].text in check(program, bundle, input=text.encode() + b"\n")


def installed(build: Path, folder: Path) -> Path:
    """The build, installed and then moved elsewhere."""
    check("cmake", "--install", build, "--prefix", folder / "prefix")
    return Path(shutil.move(folder / "prefix", folder / "moved"))


@needs_own_compiler
def test_find_package_from_a_moved_prefix(tmp_path: Path, bundle: Path) -> None:
    prefix = installed(BUILD, tmp_path)
    assert {"txport-translate", "txport-bench"} <= {path.name for path in (prefix / "bin").iterdir()}
    named = {"TXPORT_ONNXRUNTIME": str(Path(os.environ["ONNXRUNTIME_ROOT"], "lib", "libonnxruntime.so.1"))}
    assert run(prefix / "bin" / "txport-translate", TOY, input=b"one\n", env=named).returncode == 0
    assert translates(consumer(tmp_path / "app", f"-DCMAKE_PREFIX_PATH={prefix}"), bundle)


# But for the kernels, which insist on -O3.
QUICKLY = "-DCMAKE_BUILD_TYPE=Unoptimised"


# In a small process: another one begins with the peak of the one that starts it.
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], input=b"It cost $12.50.", capture_output=True, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6)
"""


compiles_the_library = pytest.mark.skipif(not WHOLE_GRID, reason="compiles the library once more: make whole-grid")


@compiles_the_library
@needs_own_compiler
def test_a_folder_of_the_project_and_a_static_library(tmp_path: Path, bundle: Path) -> None:
    """By the commands of the page. Its sizes are those with the fused engine's kernels."""
    page = (PROJECT.parent / "README.md").read_text()
    clone, *commands = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)[0].splitlines(keepends=True)
    assert clone == 'git clone "$REPOSITORY" app/txport\n'
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "txport").symlink_to(SOURCE.parents[1])
    commands = [line.replace("cmake -S", "cmake -DTXPORT_UNITY=ON -S") for line in commands]
    check("bash", "-ec", "".join(commands), cwd=tmp_path, env=builder())
    program = tmp_path / "app" / "build" / "app"
    assert translates(program, bundle)
    says = dict(re.findall(r"^\| (the program|resident).* \| ([\d.]+) \|", page, re.MULTILINE))
    assert program.stat().st_size / 1e6 == pytest.approx(float(says["the program"]), rel=0.1)
    weights = (bundle / WEIGHTS).stat().st_size / 1e6
    peak = float(check(sys.executable, "-SEc", PEAK, program, bundle))
    assert weights < peak < float(says["resident"])  # its weights are smaller than those of the page
    prefix = installed(tmp_path / "app" / "build", tmp_path)
    assert list(prefix.rglob("libtxport.a"))
    assert translates(consumer(tmp_path / "other", f"-DCMAKE_PREFIX_PATH={prefix}"), bundle)


@compiles_the_library
@needs_own_compiler
def test_fetched(tmp_path: Path, bundle: Path) -> None:
    here = f"-DFETCHCONTENT_SOURCE_DIR_TXPORT={SOURCE.parents[1]}"  # in place of a repository that is cloned
    # Kernels take most of the time, and are in the library above.
    options = [QUICKLY, "-DTXPORT_UNITY=ON", "-DTXPORT_WITH_FUSED=OFF", "-DTXPORT_GIT=unused"]
    assert translates(consumer(tmp_path / "app", here, *options), bundle)


def test_the_project_of_the_readme_is_the_one_to_copy() -> None:
    assert f"```cmake\n{PROJECT.read_text()}```" in (SOURCE / "README.md").read_text()


@needs_own_compiler
def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    nothing = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("SentencePiece", "nlohmann_json", "OnnxRuntime")]
    done = run("cmake", "-S", SOURCE, "-B", tmp_path, *nothing)
    said = " ".join(done.stderr.decode().split())
    assert done.returncode == 1 and "apt install libsentencepiece-dev nlohmann-json3-dev; and name a folder" in said


def test_the_examples() -> None:
    assert readme_example() == (SOURCE / "examples" / "translate.cpp").read_text()
    assert "the dog one ori tree or tree and" in check(
        BUILD / "txport_example_cpp", TOY, input=b"the cat sees a bird\n"
    )
    expected = "the dog one ori tree or tree and\n"
    assert check(BUILD / "txport_example_c", TOY, "the cat sees a bird") == 2 * expected
    script = SOURCE / "examples" / "translate.py"
    assert check("python3", script, BUILD / "libtxport.so", TOY, "the cat sees a bird") == expected
    for example in ("translate.cpp", "translate.c", "translate.py"):
        assert len((SOURCE / "examples" / example).read_text().splitlines()) <= 50


@pytest.mark.parametrize("seconds", [0, 0.1, 0.102, 0.104, 0.108])
def test_a_process_may_end_without_closing(bundle: Path, tmp_path: Path, seconds: float) -> None:
    # Weights are packed behind the first sentence, or after 0.1 s: the end of the process must not come between.
    example = (SOURCE / "examples" / "translate.py").read_text()
    assert "library.txport_close(translator)\n" in example
    script = tmp_path / "left_open.py"
    script.write_text(example.replace("library.txport_close(translator)\n", f"import time\n\ntime.sleep({seconds})\n"))
    for _ in range(3):
        check(sys.executable, script, BUILD / "libtxport.so", bundle, "the cat sees a bird")
    lines = script.read_text().splitlines(keepends=True)
    script.write_text("".join(line for line in lines if "result_text(" not in line and "texts" not in line))
    for _ in range(3):
        check(sys.executable, script, BUILD / "libtxport.so", bundle, "nothing is translated")


@pytest.mark.parametrize("name", ["libtxport.so", "libtxport_engine.so"])
@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")
def test_libraries_are_hardened(name: str) -> None:
    """Stack protectors, addresses bound at start, and no variable of the environment in a setuid program."""
    symbols = {line.split()[-1].split("@")[0] for line in check("nm", "-D", "-u", BUILD / name).splitlines()}
    assert "__stack_chk_fail" in symbols and "secure_getenv" in symbols and "getenv" not in symbols
    assert "BIND_NOW" in check("readelf", "-d", BUILD / name)
