"""The sentences of golden.json, by which a bundle checks itself where there is no PyTorch."""

import dataclasses
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from txport.exporter.reference import BATCH, Logits, answers
from txport.exporter.sample import Sample
from txport.exporter.verification.arithmetic import RoundedReference, allowance
from txport.exporter.verification.errors import LogitErrors
from txport.exporter.verification.verify import fused_engine
from txport.models.checkpoint import Checkpoint
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engine import Engine
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.errors import BundleError
from txport.runtime.golden import Case, Golden
from txport.runtime.search.decoding import decode_all

# Cases, of twice as many sentences.
MOST = 32
# Numbers of all vectors of a model that reads features: longer sources are cut, so that the file stays small.
NUMBERS = 1 << 15
# Sentences where the bundle is not verified.
QUICK = 8


def golden_cases(
    checkpoint: Checkpoint, sample: Sample, directory: Path, manifest: Manifest, *, quick: bool = False
) -> Golden:
    """Up to `MOST` sentences with the ids that PyTorch chooses, ties apart.

    Every device rounds in its own way, so that ids which are almost tied would accuse engines that are right: PyTorch
    must prefer each id by more than rounding explains, and below float32 the engines here must choose the same. An
    answer ends before its first tie, if it has one. Answers without a tie come first. Models with random weights have
    many; where every answer begins with one, ties are taken as well.

    Args:
        checkpoint: the reference.
        sample: the sentences.
        directory: of the bundle, which has no golden.json yet.
        manifest: of the bundle.
        quick: few and short sentences, one at a time to save memory, and, in float32, by PyTorch alone: for a bundle
            that is not verified.
    """
    numbers = list(range(min(2 * MOST, len(sample.sources))))
    if quick:
        numbers = sorted(numbers, key=lambda number: len(sample.sources[number]))[:QUICK]
    sample = _cut(sample, len(numbers), checkpoint.config.feature_size)
    sources = [sample.sources[number] for number in numbers]
    limits = [sample.limits[number] for number in numbers]
    weights = manifest.precision.weights
    exact = weights == "float32"
    results = [] if quick and exact else _results(sample, numbers, directory, manifest)
    expected: dict[int, list[int]] = {}
    leads: dict[int, Logits] = {}
    errors = LogitErrors()
    reference = RoundedReference(checkpoint.model, weights)
    guesses = results[0] if results else None
    batch = 1 if quick else BATCH
    for answer in answers(checkpoint.model, sources, limits, sample.prefix, guesses, batch):
        rounded = reference.logits(answer.batch)
        for row, (index, target) in enumerate(zip(answer.batch.indices, answer.batch.targets, strict=True)):
            logits = answer.logits[row, : len(target)]
            errors.add(rounded[row, : len(target)], logits)
            expected[index], leads[index] = target, _leads(logits)
    # Other devices sum float32 in other orders.
    bound = allowance(checkpoint.config, sums_in_format=exact) * errors.sizes.lead
    forced = len(sample.prefix)
    # Tokens of each answer on which all engines agree; then those before the first near tie.
    agreed = {
        i: len(os.path.commonprefix([ids, *(each[i] for each in results)]))  # noqa: RUF071 - of ids
        for i, ids in sorted(expected.items())
    }
    clear = {i: min(end, forced + _first(leads[i][forced:] <= bound)) for i, end in agreed.items()}
    if max(clear.values()) == forced:
        clear = agreed
    kept = sorted((i for i in clear if clear[i] > forced), key=lambda i: len(expected[i]) - clear[i])
    cases = [Case.of(sample.texts[numbers[i]], sources[i], expected[i][: clear[i]]) for i in kept[:MOST]]
    return Golden(1, tuple(cases))


def _cut(sample: Sample, count: int, size: int | None) -> Sample:
    """Return a sample of vectors, `size` numbers each, of which `count` sources have at most `NUMBERS` numbers."""
    if size is None:
        return sample
    most = max(1, NUMBERS // (size * min(count, MOST)))
    return dataclasses.replace(sample, sources=[source[:most] for source in sample.sources])


def _results(sample: Sample, numbers: Sequence[int], directory: Path, manifest: Manifest) -> list[list[list[int]]]:
    """Return the ids of these sentences, by each engine that can run the bundle here."""
    engines: list[Engine] = [OrtEngine(directory, manifest)]
    with suppress(BundleError):  # its refusal is for the verification to report
        if (fused := fused_engine(directory, manifest, lambda reason: None)) is not None:
            engines.append(fused)
    requests = sample.requests(numbers)
    return [[result.ids for result in decode_all(engine, requests)] for engine in engines]


def _leads(logits: Logits) -> Logits:
    """Lead of the best id over the second best, `[steps]`, of `[steps, vocabulary]` logits."""
    best = np.partition(logits, -2)[:, -2:]
    leads: Logits = np.diff(best)[:, 0]
    return leads


def _first(marks: npt.NDArray[np.bool_]) -> int:
    """Index of the first mark, or their number if there is none."""
    if marks.any():
        return int(marks.argmax())
    return len(marks)
