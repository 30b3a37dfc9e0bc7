"""The report of a verification: that a bundle gives PyTorch's tokens, but where rounding explains another one.

Checked for every sentence, in each lowering:

* greedy ids against PyTorch's, in plain batches. Each token must be the one that PyTorch chooses in float32. At the
  first divergence of a sentence PyTorch may prefer its own token by a margin that rounding explains;
* every step's logits against PyTorch's (the whole decoder at once, no cache), up to the first divergence. On average
  their errors must be of the size that the format's rounding has in PyTorch itself
  (`txport.exporter.verification.arithmetic`);
* the error at each position, and each margin, likewise. One that is larger than expected (`suspects`) is compared with
  the errors of independent random roundings at that position (`txport.exporter.verification.examination`);
* NaN and infinity anywhere in logits and encoder outputs;
* the translations' quality (`txport.exporter.verification.quality`).

Checked in the same way, with the same bound:

* the runtime's own loop, which refills and moves rows: every sentence in the first lowering and in the fused engine,
  and a sample of `evidence.LOOP_SAMPLE` in the others, because the loop is the same code over all of them;
* a sample of sentences, in each lowering, alone with the largest cache, and once more with padding added. Ids of int8,
  whose bound is wide, must besides be the same in all of these.

Checked number by number, where the bundle has the table of parameters: its weights against the checkpoint's
(`txport.exporter.verification.weights`), because test sentences rarely contain every word.

Checked on a sample, where the bundle has them: its optional graphs (`txport.exporter.verification.attention`).

Sentences are the checkpoint's own or the user's, to the end of their answers, which are truncated only where they are
longer than `txport.runtime.calls.requests.length_limit` allows. Where there are none, they are random, and their
answers are truncated to the lengths of `sample.random_limits`: an answer to a random text need not end by itself.

The fused engine for CPUs (`fused`) is verified as a lowering, with its own encoder, where its library is here.

A float16 bundle is verified with every value of its graphs rounded to float16 (by
`txport.exporter.graphs.float16.rounded`): ONNX Runtime's CPU provider would otherwise compute it in float32 and
prove nothing.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import onnxruntime
import torch
from txport.exporter.coverage import Coverage
from txport.exporter.sample import RANDOM
from txport.exporter.verification.errors import ErrorSizes
from txport.exporter.verification.examination import Suspect
from txport.exporter.verification.quality import Quality
from txport.runtime.console.words import plural
from txport.runtime.engines.choice import FUSED, ORT

# Share of an int8 bundle's sentences whose ids must not depend on their batch.
STABLE = 0.995
FORMAT_VERSION = 3
# Errors of logits in float32 above this are noted.
LARGE = 0.1
# An error at one position is examined if it is this many times larger than expected, times the factor for averages.
SUSPICIOUS = 2.0
LISTED = 20
_NO_ERRORS = ErrorSizes(0.0, 0.0, 0.0)

# How a sentence was decoded: in plain batches, by the runtime's loop, alone, with padding.
RunKind = Literal["batch", "loop", "alone", "padded"]
_HOW: dict[RunKind, str] = {"batch": "in batches", "loop": "by the loop", "alone": "alone", "padded": "with padding"}


@dataclass(frozen=True)
class Divergence:
    """The first token of a sentence that is not PyTorch's.

    Attributes:
        run: how it was decoded.
        sentence, step: where.
        expected: PyTorch's id.
        chosen: the bundle's.
        margin: PyTorch's logit of `expected` less that of `chosen`.
    """

    run: RunKind
    sentence: int
    step: int
    expected: int
    chosen: int
    margin: float

    @property
    def ids(self) -> tuple[int, int]:
        """PyTorch's id and the bundle's."""
        return self.expected, self.chosen

    def is_like(self, other: "Divergence | None") -> bool:
        """Compare with another run of the sentence: the same token at the same step."""
        return other is not None and (self.step, self.chosen) == (other.step, other.chosen)


@dataclass(frozen=True)
class Rounding:
    """The errors that rounding makes in PyTorch on these sentences.

    Attributes:
        weights: the format, as in a manifest's precision.
        errors: of PyTorch's logits in that format.
        allowance: how many times as large those of a bundle may be (`arithmetic.allowance`).
    """

    weights: str
    errors: ErrorSizes
    allowance: float

    def ratio(self, errors: ErrorSizes) -> float:
        """Return the average error of a bundle as a multiple of these."""
        return _ratio(errors.rms, self.errors.rms)


@dataclass
class LoweringReport:
    """The results of one lowering; `*_identical` count sentences, the largest and mean errors are absolute.

    Those of plain batches are compared with PyTorch, those of the loop with these, the others with the loop.
    `other_ends` counts answers with PyTorch's ids that end earlier or later.
    `divergences` have the largest margins, of all runs. `examined` counts positions and margins larger than expected.
    """

    lowering: str
    sentences: int = 0
    token_identical: int = 0
    loop_sentences: int = 0
    loop_identical: int = 0
    single_sentences: int = 0
    batch_identical: int = 0
    padded_identical: int = 0
    max_logit_error: float = 0.0
    mean_logit_error: float = 0.0
    max_encoder_error: float = 0.0
    mean_encoder_error: float = 0.0
    errors: ErrorSizes = _NO_ERRORS
    finite: bool = True
    examined: int = 0
    other_ends: int = 0
    quality: Quality | None = None
    divergences: list[Divergence] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AttentionReport:
    """The results of the optional graphs; errors are absolute.

    `own` are the differences of scores from the scores that the bundle's steps gave for the same answers.
    """

    sentences: int
    max_weight_error: float
    mean_weight_error: float
    max_score_error: float
    mean_score_error: float
    mean_own_score_error: float
    max_memory_error: float
    failures: list[str]


@dataclass(frozen=True)
class BeamsReport:
    """The results of beam search by its own step, next to beam search by a plain one.

    Attributes:
        sentences: that were searched.
        identical: of them have the same best answer.
        max_score_error, mean_score_error: of the best answers' scores, absolute.
        failures: a sentence each.
    """

    sentences: int
    identical: int
    max_score_error: float
    mean_score_error: float
    failures: list[str]


@dataclass(frozen=True)
class WeightsReport:
    """Results of the comparison of a bundle's weights with the checkpoint's (`txport.exporter.verification.weights`).

    Attributes:
        tensors: that were compared.
        numbers: in all of them.
        failures: a sentence each, of the tensors that are not the checkpoint's.
    """

    tensors: int
    numbers: int
    failures: list[str]


Section = AttentionReport | BeamsReport | WeightsReport


@dataclass(frozen=True)
class VerificationReport:
    """The whole of `verification.json`; the counts are those of the worst lowering.

    `cut` of PyTorch's answers did not end. `attention` and `beams` are None for
    a bundle without the graphs, `weights` for one without the table of parameters.
    """

    format_version: int
    passed: bool
    precision: str
    arithmetic: str
    origin: str
    rounding: Rounding
    sentences: int
    cut: int
    token_identical: int
    batch_identical: int
    max_logit_error: float
    divergences: list[Divergence]
    lowerings: list[LoweringReport]
    versions: dict[str, str]
    notes: list[str]
    attention: AttentionReport | None = None
    beams: BeamsReport | None = None
    weights: WeightsReport | None = None

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines that were compared, for the manifest."""
        return (ORT, *(each.lowering for each in self.lowerings if each.lowering == FUSED))

    @property
    def failure(self) -> str:
        """Failures in one line."""
        failures = [f"{each.lowering}: {failure}" for each in self.lowerings for failure in each.failures]
        others = (self.weights, self.attention, self.beams)
        failures += [failure for each in others if each is not None for failure in each.failures]
        if 2 * self.cut > self.sentences:
            endless = f"{self.cut:,} of {plural(self.sentences, 'answer')} do not end"
            failures.append(f"{endless}: the model has hardly learnt anything yet")
        if self.origin.startswith(RANDOM):
            failures.append(
                "the sentences were random: give real ones with --text or --ids, or --no-verify for random weights"
            )
        return "verification failed: " + "; ".join(failures)


