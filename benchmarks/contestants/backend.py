"""Protocol between a contestant and the process that runs it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

Setting = Mapping[str, str]
DEFAULT = "default"  # as a number of threads: the library's own choice


@dataclass(frozen=True)
class Task:
    """A workload as a contestant's process receives it.

    Attributes:
        sources: ids of each sentence, eos included.
        target: tokens that each makes if `fixed`, else the most.
        fixed: one batch, in which every sentence gets all its tokens, also after eos.
        prefix: ids that every answer begins with.
        absent: an id that no answer contains, for contestants that need an id which ends a sentence.
        beam: hypotheses of a beam search that ends with as many; 1 for greedy search.
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
            ValueError: the task has them.
        """
        if self.beam > 1:
            raise ValueError("beams are measured with txport in Python, CTranslate2 and Hugging Face only")

    def batches(self, rows: int) -> list[list[int]]:
        """Indices of the sentences that run together: all if `fixed`, else by length, the longest first."""
        if self.fixed:
            return [list(range(len(self.sources)))]
        order = sorted(range(len(self.sources)), key=lambda index: -len(self.sources[index]))
        return [order[start : start + rows] for start in range(0, len(order), rows)]


class Backend(Protocol):
    """A model that is loaded and can do tasks."""

    engine: str  # with versions
    device: str  # where it really runs: "cpu" or "cuda"

    def prepare(self, task: Task, setting: Setting) -> None:
        """Do what need not be timed: convert the ids."""

    def call(self) -> None:
        """Do the whole task, timed: from ids in memory to ids in memory."""

    def ids(self) -> list[list[int]]:
        """Return the ids of the last `call`, for each sentence in order: without bos, eos included."""

    def parts(self) -> Mapping[str, Callable[[], object]]:
        """Return the parts of the task that can be timed alone: "encoder", "first_token". By default none."""
        return {}


@runtime_checkable
class SelfTimed(Protocol):
    """A backend that times its own calls in a process of its own."""

    peak_resident_bytes: int | None
    startup_ms: list[float]

    def turn(self, calls: int, seconds: float) -> dict[str, list[float]]:
        """Return milliseconds by part, as `Backend.parts` names them; a whole call is "call"."""


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[list[list[int]], list[int]]:
    """Return rows padded to the longest, and their lengths."""
    width = max(len(row) for row in rows)
    return [[*row, *[pad] * (width - len(row))] for row in rows], [len(row) for row in rows]


def cut_after(ids: Sequence[int], eos: int) -> list[int]:
    """`ids` up to and including the first `eos`."""
    ids = list(ids)
    if eos in ids:
        return ids[: ids.index(eos) + 1]
    return ids


# How each kind is loaded: module, and the class in it, constructed with the keywords of the contestant's description.
BACKENDS: dict[str, tuple[str, str]] = {
    "bundle": ("txport.benchmarks.contestants.bundle", "BundleBackend"),
    "pytorch": ("txport.benchmarks.contestants.pytorch", "PyTorchBackend"),
    "compile": ("txport.benchmarks.contestants.pytorch", "PyTorchBackend"),
    "huggingface": ("txport.benchmarks.contestants.huggingface", "HuggingFaceBackend"),
    "ctranslate2": ("txport.benchmarks.contestants.ctranslate2", "CTranslate2Backend"),
    "optimum": ("txport.benchmarks.contestants.optimum", "OptimumBackend"),
    "cpp": ("txport.benchmarks.contestants.cpp", "CppBackend"),
}
