"""tx-bench from outside: a small run of everything, checked for its schema and for sense, and what it refuses."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import commands
import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'txport[bench]'")
from txport.benchmarks import entry
from txport.benchmarks.report.compare import check_against
from txport.benchmarks.report.report import read_report
from txport.benchmarks.report.schema import BenchReport, Measurement
from txport.runtime.device.gpu import Gpu, find_gpu
from txport.runtime.errors import CheckFailed

# The probe reads two small arrays instead of five, up to a gigabyte.
RUN = """
import sys
from txport.benchmarks.entry import bench
from txport.benchmarks.machine import probe
probe.SIZES = (1 << 20, 8 << 20)
sys.argv[0] = "tx-bench"
bench()
"""
# Seconds in all: two batch sizes, few tokens, one thread, a few calls.
SMALL = ("--threads", 1, "--target", 6, "--source", 7, "--seconds", 0.3, "--calls", 2)


def command(*arguments: str | Path | float) -> list[str]:
    return [sys.executable, "-c", RUN, *map(str, arguments)]


def tx_bench(*arguments: str | Path | float) -> subprocess.CompletedProcess[str]:
    """In this process."""
    return commands.run(entry, "tx-bench", *arguments)


def assert_refused(done: subprocess.CompletedProcess[str], code: int, words: Sequence[str]) -> None:
    """It ended with this code and one sentence that holds all of these words."""
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in last, last


@pytest.fixture(scope="module")
def measured(bundle: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One run with the peers that load fast, and with the bundle against itself, at a ratio that cannot be met.

    The directory, and the tables.
    """
    output = tmp_path_factory.mktemp("bench") / "out"
    peers = ("--peer", "pytorch", "--peer", "ctranslate2", "--peer", "optimum", "--checkpoint", checkpoint)
    options = ("--batch", "1,2", "--lines", 5, "--against", bundle, "--max-ratio", 0.01, "--peer-seconds", 0.1)
    words = command(bundle, "-o", output, *SMALL, *options, *peers)
    done = subprocess.run(words, capture_output=True, text=True, timeout=500)
    assert_refused(done, 1, ["on 1 x 7 -> 6", "--max-ratio allows 0.01 times"])
    return output, done.stdout


@pytest.fixture(scope="module")
def report(measured: tuple[Path, str]) -> BenchReport:
    return read_report(measured[0] / "bench.json")


def test_the_report_is_complete_and_says_where_it_was_made(report: BenchReport) -> None:
    assert report.complete
    assert report.machine.cores >= 1 and report.machine.memory_bytes > 1e8
    assert report.machine.versions["onnxruntime"]
    assert report.reference == "PyTorch eager"
    assert [each.kind for each in report.contestants[:2]] == ["bundle", "bundle"]
    facts = report.contestants[0].bundle
    assert facts is not None and facts.verified and facts.precision == "float32"
    assert [each.name for each in report.workloads] == ["1 x 7 -> 6", "2 x 7 -> 6", "text: sentences.txt"]


def test_the_figures_make_sense(report: BenchReport) -> None:
    for each in report.measurements:
        assert 0 < each.call_ms.p50 <= each.call_ms.p90
        assert each.calls >= 1 and each.call_ms.p99 is None, "of so few calls there is no p99"
        assert each.ms_per_token.p50 * (each.steps or each.tokens) == pytest.approx(each.call_ms.p50)
        assert each.peak_resident_bytes is not None and 1e7 < each.peak_resident_bytes < 1e10
        assert each.roofline is not None and each.roofline.bound_ms > 0
    fixed = [each for each in of(report, "txport") if each.steps is not None]
    assert [each.tokens for each in fixed] == [6, 12]
    for each in fixed:
        assert each.encoder_ms is not None and each.first_token_ms is not None
        assert each.encoder_ms.p50 < each.first_token_ms.p90 < each.call_ms.p90 * 10
    startup = report.contestants[0].startup_ms
    assert startup is not None and startup.p50 > fixed[0].call_ms.p50


def test_every_float32_answer_is_identical(report: BenchReport) -> None:
    compared = [x for x in report.measurements if x.contestant in ("txport", "CTranslate2 float32")]
    assert len(compared) == 6
    for each in compared:
        assert each.agreement is not None and each.agreement.identical == each.agreement.sentences