def suspects(
    sizes: Mapping[int, Sequence[float]],
    divergences: Sequence[Divergence],
    expected: Mapping[int, Sequence[float]],
    rounding: Rounding,
) -> list[Suspect]:
    """Return the positions and divergences of one lowering with an error larger than expected.

    Expected is the error that rounding makes in PyTorch at the same position, or on average if that is larger, times
    `SUSPICIOUS`.

    Args:
        sizes: of the bundle's errors at the positions of each sentence, as `LogitErrors.add` returns them.
        divergences: of all runs.
        expected: as `sizes`, of PyTorch's rounding errors.
        rounding: these errors on average.
    """

    def limit(sentence: int, step: int) -> float:
        return rounding.allowance * SUSPICIOUS * max(rounding.errors.rms, expected[sentence][step])

    positions = [
        Suspect(_HOW["batch"], sentence, step, _ratio(size, limit(sentence, step)), size)
        for sentence, steps in sizes.items()
        for step, size in enumerate(steps)
    ]
    margins = [
        Suspect(
            _HOW[each.run],
            each.sentence,
            each.step,
            _ratio(each.margin, limit(each.sentence, each.step)),
            each.margin,
            each.ids,
        )
        for each in divergences
    ]
    return [each for each in (*positions, *margins) if not each.excess <= 1]


def _ratio(size: float, expected: float) -> float:
    if expected > 0:
        return size / expected
    if size == 0:
        return 0.0
    return math.inf


