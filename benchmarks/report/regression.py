"""A check for continuous integration: by ratio in one run, never by absolute time."""

from txport.benchmarks.report.schema import Report
from txport.runtime.errors import CheckFailed


def check_against(report: Report, most: float) -> None:
    """Compare the first bundle with the other bundles of the run.

    Raises:
        CheckFailed: on some workload it took more than `most` times what another one took, median over rounds.
    """
    bundles = {each.name for each in report.contestants if each.kind == "bundle"}
    slower = []
    for each in report.measurements:
        if each.contestant in bundles and each.ratio is not None and each.ratio.p50 * most < 1:
            slower.append(f"{1 / each.ratio.p50:.3f} times {each.contestant} on {each.workload}")
    if slower:
        raise CheckFailed(f"the bundle takes {'; '.join(slower)}: more than {most:g} times was not allowed")
