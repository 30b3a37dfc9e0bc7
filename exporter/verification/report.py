"""Report of a verification: a bundle must choose PyTorch's tokens, except where rounding explains another choice.

Checks for every sentence, in each lowering:

* Greedy ids are compared with PyTorch's, in plain batches. Each token must be the one that PyTorch chooses in float32.
  At the first divergence, PyTorch may prefer its own token only by a margin that rounding explains.
* Logits of every step are compared with PyTorch's (teacher forcing, no cache), up to the first divergence. The average
  error must have the size of the format's rounding error in PyTorch itself
  (`txport.exporter.verification.arithmetic`).
* The error at each position, and each margin, have the same limit. Larger errors than expected (`suspects`) are
  compared with independent random roundings at that position (`txport.exporter.verification.examination`).
* Logits and encoder outputs must not contain NaN or infinity.
* Translation quality is measured (`txport.exporter.verification.quality`).

Checks with the same limits:

* The runtime's search loop, which refills and moves rows, runs every sentence in the first lowering and in the fused
  engine. In other lowerings it runs `evidence.LOOP_SAMPLE` sentences, because its code is the same for all.
* Some sentences run in each lowering alone with the largest cache, and again with padding. Ids of int8, whose limits
  are wide, must also be equal in all of these runs.

If the bundle has the table of parameters, all numbers of its weights are compared with the checkpoint's
(`txport.exporter.verification.weights`), because test sentences rarely contain every word. Optional graphs are compared
on some sentences (`txport.exporter.verification.attention`).

Sentences are from the checkpoint or the user. Outputs are truncated only at the limit of
`txport.runtime.calls.requests.length_limit`. If there are no sentences, random ones are used, with the limits of
`sample.random_limits`, since outputs for random texts often do not end with eos.

The fused engine for CPUs (`fused`) is verified as a lowering with a separate encoder, if its library is installed.

A float16 bundle is verified with every value of its graphs rounded to float16 (by
`txport.exporter.graphs.float16.round_results`). Otherwise ONNX Runtime's CPU provider would compute in float32, and the
comparison would show nothing about float16.
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

# Minimum share of an int8 bundle's sentences whose ids do not depend on their batch.
STABLE = 0.995
FORMAT_VERSION = 3
# Errors of float32 logits above this are mentioned in a note.
LARGE = 0.1
# An error at one position is examined above this ratio to the expected error, times the factor for averages.
SUSPICIOUS = 2.0
MAX_LISTED = 20
_NO_ERRORS = ErrorSizes(0.0, 0.0, 0.0)

# How a sentence was decoded: in plain batches, by the runtime's loop, alone, with padding.
RunKind = Literal["batch", "loop", "alone", "padded"]
_RUN_NAMES: dict[RunKind, str] = {
    "batch": "in batches",
    "loop": "by the loop",
    "alone": "alone",
    "padded": "with padding",
}


@dataclass(frozen=True)
class Divergence:
    """First token of a sentence that differs from PyTorch's.

    Attributes:
        run: how the sentence was decoded.
        sentence, step: position of the token.
        expected: PyTorch's id.
        chosen: the bundle's id.
        margin: PyTorch's logit of `expected` minus that of `chosen`.
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
        """Return whether another run of the sentence diverges with the same token at the same step."""
        return other is not None and (self.step, self.chosen) == (other.step, other.chosen)


@dataclass(frozen=True)
class Rounding:
    """Rounding errors of PyTorch itself on these sentences.

    Attributes:
        weights: the format, as in the manifest.
        errors: errors of PyTorch's logits in this format.
        allowance: allowed ratio of a bundle's errors to these (`arithmetic.allowance`).
    """

    weights: str
    errors: ErrorSizes
    allowance: float

    def ratio(self, errors: ErrorSizes) -> float:
        """Return the average error of a bundle as a multiple of these errors."""
        return _ratio(errors.rms, self.errors.rms)


