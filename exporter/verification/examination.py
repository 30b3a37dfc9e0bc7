"""Bounds of rounding errors for errors that are larger than expected, from many random roundings of the sentences.

The maximum errors of a bundle and of rounding in the reference are maxima of two heavy-tailed samples. Their ratio
varies between models, and both grow with the number of sentences. So an error that is larger than expected is compared
with the distribution of rounding errors at the same position. An average that is larger than expected is also examined,
because it may come from a few ill-conditioned positions. If all errors are as expected, nothing is computed again.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np
import numpy.typing as npt
import torch
from txport.exporter.reference import Batch, Logits, pad_sources, teacher_forcing
from txport.exporter.sample import Sample
from txport.exporter.verification.arithmetic import RoundedReference
from txport.exporter.verification.errors import ErrorSizes, LogitErrors, centred_errors
from txport.models.transformer import Transformer

# Number of random roundings of a sentence: PASSES batches of ROWS copies of the sentence.
PASSES = 8
ROWS = 8
# Allowed ratio of an error at one position to the root mean square of these roundings, times the factor for averages.
# Measured: at most 1.6, for 40 sentences of a correct bundle in each format, with two engines.
SPREAD = 2.0
# Maximum number of sentences that are examined for one lowering, those with the largest errors.
SENTENCES = 16


@dataclass(frozen=True)
class Suspect:
    """An error that is larger than expected.

    Attributes:
        run: description of how the sentence was decoded.
        sentence, step: position of the error.
        excess: ratio to the expected error.
        size: the error: root mean square over the ids of the position, or, with `pair`, a logit margin.
        pair: PyTorch's id and the bundle's, for a divergence; otherwise None.
    """

    run: str
    sentence: int
    step: int
    excess: float
    size: float
    pair: tuple[int, int] | None = None


class Examination:
    """Repeated computation of sentences with random rounding.

    Args:
        model: the reference, float32.
        reference: the model with the bundle's rounding.
        sample: the sentences.
        factor: allowed ratio of the bundle's errors to those of `reference`.
    """

    def __init__(self, model: Transformer, reference: RoundedReference, sample: Sample, factor: float) -> None:
        self._model = model
        self._reference = reference
        self._sources = sample.sources
        self._factor = factor

    def unexplained(self, suspects: Iterable[Suspect], targets: Mapping[int, Sequence[int]]) -> list[Suspect]:
        """Return the suspects whose error is larger than rounding can explain at their position.

        Only the `SENTENCES` sentences with the largest excess are computed again.

        Args:
            suspects: errors that are larger than expected.
            targets: PyTorch's greedy ids of their sentences.
        """
        by_excess = sorted(suspects, key=lambda each: -each.excess)
        worst_sentences = set(islice(dict.fromkeys(each.sentence for each in by_excess), SENTENCES))
        selected = sorted(
            (each for each in by_excess if each.sentence in worst_sentences), key=lambda each: each.sentence
        )
        result = []
        for sentence, group in groupby(selected, key=lambda each: each.sentence):
            members = list(group)
            bounds = self.bounds(sentence, targets[sentence], members)
            result += [each for each, bound in zip(members, bounds, strict=True) if not each.size <= bound]
        return result

    def bounds(self, sentence: int, target: Sequence[int], suspects: Sequence[Suspect]) -> list[float]:
        """Return the maximum error that rounding explains, for each suspect of a sentence."""
        steps = [each.step for each in suspects]
        expected, draws = self._draws(sentence, target)
        squares = [np.square(_sizes(draw[steps], expected[steps], suspects)) for draw in draws]
        bounds: list[float] = (self._factor * SPREAD * np.sqrt(np.mean(squares, axis=0))).tolist()
        return bounds

    def averages(
        self, expected: ErrorSizes, sizes: Mapping[int, Sequence[float]], targets: Mapping[int, Sequence[int]]
    ) -> ErrorSizes:
        """Return average rounding errors that include the worst sentences under random rounding.

        Mean squares of the `SENTENCES` sentences with the largest errors are added to those of all sentences. Nothing
        is computed again if the errors of the other sentences are also too large.

        Args:
            expected: rounding errors of PyTorch.
            sizes: sizes of the bundle's errors, as for `suspects`.
            targets: PyTorch's greedy ids of these sentences.
        """
        worst_sentences = sorted(sizes, key=lambda each: -sum(size * size for size in sizes[each]))[:SENTENCES]
        other_sizes = [size for sentence in sizes.keys() - set(worst_sentences) for size in sizes[sentence]]
        if other_sizes and np.sqrt(np.square(other_sizes).mean()) > self._factor * expected.rms:
            return expected
        errors = LogitErrors()
        for sentence in worst_sentences:
            logits, draws = self._draws(sentence, targets[sentence])
            for draw in draws:
                errors.add(draw, logits)
        share = sum(len(targets[each]) for each in worst_sentences) / sum(map(len, targets.values()))
        random_errors = errors.sizes
        return ErrorSizes(
            math.hypot(expected.rms, random_errors.rms * math.sqrt(share)),
            math.hypot(expected.token, random_errors.token * math.sqrt(share)),
            max(expected.lead, random_errors.lead),
        )

    def _draws(self, sentence: int, target: Sequence[int]) -> tuple[Logits, Iterator[Logits]]:
        """Return PyTorch's logits `[t, v]` of a sentence, and an iterator over those of each random rounding."""
        ids, lengths = pad_sources([self._sources[sentence]], self._model.config.pad_id)
        with torch.inference_mode():
            _, logits = teacher_forcing(self._model, Batch([sentence], ids, lengths, [list(target)]))
        rows = Batch([sentence] * ROWS, ids.repeat(ROWS, 0), lengths.repeat(ROWS), [list(target)] * ROWS)
        draws = (draw for seed in range(PASSES) for draw in self._reference.random_logits(rows, seed))
        return logits.numpy()[0], draws


def _sizes(ours: Logits, expected: Logits, suspects: Sequence[Suspect]) -> npt.NDArray[np.float64]:
    """Return the error of each suspect, for the logits `[suspects, v]` at its step."""
    errors, ids = centred_errors(ours, expected)
    sizes: npt.NDArray[np.float64] = np.sqrt(np.square(errors).sum(axis=-1) / ids)
    for row, suspect in enumerate(suspects):
        if suspect.pair is not None:
            sizes[row] = abs(errors[row, suspect.pair[0]] - errors[row, suspect.pair[1]])
    return sizes
