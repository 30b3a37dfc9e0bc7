"""The report of a GPU: `python -m txport.benchmarks.gpu.report --bundles DIRECTORY -o build/gpu-report`.

Every stage runs in a process of its own with a limit and a log; none stops the next. Ends with gpu-report.json, a page
in Markdown, and exit code 1 if a check failed.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
from txport.benchmarks.gpu.page import page
from txport.benchmarks.gpu.schema import GPU_FORMAT, GPU_FORMAT_VERSION, Findings, GpuReport, Stage, Status
from txport.benchmarks.gpu.stage import STAGES
from txport.benchmarks.machine.description import describe
from txport.benchmarks.machine.nvml import open_nvml
from txport.benchmarks.report.report import check_output, header, write_report
from txport.runtime.bundle.strict_json import decode, read
from txport.runtime.errors import CheckFailed, InputError, TxportError
from txport.runtime.files import make_directory, write_atomically

REPORT, PAGE = "gpu-report.json", "gpu-report.md"
PATH = click.Path(path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("-o", "--output", type=PATH, default=Path("gpu-report"), help=f"Directory for {REPORT}, {PAGE} and logs.")
@click.option("--bundles", type=PATH, required=True, help="A directory of bundles to run.")
@click.option("--programs", type=PATH, help="The directory of txport-translate and txport-bench.")
@click.option("--stage", "stages", multiple=True, type=click.Choice(list(STAGES)), help="Only this; may be repeated.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=20.0, help="Most minutes of all stages.")
@click.option("--driver", type=PATH, help="Rehearse without a GPU: the directory of a libcuda.so.1 in host memory.")
def main(
    output: Path, bundles: Path, programs: Path | None, stages: tuple[str, ...], minutes: float, driver: Path | None
) -> None:
    """Show on this machine's GPU what only a GPU can show, and measure it."""
    try:
        report = run_stages(output, bundles, programs, stages or tuple(STAGES), minutes, driver)
        click.echo(f"\nwritten: {output / PAGE}")
        if not report.passed:
            raise CheckFailed(f"not everything passed: see {output / PAGE}")
    except TxportError as error:
        click.echo(f"gpu-report: {error}", err=True)
        sys.exit(error.exit_code)


def run_stages(
    output: Path, bundles: Path, programs: Path | None, stages: tuple[str, ...], minutes: float, driver: Path | None
) -> GpuReport:
    """Run the stages one after the other; the report is written after each.

    Raises:
        InputError: there are no bundles, the output holds other files, or another report is being written there.
    """
    if not any(bundles.glob("*/manifest.json")):
        raise InputError(f"{bundles} holds no bundles: give a directory of directories that tx-export wrote")
    check_output(output / REPORT)
    make_directory(output)
    start = header(GPU_FORMAT, GPU_FORMAT_VERSION, sys.argv[1:], describe(open_nvml()))
    report = GpuReport(**start, rehearsal=driver is not None)
    options = ["--bundles", str(bundles), "--scratch", str(output)]
    options += [*(["--programs", str(programs)] if programs else []), *(["--rehearsal"] if driver else [])]
    environment = dict(os.environ)
    if driver is not None:
        paths = [str(driver), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment |= {"LD_LIBRARY_PATH": os.pathsep.join(paths), "TXPORT_TEST_CUDA": "eager"}
    end = time.monotonic() + 60 * minutes
    with _alone(output):
        for name in stages:
            click.echo(f"{name} ... ", nl=False)
            seen = ["--gpu-seen"] if any(stage.status == "passed" for stage in report.stages) else []
            limit = min(STAGES[name][1], end - time.monotonic())
            stage = run_stage(name, output, [*options, *seen], environment, limit)
            click.echo(f"{stage.status} in {stage.seconds:.0f} s{stage.reason and ': '}{stage.reason}")
            report = _written(replace(report, stages=(*report.stages, stage)), output)
        return _written(replace(report, complete=True), output)


def run_stage(name: str, output: Path, options: list[str], environment: dict[str, str], limit: float) -> Stage:
    """One stage in a process group of its own, killed after `limit` seconds; what it found until then counts."""
    result, log = output / f"{name}.json", output / f"{name}.log"
    result.unlink(missing_ok=True)
    if limit <= 0:
        return Stage(name, "stopped", "no time was left for it: give more with --minutes", 0.0, Findings(), "")
    command = [sys.executable, "-m", "txport.benchmarks.gpu.stage", name, "--result", str(result), *options]
    start = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    findings = decode(Findings, read(result), str(result)) if result.exists() else Findings()
    status, reason = _verdict(code, findings, log, limit)
    return Stage(name, status, reason, round(time.monotonic() - start, 1), findings, log.name)


def _verdict(code: int | None, findings: Findings, log: Path, limit: float) -> tuple[Status, str]:
    if code is None:
        return "stopped", f"it took longer than {limit:.0f} s"
    if code < 0:
        return "stopped", f"it was killed by signal {-code}"
    if code:
        last = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        return "failed", " ".join(last.split())[:300]
    failed = [check for check in findings.checks if not check.passed]
    if failed:
        return "failed", f"{len(failed)} of {len(findings.checks)} checks failed: {failed[0].name}"
    return ("passed", "") if findings.skipped is None else ("skipped", findings.skipped)


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Two reports into one directory would mix: the second one is refused while the first is being written."""
    with (output / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another report is being written into {output}: give another directory with -o") from None
        yield


def _written(report: GpuReport, output: Path) -> GpuReport:
    write_report(output / REPORT, report)
    write_atomically(output / PAGE, page(report).encode())
    return report


if __name__ == "__main__":
    main()
