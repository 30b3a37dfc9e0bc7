"""Tables of a report, with the same rows on a terminal and in Markdown."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from txport.benchmarks.report.schema import BenchReport, Contestant, Measurement, Percentiles, Workload
from txport.exporter.tables import print_table
from txport.runtime.console.words import plural

Column = tuple[str, Callable[[Measurement], str]]
_NONE = "-"
# Minimum number of calls for a reliable time.
FEW_CALLS = 5
WIDE = 170  # width of a terminal, in characters, for all columns
# Columns on a narrower terminal. Markdown contains all columns.
NARROW = ("", "workload", "ms/token", "ratio", "ids", "tokens/s", "peak MB", "x roof")
TEXT_COLUMNS = ("", "workload", "settings")  # columns of text; the others are numbers


def _number(value: float) -> str:
    """Return a number with at least three significant digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    decimals = next((digits for digits, bound in ((0, 100), (1, 10), (2, 1)) if value >= bound), 3)
    return f"{value:.{decimals}f}"


def _optional(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return _NONE
    return _number(value * scale)


def _middle(value: Percentiles | None) -> str:
    if value is None:
        return _NONE
    return _number(value.p50)


def _ids(each: Measurement) -> str:
    agreement = each.agreement
    if agreement is None:
        return _NONE
    if agreement.identical == agreement.sentences:
        return "identical"
    return f"{agreement.identical} of {agreement.sentences}"


COLUMNS: tuple[Column, ...] = (
    ("", lambda x: x.contestant),
    ("ms/token", lambda x: _number(x.ms_per_token.p50)),
    ("p90 / p99", lambda x: f"{_number(x.ms_per_token.p90)} / {_optional(x.ms_per_token.p99)}"),
    ("ratio", lambda x: "1" if x.ratio is None else f"{x.ratio.p50:.2f}"),
    ("ratio p10..p90", lambda x: _NONE if x.ratio is None else f"{x.ratio.p10:.2f}..{x.ratio.p90:.2f}"),
    ("ids", _ids),
    ("tokens/s", lambda x: _number(x.tokens_per_second)),
    ("sentences/s", lambda x: _number(x.sentences_per_second)),
    ("encoder ms", lambda x: _middle(x.encoder_ms)),
    ("first token ms", lambda x: _middle(x.first_token_ms)),
    ("peak MB", lambda x: _optional(x.peak_resident_bytes, 1e-6)),
    ("GPU MB", lambda x: _optional(x.gpu_memory_bytes, 1e-6)),
    ("x roof", lambda x: _NONE if x.roofline is None else _number(x.roofline.ratio)),
    ("limit", lambda x: _NONE if x.roofline is None else x.roofline.limit),
    ("calls", lambda x: str(x.calls)),
    ("settings", lambda x: ", ".join(f"{name} {value}" for name, value in x.settings.items()) or _NONE),
)


@dataclass(frozen=True)
class Section:
    """The rows of one workload, or of all workloads of the bundle alone."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def sections(report: BenchReport) -> list[Section]:
    """Return a table for each workload of several contestants, and one for all workloads of the bundle alone."""
    tables = []
    alone = []
    for workload in report.workloads:
        rows = [each for each in report.measurements if each.workload == workload.name]
        if len(rows) == 1 and len(report.workloads) > 1:
            alone += rows
        elif rows:
            tables.append(_section(f"{workload.name}: {_describe(workload)}", rows, COLUMNS))
    if alone:
        columns = (("workload", lambda x: x.workload), *COLUMNS[1:])
        tables.append(_section(f"{alone[0].contestant} alone", alone, columns))
    return tables


def _describe(workload: Workload) -> str:
    if workload.kind == "text":
        return f"{workload.sentences} sentences of {workload.source:.1f} tokens on average; ms/token is of all tokens"
    return (
        f"{plural(workload.sentences, 'sentence')} of {workload.source:.0f} tokens, {workload.target} new tokens each"
    )


def _section(title: str, rows: Sequence[Measurement], columns: Sequence[Column]) -> Section:
    """Return a table without its empty columns."""
    cells = [(head, [show(each) for each in rows]) for head, show in columns]
    filled = [(head, column) for head, column in cells if set(column) != {_NONE}]
    return Section(
        title, [head for head, _ in filled], [list(row) for row in zip(*(x for _, x in filled), strict=True)]
    )


def facts(report: BenchReport) -> list[tuple[str, str]]:
    """Return (name, value) pairs that describe the machine and the contestants."""
    machine = report.machine
    load = f"load average before the run {machine.load_average:.2f}"
    lines = [
        ("machine", f"{machine.processor}, {machine.cores} cores, {machine.memory_bytes / 1e9:.0f} GB"),
        ("system", f"{machine.system}, Python {machine.python}; {load}"),
    ]
    if machine.gpu is not None:
        lines.append(("GPU", f"{machine.gpu.name}, driver {machine.gpu.driver}"))
    if machine.power_mode is not None:
        lines.append(("power mode", machine.power_mode))
    if machine.bandwidth:
        widths = ", ".join(f"{x.bytes_per_second / 1e9:.0f} GB/s of {x.bytes >> 20} MB" for x in machine.bandwidth)
        lines.append(("bandwidth", widths))
        peaks = ", ".join(f"{x.operations_per_second / 1e9:,.0f} G/s {x.type} ({x.library})" for x in machine.peaks)
        lines.append(("operations", peaks))
    lines += [(each.name, _contestant(each)) for each in report.contestants]
    if report.reference:
        lines.append(("ids compared with", report.reference))
    if counts := [each.calls for each in report.measurements if each.calls < FEW_CALLS]:
        words = f"{plural(len(counts), 'row')} with fewer than {FEW_CALLS} calls (minimum {min(counts)})"
        lines.append(("FEW CALLS", f"{words}: other runs may differ by tens of percent; raise --seconds"))
    if not report.complete:
        lines.append(("INCOMPLETE", "the run was interrupted; these are the results until then"))
    return lines


def _contestant(each: Contestant) -> str:
    if each.engine:
        parts = [each.engine]
    else:
        parts = []
    if each.bundle is not None:
        size = f"{each.bundle.weights_bytes / 1e6:.1f} MB"
        if each.bundle.verified:
            status = "verified"
        else:
            status = "NOT verified"
        parts.append(f"bundle {each.bundle.name}, {each.bundle.precision}, {size}, {status}")
    if each.startup_ms is not None:
        parts.append(f"process to first token {each.startup_ms.p50:.0f} ms")
    elif each.load_ms is not None:
        parts.append(f"loaded in {each.load_ms / 1e3:.1f} s")
    if each.engine_build_seconds is not None:
        parts.append(f"engines built in {each.engine_build_seconds:.0f} s")
    if each.skipped:
        parts.append(f"skipped: {each.skipped}")
    return "; ".join(parts)


def markdown_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Container[str] = TEXT_COLUMNS
) -> list[str]:
    """Return the lines of one table in Markdown, with the columns `text_columns` aligned to the left."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (heads, *rows)]
    lines.insert(1, ["---" if head in text_columns else "---:" for head in heads])
    return [f"| {' | '.join(line)} |" for line in lines]


def print_tables(report: BenchReport, console: Console) -> None:
    """Print the whole report to a terminal or a pipe."""
    for name, text in facts(report):
        console.print(f"[bold]{escape(name)}[/]: {escape(text)}", highlight=False, soft_wrap=True)
    for section in sections(report):
        console.print(f"\n[bold]{escape(section.title)}", highlight=False, soft_wrap=True)
        visible = [i for i, head in enumerate(section.heads) if console.width >= WIDE or head in NARROW]
        rows = [[row[i] for i in visible] for row in section.rows]
        print_table([section.heads[i] for i in visible], rows, console, TEXT_COLUMNS)


def markdown(report: BenchReport) -> str:
    """Return the whole report as a Markdown document."""
    command = " ".join(report.command)
    lines = ["# tx-bench", "", f"{report.created}, txport {report.made_by.version}: `tx-bench {command}`", ""]
    lines += [f"- **{name}**: {text}" for name, text in facts(report)]
    for section in sections(report):
        lines += ["", f"## {section.title}", "", *markdown_table(section.heads, section.rows)]
    return "\n".join([*lines, "", "## How it was measured", "", *(f"- {note}" for note in report.notes), ""])
