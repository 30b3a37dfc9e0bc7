"""Put the figures of a run into README.md: `python -m txport.benchmarks.report.readme_figures build/bench`.

The table between the two markers is replaced, and the plot of the peers is copied to benchmarks/figures.
"""

import argparse
import shutil
from pathlib import Path

from txport.benchmarks.report.report import read_report
from txport.benchmarks.report.schema import BenchReport, Measurement

BEGIN, END = "<!-- figures of tx-bench: begin -->\n", "<!-- figures of tx-bench: end -->\n"
PLOT = "peers.svg"


def readme_table(report: BenchReport) -> str:
    """Milliseconds a token of each contestant on each workload that several did, and how many sentences differ."""
    rows = {(each.contestant, each.workload): each for each in report.measurements}
    shared = [x for x in report.workloads if sum(each.workload == x.name for each in report.measurements) > 1]
    heads = [f"batch {x.batch}" if x.batch else f"{x.sentences} sentences" for x in shared]
    lines = [f"| ms a token | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for contestant in report.contestants:
        cells = [_cell(rows.get((contestant.name, workload.name))) for workload in shared]
        if any(cells):
            lines.append(f"| {contestant.name} | {' | '.join(cells)} |")
    sizes = next((f"{x.source:.0f} source tokens, {x.target} new ones" for x in shared if x.batch), "")
    machine = report.machine
    facts = (
        f"{machine.processor}, {machine.cores} cores, {report.created[:10]}, load average {machine.load_average:.1f}"
    )
    return "\n".join([*lines, "", f"{facts}; {sizes}; for the text, all tokens of all sentences count.", ""])


def _cell(each: Measurement | None) -> str:
    if each is None:
        return ""
    text = f"{each.ms_per_token.p50:.3g}"
    if each.agreement is not None and each.agreement.identical < each.agreement.sentences:
        text += f" ({each.agreement.identical} of {each.agreement.sentences} identical)"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="The directory that tx-bench wrote.")
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    options = parser.parse_args()
    table = readme_table(read_report(options.run / "bench.json"))
    before, _, rest = options.readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        parser.error(f"{options.readme} lacks one or both of the markers")
    options.readme.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    figures = options.readme.parent / "benchmarks" / "figures"
    figures.mkdir(exist_ok=True)
    shutil.copyfile(options.run / PLOT, figures / PLOT)


if __name__ == "__main__":
    main()
