"""Accumulation of a lowering's results over batches, so that the logits of all sentences are never in memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from txport.exporter.reference import BATCH, Answer, Logits, pad_sources
from txport.exporter.sample import Sample
from txport.exporter.verification.errors import Errors, LogitErrors
from txport.exporter.verification.examination import Examination
from txport.exporter.verification.quality import Quality, References
from txport.exporter.verification.report import (
    MAX_LISTED,
    Divergence,
    LoweringReport,
    Rounding,
    RunKind,
    judge,
    suspects,
)
from txport.runtime.engine import DecoderState, Engine, Memory
from txport.runtime.search.decoding import decode_all

# Number of sentences that the runtime's search loop decodes with each lowering after the first.
LOOP_SAMPLE = 32
_EXTRA_PADDING = 5


class LoweringCheck:
    """Check of one engine.

    Call `loop` and `sample`, then `add` for each batch of all sentences, then `finish`.

    Args:
        engine: engine of one lowering of the bundle.
        lowering: name of the lowering.
        sample: the sentences.
        encodes: whether the engine runs a separate encoder, whose outputs cannot be read.
    """

    def __init__(self, engine: Engine, lowering: str, sample: Sample, *, encodes: bool = False) -> None:
        self._engine = engine
        self._sample = sample
        self.encodes = encodes
        self._report = LoweringReport(lowering)
        self._logits = LogitErrors()
        self._sizes: dict[int, list[float]] = {}
        self._ids: dict[int, list[int]] = {}
        self._expected: dict[int, list[int]] = {}
        self._divergences: list[Divergence] = []
        self._runs: dict[RunKind, dict[int, list[int]]] = {"loop": {}, "alone": {}, "padded": {}}

    def loop(self, indices: Sequence[int]) -> None:
        """Run the runtime's search loop on these sentences, with half as many rows, so that rows are refilled."""
        rows = min(self._engine.limits.batch, -(-len(indices) // 2))
        results = [result.ids for result in decode_all(self._engine, self._sample.requests(indices), rows=rows)]
        self._runs["loop"] = dict(zip(indices, results, strict=True))

    @property
    def loop_ids(self) -> list[list[int]]:
        """Ids from the loop, in the order of its sentences."""
        return list(self._runs["loop"].values())

    def sample(self, indices: Sequence[int], advance: Callable[[], None]) -> None:
        """Run these sentences, which the loop has run, also alone and with padding.

        Args:
            indices: the sentences.
            advance: called after each sentence.
        """
        for start in range(0, len(indices), BATCH):
            self._runs["padded"].update(self._run_plain_batch(indices[start : start + BATCH], _EXTRA_PADDING))
        for index in indices:
            self._runs["alone"].update(self._run_plain_batch([index], 0))
            advance()

    def add(self, answer: Answer, memory: Memory) -> None:
        """Run a batch step by step, and compare logits and ids with PyTorch's, up to the first divergence.

        The ids of other runs are also compared here, where PyTorch's logits are available. A divergence that is the
        same as in the plain batch is counted once.

        Args:
            answer: the batch, with PyTorch's results.
            memory: output of the bundle's encoder, for all lowerings without a separate encoder.
        """
        batch = answer.batch
        logits = answer.logits
        if self.encodes:
            memory = self._engine.encode(batch.source_ids, batch.source_lengths)
        self._expected.update(zip(batch.indices, batch.targets, strict=True))
        self._ids.update(zip(batch.indices, self._lockstep(answer, memory), strict=True))
        for row, (index, target) in enumerate(zip(batch.indices, batch.targets, strict=True)):
            plain = _divergence("batch", index, target, self._ids[index], logits[row])
            runs = [(run, ids[index]) for run, ids in self._runs.items() if index in ids]
            divergences = [_divergence(run, index, target, ids, logits[row]) for run, ids in runs]
            ends = [len(ids) for (_, ids), divergence in zip(runs, divergences, strict=True) if divergence is None]
            self._report.other_ends += sum(end != len(target) for end in ends)
            self._divergences += [
                each for each in (plain, *divergences) if each and (each is plain or not each.is_like(plain))
            ]

    def _lockstep(self, answer: Answer, memory: Memory) -> list[list[int]]:
        """Return the ids of each row of a batch, up to its end or to the first id that is not PyTorch's."""
        targets = answer.batch.targets
        logits = answer.logits
        prefix = self._sample.prefix
        rows = range(len(targets))
        longest = max(map(len, targets))
        ids: list[list[int]] = [[] for _ in rows]
        state = self._engine.allocate(len(rows), answer.batch.source_ids.shape[1], longest, logits=True)
        state.place(rows, memory, rows, [longest] * len(rows))
        for step in range(longest):
            state.step()
            tokens = state.read().token_ids[-1].copy()
            ours = state.logits()
            if step < len(prefix):
                tokens[:] = prefix[step]
                state.override(rows, tokens.tolist(), [False] * len(ids))
            open_rows = [row for row in rows if step < len(targets[row]) and ids[row] == targets[row][:step]]
            sizes = self._logits.add(ours[open_rows], logits[open_rows, step])
            for row, size in zip(open_rows, sizes.tolist(), strict=True):
                self._sizes.setdefault(answer.batch.indices[row], []).append(size)
                ids[row].append(int(tokens[row]))
        return ids

    def finish(
        self, encoder: Errors, rounding: Rounding, expected: Mapping[int, Sequence[float]], examination: Examination
    ) -> LoweringReport:
        """Return the report of all results, with failures.

        Args:
            encoder: errors of the encoder's outputs.
            rounding: rounding errors of PyTorch itself.
            expected: their sizes at each position of each sentence.
            examination: for positions with larger errors.
        """
        report = self._report
        loop = self._runs["loop"]
        report.sentences, report.loop_sentences = len(self._ids), len(loop)
        report.token_identical = sum(ids == self._expected[index] for index, ids in self._ids.items())
        # The step by step run stops at a divergence.
        report.loop_identical = sum(ids[: len(self._ids[index])] == self._ids[index] for index, ids in loop.items())
        report.single_sentences = len(self._runs["alone"])
        report.batch_identical = self._count_as_loop("alone")
        report.padded_identical = self._count_as_loop("padded")
        report.max_logit_error = self._logits.largest
        report.mean_logit_error = self._logits.mean
        report.finite = self._logits.finite
        report.errors = self._logits.sizes
        if not self.encodes:
            report.max_encoder_error = encoder.largest
            report.mean_encoder_error = encoder.mean
            report.finite = self._logits.finite and encoder.finite
        report.divergences = sorted(self._divergences, key=lambda divergence: -divergence.margin)[:MAX_LISTED]
        report.quality = self._quality()
        suspicious = suspects(self._sizes, self._divergences, expected, rounding)
        report.examined = len(suspicious)
        report.failures = list(
            judge(
                report,
                rounding,
                lambda: examination.averages(rounding.errors, self._sizes, self._expected),
                lambda: examination.unexplained(suspicious, self._expected),
            )
        )
        return report

    def _quality(self) -> Quality:
        """Measure the quality of the loop's translations, or only of tokens if the loop did not run all sentences."""
        loop = self._runs["loop"]
        indices = sorted(loop)
        if len(loop) == len(self._sample.sources):
            references = self._sample.references
        else:
            references = []
        changed = sum(divergence.run == "batch" for divergence in self._divergences) / max(
            1, sum(map(len, self._ids.values()))
        )
        pytorch = [self._expected[index] for index in indices]
        return References(self._sample.tokenizer, references, pytorch).quality([loop[i] for i in indices], changed)

    def _count_as_loop(self, run: RunKind) -> int:
        """Return the number of sentences of a run with the same ids as in the loop."""
        return sum(ids == self._runs["loop"][index] for index, ids in self._runs[run].items())

    def _run_plain_batch(self, indices: Sequence[int], padding: int) -> dict[int, list[int]]:
        """Return the ids of these sentences in one plain batch, each with at least `padding` positions of padding."""
        engine = self._engine
        sample = self._sample
        ids, lengths = pad_sources([sample.sources[index] for index in indices], engine.tokens.pad)
        width = min(ids.shape[1] + padding, engine.limits.source)
        room = ((0, 0), (0, width - ids.shape[1]), (0, 0))[: ids.ndim]
        padded_sources: Any = np.pad(ids, room, constant_values=engine.tokens.pad)
        limits = [sample.limits[index] for index in indices]
        # The longest caches, since unused slots must have no effect.
        state = engine.allocate(len(indices), width, engine.limits.target)
        state.place(range(len(limits)), engine.encode(padded_sources, lengths), range(len(limits)), limits)
        return dict(zip(indices, _until_finished(state, sample.prefix), strict=True))


def _divergence(
    run: RunKind, sentence: int, expected: Sequence[int], ids: Sequence[int], logits: Logits
) -> Divergence | None:
    """Return the first difference between ids and PyTorch's, whose logits are `[t, v]`; None if there is none."""
    for step, (expected_id, actual_id) in enumerate(zip(expected, ids, strict=False)):
        if expected_id != actual_id:
            return Divergence(
                run, sentence, step, expected_id, actual_id, float(logits[step, expected_id] - logits[step, actual_id])
            )
    return None


def _until_finished(state: DecoderState, prefix: Sequence[int]) -> list[list[int]]:
    """Return greedy ids of all rows of a state, only from its steps."""
    rows = range(state.rows)
    generated: list[list[int]] = [[] for _ in rows]
    open_rows = set(rows)
    for token in prefix:
        state.step()
        state.read()
        state.override(rows, [token] * state.rows, [False] * state.rows)
        for row in rows:
            generated[row].append(token)
    while open_rows:
        state.step()
        output = state.read()
        for row in open_rows:
            generated[row].append(int(output.token_ids[-1, row]))
        open_rows = {row for row in open_rows if not output.finished[row]}
    return generated
