"""The examples run as they are, with small models, and give what the runtime gives."""

import csv
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_models import feature_checkpoint
from toy import BUNDLE
from txport.exporter.export import ExportOptions, export_bundle
from txport.runtime.translator import Translator
from txport.training.spoken.speech import MELS, RATE, log_mel, speak
from warm import warm_commands

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "benchmarks" / "examples"
TEXT = "the cat sees a bird"
SUBTITLES = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,500\r\n<i>the cat</i>\r\nsees a bird\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,000\r\na dog\r\n"
)


def run(*command: str | Path, **environment: str) -> str:
    """Standard output of an example, with the commands of this environment on the path."""
    variables = {**os.environ, "PATH": f"{warm_commands()}:/usr/bin:/bin", **environment}
    done = subprocess.run(list(map(str, command)), env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="session")
def toy() -> "Translator":
    from txport.runtime.translator import Translator

    return Translator(BUNDLE, "cpu")


@pytest.fixture(scope="session")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Marian model with random weights, as a directory of the Hugging Face Hub."""
    pytest.importorskip("transformers", reason="needs Hugging Face: pip install 'txport[dev]'")
    from tiny_marian import tiny_marian

    directory = tmp_path_factory.mktemp("marian")
    tiny_marian(directory, seed=3, vocabulary=60, tokenizer=True, max_position_embeddings=48)
    return directory


def test_every_example_is_short_listed_and_tested() -> None:
    page = (EXAMPLES / "README.md").read_text()
    tests = Path(__file__).read_text()
    examples = [file for file in EXAMPLES.iterdir() if file.suffix in (".py", ".sh", ".ipynb")]
    assert len(examples) >= 7
    for file in examples:
        assert f"({file.name})" in page and f'"{file.name}"' in tests, file.name
        code = notebook_code(file) if file.suffix == ".ipynb" else file.read_text()
        assert len(code.splitlines()) < 60, file.name


def test_subtitles_keep_numbers_and_times(toy: "Translator", tmp_path: Path) -> None:
    (tmp_path / "in.srt").write_text(SUBTITLES, encoding="utf-8", newline="")
    run(sys.executable, EXAMPLES / "subtitles.py", BUNDLE, tmp_path / "in.srt", tmp_path / "out.srt")
    one, two = (tmp_path / "out.srt").read_text().split("\n\n")
    assert one.startswith("1\n00:00:01,000 --> 00:00:02,500\n") and two.startswith("2\n00:00:03,000 --> ")
    for cue, text in ((one, TEXT), (two, "a dog")):
        lines = cue.rstrip("\n").split("\n")[2:]
        assert " ".join(lines) == toy.translate([text])[0].text and 1 <= len(lines) <= 2


def test_a_wav_file_is_transcribed_as_in_training_by_python_and_cpp(tmp_path: Path) -> None:
    """With random weights: the spectrograms of both examples are those of the recipe, or the ids would differ."""
    feature_checkpoint(tmp_path / "checkpoint", seed=1, norm="pre", feature_size=MELS, max_positions=200)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(lowerings=("ort",), verify=False))
    samples = speak(["seven", "two"], np.random.default_rng(5))
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    heard = (samples * 32767).astype("<i2").astype(np.float32) / 32768
    (expected,) = Translator(tmp_path / "bundle").translate_features([log_mel(heard)])
    assert len(set(expected.ids)) > 3
    commands = [[sys.executable, EXAMPLES / "transcribe.py"]]
    if "TXPORT_CPP_BUILD" in os.environ:
        commands.append([Path(os.environ["TXPORT_CPP_BUILD"]) / "txport_example_transcribe"])
    plain = (tmp_path / "a.wav").read_bytes()
    title = b"LIST\x10\0\0\0INFOISFT\4\0\0\0data"  # other tools write a chunk before the samples
    (tmp_path / "b.wav").write_bytes(plain[:36] + title + plain[36:])
    (tmp_path / "stereo.wav").write_bytes(plain[:22] + b"\2" + plain[23:])
    for command in commands:
        for name in ("a.wav", "b.wav"):
            assert run(*command, tmp_path / "bundle", tmp_path / name).strip() == expected.text
        with pytest.raises(AssertionError, match="must have one channel of 16 bits at 8000 Hz"):
            run(*command, tmp_path / "bundle", tmp_path / "stereo.wav")
    assert len((ROOT / "runtime/cpp/examples/transcribe.cpp").read_text().splitlines()) <= 60


def test_a_csv_file_gets_one_more_column(toy: "Translator", tmp_path: Path) -> None:
    rows = [["id", "name"], ["1", TEXT], ["2", 'with a "quote",\nand two lines'], ["3", ""]]
    with (tmp_path / "in.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(rows)
    command = [sys.executable, EXAMPLES / "csv_column.py", BUNDLE, tmp_path / "in.csv", tmp_path / "out.csv"]
    run(*command, "--column", "name")  # the file begins with a byte order mark, as Excel writes it
    with (tmp_path / "out.csv").open(newline="") as file:
        read = list(csv.reader(file))
    assert [row[:2] for row in read] == rows and read[0][2] == "name_translated"
    expected = [result.text for result in toy.translate([" ".join(row[1].split()) for row in rows[1:]])]
    assert [row[2] for row in read[1:]] == expected
    with pytest.raises(AssertionError, match="no column 'title'"):
        run(*command, "--column", "title")


@contextmanager
def web_service() -> Iterator[str]:
    """The address of the service in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "web_service:app", "--port", str(port), "--app-dir", str(EXAMPLES)]
    with subprocess.Popen(command, env={**os.environ, "BUNDLE": str(BUNDLE)}) as server:
        try:
            yield f"http://127.0.0.1:{port}/translate"
        finally:
            server.terminate()