def judge(
    report: LoweringReport,
    rounding: Rounding,
    averages: Callable[[], ErrorSizes],
    examine: Callable[[], list[Suspect]],
) -> Iterable[str]:
    """Return the failures of one lowering, a sentence each; none if it passes.

    Args:
        report: of the lowering.
        rounding: the errors of rounding in PyTorch.
        averages: returns these errors after an examination of the sentences with the largest errors.
        examine: returns the errors that rounding at their position does not explain.
    """
    if not report.finite:
        yield "NaN or infinity in logits or encoder outputs"
        return
    too_large = list(_too_large(report.errors, rounding)) and list(
        _too_large(report.errors, replace(rounding, errors=averages()))
    )
    yield from too_large
    if not too_large and (unexplained := examine()):
        yield _describe(unexplained, rounding)
    if report.other_ends:
        yield f"{plural(report.other_ends, 'answer')} with PyTorch's ids ended earlier or later than in PyTorch"
    if report.quality is not None and report.quality.failure is not None:
        yield report.quality.failure
    yield from _unstable(report, STABLE if rounding.weights == "int8" else 0.0)


def _too_large(errors: ErrorSizes, rounding: Rounding) -> Iterable[str]:
    for name, where in (("rms", "on average"), ("token", "for one token")):
        ours = getattr(errors, name)
        expected = getattr(rounding.errors, name)
        if not ours <= rounding.allowance * expected:
            yield (
                f"logits differ from PyTorch's by {ours:.2g} {where}, more than {rounding.allowance:.2g} times the "
                f"{expected:.2g} of rounding to {rounding.weights}"
            )
            return


def _describe(unexplained: Sequence[Suspect], rounding: Rounding) -> str:
    worst = max(unexplained, key=lambda each: each.excess)
    runs = Counter(run for run, _ in {(each.run, each.sentence) for each in unexplained})
    counts = ", ".join(f"{run}: {count}" for run, count in sorted(runs.items()))
    if worst.pair is None:
        what = "logits differ from PyTorch's"
    else:
        what = "the chosen token is below PyTorch's"
    return (
        f"{what} by {worst.size:.2g} at step {worst.step} of sentence {worst.sentence}, more than rounding to "
        f"{rounding.weights} explains there (sentences {counts})"
    )


def _unstable(report: LoweringReport, stable: float) -> Iterable[str]:
    for what, count, total in (
        ("by the runtime's loop", report.loop_identical, report.loop_sentences),
        ("alone", report.batch_identical, report.single_sentences),
        ("with padding", report.padded_identical, report.single_sentences),
    ):
        if count < stable * total:
            yield f"{total - count} of {plural(total, 'sentence')} gave other ids {what}"


def large_errors(largest: float, weights: str) -> list[str]:
    """Return a note if errors of float32 are as large as those of other formats, which hides small faults."""
    if weights != "float32" or largest <= LARGE:
        return []
    return [
        f"logits differ by up to {largest:.2g}, much for float32: PyTorch's own rounding errors are as large with "
        "these weights, so small faults would pass; random weights have such errors"
    ]


def summarise(
    lowerings: list[LoweringReport],
    refused: list[LoweringReport],
    sections: Mapping[str, Section | None],
    rounding: Rounding,
    arithmetic: str,
    origin: str,
    coverage: Coverage,
) -> VerificationReport:
    """Return the report of all lowerings, also of those whose engine refuses the bundle, and of the other checks.

    Args:
        lowerings: the comparisons of decoder steps with PyTorch.
        refused: lowerings that could not be compared, each with the reason as its failure.
        sections: `weights`, `beams` and `attention`; None for a part that the bundle does not have.
        rounding: the errors of rounding in PyTorch.
        arithmetic: in words.
        origin: of the sentences.
        coverage: of the sentences.
    """
    every = [*lowerings, *refused]
    divergences = sorted(
        (each for lowering in lowerings for each in lowering.divergences), key=lambda each: -each.margin
    )
    return VerificationReport(
        format_version=FORMAT_VERSION,
        passed=not any(each.failures for each in (*every, *sections.values()) if each is not None),
        precision=rounding.weights,
        arithmetic=arithmetic,
        origin=origin,
        rounding=rounding,
        sentences=coverage.sentences,
        cut=coverage.cut,
        token_identical=min(each.token_identical for each in lowerings),
        batch_identical=min(each.batch_identical for each in lowerings),
        max_logit_error=max(each.max_logit_error for each in lowerings),
        divergences=divergences[:LISTED],
        lowerings=every,
        versions={"torch": torch.__version__, "onnxruntime": onnxruntime.__version__, "numpy": np.__version__},
        notes=coverage.notes + large_errors(max(each.max_logit_error for each in lowerings), rounding.weights),
        **sections,  # type: ignore[arg-type]
    )