@dataclass
class LoweringReport:
    """Results of one lowering. `*_identical` are numbers of sentences, errors are absolute.

    Plain batches are compared with PyTorch, the search loop with plain batches, other runs with the loop. `other_ends`
    is the number of outputs with PyTorch's ids that end earlier or later. `divergences` contains those with the largest
    margins, from all runs. `examined` is the number of positions and margins that were larger than expected.
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
    """Results of the optional graphs. Errors are absolute.

    `own` contains differences between scores and those of the bundle's steps for the same outputs.
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
    """Comparison of beam search by its own step with beam search by the plain step.

    Attributes:
        sentences: number of sentences.
        identical: number of sentences with the same best output.
        max_score_error, mean_score_error: differences of scores of the best outputs, absolute.
        failures: one sentence for each failure.
    """

    sentences: int
    identical: int
    max_score_error: float
    mean_score_error: float
    failures: list[str]


@dataclass(frozen=True)
class WeightsReport:
    """Comparison of a bundle's weights with the checkpoint's (`txport.exporter.verification.weights`).

    Attributes:
        tensors: number of compared tensors.
        numbers: number of values in these tensors.
        failures: one sentence for each tensor that differs.
    """

    tensors: int
    numbers: int
    failures: list[str]


@dataclass(frozen=True)
class EngineIdentity:
    """Number of inputs whose ids are Hugging Face's, by greedy search and by beam search, with one engine.

    Attributes:
        engine: its name.
        greedy_identical, beams_identical: inputs with the same ids.
        greedy_ties, beams_ties: inputs with other ids, which Hugging Face also chooses if its results are rounded
            differently.
    """

    engine: str
    greedy_identical: int
    beams_identical: int
    greedy_ties: int
    beams_ties: int

    @property
    def ties(self) -> str:
        """The ties in words; empty if there are none."""
        total = self.greedy_ties + self.beams_ties
        return f"; {plural(total, 'other')} with other roundings of Hugging Face" if total else ""


@dataclass(frozen=True)
class OriginalReport:
    """Comparison with the imported model in Hugging Face's library (`txport.exporter.verification.original`).

    Attributes:
        model: directory or hub id of the model.
        inputs: number of inputs.
        origin: description of their states.
        beam: number of beams.
        engines: results of each engine.
        failures: one sentence for each failure.
    """

    model: str
    inputs: int
    origin: str
    beam: int
    engines: list[EngineIdentity]
    failures: list[str]

    @property
    def lines(self) -> list[str]:
        """One sentence for each engine, without a full stop."""
        return [
            f"{each.engine}: ids of {each.greedy_identical} of {plural(self.inputs, 'input')} by greedy search, and of "
            f"{each.beams_identical} with {self.beam} beams, are those of Hugging Face's {self.model} for the same "
            f"encoder states ({self.origin}){each.ties}"
            for each in self.engines
        ]


Section = AttentionReport | BeamsReport | WeightsReport | OriginalReport


@dataclass(frozen=True)
class VerificationReport:
    """Contents of `verification.json`. Counts are those of the worst lowering.

    `cut` is the number of PyTorch's outputs that did not end with eos. `attention` and `beams` are None for bundles
    without these graphs, `weights` for bundles without the table of parameters, `original` without this comparison.
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
    original: OriginalReport | None = None

    @property
    def engines(self) -> tuple[str, ...]:
        """Compared engines, for the manifest."""
        return (ORT, *(each.lowering for each in self.lowerings if each.lowering == FUSED))

    @property
    def failure(self) -> str:
        """Failures in one line."""
        failures = [f"{each.lowering}: {failure}" for each in self.lowerings for failure in each.failures]
        sections = (self.weights, self.attention, self.beams, self.original)
        failures += [failure for each in sections if each is not None for failure in each.failures]
        if 2 * self.cut > self.sentences:
            endless = f"{self.cut:,} of {plural(self.sentences, 'answer')} do not end"
            failures.append(f"{endless}: the model has hardly learnt anything yet")
        if self.origin.startswith(RANDOM):
            failures.append(
                "the sentences were random: give real ones with --text, --ids or --features, or --no-verify for random "
                "weights"
            )
        return "verification failed: " + "; ".join(failures)


def suspects(
    sizes: Mapping[int, Sequence[float]],
    divergences: Sequence[Divergence],
    expected: Mapping[int, Sequence[float]],
    rounding: Rounding,
) -> list[Suspect]:
    """Return positions and divergences of one lowering whose error is larger than expected.

    The limit is `SUSPICIOUS` times the rounding error of PyTorch at the same position, or its average if that is
    larger.

    Args:
        sizes: sizes of the bundle's errors at each position of each sentence, from `LogitErrors.add`.
        divergences: of all runs.
        expected: sizes of PyTorch's rounding errors, in the form of `sizes`.
        rounding: their averages.
    """

    def limit(sentence: int, step: int) -> float:
        return rounding.allowance * SUSPICIOUS * max(rounding.errors.rms, expected[sentence][step])

    positions = [
        Suspect(_RUN_NAMES["batch"], sentence, step, _ratio(size, limit(sentence, step)), size)
        for sentence, steps in sizes.items()
        for step, size in enumerate(steps)
    ]
    margins = [
        Suspect(
            _RUN_NAMES[each.run],
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
    """Yield the failures of one lowering, one sentence for each.

    Args:
        report: of the lowering.
        rounding: rounding errors of PyTorch.
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
    for name, scope in (("rms", "on average"), ("token", "for one token")):
        ours = getattr(errors, name)
        expected = getattr(rounding.errors, name)
        if not ours <= rounding.allowance * expected:
            yield (
                f"logits differ from PyTorch's by {ours:.2g} {scope}, more than {rounding.allowance:.2g} times the "
                f"{expected:.2g} of rounding to {rounding.weights}"
            )
            return