def post(address: str, body: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Status and JSON of an answer; waits for a server that is starting."""
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    for _ in range(300):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError("the service did not start")


def test_a_web_service_answers_requests_side_by_side(toy: "Translator") -> None:
    pytest.importorskip("fastapi", reason="needs FastAPI: pip install 'txport[dev]'")
    assert (EXAMPLES / "web_service.py").exists()
    texts = [TEXT, "a dog", "the cat", "a bird"] * 4
    with web_service() as address, ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda text: post(address, {"text": text}), texts))
        status, refused = post(address, {"text": "x" * 3_000})
    expected = [result.text for result in toy.translate(texts)]
    assert answers == [(200, {"translation": text, "truncated": False}) for text in expected]
    assert status == 422 and "2000" in json.dumps(refused)


def test_a_model_is_imported_exported_verified_and_served(marian: Path, tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("the cat\na dog\nthe bird\n")
    script = EXAMPLES / "import_and_serve.sh"
    assert script.name == "import_and_serve.sh"
    places = {"FOLDER": str(tmp_path / "served"), "PORT": str(free_port())}
    output = run(script, marian, "en", "fr", "the cat", tmp_path / "sentences.txt", **places)
    from txport.runtime.translator import Translator

    translator = Translator(tmp_path / "served" / "bundle", "cpu")
    (expected,) = translator.translate(["the cat"], target_language="fra")
    assert output.splitlines()[-1] == expected.text


def test_a_checkpoint_is_fine_tuned_compared_and_exported(checkpoint: Path, tmp_path: Path) -> None:
    from txport.training.spoken.corpus import sentences

    generated = sentences(11, "train")
    pairs = dict(next(generated) for _ in range(400))
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs.items()))
    script = EXAMPLES / "fine_tune.sh"
    assert script.name == "fine_tune.sh"
    options = ["--set", "training.max_length=128"]  # the positions of this model
    output = run(script, checkpoint, tmp_path / "pairs.tsv", "0.1", *options, FOLDER=str(tmp_path / "tuned"))
    assert len(re.findall(r"BLEU", output)) >= 2
    assert (tmp_path / "tuned" / "bundle" / "manifest.json").exists()


def notebook_code(file: Path) -> str:
    """The code of all cells, from top to bottom."""
    cells = json.loads(file.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_the_notebook_runs_from_top_to_bottom(marian: Path, tmp_path: Path) -> None:
    notebook = EXAMPLES / "first_steps.ipynb"
    assert notebook.name == "first_steps.ipynb"
    places = {"MODEL": str(marian), "FOLDER": str(tmp_path / "notebook")}
    output = run("python", "-c", notebook_code(notebook), **places)
    assert "How are you? ->" in output and "tokens per second" in output
    assert not any(cell.get("outputs") for cell in json.loads(notebook.read_text())["cells"])


def test_ray_translates_a_data_set(toy: "Translator", tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'txport[ray]'")
    texts = [TEXT, "a dog", "the cat"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    code = (EXAMPLES / "ray_data.py").read_text().replace("actors=(1, 4)", "actors=1")
    code = code.replace("import ray\n", "import ray\n\nray.init(num_cpus=3, include_dashboard=False)\n")
    variables = {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "400"}  # 60 s by default
    run(sys.executable, "-c", code, BUNDLE, tmp_path / "rows.jsonl", tmp_path / "out", **variables)
    lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    translated = {row["text"]: row["translation"] for row in map(json.loads, lines)}
    assert translated == {text: result.text for text, result in zip(texts, toy.translate(texts), strict=True)}
