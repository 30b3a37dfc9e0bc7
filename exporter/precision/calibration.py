"""What values a graph takes on real sentences, and how far two versions of it are apart.

Feeds the reference's own tokens (teacher forcing), so that two graphs see the same.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from txport.exporter.graphs.sessions import Array, outputs_of, session
from txport.exporter.reference import LEAST, Batch, Logits


class TeacherForced:
    """The encoder and one decoder step, run over given targets.

    Args:
        encoder: graph file.
        step: graph file of any lowering.
        watch: collect the largest magnitude of every output under its name, in `largest`.
    """

    def __init__(self, encoder: Path, step: Path, *, watch: bool = False) -> None:
        self._encoder, self._step = session(encoder), session(step)
        self._watch = watch
        self.largest: dict[str, dict[str, float]] = {"encoder": {}, "step": {}}

    def logits(self, batch: Batch, bos: int) -> Logits:
        """float32 `[b, longest target, vocabulary]`; rows beyond their target hold what pad gives."""
        feed = {"input_ids": batch.source_ids, "source_lengths": batch.source_lengths}
        cross = self._run("encoder", self._encoder, feed)
        rows, length = len(batch.targets), max(len(target) for target in batch.targets)
        state: dict[str, Array] = {
            "finished": np.zeros(rows, dtype=np.bool_),
            "target_limits": np.full(rows, length + 1, dtype=np.int64),
            "cache_positions": np.arange(length, dtype=np.int64),
            **{name: cross[name] for name in cross if name.startswith("cross_")},
            **self._empty_caches(rows, length),
        }
        names = {value.name for value in self._step.get_inputs()}
        steps = []
        for position in range(length):
            tokens = [bos if position == 0 else (t[position - 1] if position <= len(t) else 0) for t in batch.targets]
            now = {"token_ids": np.array(tokens, dtype=np.int64), "positions": np.full(rows, position, dtype=np.int64)}
            output = self._run("step", self._step, {k: v for k, v in {**state, **now}.items() if k in names})
            steps.append(output["logits"].astype(np.float32))
            state.update({name: output[f"next_{name}"] for name in state if name.startswith("self_")})
        return np.stack(steps, axis=1)

    def _empty_caches(self, rows: int, length: int) -> dict[str, Array]:
        caches = {}
        for value in self._step.get_inputs():
            if value.name.startswith("self_"):
                dtype = np.float16 if value.type == "tensor(float16)" else np.float32
                caches[value.name] = np.zeros((rows, value.shape[1], length, value.shape[3]), dtype=dtype)
        return caches

    def _run(self, graph: str, runner: onnxruntime.InferenceSession, feed: Mapping[str, Array]) -> dict[str, Array]:
        output = outputs_of(runner, feed)
        if self._watch:
            largest = self.largest[graph]
            for name, array in output.items():
                if array.dtype.kind == "f" and array.size:
                    largest[name] = max(largest.get(name, 0.0), float(np.abs(array).max()))
        return output


@dataclass(frozen=True)
class Loss:
    """How far a graph's logits are from the reference's, over the tokens of the reference's targets.

    Attributes:
        rms: root mean square difference of logits; infinite where NaN or infinity appears.
        changed: share of tokens for which another id would be chosen.
        regret: largest reference logit given away by such a choice.
    """

    rms: float
    changed: float
    regret: float


def loss(graphs: TeacherForced, batches: Iterable[tuple[Batch, Logits]], bos: int) -> Loss:
    """Compare the graphs' logits with those that belong to the batches."""
    squares, values, tokens, changed, regret = 0.0, 0, 0, 0, 0.0
    for batch, expected in batches:
        found = graphs.logits(batch, bos)
        for row, target in enumerate(batch.targets):
            given, wanted = found[row, : len(target)], expected[row, : len(target)]
            if not np.isfinite(given).all():
                return Loss(math.inf, 1.0, math.inf)
            differences = (given - wanted)[wanted > LEAST]
            squares += float(np.square(differences).sum())
            values += differences.size
            steps = np.arange(len(target))
            lost = wanted[steps, wanted.argmax(-1)] - wanted[steps, given.argmax(-1)]
            tokens += len(target)
            changed += int((lost > 0).sum())
            regret = max(regret, float(lost.max()))
    return Loss(math.sqrt(squares / max(1, values)), changed / max(1, tokens), regret)