def test_a_peer_that_is_not_installed_is_skipped_with_its_reason(report: BenchReport) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    optimum = next(each for each in report.contestants if each.kind == "optimum")
    if optimum.skipped is None:
        pytest.skip("optimum-onnx is installed here")
    assert "optimum" in optimum.skipped
    assert not of(report, optimum.name)


def test_tables_markdown_and_plots_are_there(measured: tuple[Path, str]) -> None:
    directory, tables = measured
    for shown in ("PyTorch eager", "CTranslate2 int8", "2 x 7 -> 6", "identical", "process to first token"):
        assert shown in tables
    assert "\x1b" not in tables, "no colours in a pipe"
    document = (directory / "bench.md").read_text()
    assert "| CTranslate2 float32 |" in document and "Warm-up" in document
    for name in ("latency", "throughput", "peers", "roofline"):
        assert (directory / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (directory / f"{name}.svg").read_text()


def test_a_run_compared_with_itself_is_within_noise(measured: tuple[Path, str]) -> None:
    file = measured[0] / "bench.json"
    done = tx_bench("compare", file, file, "--json")
    rows = json.loads(done.stdout)
    assert len(rows) == len(read_report(file).measurements)
    assert {row["verdict"] for row in rows} == {"within noise"}
    assert {row["ratio"] for row in rows} == {1.0}


def test_the_ratio_is_that_of_the_bundles(report: BenchReport) -> None:
    """A ratio that is not met ended the run of this report with 1."""
    check_against(report, 1000)
    with pytest.raises(CheckFailed, match="--max-ratio allows 0.01 times") as failure:
        check_against(report, 0.01)
    assert "CTranslate2" not in str(failure.value)


def test_an_interrupted_run_keeps_what_was_measured(bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    long = ("--batch", "1,2", "--lines", 0, "--no-plots", "--no-roofline", "--calls", 100000, "--seconds", 2)
    process = subprocess.Popen(
        command(bundle, "-o", output, *SMALL, *long), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 120
    while not (output / "bench.json").exists() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=500)
    assert process.returncode == 130, error
    assert error.strip() == "tx-bench: interrupted; the results so far are written"
    assert "INCOMPLETE" in out
    report = read_report(output / "bench.json")
    assert not report.complete
    assert {each.workload for each in report.measurements} == {"1 x 7 -> 6"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--batch", 1000), ["--batch 1000", "1 to 64"]),
        (("--source", 4000), ["--source 4000", "1 to 128"]),
        (("--target", 0), ["--target 0"]),
        (("--device", "tpu"), ["does not run on this machine", "tpu"]),
        (("--device", "cuda"), ["does not run on this machine", "cuda"]),
        (("--text", "none.txt"), ["none.txt cannot be read"]),
        (("--max-ratio", 1.1), ["--against"]),
        (("--cpp", "no-such-program"), ["no-such-program is not a program"]),
        (("--against", "nothing"), ["nothing does not exist"]),
        (("--peers", "--checkpoint", "nothing"), ["config.json is missing or cannot be read", "--checkpoint"]),
    ],
)
def test_bad_use_is_one_sentence(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str | float, ...],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if options == ("--device", "cuda") and isinstance(find_gpu(), Gpu):
        pytest.skip("there is a GPU here")
    done = tx_bench(bundle, "-o", "out", *options)
    assert_refused(done, 2, words)
    assert not (tmp_path / "out/bench.json").exists()


def test_a_checkpoint_of_another_model_is_refused(bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, other)
    config = json.loads((other / "config.json").read_text())
    config["config"]["heads"] = 8
    (other / "config.json").write_text(json.dumps(config))
    done = tx_bench(bundle, "-o", tmp_path / "out", "--peers", "--checkpoint", other)
    assert_refused(done, 2, ["was not exported from", "heads differs"])


def test_files_of_others_are_not_overwritten(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert_refused(tx_bench(bundle, "-o", tmp_path), 2, ["holds other files and no bench.json"])


def of(report: BenchReport, contestant: str) -> list[Measurement]:
    return [each for each in report.measurements if each.contestant == contestant]
