"""A report as tables, on a terminal and in Markdown: the same rows for both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from txport.benchmarks.report.schema import Contestant, Measurement, Percentiles, Report, Workload

Column = tuple[str, Callable[[Measurement], str]]
_NONE = "-"
WIDE = 170  # characters that a terminal needs for every column
# What a narrow terminal shows; Markdown and wide terminals have all.
NARROW = ("", "workload", "ms/token", "ratio", "ids", "tokens/s", "peak MB", "x roof")


def _number(value: float) -> str:
    """Three digits that count, at least."""
    if value >= 1000:
        return f"{value:,.0f}"
    return (
        f"{value:.0f}"
        if value >= 100
        else f"{value:.1f}"
        if value >= 10
        else f"{value:.2f}"
        if value >= 1
        else f"{value:.3f}"
    )


def _optional(value: float | None, scale: float = 1.0) -> str:
    return _NONE if value is None else _number(value * scale)


def _middle(value: Percentiles | None) -> str:
    return _NONE if value is None else _number(value.p50)


def _tails(value: Percentiles) -> str:
    return f"{_number(value.p90)} / {_optional(value.p99)}"


def _ratio(each: Measurement) -> str:
    return "1" if each.ratio is None else f"{each.ratio.p50:.2f}"


def _spread(each: Measurement) -> str:
    return _NONE if each.ratio is None else f"{each.ratio.p10:.2f}..{each.ratio.p90:.2f}"


def _ids(each: Measurement) -> str:
    found = each.agreement
    if found is None:
        return _NONE
    return "identical" if found.identical == found.sentences else f"{found.identical} of {found.sentences}"


COLUMNS: tuple[Column, ...] = (
    ("", lambda x: x.contestant),
    ("ms/token", lambda x: _number(x.ms_per_token.p50)),
    ("p90 / p99", lambda x: _tails(x.ms_per_token)),
    ("ratio", _ratio),
    ("its p10..p90", _spread),
    ("ids", _ids),
    ("tokens/s", lambda x: _number(x.tokens_per_second)),
    ("sentences/s", lambda x: _number(x.sentences_per_second)),
    ("encoder ms", lambda x: _middle(x.encoder_ms)),
    ("first token ms", lambda x: _middle(x.first_token_ms)),
    ("peak MB", lambda x: _optional(x.peak_resident_bytes, 1e-6)),
    ("GPU MB", lambda x: _optional(x.gpu_memory_bytes, 1e-6)),
    ("J/sentence", lambda x: _optional(x.joules_per_sentence)),
    ("x roof", lambda x: _NONE if x.roofline is None else _number(x.roofline.ratio)),
    ("limit", lambda x: _NONE if x.roofline is None else x.roofline.limit),
    ("calls", lambda x: str(x.calls)),
    ("settings", lambda x: ", ".join(f"{name} {value}" for name, value in x.settings.items()) or _NONE),
)


@dataclass(frozen=True)
class Section:
    """The rows of one workload, or of several that only the bundle did."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def sections(report: Report) -> list[Section]:
    """One table for each workload that several did, and one for all that the first one did alone."""
    found, alone = [], []
    for workload in report.workloads:
        rows = [each for each in report.measurements if each.workload == workload.name]
        if len(rows) == 1 and len(report.workloads) > 1:
            alone += rows
        elif rows:
            found.append(_section(f"{workload.name}: {_describe(workload)}", rows, COLUMNS))
    if alone:
        columns = (("workload", lambda x: x.workload), *COLUMNS[1:])
        found.append(_section(f"{alone[0].contestant} alone", alone, columns))
    return found


def _describe(workload: Workload) -> str:
    if workload.kind == "text":
        return f"{workload.sentences} sentences of {workload.source:.1f} tokens on average; ms/token is of all tokens"
    return (
        f"{workload.sentences} sentence{'s' if workload.sentences > 1 else ''} of {workload.source:.0f} tokens, "
        f"{workload.target} new tokens each"
    )


