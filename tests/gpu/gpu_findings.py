"""A plugin of pytest for tests/gpu/run.py: what each test found, a line of JSON each, as soon as it is known.

A test counts as stopped until it has ended: what its process crashed in, or was killed in, is known so.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(os.environ["TXPORT_GPU_FINDINGS"])


def _write(**finding: Any) -> None:
    with _FILE.open("a") as file:
        file.write(json.dumps({**finding, "at": time.time()}) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(test=nodeid, outcome="stopped", reason="its process ended in it")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        rows = [{"table": name, **cells} for name, cells in report.user_properties if isinstance(cells, dict)]
        reason = "" if report.outcome == "passed" else _reason(report)
        _write(test=report.nodeid, outcome=report.outcome, reason=reason, seconds=round(report.duration, 2), rows=rows)


def _reason(report: pytest.TestReport) -> str:
    """Why it was skipped, or the error that it failed with, in one line."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join(str(crash.message if crash else report.longrepr).split())[:500]
