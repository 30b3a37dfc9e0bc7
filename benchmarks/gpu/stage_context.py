"""What each stage of the report works with, and where it writes what it finds."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from txport.benchmarks.gpu.schema import Cell, Check, Findings
from txport.runtime.bundle.strict_json import encode
from txport.runtime.errors import TxportError
from txport.runtime.files import write_atomically


class Skip(Exception):
    """The stage cannot run here; the message says why."""


@dataclass
class StageContext:
    """What a stage works with, and where it writes.

    Attributes:
        result: the file of the findings.
        bundles: by name, smallest first.
        rehearsal: the driver's memory is the host's, and ONNX Runtime computes on the CPU.
        programs: the directory of the C++ tools; None if they are not here.
        scratch: a directory for engines and files that the report keeps.
        gpu_seen: an earlier stage of the report has used the GPU: its absence is a failure.
    """

    result: Path
    bundles: dict[str, Path]
    rehearsal: bool
    programs: Path | None
    scratch: Path
    gpu_seen: bool = False
    findings: Findings = field(default_factory=Findings)

    @property
    def rounds(self) -> int:
        """How often to measure; the times of a rehearsal mean nothing."""
        return 1 if self.rehearsal else 15

    @property
    def where(self) -> str:
        """On which of ONNX Runtime's devices the graphs run."""
        return "cpu" if self.rehearsal else "cuda"

    def check(self, name: str, passed: bool, detail: str = "") -> None:
        """Note whether something that must hold did."""
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {detail}", flush=True)
        self._change(replace(self.findings, checks=(*self.findings.checks, Check(name, passed, detail))))

    @contextmanager
    def checking(self, name: str) -> Iterator[None]:
        """Note an error of the block as a check that failed; none if there is no error."""
        try:
            yield
        except (TxportError, MemoryError, OSError, AssertionError) as error:
            self.check(name, False, f"{type(error).__name__}: {error}")

    def row(self, table: str, **cells: Cell) -> None:
        """Add a row to a table of figures."""
        print(table, cells, flush=True)
        tables = self.findings.tables or {}
        self._change(replace(self.findings, tables={**tables, table: (*tables.get(table, ()), cells)}))

    def skip(self, reason: str) -> None:
        """Note why the stage cannot run."""
        print(f"skipped: {reason}", flush=True)
        self._change(replace(self.findings, skipped=reason))

    def _change(self, findings: Findings) -> None:
        self.findings = findings
        write_atomically(self.result, json.dumps(encode(findings)).encode())
