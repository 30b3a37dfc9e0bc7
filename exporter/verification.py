"""Proof that a bundle says what PyTorch says: token by token, in any batch, with any padding.

For each lowering, over the same sentences:

* every step's logits against PyTorch's in float32 (teacher forced, no cache), up to a sentence's first divergence;
* greedy ids against PyTorch's; at a first divergence, the margin: how much PyTorch preferred its own token;
* the runtime's own loop (rows refilled and moved) against one plain batch, a sample alone against the batch, and the
  same with padding added;
* NaN and infinity anywhere in logits and encoder outputs.

A float16 bundle is verified with every value of its graphs rounded to float16 (see `txport.exporter.float16.rounded`):
ONNX Runtime's CPU provider would otherwise compute it in float32 and prove nothing.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnxruntime
import torch
from txport.exporter.calibration import Logits
from txport.exporter.precision import TOLERANCE
from txport.exporter.reference import BANNED, Answer, pad
from txport.runtime.engine import Engine, Memory
from txport.runtime.greedy import Request, decode_all

# The largest margin at which a divergence counts as a tie, by precision; float32 allows no divergence at all.
TOLERANCES = {"float32": 0.0, "float16": TOLERANCE}
# Share of sentences that must be identical.
REQUIRED = {"float32": 1.0, "float16": 0.995}
FORMAT_VERSION = 1
_EXTRA_PADDING = 5
_LISTED = 20


@dataclass(frozen=True)
class Divergence:
    """The first token of a sentence that differs from PyTorch's."""

    sentence: int
    step: int
    expected: int
    chosen: int
    margin: float  # logit of `expected` less logit of `chosen`, both PyTorch's


@dataclass
class LoweringReport:
    """What was found for one lowering; `*_identical` count sentences, the largest and mean errors are absolute."""

    lowering: str
    sentences: int = 0
    token_identical: int = 0
    loop_identical: int = 0
    single_sentences: int = 0
    batch_identical: int = 0
    padded_identical: int = 0
    max_logit_error: float = 0.0
    mean_logit_error: float = 0.0
    max_encoder_error: float = 0.0
    mean_encoder_error: float = 0.0
    finite: bool = True
    first_divergences: list[Divergence] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """The whole of `verification.json`; the counts are those of the worst lowering."""

    format_version: int
    passed: bool
    precision: str
    arithmetic: str
    origin: str
    tolerance: float
    required: float
    sentences: int
    token_identical: int
    batch_identical: int
    max_logit_error: float
    first_divergences: list[Divergence]
    lowerings: list[LoweringReport]
    versions: dict[str, str]


@dataclass
class _Errors:
    largest: float = 0.0
    total: float = 0.0
    count: int = 0
    finite: bool = True

    def add(self, found: Logits, expected: Logits) -> None:
        difference = np.abs(found - expected)
        total = float(difference.sum(dtype=np.float64))
        if not math.isfinite(total):
            self.finite = False
            return
        if float(expected.min(initial=0.0)) <= BANNED:
            difference = difference[expected > BANNED]
            total = float(difference.sum(dtype=np.float64))
        self.largest = max(self.largest, float(difference.max(initial=0.0)))
        self.total += total
        self.count += difference.size

    @property
    def mean(self) -> float:
        return self.total / max(1, self.count)


