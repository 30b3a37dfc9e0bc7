"""A check for continuous integration: by ratios within one run, never by absolute times."""

from txport.benchmarks.report.schema import BenchReport
from txport.runtime.errors import CheckFailed


def check_against(report: BenchReport, most: float) -> None:
    """Compare the first bundle with the other bundles of the run.

    Raises:
        CheckFailed: on some workload its time was more than `most` times that of another one, median over rounds.
    """
    bundles = {each.name for each in report.contestants if each.kind == "bundle"}
    slower = []
    for each in report.measurements:
        if each.contestant in bundles and each.ratio is not None and each.ratio.p50 * most < 1:
            slower.append(f"{1 / each.ratio.p50:.3f} times {each.contestant} on {each.workload}")
    if slower:
        raise CheckFailed(f"the bundle takes {'; '.join(slower)}: more than {most:g} times was not allowed")
