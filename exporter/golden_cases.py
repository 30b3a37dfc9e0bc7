"""Sentences of golden.json, by which a bundle can be checked without PyTorch."""

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

# Maximum number of cases. They are selected from twice as many sentences.
MAX_CASES = 32
# Maximum numbers in all vectors, for models of feature vectors: longer sources are truncated to keep the file small.
NUMBERS = 1 << 15
# Number of sentences for a bundle that is not verified.
QUICK = 8


def golden_cases(
    checkpoint: Checkpoint, sample: Sample, directory: Path, manifest: Manifest, *, quick: bool = False
) -> Golden:
    """Return up to `MAX_CASES` sentences with the ids that PyTorch chooses, without near ties.

    Devices round differently, so near ties between ids would make correct engines fail. Therefore PyTorch must prefer
    each id by more than the rounding error. Below float32, the engines on this machine must also choose the same ids.
    An output is truncated before its first tie. Outputs without ties come first. Models with random weights have many
    ties; if all outputs begin with one, ties are accepted.

    Args:
        checkpoint: the reference.
        sample: the sentences.
        directory: of the bundle, which has no golden.json yet.
        manifest: of the bundle.
        quick: few and short sentences, one at a time to save memory, and in float32 only by PyTorch, for a bundle that
            is not verified.
    """
    numbers = list(range(min(2 * MAX_CASES, len(sample.sources))))
    if quick:
        numbers = sorted(numbers, key=lambda number: len(sample.sources[number]))[:QUICK]
    sample = _truncated(sample, len(numbers), checkpoint.config.feature_size)
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
    # Other devices add float32 numbers in other orders.
    bound = allowance(checkpoint.config, sums_in_format=exact) * errors.sizes.lead
    forced = len(sample.prefix)
    # Number of tokens of each output on which all engines agree; later it is limited to those before the first near
    # tie.
    agreed = {
        i: len(os.path.commonprefix([ids, *(each[i] for each in results)]))  # noqa: RUF071 - of ids
        for i, ids in sorted(expected.items())
    }
    clear = {i: min(end, forced + _first(leads[i][forced:] <= bound)) for i, end in agreed.items()}
    if max(clear.values()) == forced:
        clear = agreed
    usable = sorted((i for i in clear if clear[i] > forced), key=lambda i: len(expected[i]) - clear[i])
    cases = [Case.of(sample.texts[numbers[i]], sources[i], expected[i][: clear[i]]) for i in usable[:MAX_CASES]]
    return Golden(1, tuple(cases))


def _truncated(sample: Sample, count: int, size: int | None) -> Sample:
    """Return the sample with truncated vectors, so that `count` sources have at most `NUMBERS` numbers of `size`."""
    if size is None:
        return sample
    max_vectors = max(1, NUMBERS // (size * min(count, MAX_CASES)))
    return dataclasses.replace(sample, sources=[source[:max_vectors] for source in sample.sources])


def _results(sample: Sample, numbers: Sequence[int], directory: Path, manifest: Manifest) -> list[list[list[int]]]:
    """Return the ids for these sentences, from each engine that can run the bundle on this machine."""
    engines: list[Engine] = [OrtEngine(directory, manifest)]
    with suppress(BundleError):  # reported by the verification
        if (fused := fused_engine(directory, manifest, lambda reason: None)) is not None:
            engines.append(fused)
    requests = sample.requests(numbers)
    return [[result.ids for result in decode_all(engine, requests)] for engine in engines]


def _leads(logits: Logits) -> Logits:
    """Return the margin of the best logit over the second best, `[steps]`, for logits `[steps, vocabulary]`."""
    best = np.partition(logits, -2)[:, -2:]
    leads: Logits = np.diff(best)[:, 0]
    return leads


def _first(marks: npt.NDArray[np.bool_]) -> int:
    """Return the index of the first true mark, or the number of marks if none is true."""
    if marks.any():
        return int(marks.argmax())
    return len(marks)