def _section(title: str, rows: Sequence[Measurement], columns: Sequence[Column]) -> Section:
    """Columns in which nobody has a figure are left out."""
    cells = [[show(each) for each in rows] for _, show in columns]
    kept = [index for index, column in enumerate(cells) if set(column) != {_NONE}]
    return Section(
        title,
        [columns[index][0] for index in kept],
        [[cells[index][row] for index in kept] for row in range(len(rows))],
    )


def facts(report: Report) -> list[tuple[str, str]]:
    """What stands above the tables: the machine and the contestants."""
    machine = report.machine
    found = [
        ("machine", f"{machine.processor}, {machine.cores} cores, {machine.memory_bytes / 1e9:.0f} GB"),
        (
            "system",
            f"{machine.system}, Python {machine.python}; load average before the run {machine.load_average:.2f}",
        ),
    ]
    if machine.gpu is not None:
        found.append(("GPU", f"{machine.gpu.name}, driver {machine.gpu.driver}"))
    if machine.power_mode is not None:
        found.append(("power mode", machine.power_mode))
    if machine.bandwidth:
        widths = ", ".join(f"{x.bytes_per_second / 1e9:.0f} GB/s of {x.bytes >> 20} MB" for x in machine.bandwidth)
        found.append(("reads", widths))
        peaks = ", ".join(f"{x.operations_per_second / 1e9:,.0f} G/s {x.type} ({x.library})" for x in machine.peaks)
        found.append(("operations", peaks))
    found += [(each.name, _contestant(each)) for each in report.contestants]
    if report.reference:
        found.append(("ids compared with", report.reference))
    if not report.complete:
        found.append(("INCOMPLETE", "the run was interrupted; this is what was measured until then"))
    return found


def _contestant(each: Contestant) -> str:
    parts = [each.engine] if each.engine else []
    if each.bundle is not None:
        size = f"{each.bundle.weights_bytes / 1e6:.1f} MB"
        checked = "verified" if each.bundle.verified else "NOT verified"
        parts.append(f"bundle {each.bundle.name}, {each.bundle.precision}, {size}, {checked}")
    if each.startup_ms is not None:
        parts.append(f"process to first token {each.startup_ms.p50:.0f} ms")
    elif each.load_ms is not None:
        parts.append(f"loaded in {each.load_ms / 1e3:.1f} s")
    if each.engine_build_seconds is not None:
        parts.append(f"engines built in {each.engine_build_seconds:.0f} s")
    if each.skipped:
        parts.append(f"skipped: {each.skipped}")
    return "; ".join(parts)


def print_tables(report: Report, console: Console) -> None:
    """Everything, for a terminal or a pipe."""
    for name, text in facts(report):
        console.print(f"[bold]{escape(name)}[/]: {escape(text)}", highlight=False, soft_wrap=True)
    for section in sections(report):
        shown = [i for i, head in enumerate(section.heads) if console.width >= WIDE or head in NARROW]
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for index in shown:
            head = section.heads[index]
            table.add_column(head, justify="left" if head in ("", "workload", "settings") else "right", no_wrap=True)
        for row in section.rows:
            table.add_row(*(escape(row[index]) for index in shown))
        console.print(f"\n[bold]{escape(section.title)}", highlight=False, soft_wrap=True)
        console.print(table)


def markdown(report: Report) -> str:
    """Everything, as a Markdown document."""
    lines = [
        "# tx-bench",
        "",
        f"{report.created}, txport {report.made_by.version}: `tx-bench {' '.join(report.command)}`",
        "",
    ]
    lines += [f"- **{name}**: {text}" for name, text in facts(report)]
    for section in sections(report):
        lines += ["", f"## {section.title}", "", *_markdown_table(section)]
    return "\n".join([*lines, "", "## How it was measured", "", *(f"- {note}" for note in report.notes), ""])


def _markdown_table(section: Section) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    right = ["---" if index == 0 else "---:" for index in range(len(section.heads))]
    return [line(section.heads), line(right), *map(line, section.rows)]