class LoweringCheck:
    """Collects the evidence for one engine, batch by batch, so that logits of all sentences are never held at once.

    Args:
        engine: Runs one lowering of the bundle.
        lowering: Its name.
        precision: "float32" or "float16", which sets what is required.
        singles: How many sentences are also run alone.
        prefix: What every answer is forced to begin with.
    """

    def __init__(self, engine: Engine, lowering: str, precision: str, singles: int, prefix: Sequence[int] = ()) -> None:
        self._engine, self._precision, self._singles, self._prefix = engine, precision, singles, prefix
        self._report = LoweringReport(lowering)
        self._logits, self._encoder = _Errors(), _Errors()
        self._ids: dict[int, list[int]] = {}
        self._sources: dict[int, list[int]] = {}
        self._divergences: list[Divergence] = []
        self._shipped: list[list[int]] | None = None

    def loop(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """What the loop that ships makes of all sentences; they are then those that `add` is given, by their index."""
        requests = [Request(source, prefix=self._prefix) for source in sources]
        self._shipped = [result.ids for result in decode_all(self._engine, requests)]
        return self._shipped

    def add(self, answer: Answer, memory: Memory, found_cross: Sequence[Logits]) -> None:
        """Run one batch in lockstep and compare it with PyTorch's logits and cross keys and values.

        Args:
            answer: The batch, and what PyTorch says of it.
            memory: What the bundle's encoder made of it; all lowerings share that graph.
            found_cross: Its cross keys and values, in the order of `answer.cross`.
        """
        batch, logits = answer.batch, answer.logits
        for expected, found in zip(answer.cross, found_cross, strict=True):
            for row, length in enumerate(batch.source_lengths):
                self._encoder.add(found[row, :, :length].astype(np.float32), expected[row, :, :length])
        longest = max(len(target) for target in batch.targets)
        ids: list[list[int]] = [[] for _ in batch.targets]
        diverged = [False] * len(ids)
        limits = [longest] * len(ids)
        state = self._engine.allocate(len(ids), batch.source_ids.shape[1], longest, logits=True)
        state.place(range(len(ids)), memory, range(len(ids)), limits)
        for step in range(longest):
            state.step()
            tokens, found = state.read().token_ids[-1].copy(), state.logits()
            if step < len(self._prefix):
                tokens[:] = self._prefix[step]
                state.override(range(len(ids)), tokens.tolist(), [False] * len(ids))
            for row, target in enumerate(batch.targets):
                if step >= len(target) or diverged[row]:
                    continue
                self._logits.add(found[row], logits[row, step])
                ids[row].append(int(tokens[row]))
                if ids[row][-1] != target[step]:
                    diverged[row] = True
                    margin = float(logits[row, step, target[step]] - logits[row, step, ids[row][-1]])
                    found_at = Divergence(batch.indices[row], step, target[step], ids[row][-1], margin)
                    self._divergences.append(found_at)
        for row, index in enumerate(batch.indices):
            self._sources[index] = batch.source_ids[row, : batch.source_lengths[row]].tolist()
            self._ids[index] = ids[row]
            self._report.sentences += 1
            self._report.token_identical += not diverged[row]

    def finish(self, progress: Callable[[str], None]) -> LoweringReport:
        """Run the loop that ships, single sentences and added padding, and judge."""
        report = self._report
        indices = sorted(self._sources)
        if self._shipped is None:
            progress(f"{report.lowering}: the runtime's loop")
        shipped = self._shipped or self.loop([self._sources[index] for index in indices])
        report.loop_identical = sum(self._agrees(index, shipped[index]) for index in indices)
        sample = indices[:: max(1, len(indices) // max(1, self._singles))][: self._singles]
        progress(f"{report.lowering}: {len(sample)} sentences alone")
        report.single_sentences = len(sample)
        for index in sample:
            report.batch_identical += self._alone(index, 0) == shipped[index]
            report.padded_identical += self._alone(index, _EXTRA_PADDING) == shipped[index]
        report.max_logit_error, report.mean_logit_error = self._logits.largest, self._logits.mean
        report.max_encoder_error, report.mean_encoder_error = self._encoder.largest, self._encoder.mean
        report.finite = self._logits.finite and self._encoder.finite
        report.first_divergences = sorted(self._divergences, key=lambda d: -d.margin)[:_LISTED]
        report.failures = list(_failures(report, self._divergences, self._precision))
        return report

    def _agrees(self, index: int, ids: list[int]) -> bool:
        """Equal to the lockstep run, which stops at a divergence."""
        return ids[: len(self._ids[index])] == self._ids[index]

    def _alone(self, index: int, padding: int) -> list[int]:
        """Greedy ids of one sentence by itself, its source padded by some tokens."""
        engine, source = self._engine, self._sources[index]
        width = min(len(source) + padding, engine.limits.source)
        ids, lengths = pad([source], engine.tokens.pad)
        ids = np.pad(ids, ((0, 0), (0, width - len(source))), constant_values=engine.tokens.pad)
        limit = engine.limits.target
        state = engine.allocate(1, width, limit)
        state.place([0], engine.encode(ids, lengths), [0], [limit])
        made: list[int] = []
        while True:
            state.step()
            output = state.read()
            if len(made) < len(self._prefix):
                made.append(self._prefix[len(made)])
                state.override([0], made[-1:], [False])
                continue
            made.append(int(output.token_ids[-1, 0]))
            if output.finished[0]:
                return made


def _failures(report: LoweringReport, divergences: Sequence[Divergence], precision: str) -> Iterable[str]:
    total, needed = report.sentences, REQUIRED[precision]
    if not report.finite:
        yield "NaN or infinity in logits or encoder outputs"
    if report.token_identical < needed * total:
        yield f"{report.token_identical} of {total} sentences identical to PyTorch, {needed:.1%} are required"
    unexplained = [d for d in divergences if not d.margin <= TOLERANCES[precision]]
    if unexplained and precision != "float32":
        worst = max(d.margin for d in unexplained)
        yield f"{len(unexplained)} divergences beyond the tolerance {TOLERANCES[precision]}, the worst by {worst:.3f}"
    if report.loop_identical < needed * total:
        yield f"the runtime's loop gave other ids for {total - report.loop_identical} of {total} sentences"
    for name, count in (("alone", report.batch_identical), ("with padding", report.padded_identical)):
        if count < needed * report.single_sentences:
            yield f"{report.single_sentences - count} of {report.single_sentences} sentences gave other ids {name}"


def summarise(lowerings: list[LoweringReport], precision: str, arithmetic: str, origin: str) -> Report:
    """One report over all lowerings."""
    divergences = sorted((d for each in lowerings for d in each.first_divergences), key=lambda d: -d.margin)
    return Report(
        format_version=FORMAT_VERSION,
        passed=not any(each.failures for each in lowerings),
        precision=precision,
        arithmetic=arithmetic,
        origin=origin,
        tolerance=TOLERANCES[precision],
        required=REQUIRED[precision],
        sentences=min(each.sentences for each in lowerings),
        token_identical=min(each.token_identical for each in lowerings),
        batch_identical=min(each.batch_identical for each in lowerings),
        max_logit_error=max(each.max_logit_error for each in lowerings),
        first_divergences=divergences[:_LISTED],
        lowerings=lowerings,
        versions={"torch": torch.__version__, "onnxruntime": onnxruntime.__version__, "numpy": np.__version__},
    )
