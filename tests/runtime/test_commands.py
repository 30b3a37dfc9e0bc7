"""tx-translate and tx-inspect as a shell sees them: bytes in, bytes out, exit codes, one sentence for an error."""

import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from toy import BUNDLE, answer
from txport.runtime import entry
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.tokenizer_schema import Languages
from txport.runtime.engines.native import missing
from txport.runtime.translator import Translator

# The console scripts themselves may not be installed where these tests run.
RUN = "import sys; sys.argv[0] = 'tx-{0}'; from txport.runtime.entry import {0}; {0}()"
# Modules in the first argument are as good as not installed.
WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
refused = {0!r}.split()
sys.meta_path.insert(0, Refuse())
"""


def run(command: str, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    """In this process."""
    return commands.run(entry, f"tx-{command}", *arguments, stdin=stdin)


def run_without(libraries: str, command: str, *arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """In a process where some libraries are not installed."""
    code = [sys.executable, "-c", WITHOUT.format(libraries) + RUN.format(command), *map(str, arguments)]
    return subprocess.run(code, input=stdin, capture_output=True, timeout=500, text=True)


def assert_one_sentence(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """It failed with this code and one line on standard error that has all these words."""
    error = done.stderr
    assert done.returncode == code, error
    assert error.startswith("tx-") and error.count("\n") == 1, error
    assert all(word in error for word in words), error


def test_lines_in_lines_out(toy: Translator) -> None:
    texts = ["the cat sees a bird", "", "  ", "one", "a\rb", "🙂", "two\0three"]
    done = run("translate", BUNDLE, stdin="\n".join(texts).encode())
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.split("\n")
    assert lines[:-1] == [result.text for result in toy.translate(texts)] and lines[-1] == ""


def test_nothing_in_nothing_out() -> None:
    done = run("translate", BUNDLE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_json(toy: Translator) -> None:
    arguments = ["--json", "--scores", "--max-length", 6, "--min-length", 2, "--prefix", "the cat", "--batch", 2]
    done = run("translate", BUNDLE, *arguments, stdin=b"one\n\n")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    (result,) = toy.translate(["one"], max_length=6, min_length=2, prefix="the cat", scores=True)
    assert found[1] == {"text": "", "ids": [], "scores": [], "truncated": False, "finished": True, "looped": False}
    assert found[0] | {"scores": None} == {
        "text": result.text, "ids": result.ids, "scores": None, "truncated": False, "finished": result.finished,
        "looped": result.looped,
    }  # fmt: skip
    assert found[0]["scores"] == pytest.approx(result.scores, abs=1e-6)


def test_json_bytes() -> None:
    """Byte for byte, since the C++ program must write the same."""
    done = run(
        "translate", BUNDLE, "--json", "--max-length", 2, "--threads", 1, "--lowering", "scatter", stdin=b"one\n"
    )
    ids = answer(Translator(BUNDLE).tokenizer.encode("one"), 2)[0]
    text = Translator(BUNDLE).tokenizer.decode(ids)
    ends = '"truncated": false, "finished": false, "looped": false'
    assert done.stdout == f'{{"text": "{text}", "ids": [{ids[0]}, {ids[1]}], {ends}}}\n'


def test_an_answer_comes_before_the_next_question() -> None:
    command = [sys.executable, "-c", RUN.format("translate"), str(BUNDLE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for _ in range(3):
            process.stdin.write(b"one\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")  # would wait forever if lines were gathered
        process.stdin.close()
        assert process.stdout.read() == b""
    assert process.returncode == 0


def test_bytes_that_are_not_utf8(toy: Translator) -> None:
    done = run("translate", BUNDLE, stdin=b"one\n\ntwo\nthr\xffee\nfour\n")
    assert_one_sentence(done, 2, "line 4 is not UTF-8", "byte 4 is 0xff", "--errors replace or skip")
    assert done.stdout.split("\n")[:-1] == [r.text for r in toy.translate(["one", "", "two"])]


def test_long_lines() -> None:
    done = run("translate", BUNDLE, "--max-length", 3, stdin=b"one\n" + b"one two " * 40 + b"\n")
    assert done.returncode == 0 and done.stdout.count("\n") == 2
    assert done.stderr.startswith("tx-translate: line 2 has ") and done.stderr.count("\n") == 1
    done = run("translate", BUNDLE, "--strict", stdin=b"one\n" + b"one two " * 40 + b"\n")
    assert_one_sentence(done, 2, "line 2 has", "more than the 24")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([BUNDLE, "--device", "tpu"], ["'tpu'", "auto, cpu, cuda"]),
        ([BUNDLE, "--device", "trt"], ["device 'trt' is an engine: give engine trt instead"]),
        ([BUNDLE, "--lowering", "swift"], ["'swift'", "ort, scatter, tensorscatter"]),
        ([BUNDLE, "--lowering", "fused"], ["lowering 'fused' is an engine: give engine fused instead"]),
        ([BUNDLE, "--engine", "swift"], ["'swift'", "auto, fused, ort, trt"]),
        ([BUNDLE, "--engine", "fused"], ["the bundle has no parameters for the fused engine", "export it again"]),
        ([BUNDLE, "--max-length", 73], ["73", "72"]),
        ([BUNDLE, "--batch", 9], ["the batch 9 is not between 1 and 8, the maximum of this bundle"]),
        ([BUNDLE, "--scores"], ["--scores needs --json"]),
        ([BUNDLE, "nowhere.txt"], ["nowhere.txt cannot be read: No such file"]),
        ([BUNDLE, BUNDLE], ["toy_bundle is a directory: give a text file"]),
        ([BUNDLE, "-o", "/nowhere/x"], ["/nowhere/x cannot be written"]),
        ([BUNDLE.parent], ["has no manifest.json"]),
        (["nowhere"], ["nowhere does not exist"]),
    ],
)
def test_bad_use(arguments: list[object], words: list[str]) -> None:
    assert_one_sentence(run("translate", *arguments, stdin=b"one\n"), 2, *words)


def test_names_do_not_control_the_terminal(damaged: Path) -> None:
    manifest = damaged / "manifest.json"
    manifest.write_text('{"\\u001b[2J\x9b2J\x7f\u202e\u2066\u00e9\u200d": 1}')
    done = run("translate", damaged)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", done.stderr)
    manifest.rename(damaged / "\x1b[2J\x9b2J\x7f\u202e\u2066\u00e9\u200d")
    done = run("translate", damaged / "\x1b[2J\x9b2J\x7f\u202e\u2066\u00e9\u200d")
    assert_one_sentence(done, 2, r"\x1b[2J\x9b2J\x7f\u202e\u2066" + "\u00e9\u200d")


def test_json_of_a_manifest_does_not_control_the_terminal(tmp_path: Path) -> None:
    name = "\x1b[2J\x9b2J\x7f\u202e\u2066\u00e9"
    shutil.copytree(BUNDLE, tmp_path / "copy")
    manifest = Manifest.load(BUNDLE)
    dataclasses.replace(manifest, made_by=dataclasses.replace(manifest.made_by, version=name)).write(tmp_path / "copy")
    done = run("inspect", tmp_path / "copy", "--json")
    assert done.returncode == 0 and not re.search("[^\n -~]", done.stdout)
    assert json.loads(done.stdout)["manifest"]["made_by"]["version"] == name


def test_bad_options_are_clicks() -> None:
    for arguments in ([], [BUNDLE, "--quality", 4], [BUNDLE, "--max-length", "long"]):
        done = run("translate", *arguments)
        assert done.returncode == 2 and done.stderr.startswith("Usage: tx-translate")
    assert run("translate", "--help").stdout.startswith("Usage: tx-translate")


def test_a_closed_pipe_ends_it_silently() -> None:
    command = [sys.executable, "-c", RUN.format("translate"), str(BUNDLE), "--window", "1", "--max-length", "4"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"two\n")
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_full_disk_is_one_sentence() -> None:
    command = [sys.executable, "-c", RUN.format("translate"), str(BUNDLE)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, input=b"one\n", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == b"tx-translate: the output cannot be written: No space left on device\n"


def test_closed_streams() -> None:
    code = RUN.format("translate")
    for redirection, words in (("<&-", "standard input is closed"), (">&-", "standard output is closed")):
        shell = ["bash", "-c", f'"$0" -c "$1" "$2" {redirection}', sys.executable, code, str(BUNDLE)]
        done = subprocess.run(shell, capture_output=True, stdin=subprocess.DEVNULL, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith(f"tx-translate: {words}: ") and done.stderr.count("\n") == 1


def test_control_c_ends_it_in_one_word() -> None:
    def listen() -> None:
        """Jobs in the background of a shell ignore Ctrl-C, and so would what they start."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    command, pipe = [sys.executable, "-c", RUN.format("translate"), str(BUNDLE)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=listen) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"tx-translate: interrupted\n"


