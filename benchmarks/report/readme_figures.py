"""Put the figures of runs into a page: `python -m txport.benchmarks.report.readme_figures demo=build/bench/demo`.

The tables between the two markers are replaced, and the first run's plot of the peers is copied to the folder `figures`
beside the page. Runs of `tx-bench --beam` have separate tables, without a plot.
"""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from txport.benchmarks.report.report import read_report
from txport.benchmarks.report.schema import BenchReport, Measurement, Workload, of_beam

PLOT = "peers.svg"
COLUMNS = 3  # a fourth column would not fit a narrow screen


def markers(beams: bool) -> tuple[str, str]:
    """Return the lines before and after a table in the README."""
    if beams:
        command = "tx-bench --beam"
    else:
        command = "tx-bench"
    return f"<!-- figures of {command}: begin -->\n", f"<!-- figures of {command}: end -->\n"


def readme_table(reports: Mapping[str, BenchReport]) -> str:
    """Return tables of milliseconds per token, of at most `COLUMNS` workloads each, with counts of different sentences.

    Args:
        reports: reports by the name of the model. Workloads of only one contestant are left out.
    """
    lines = []
    sizes = ""
    for model, report in reports.items():
        rows = {(each.contestant, each.workload): each for each in report.measurements}
        compared = [
            work for work in report.workloads if sum(each.workload == work.name for each in report.measurements) > 1
        ]
        for first in range(0, len(compared), COLUMNS):
            lines += _table(model, compared[first : first + COLUMNS], [c.name for c in report.contestants], rows)
        if fixed := next((work for work in compared if work.batch), None):
            sizes = sizes or f"{fixed.source:.0f} source tokens, {fixed.target} new ones{of_beam(fixed.beam)}"
    report = next(iter(reports.values()))
    machine = report.machine
    facts = (
        f"{machine.processor}, {machine.cores} cores, {report.created[:10]}, load average {machine.load_average:.1f}"
    )
    texts = any(work.kind == "text" for report in reports.values() for work in report.workloads)
    if texts:
        note = "; for the text, all tokens of all sentences count"
    else:
        note = ""
    return "\n".join([*lines, f"{facts}; {sizes}{note}.", ""])


def _table(
    model: str, works: Sequence[Workload], names: Sequence[str], rows: Mapping[tuple[str, str], Measurement]
) -> list[str]:
    """Return the lines of one table and an empty line."""
    heads = [f"batch {work.batch}" if work.batch else f"{work.sentences} sentences" for work in works]
    lines = [f"| {model}, ms per token | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for name in names:
        cells = [_cell(rows.get((name, work.name))) for work in works]
        if any(cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def _cell(each: Measurement | None) -> str:
    if each is None:
        return ""
    text = f"{each.ms_per_token.p50:.3g}"
    if each.agreement is not None and each.agreement.identical < each.agreement.sentences:
        text += f" ({each.agreement.identical} of {each.agreement.sentences} identical)"
    return text


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN", help="Name of a model and its report of tx-bench.")
    parser.add_argument("--readme", type=Path, default=Path("benchmarks/README.md"))
    options = parser.parse_args()
    runs = {name: Path(run) for name, _, run in (each.partition("=") for each in options.runs)}
    if not all(runs.keys()) or any(run == Path() for run in runs.values()):
        parser.error("give each run as NAME=DIRECTORY")
    reports = {name: read_report(run / "bench.json") for name, run in runs.items()}
    beams = {work.beam > 1 for report in reports.values() for work in report.workloads}
    if len(beams) > 1:
        parser.error("beams and greedy search have separate tables: give runs of one of them")
    start, end = markers(True in beams)
    before, _, rest = options.readme.read_text().partition(start)
    _, _, after = rest.partition(end)
    if not after:
        parser.error(f"{options.readme} lacks one or both of the markers")
    options.readme.write_text(f"{before}{start}{readme_table(reports)}{end}{after}")
    if True in beams:
        return
    figures = options.readme.parent / "figures"
    figures.mkdir(exist_ok=True)
    shutil.copyfile(next(iter(runs.values())) / PLOT, figures / PLOT)


if __name__ == "__main__":
    main()
