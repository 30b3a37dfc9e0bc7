"""Calibration: the ranges of values in graphs on real sentences, and the errors of their logits.

Both are measured for the reference's tokens, not for tokens that the graphs choose.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from txport.exporter.graphs.float16 import is_masked
from txport.exporter.precision.sessions import TeacherForced, Values, session, with_all_outputs
from txport.exporter.reference import MIN_COMPARED_LOGIT, Answer, Logits


@dataclass(frozen=True)
class Loss:
    """Difference between logits of a graph and of the reference, over all tokens of the reference's targets.

    Attributes:
        rms: root mean square difference of logits; infinite if there is NaN or infinity.
        changed: share of tokens for which the graph would choose another id.
        regret: maximum loss of reference logit by such a choice.
    """

    rms: float
    changed: float
    regret: float


@dataclass(frozen=True)
class Calibration:
    """Sentences for the selection of precisions.

    Attributes:
        answers: sentences with targets and logits of the reference.
        bos: first input token of the decoder.
    """

    answers: Sequence[Answer]
    bos: int

    def ranges(self, encoder: Path, step: Path) -> tuple[dict[str, float], dict[str, float]]:
        """Return the maximum magnitude of each value, by name, for the graph files of an encoder and of a step."""
        graphs = TeacherForced(*(session(with_all_outputs(file)) for file in (encoder, step)))
        of_encoder: dict[str, float] = {}
        of_step: dict[str, float] = {}
        for answer in self.answers:
            feed, cross = graphs.encode(answer.batch.source_ids, answer.batch.source_lengths)
            _add_magnitudes(of_encoder, {**feed, **cross})
            for outputs in self._steps(graphs, cross, answer):
                _add_magnitudes(of_step, outputs)
        return of_encoder, of_step

    def loss(self, graphs: TeacherForced) -> Loss:
        """Compare the logits of an encoder and a step with those of the reference."""
        squares = 0.0
        values = 0
        tokens = 0
        changed = 0
        regret = 0.0
        for answer in self.answers:
            lengths = np.array([len(target) for target in answer.batch.targets])
            _, cross = graphs.encode(answer.batch.source_ids, answer.batch.source_lengths)
            for step, outputs in enumerate(self._steps(graphs, cross, answer)):
                running = lengths > step
                ours: Logits = outputs["logits"][running].astype(np.float32)
                expected = answer.logits[running, step]
                if not np.isfinite(ours).all():
                    return Loss(math.inf, 1.0, math.inf)
                differences = (ours - expected)[expected > MIN_COMPARED_LOGIT]
                squares += float(np.square(differences).sum())
                values += differences.size
                rows = np.arange(len(ours))
                losses = expected.max(-1) - expected[rows, ours.argmax(-1)]
                tokens += len(ours)
                changed += int((losses > 0).sum())
                regret = max(regret, float(losses.max()))
        return Loss(math.sqrt(squares / max(1, values)), changed / max(1, tokens), regret)

    def _steps(self, graphs: TeacherForced, cross: Values, answer: Answer) -> Iterator[Values]:
        targets = answer.batch.targets
        for _, outputs in graphs.steps(cross, targets, self.bos, max(map(len, targets))):
            yield outputs


def _add_magnitudes(largest: dict[str, float], outputs: Values) -> None:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and array.size:
            largest[name] = max(largest.get(name, 0.0), magnitude(array))


def magnitude(array: NDArray[Any]) -> float:
    """Return the maximum magnitude in a value, without masks, for which float16 has a separate number."""
    return float(np.abs(array[~is_masked(array)]).max(initial=0.0))