@pytest.mark.parametrize(
    ("library", "package"), [("onnxruntime", "'txport[ort]'"), ("sentencepiece", "txport"), ("click", "txport")]
)
def test_a_missing_library_is_one_sentence(library: str, package: str) -> None:
    assert_one_sentence(run_without(library, "translate", BUNDLE), 2, library, f"pip install {package}")


def test_what_is_not_needed_may_be_missing() -> None:
    done = run_without("torch onnx rich transformers safetensors", "translate", BUNDLE, stdin="one\n")
    assert done.returncode == 0, done.stderr
    done = run_without("torch onnx rich onnxruntime sentencepiece", "inspect", BUNDLE)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")
def test_numpy_sentencepiece_click_and_the_engine_translate(bundle: Path) -> None:
    absent = "onnxruntime torch onnx rich"
    done = run_without(absent, "translate", bundle, stdin="See you at 5 pm.\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == run("translate", bundle, stdin=b"See you at 5 pm.\n").stdout
    done = run_without(absent, "inspect", bundle, "--check")
    assert done.returncode == 0 and "give the same ids with fused cpu" in done.stdout, done.stderr
    done = run_without(absent, "translate", bundle, "--engine", "ort", stdin="one\n")
    assert_one_sentence(done, 2, "engine ort is ONNX Runtime", "pip install 'txport[ort]'")


def test_inspect() -> None:
    done = run("inspect", BUNDLE)
    assert done.returncode == 0, done.stderr
    facts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert facts["made"] == "by      toy 1 (format 1)"
    assert "1+1 layers" in facts["model"] and "96" in facts["model"]
    assert "ONNX Runtime" in done.stdout and "lowering ort" in done.stdout


def test_one_file_is_taken_where_a_directory_is(tmp_path: Path) -> None:
    packed = BUNDLE.with_suffix(".txb")
    for command, *arguments in (("translate", "--json"), ("translate", "--engine", "ort"), ("inspect", "--check")):
        found, expected = (run(command, bundle, *arguments, stdin=b"one\n") for bundle in (packed, BUNDLE))
        assert found.returncode == 0, found.stderr
        # A lowering that ONNX Runtime is too old for is named by its file.
        assert found.stdout == expected.stdout.replace(f"{BUNDLE}/", f"{packed}/") and found.stdout
    done = run("triton", packed, "-o", tmp_path / "model")
    assert done.returncode == 0 and str(packed) in (tmp_path / "model" / "config.pbtxt").read_text(), done.stderr
    again = run("pack", BUNDLE, "-o", tmp_path / "again.txb")
    assert (tmp_path / "again.txb").read_bytes() == packed.read_bytes(), again.stderr
    assert_one_sentence(run("pack", packed, "-o", tmp_path / "x"), 2, "needs a directory: unzip")


def test_languages(damaged: Path) -> None:
    manifest = Manifest.load(damaged)
    languages = Languages({"eng": 90, "deu": 91}, {"fra": 40, "ita": 41}, "eng", None, True)
    tokenizer = dataclasses.replace(
        manifest.tokenizer, source_prefix=("source_language",), target_prefix=("target_language",), languages=languages
    )
    dataclasses.replace(manifest, tokenizer=tokenizer).write(damaged)
    shown = run("inspect", damaged).stdout
    assert "2: eng (default), deu" in shown and "2: fra, ita" in shown and ">>language<<" in shown
    assert_one_sentence(run("translate", damaged, stdin=b"one\n"), 2, "--target-language", "fra, ita")
    options = ["--source-language", "deu", "--target-language", "ita", "--json", "--max-length", 4]
    done = run("translate", damaged, *options, stdin=b"one\n")
    text = Translator(BUNDLE).tokenizer.encode("one")
    assert json.loads(done.stdout)["ids"] == answer([91, *text], 4, prefix=[41])[0]


def test_inspect_as_json() -> None:
    found = json.loads(run("inspect", BUNDLE, "--json", "--check").stdout)
    assert found["manifest"] == json.loads((BUNDLE / "manifest.json").read_bytes())
    assert found["choice"]["engine"] == "ort" and found["choice"]["device"] == "cpu"
    assert any("golden.json" in line for line in found["checks"])
    assert "checks" not in json.loads(run("inspect", BUNDLE, "--json").stdout)


@pytest.mark.parametrize("name", ["manifest.json", *sorted(Manifest.load(BUNDLE).files)])
def test_check_finds_a_changed_byte_in_any_file(damaged: Path, name: str) -> None:
    data = bytearray((damaged / name).read_bytes())
    data[len(data) // 2] ^= 4
    (damaged / name).write_bytes(data)
    done = run("inspect", damaged, "--check")
    assert_one_sentence(done, 1, str(damaged / name))
    assert done.stdout == ""


def test_check_finds_other_answers(damaged: Path) -> None:
    """All hashes are right, but the model does not do what it did where it was exported."""
    golden = json.loads((damaged / "golden.json").read_bytes())
    golden["cases"][1]["target_ids"][0] ^= 1
    (damaged / "golden.json").write_text(json.dumps(golden))
    _sign(damaged)
    assert_one_sentence(run("inspect", damaged, "--check"), 1, "1 of 5 cases", "case 1", "batch")
    golden["cases"][1]["target_ids"][0] ^= 1
    del golden["cases"][3]["target_ids"][1:]
    (damaged / "golden.json").write_text(json.dumps(golden))
    _sign(damaged)
    done = run("inspect", damaged, "--check")
    assert done.returncode == 0, "an answer's beginning is enough"
    golden["cases"][2]["source"] += " and one"
    (damaged / "golden.json").write_text(json.dumps(golden))
    _sign(damaged)
    assert_one_sentence(run("inspect", damaged, "--check"), 1, "case 2", "source ids")
    golden["format_version"] = 2
    (damaged / "golden.json").write_text(json.dumps(golden))
    _sign(damaged)
    assert_one_sentence(run("inspect", damaged, "--check"), 1, "format_version 2")
    (damaged / "golden.json").unlink()
    _sign(damaged)
    assert_one_sentence(run("inspect", damaged, "--check"), 1, "golden.json is missing")


def _sign(directory: Path) -> None:
    from txport.runtime.bundle.manifest import list_files

    manifest = Manifest.parse((directory / "manifest.json").read_bytes())
    Manifest(**{**vars(manifest), "files": list_files(directory)}).write(directory)


def test_bad_bundles_without_check_are_bad_input(damaged: Path) -> None:
    (damaged / "onnx/weights.bin").unlink()
    assert_one_sentence(run("inspect", damaged), 2, "weights.bin is missing")
    assert_one_sentence(run("translate", damaged), 2, "weights.bin is missing")
    assert_one_sentence(run("inspect", damaged, "--check"), 1, "weights.bin is missing")
    assert_one_sentence(run("inspect", damaged / "nowhere", "--check"), 2, "does not exist")


def test_the_real_bundle_checks(bundle: Path) -> None:
    done = run("inspect", bundle, "--check", "--lowering", "ort")
    assert done.returncode == 0, done.stderr
    assert "identical to PyTorch" in done.stdout
    done = run_without("torch onnx", "translate", bundle, stdin="It cost $12.50.\n")
    assert done.returncode == 0 and len(done.stdout) > 5, done.stderr
