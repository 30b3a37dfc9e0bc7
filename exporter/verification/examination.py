"""Bounds of single rounding errors: sentences computed again under many independent random roundings.

The largest error of a bundle and the largest error of the reference's rounding are maxima of two heavy-tailed samples:
their ratio varies from model to model, and both grow with the number of sentences. So an error that is larger than
expected is compared with the distribution of rounding errors at its own position. Nothing is computed again if all
errors are of the expected size.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np
import numpy.typing as npt
import torch
from txport.exporter.reference import Batch, Logits, pad, teacher_forcing
from txport.exporter.sample import Sample
from txport.exporter.verification.arithmetic import RoundedReference
from txport.exporter.verification.errors import centred_errors
from txport.models.transformer import Transformer

# Random roundings of a sentence: passes, and rows of each.
PASSES = 8
ROWS = 8
# An error at one position may be this many times larger than those of these roundings, times the factor for averages.
# Measured: at most 1.6 times as large, in 40 sentences of one good bundle in each format, by two engines.
SPREAD = 2.0
# Sentences with the largest errors that are examined for one lowering.
SENTENCES = 16


@dataclass(frozen=True)
class Suspect:
    """An error that is larger than expected.

    Attributes:
        run: how the sentence was decoded, in words.
        sentence, step: its position.
        excess: how many times larger than expected.
        size: the error: root mean square over the ids of the position, or, with `pair`, a logit margin.
        pair: PyTorch's id and the bundle's, where a sentence diverges; otherwise None.
    """

    run: str
    sentence: int
    step: int
    excess: float
    size: float
    pair: tuple[int, int] | None = None


class Examination:
    """Computes sentences of a sample again, with results rounded at random.

    Args:
        model: the reference, float32.
        reference: the same in the bundle's arithmetic.
        sample: the sentences.
        factor: how many times larger the errors of the bundle may be than those of `reference`.
    """

    def __init__(self, model: Transformer, reference: RoundedReference, sample: Sample, factor: float) -> None:
        self._model = model
        self._reference = reference
        self._sources = sample.sources
        self._factor = factor

    def unexplained(self, suspects: Iterable[Suspect], targets: Mapping[int, Sequence[int]]) -> list[Suspect]:
        """Return the suspects whose error is too large for rounding at their position.

        Only the `SENTENCES` sentences with the largest excess are computed again.

        Args:
            suspects: errors that are larger than expected.
            targets: PyTorch's greedy ids of their sentences.
        """
        ordered = sorted(suspects, key=lambda each: -each.excess)
        worst = set(islice(dict.fromkeys(each.sentence for each in ordered), SENTENCES))
        chosen = sorted((each for each in ordered if each.sentence in worst), key=lambda each: each.sentence)
        result = []
        for sentence, group in groupby(chosen, key=lambda each: each.sentence):
            members = list(group)
            bounds = self.bounds(sentence, targets[sentence], members)
            result += [each for each, bound in zip(members, bounds, strict=True) if not each.size <= bound]
        return result

    @torch.inference_mode()
    def bounds(self, sentence: int, target: Sequence[int], suspects: Sequence[Suspect]) -> list[float]:
        """Return the largest error that rounding explains for each of a sentence's suspects."""
        steps = [each.step for each in suspects]
        ids, lengths = pad([self._sources[sentence]], self._model.config.pad_id)
        _, logits = teacher_forcing(self._model, Batch([sentence], ids, lengths, [list(target)]))
        expected = logits.numpy()[0, steps]
        rows = Batch([sentence] * ROWS, ids.repeat(ROWS, 0), lengths.repeat(ROWS), [list(target)] * ROWS)
        squares = np.zeros(len(suspects))
        for seed in range(PASSES):
            for draw in self._reference.random_logits(rows, seed):
                squares += np.square(_sizes(draw[steps], expected, suspects))
        bounds: list[float] = (self._factor * SPREAD * np.sqrt(squares / (PASSES * ROWS))).tolist()
        return bounds


def _sizes(ours: Logits, expected: Logits, suspects: Sequence[Suspect]) -> npt.NDArray[np.float64]:
    """Return the error of each suspect, of the logits `[suspects, v]` at its step."""
    errors, ids = centred_errors(ours, expected)
    sizes: npt.NDArray[np.float64] = np.sqrt(np.square(errors).sum(axis=-1) / ids)
    for row, suspect in enumerate(suspects):
        if suspect.pair is not None:
            sizes[row] = abs(errors[row, suspect.pair[0]] - errors[row, suspect.pair[1]])
    return sizes