def _describe(unexplained: Sequence[Suspect], rounding: Rounding) -> str:
    worst = max(unexplained, key=lambda each: each.excess)
    runs = Counter(run for run, _ in {(each.run, each.sentence) for each in unexplained})
    counts = ", ".join(f"{run}: {count}" for run, count in sorted(runs.items()))
    if worst.pair is None:
        fault = "logits differ from PyTorch's"
    else:
        fault = "the chosen token is below PyTorch's"
    return (
        f"{fault} by {worst.size:.2g} at step {worst.step} of sentence {worst.sentence}, more than rounding to "
        f"{rounding.weights} explains there (sentences {counts})"
    )


def _unstable(report: LoweringReport, stable: float) -> Iterable[str]:
    for situation, count, total in (
        ("by the runtime's loop", report.loop_identical, report.loop_sentences),
        ("alone", report.batch_identical, report.single_sentences),
        ("with padding", report.padded_identical, report.single_sentences),
    ):
        if count < stable * total:
            yield f"{total - count} of {plural(total, 'sentence')} gave other ids {situation}"


def large_errors(largest: float, weights: str) -> list[str]:
    """Return a note if errors of float32 are as large as those of other formats, since they hide small faults."""
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
    """Return the report of all lowerings and of the other checks.

    Args:
        lowerings: comparisons of decoder steps with PyTorch.
        refused: lowerings that could not be compared; their failure is the reason.
        sections: `weights`, `beams`, `attention` and `original`; None for parts that were not compared.
        rounding: rounding errors of PyTorch.
        arithmetic: description of the arithmetic.
        origin: description of the sentences' source.
        coverage: the compared sentences.
    """
    all_reports = [*lowerings, *refused]
    divergences = sorted(
        (each for lowering in lowerings for each in lowering.divergences), key=lambda each: -each.margin
    )
    return VerificationReport(
        format_version=FORMAT_VERSION,
        passed=not any(each.failures for each in (*all_reports, *sections.values()) if each is not None),
        precision=rounding.weights,
        arithmetic=arithmetic,
        origin=origin,
        rounding=rounding,
        sentences=coverage.sentences,
        cut=coverage.cut,
        token_identical=min(each.token_identical for each in lowerings),
        batch_identical=min(each.batch_identical for each in lowerings),
        max_logit_error=max(each.max_logit_error for each in lowerings),
        divergences=divergences[:MAX_LISTED],
        lowerings=all_reports,
        versions={"torch": torch.__version__, "onnxruntime": onnxruntime.__version__, "numpy": np.__version__},
        notes=coverage.notes + large_errors(max(each.max_logit_error for each in lowerings), rounding.weights),
        **sections,  # type: ignore[arg-type]
    )
