"""Processor time of tests by file and by test, written to build/test-times.txt.

It includes the processes that tests have waited for. Unlike durations, it hardly depends on the load of the machine.
"""

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
import warm

TIMES = Path("build", "test-times.txt")
COSTLIEST = 40


class ProcessorTimes:
    """A pytest plugin that adds up the processor seconds of each test and its fixtures."""

    def __init__(self) -> None:
        self.last = _processor_seconds()
        self.files: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the seconds since the last report to this report, which workers send to the main process."""
        report = yield
        now = _processor_seconds()
        report.processor_seconds = now - self.last
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the seconds of a report."""
        seconds = getattr(report, "processor_seconds", 0.0)
        self.files[report.nodeid.split("::")[0]] += seconds
        self.tests[report.nodeid] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write all files and the most expensive tests."""
        TIMES.parent.mkdir(exist_ok=True)
        rows = [*self.files.most_common(), *self.tests.most_common(COSTLIEST)]
        TIMES.write_text("".join(f"{seconds:8.1f} {name}\n" for name, seconds in rows), encoding="utf-8")
        total = sum(self.files.values())
        terminalreporter.write_line(f"{total / 60:.1f} processor minutes; by file and test in {TIMES}")


def _processor_seconds() -> float:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + warm.processor_seconds()
