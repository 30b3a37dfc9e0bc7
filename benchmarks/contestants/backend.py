"""The protocol between a contestant and the process that runs it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

Setting = Mapping[str, str]
DEFAULT = "default"  # number of threads that the library chooses


@dataclass(frozen=True)
class Task:
    """A workload in the form for the process of a contestant.

    Attributes:
        sources: ids of each sentence, eos included.
        target: number of tokens of each answer if `fixed`, otherwise the maximum.
        fixed: whether all sentences form one batch and generate `target` tokens, also after eos.
        prefix: ids at the beginning of every answer.
        absent: an id that no answer contains, for contestants that cannot ignore eos: it replaces eos.
        beam: number of hypotheses of a beam search, which stops when this number is finished; 1 for greedy search.
    """

    sources: list[list[int]]
    target: int
    fixed: bool
    prefix: list[int]
    absent: int
    beam: int = 1

    def greedy_only(self) -> None:
        """Refuse beams.

        Raises:
            ValueError: the task has beams.
        """
        if self.beam > 1:
            raise ValueError("beams are measured with txport in Python, CTranslate2 and Hugging Face only")

    def batches(self, rows: int) -> list[list[int]]:
        """Return the indices of the sentences of each batch: all if `fixed`, otherwise by length, the longest first."""
        if self.fixed:
            return [list(range(len(self.sources)))]
        order = sorted(range(len(self.sources)), key=lambda index: -len(self.sources[index]))
        return [order[start : start + rows] for start in range(0, len(order), rows)]


class Backend(Protocol):
    """A loaded model that can run tasks."""

    engine: str  # with versions
    device: str  # the actual device: "cpu" or "cuda"

    def prepare(self, task: Task, setting: Setting) -> None:
        """Do the untimed preparations, such as the conversion of ids."""

    def call(self) -> None:
        """Run the whole task, from ids in memory to ids in memory. This is timed."""

    def ids(self) -> list[list[int]]:
        """Return the ids of the last `call` for each sentence in order, without bos, eos included."""

    def parts(self) -> Mapping[str, Callable[[], object]]:
        """Return the parts of the task that can be timed separately, "encoder" and "first_token"; by default none."""
        return {}


@runtime_checkable
class SelfTimed(Protocol):
    """A backend that runs its calls in another process and times them itself."""

    peak_resident_bytes: int | None
    startup_ms: list[float]

    def turn(self, calls: int, seconds: float) -> dict[str, list[float]]:
        """Return the milliseconds of each part, with the names of `Backend.parts`; the whole call is "call"."""


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[list[list[int]], list[int]]:
    """Return rows padded to the longest, and their lengths."""
    width = max(len(row) for row in rows)
    return [[*row, *[pad] * (width - len(row))] for row in rows], [len(row) for row in rows]


def cut_after(ids: Sequence[int], eos: int) -> list[int]:
    """Return `ids` up to and including the first `eos`."""
    ids = list(ids)
    if eos in ids:
        return ids[: ids.index(eos) + 1]
    return ids


# Module and class of each kind. The description of a contestant contains the keyword arguments of the class.
BACKENDS: dict[str, tuple[str, str]] = {
    "bundle": ("txport.benchmarks.contestants.bundle", "BundleBackend"),
    "pytorch": ("txport.benchmarks.contestants.pytorch", "PyTorchBackend"),
    "compile": ("txport.benchmarks.contestants.pytorch", "PyTorchBackend"),
    "huggingface": ("txport.benchmarks.contestants.huggingface", "HuggingFaceBackend"),
    "ctranslate2": ("txport.benchmarks.contestants.ctranslate2", "CTranslate2Backend"),
    "optimum": ("txport.benchmarks.contestants.optimum", "OptimumBackend"),
    "cpp": ("txport.benchmarks.contestants.cpp", "CppBackend"),
}
