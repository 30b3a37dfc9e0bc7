"""The report of a verification: that a bundle gives PyTorch's tokens, in any batch, with any padding.

Checked for every sentence, in each lowering:

* greedy ids against PyTorch's: the step graph runs in plain batches on the tokens that it chose itself, and each must
  be the one that PyTorch chooses in float32; at a first divergence, the margin: how much PyTorch preferred its
  own token;
* every step's logits against PyTorch's (the whole decoder at once, no cache), up to a first divergence;
* NaN and infinity anywhere in logits and encoder outputs.

Checked against those ids:

* the runtime's own loop, which refills and moves rows: every sentence in the first lowering and in the fused engine,
  and a sample of `evidence.LOOP_SAMPLE` in the others, because the loop is the same code over all of them;
* a sample of sentences, in each lowering, alone with the largest cache, and once more with padding added.

Checked on a sample, where the bundle has them: its optional graphs (`txport.exporter.verification.attention`).

Sentences are the checkpoint's own or the user's, to the end of their answers, which are cut only where they are longer
than `trial.answer_limits` allows. Where there are none, they are random, and their answers are cut as
`trial.random_limits` says: an answer to a random text need not end by itself.

Sentences are taken in an order in which every beginning stands for the whole (`portions.spread`), as many as fit into
the time.

The fused engine for CPUs (`fused`) is verified as a lowering, with its own encoder, where its library is here.

A float16 bundle is verified with every value of its graphs rounded to float16 (by
`txport.exporter.graphs.float16.rounded`): ONNX Runtime's CPU provider would otherwise compute it in float32 and
prove nothing.

An int8 bundle chooses other tokens here and there. What must hold of it is that its translations are as good as
PyTorch's (`txport.exporter.verification.quality`) and that its ids depend neither on the batch nor on padding nor on
refills.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnxruntime
import torch
from txport.exporter.verification.coverage import Coverage
from txport.exporter.verification.fused import FUSED
from txport.exporter.verification.quality import Quality
from txport.exporter.words import plural

# In float16 a choice counts as wrong if its logit is lower than the best by more (a factor of 1.1 in probability).
TOLERANCE = 0.1
# The largest margin at which a divergence counts as a tie, by precision; float32 allows no divergence at all.
TOLERANCES: dict[str, float | None] = {"float32": 0.0, "float16": TOLERANCE, "int8": None}
# Share of sentences that must be identical to PyTorch's, and to the bundle's own in other batches.
REQUIRED = {"float32": 1.0, "float16": 0.995, "int8": 0.0}
STABLE = {"float32": 1.0, "float16": 0.995, "int8": 0.995}
FORMAT_VERSION = 1
_LISTED = 20
_TIES = " (PyTorch itself is almost undecided where they differ: near ties are many in a model that knows little)"


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
    """The results of one lowering; `*_identical` count sentences, the largest and mean errors are absolute."""

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
    finite: bool = True
    quality: Quality | None = None  # of int8
    first_divergences: list[Divergence] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AttentionReport:
    """The results of the optional graphs; errors are absolute.

    `own` are the differences of scores from those that the bundle's steps gave for the same answers.
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
class VerificationReport:
    """The whole of `verification.json`; the counts are those of the worst lowering.

    `asked` sentences were to be compared, `sentences` were; `cut` of PyTorch's answers to them did not end. `attention`
    is None for a bundle without the optional graphs.
    """

    format_version: int
    passed: bool
    precision: str
    arithmetic: str
    origin: str
    tolerance: float | None
    required: float
    asked: int
    sentences: int
    cut: int
    token_identical: int
    batch_identical: int
    max_logit_error: float
    first_divergences: list[Divergence]
    lowerings: list[LoweringReport]
    versions: dict[str, str]
    notes: list[str]
    attention: AttentionReport | None = None

    def with_attention(self, attention: AttentionReport) -> "VerificationReport":
        """This report with that of the optional graphs."""
        return replace(self, attention=attention, passed=self.passed and not attention.failures)

    def with_refusal(self, lowering: str, reason: str) -> "VerificationReport":
        """This report with a lowering whose engine refuses the bundle, which then fails."""
        return replace(self, passed=False, lowerings=[*self.lowerings, LoweringReport(lowering, failures=[reason])])

    @property
    def fused(self) -> bool:
        """Whether the fused engine was among what was compared."""
        return any(each.lowering == FUSED for each in self.lowerings)

    @property
    def failure(self) -> str:
        """What failed, in one line."""
        failures = [f"{each.lowering}: {failure}" for each in self.lowerings for failure in each.failures]
        failures += self.attention.failures if self.attention is not None else []
        if 2 * self.cut > self.sentences:
            endless = f"{self.cut:,} of {plural(self.sentences, 'answer')} do not end"
            failures.append(f"{endless}: the model has hardly learnt anything yet")
        return "verification failed: " + "; ".join(failures)


def judge(report: LoweringReport, divergences: Sequence[Divergence], precision: str) -> Iterable[str]:
    """The failures of one lowering, a sentence each; none if it passes."""
    total, needed, stable = report.sentences, REQUIRED[precision], STABLE[precision]
    if not report.finite:
        yield "NaN or infinity in logits or encoder outputs"
    tolerance = TOLERANCES[precision]
    unexplained = [d for d in divergences if tolerance is not None and not d.margin <= tolerance]
    if report.token_identical < needed * total:
        few = f"{report.token_identical} of {plural(total, 'sentence')} identical to PyTorch, {needed:.1%} are required"
        yield few + (_TIES if precision == "float16" and divergences and not unexplained else "")
    if unexplained and precision != "float32":
        worst = max(d.margin for d in unexplained)
        yield f"{plural(len(unexplained), 'divergence')} beyond the tolerance {tolerance}, the worst by {worst:.3f}"
    if report.quality is not None and report.quality.failure is not None:
        yield report.quality.failure
    if report.loop_identical < stable * report.loop_sentences:
        wrong = report.loop_sentences - report.loop_identical
        yield f"the runtime's loop gave other ids for {wrong} of {plural(report.loop_sentences, 'sentence')}"
    for name, count in (("alone", report.batch_identical), ("with padding", report.padded_identical)):
        if count < stable * report.single_sentences:
            wrong = report.single_sentences - count
            yield f"{wrong} of {plural(report.single_sentences, 'sentence')} gave other ids {name}"


def summarise(
    lowerings: list[LoweringReport], precision: str, arithmetic: str, coverage: Coverage
) -> VerificationReport:
    """One report over all lowerings."""
    divergences = sorted((d for each in lowerings for d in each.first_divergences), key=lambda d: -d.margin)
    return VerificationReport(
        format_version=FORMAT_VERSION,
        passed=not any(each.failures for each in lowerings),
        precision=precision,
        arithmetic=arithmetic,
        origin=coverage.origin,
        tolerance=TOLERANCES[precision],
        required=REQUIRED[precision],
        asked=coverage.asked,
        sentences=min(each.sentences for each in lowerings),
        cut=coverage.cut,
        token_identical=min(each.token_identical for each in lowerings),
        batch_identical=min(each.batch_identical for each in lowerings),
        max_logit_error=max(each.max_logit_error for each in lowerings),
        first_divergences=divergences[:_LISTED],
        lowerings=lowerings,
        versions={"torch": torch.__version__, "onnxruntime": onnxruntime.__version__, "numpy": np.__version__},
        notes=coverage.notes,
    )
