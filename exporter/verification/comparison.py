"""Comparison of engines with PyTorch on a sample of sentences, batch by batch."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from txport.exporter.coverage import Coverage
from txport.exporter.reference import Answer, answers
from txport.exporter.sample import Sample, spread
from txport.exporter.verification.arithmetic import RoundedReference
from txport.exporter.verification.errors import Errors, LogitErrors
from txport.exporter.verification.evidence import LOOP_SAMPLE, LoweringCheck
from txport.models.transformer import Transformer
from txport.runtime.bundle.interface import cross_names
from txport.runtime.console.progress import Stages
from txport.runtime.console.words import plural
from txport.runtime.engine import Engine, Memory
from txport.runtime.errors import CheckFailed


class CommonResults(NamedTuple):
    """Results that all checks share.

    Attributes:
        encoder: errors of the encoder's outputs.
        rounding: rounding errors of the logits of PyTorch itself.
        sizes: sizes of these rounding errors at each position of each sentence (`LogitErrors.add`).
        coverage: the compared sentences.
    """

    encoder: Errors
    rounding: LogitErrors
    sizes: dict[int, list[float]]
    coverage: Coverage


def compare(
    model: Transformer,
    sample: Sample,
    checks: Sequence[LoweringCheck],
    encoder: Engine,
    reference: RoundedReference,
    stages: Stages,
    *,
    singles: int,
    minutes: float | None,
    on_device: bool = False,
) -> CommonResults:
    """Give PyTorch's results for all sentences to every check.

    Args:
        model: the PyTorch model, float32.
        sample: the sentences.
        checks: one for each engine. The first one runs all sentences by the runtime's search loop.
        encoder: engine whose encoder output is used by all engines without a separate encoder.
        reference: model with the bundle's rounding.
        stages: shows progress.
        singles: number of sentences that are also run alone and with padding.
        minutes: time limit; None for no limit.
        on_device: whether the encoder's outputs stay on a device, where they cannot be read.

    Raises:
        CheckFailed: the time limit is exceeded.
    """
    guesses = _run_alone(sample, checks, singles, stages)
    comparison = CommonResults(Errors(), LogitErrors(), {}, Coverage(sample))
    stages.stage("verify", len(guesses))
    batches = answers(model, sample.sources, sample.limits, sample.prefix, guesses)
    for answer in _in_time(batches, len(sample.sources), minutes):
        batch = answer.batch
        memory = encoder.encode(batch.source_ids, batch.source_lengths)
        if not on_device:
            _add_encoder(comparison.encoder, answer, memory)
        for row, logits in enumerate(reference.logits(batch)):
            length = len(batch.targets[row])
            sizes = comparison.rounding.add(logits[:length], answer.logits[row, :length])
            comparison.sizes[batch.indices[row]] = sizes.tolist()
        for check in checks:
            check.add(answer, memory)
        comparison.coverage.add(batch.targets, encoder.tokens.eos)
        stages.advance(len(batch.targets))
    return comparison


def _run_alone(sample: Sample, checks: Sequence[LoweringCheck], singles: int, stages: Stages) -> list[list[int]]:
    """Run all parts that do not need PyTorch. Return the results of the first check's loop for all sentences."""
    order = spread([len(source) for source in sample.sources])
    stages.stage("verify: by the loop, alone, with padding", len(checks) * len(order[:singles]))
    for number, check in enumerate(checks):
        runs_all = number == 0 or check.encodes
        check.loop(range(len(order)) if runs_all else order[: max(LOOP_SAMPLE, singles)])
        check.sample(order[:singles], stages.advance)
    return checks[0].loop_ids


def _in_time(batches: Iterable[Answer], count: int, minutes: float | None) -> Iterator[Answer]:
    """Yield batches of `count` sentences until the time limit.

    Raises:
        CheckFailed: the time limit is exceeded.
    """
    start = time.monotonic()
    sentences = 0
    for answer in batches:
        yield answer
        sentences += len(answer.batch.targets)
        if minutes is not None and time.monotonic() - start > 60 * minutes and sentences < count:
            raise CheckFailed(
                f"verification has compared {sentences} of {plural(count, 'sentence')} in {minutes:g} minutes: give "
                f"more by --verify-minutes, or fewer --sentences"
            )


def _add_encoder(errors: Errors, answer: Answer, memory: Memory) -> None:
    """Compare cross-attention keys and values with PyTorch's, except those of padding."""
    for name, expected in zip(cross_names(len(answer.cross) // 2), answer.cross, strict=True):
        for row, length in enumerate(answer.batch.source_lengths):
            errors.add(memory[name][row, :, :length].astype(np.float32), expected[row, :, :length])
