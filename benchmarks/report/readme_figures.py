"""Put the figures of runs into README.md: `python -m txport.benchmarks.report.readme_figures demo=build/bench/demo`.

The table between the two markers is replaced, and the first run's plot of the peers is copied to benchmarks/figures.
Runs of `tx-bench --beam` have a table of their own, without a plot.
"""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path

from txport.benchmarks.report.report import read_report
from txport.benchmarks.report.schema import BenchReport, Measurement, of_beam

PLOT = "peers.svg"


def markers(beams: bool) -> tuple[str, str]:
    """The lines before and after a table in the README."""
    command = "tx-bench --beam" if beams else "tx-bench"
    return f"<!-- figures of {command}: begin -->\n", f"<!-- figures of {command}: end -->\n"


def readme_table(reports: Mapping[str, BenchReport]) -> str:
    """Milliseconds a token of each contestant on each workload that several did, and how many sentences differ.

    Args:
        reports: by the name of the model; contestants of one name are one row.
    """
    heads = []
    columns = []
    sizes = ""
    for model, report in reports.items():
        rows = {(each.contestant, each.workload): each for each in report.measurements}
        for work in report.workloads:
            if sum(each.workload == work.name for each in report.measurements) > 1:
                if work.batch:
                    sizes = sizes or f"{work.source:.0f} source tokens, {work.target} new ones{of_beam(work.beam)}"
                heads.append(f"{model}, batch {work.batch}" if work.batch else f"{model}, {work.sentences} sentences")
                columns.append({name: each for (name, workload), each in rows.items() if workload == work.name})
    names = dict.fromkeys(each.name for report in reports.values() for each in report.contestants)
    lines = [f"| ms a token | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for name in names:
        cells = [_cell(column.get(name)) for column in columns]
        if any(cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    first = next(iter(reports.values()))
    machine = first.machine
    facts = f"{machine.processor}, {machine.cores} cores, {first.created[:10]}, load average {machine.load_average:.1f}"
    texts = any(work.kind == "text" for report in reports.values() for work in report.workloads)
    counted = "; for the text, all tokens of all sentences count" if texts else ""
    return "\n".join([*lines, "", f"{facts}; {sizes}{counted}.", ""])


def _cell(each: Measurement | None) -> str:
    if each is None:
        return ""
    text = f"{each.ms_per_token.p50:.3g}"
    if each.agreement is not None and each.agreement.identical < each.agreement.sentences:
        text += f" ({each.agreement.identical} of {each.agreement.sentences} identical)"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN", help="A model's name, and what tx-bench wrote of it.")
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    options = parser.parse_args()
    runs = {name: Path(run) for name, _, run in (each.partition("=") for each in options.runs)}
    if not all(runs.keys()) or any(run == Path() for run in runs.values()):
        parser.error("give each run as NAME=DIRECTORY")
    reports = {name: read_report(run / "bench.json") for name, run in runs.items()}
    beams = {work.beam > 1 for report in reports.values() for work in report.workloads}
    if len(beams) > 1:
        parser.error("beams and greedy search have a table each: give runs of one of them")
    begin, end = markers(True in beams)
    before, _, rest = options.readme.read_text().partition(begin)
    _, _, after = rest.partition(end)
    if not after:
        parser.error(f"{options.readme} lacks one or both of the markers")
    options.readme.write_text(f"{before}{begin}{readme_table(reports)}{end}{after}")
    if True in beams:
        return
    figures = options.readme.parent / "benchmarks" / "figures"
    figures.mkdir(exist_ok=True)
    shutil.copyfile(next(iter(runs.values())) / PLOT, figures / PLOT)


if __name__ == "__main__":
    main()
