"""The ranges of the graphs' values on real sentences, and how far their logits are from PyTorch's.

Both are measured on the reference's tokens, not on tokens of the graphs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from txport.exporter.graphs.float16 import is_masked
from txport.exporter.graphs.sessions import TeacherForced, Values, session, with_all_outputs
from txport.exporter.reference import MIN_COMPARED_LOGIT, Answer, Logits


@dataclass(frozen=True)
class Loss:
    """Distance of a graph's logits from the reference's, over the tokens of the reference's targets.

    Attributes:
        rms: root mean square difference of logits; infinite where NaN or infinity appears.
        changed: share of tokens for which another id would be chosen.
        regret: largest loss of reference logit by such a choice.
    """

    rms: float
    changed: float
    regret: float


@dataclass(frozen=True)
class Calibration:
    """The sentences that precisions are chosen on.

    Attributes:
        answers: sentences with the reference's targets and logits.
        bos: id that decoding starts from.
    """

    answers: Sequence[Answer]
    bos: int

    def ranges(self, encoder: Path, step: Path) -> tuple[dict[str, float], dict[str, float]]:
        """Return the largest magnitude of each value, by name, of an encoder's graph file and of a step's."""
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
        """Compare the logits of an encoder and a step with the reference's."""
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
                lost = expected.max(-1) - expected[rows, ours.argmax(-1)]
                tokens += len(ours)
                changed += int((lost > 0).sum())
                regret = max(regret, float(lost.max()))
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
    """The largest magnitude in a value, except where it masks positions: float16 has a number of its own for that."""
    return float(np.abs(array[~is_masked(array)]).max(initial=0.0))
