"""gpu-report.json as a page in Markdown."""

from collections.abc import Iterator

from txport.benchmarks.gpu.schema import Cell, GpuReport, Stage
from txport.benchmarks.report.tables import markdown_table


def page(report: GpuReport) -> str:
    """The verdicts, what failed, and the figures of each stage."""
    machine = report.machine
    gpu = f"{machine.gpu.name}, driver {machine.gpu.driver}" if machine.gpu else "no GPU that NVML knows"
    lines = [
        "# GPU report",
        "",
        f"{report.created}, txport {report.made_by.version}, {machine.processor}, {machine.cores} cores; {gpu}.",
        "",
    ]
    if report.rehearsal:
        lines += ["**A rehearsal over a driver in host memory: no GPU was used, and the times mean nothing.**", ""]
    if not report.complete:
        lines += ["**Not complete: the stages that are missing did not run.**", ""]
    lines += [_verdict(report), ""]
    verdicts = [
        [stage.name, stage.status, f"{stage.seconds:.0f} s", _checks(stage), stage.reason] for stage in report.stages
    ]
    lines += markdown_table(heads := ["stage", "verdict", "time", "checks passed", "reason"], verdicts, heads)
    for stage in report.stages:
        lines += _stage(stage)
    return "\n".join([*lines, ""])


def _verdict(report: GpuReport) -> str:
    """What a reader wants to know first."""
    bad = [stage.name for stage in report.stages if stage.status in ("failed", "stopped")]
    skipped = [stage.name for stage in report.stages if stage.status == "skipped"]
    verdict = f"**Not passed: {', '.join(bad)}.**" if bad else "Everything that ran passed."
    return f"{verdict} Skipped: {', '.join(skipped)}." if skipped else verdict


def _checks(stage: Stage) -> str:
    checks = stage.findings.checks
    return f"{sum(check.passed for check in checks)} of {len(checks)}" if checks else ""


def _stage(stage: Stage) -> Iterator[str]:
    findings = stage.findings
    if not findings.checks and not findings.tables:
        return
    yield from ("", f"## {stage.name}", "")
    for check in findings.checks:
        yield f"- {'passed' if check.passed else '**FAILED**'}: {check.name}{check.detail and f' ({check.detail})'}"
    for title, rows in (findings.tables or {}).items():
        heads = list(dict.fromkeys(head for row in rows for head in row))
        texts = {head.replace("_", " ") for row in rows for head, cell in row.items() if isinstance(cell, str)}
        cells = [[_cell(row.get(head)) for head in heads] for row in rows]
        yield from ("", f"{title}:", "", *markdown_table([head.replace("_", " ") for head in heads], cells, texts))


def _cell(value: Cell) -> str:
    return "-" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
