"""gpu-report.json, field by field."""

from dataclasses import dataclass
from typing import Literal

from txport.benchmarks.report.schema import ReportHeader

GPU_FORMAT, GPU_FORMAT_VERSION = "txport-gpu-report", 1

Status = Literal["passed", "failed", "skipped", "stopped"]
Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Check:
    """Something that must hold; `detail` says what was seen."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Findings:
    """What a stage has found, written after each finding, so that a stage that is stopped keeps what it had.

    Attributes:
        skipped: why the stage cannot run here; null if it can.
        checks: in the order in which they were made.
        tables: rows of figures by the table's title; the columns of a row by name. Times are milliseconds unless a
            column says otherwise, sizes are bytes.
    """

    skipped: str | None = None
    checks: tuple[Check, ...] = ()
    tables: dict[str, tuple[dict[str, Cell], ...]] | None = None


@dataclass(frozen=True)
class Stage:
    """One stage, which ran in a process of its own.

    Attributes:
        name: of the stage.
        status: "stopped" is one that took longer than its limit or was killed.
        reason: why it did not pass; empty if it did.
        seconds: that it took.
        findings: what it found, until it was stopped if it was.
        log: the file of its output, beside the report.
    """

    name: str
    status: Status
    reason: str
    seconds: float
    findings: Findings
    log: str


@dataclass(frozen=True)
class GpuReport(ReportHeader):
    """The whole file; it holds the stages that have ended.

    Attributes:
        rehearsal: ran over a driver in host memory, without a GPU: its figures mean nothing.
    """

    rehearsal: bool
    stages: tuple[Stage, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every stage that could run passed, and one could."""
        statuses = {stage.status for stage in self.stages}
        return self.complete and statuses <= {"passed", "skipped"} and "passed" in statuses
