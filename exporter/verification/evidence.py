"""Accumulates one lowering's results batch by batch, so that memory never holds the logits of all sentences."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from txport.exporter.reference import BATCH, LEAST, Answer, Logits, pad
from txport.exporter.trial import Trial
from txport.exporter.verification.quality import Quality, bleu
from txport.exporter.verification.report import Divergence, LoweringReport, judge
from txport.runtime.engine import DecoderState, Engine, Memory
from txport.runtime.greedy import decode_all

# Sentences that the runtime's loop decodes with each lowering after the first.
LOOP_SAMPLE = 32
_EXTRA_PADDING = 5
_LISTED = 20


class Errors:
    """The largest and the mean absolute difference of all arrays that were added, and whether all were finite."""

    def __init__(self) -> None:
        self.largest, self._total, self._count, self.finite = 0.0, 0.0, 0, True

    def add(self, ours: Logits, expected: Logits) -> None:
        """Compare two arrays of one shape; where `expected` is at most `LEAST` they only need to be finite."""
        difference = np.abs(ours - expected)
        total = float(difference.sum(dtype=np.float64))
        if not math.isfinite(total):
            self.finite = False
            return
        if float(expected.min(initial=0.0)) <= LEAST:
            difference = difference[expected > LEAST]
            total = float(difference.sum(dtype=np.float64))
        self.largest = max(self.largest, float(difference.max(initial=0.0)))
        self._total += total
        self._count += difference.size

    @property
    def mean(self) -> float:
        return self._total / max(1, self._count)


class LoweringCheck:
    """Collects the results of one engine.

    Args:
        engine: runs one lowering of the bundle.
        lowering: its name.
        precision: "float32", "float16" or "int8", which sets what is required.
        trial: the sentences.
        encodes: it runs its own encoder, the outputs of which cannot be read.
    """

    def __init__(self, engine: Engine, lowering: str, precision: str, trial: Trial, *, encodes: bool = False) -> None:
        self._engine, self._precision, self._trial, self.encodes = engine, precision, trial, encodes
        self._report = LoweringReport(lowering)
        self._logits = Errors()
        self._ids: dict[int, list[int]] = {}
        self._expected: dict[int, list[int]] = {}
        self._divergences: list[Divergence] = []
        self._loop_ids: dict[int, list[int]] = {}

    def loop(self, indices: Sequence[int]) -> list[list[int]]:
        """The runtime loop's ids of these sentences, with half as many rows, so that rows are refilled."""
        rows = min(self._engine.limits.batch, -(-len(indices) // 2))
        results = decode_all(self._engine, self._trial.requests(indices), rows=rows)
        made = [result.ids for result in results]
        self._loop_ids.update(zip(indices, made, strict=True))
        return made

    def add(self, answer: Answer, memory: Memory) -> None:
        """Run one batch in lockstep and compare each step's logits and ids with PyTorch's, up to a first divergence.

        Args:
            answer: the batch, and what PyTorch computed for it.
            memory: of the bundle's encoder, which all lowerings share that do not encode by themselves.
        """
        batch, logits, prefix = answer.batch, answer.logits, self._trial.prefix
        if self.encodes:
            memory = self._engine.encode(batch.source_ids, batch.source_lengths)
        rows = range(len(batch.targets))
        longest = max(len(target) for target in batch.targets)
        ids: list[list[int]] = [[] for _ in rows]
        diverged = [False] * len(ids)
        state = self._engine.allocate(len(ids), batch.source_ids.shape[1], longest, logits=True)
        state.place(rows, memory, rows, [longest] * len(ids))
        for step in range(longest):
            state.step()
            tokens, ours = state.read().token_ids[-1].copy(), state.logits()
            if step < len(prefix):
                tokens[:] = prefix[step]
                state.override(rows, tokens.tolist(), [False] * len(ids))
            for row, target in enumerate(batch.targets):
                if step >= len(target) or diverged[row]:
                    continue
                self._logits.add(ours[row], logits[row, step])
                ids[row].append(int(tokens[row]))
                if ids[row][-1] != target[step]:
                    diverged[row] = True
                    margin = float(logits[row, step, target[step]] - logits[row, step, ids[row][-1]])
                    self._divergences.append(Divergence(batch.indices[row], step, target[step], ids[row][-1], margin))
        self._ids.update(zip(batch.indices, ids, strict=True))
        self._expected.update(zip(batch.indices, batch.targets, strict=True))
        self._report.sentences += len(ids)
        self._report.token_identical += diverged.count(False)

    def sample(self, indices: Sequence[int], singles: int, advance: Callable[[], None]) -> None:
        """Run some sentences once more: by the runtime's loop if they were not, and some of them alone and padded.

        Args:
            indices: the sentences, all of which were added.
            singles: how many of them to run alone and with padding.
            advance: called after each of these.
        """
        if not self._loop_ids:
            self.loop(indices[: max(LOOP_SAMPLE, singles)])
        chosen, report = list(indices[:singles]), self._report
        report.single_sentences = len(chosen)
        for start in range(0, len(chosen), BATCH):
            report.padded_identical += self._count_as_loop(chosen[start : start + BATCH], _EXTRA_PADDING)
        for index in chosen:
            report.batch_identical += self._count_as_loop([index], 0)
            advance()

    def finish(self, encoder: Errors) -> LoweringReport:
        """Judge all that was run.

        Args:
            encoder: how far the encoder's outputs are from PyTorch's.
        """
        report = self._report
        report.loop_sentences = len(self._loop_ids)
        # The lockstep run stops at a divergence.
        report.loop_identical = sum(
            ids[: len(self._ids[index])] == self._ids[index] for index, ids in self._loop_ids.items()
        )
        report.max_logit_error, report.mean_logit_error = self._logits.largest, self._logits.mean
        report.finite = self._logits.finite
        if not self.encodes:
            report.max_encoder_error, report.mean_encoder_error = encoder.largest, encoder.mean
            report.finite = self._logits.finite and encoder.finite
        report.first_divergences = sorted(self._divergences, key=lambda d: -d.margin)[:_LISTED]
        report.quality = self._quality() if self._precision == "int8" else None
        report.failures = list(judge(report, self._divergences, self._precision))
        return report

    def _quality(self) -> Quality:
        """Of the loop's translations, compared with PyTorch's."""
        trial, indices = self._trial, sorted(self._loop_ids)
        compared = sum(len(ids) for ids in self._ids.values())
        changed = len(self._divergences) / max(1, compared)
        if not trial.references:
            return Quality(len(indices), changed, None, None)
        references = [trial.references[index] for index in indices]
        expected, ours = ([ids[i] for i in indices] for ids in (self._expected, self._loop_ids))
        scores = (bleu(trial.tokenizer, targets, references) for targets in (expected, ours))
        return Quality(len(indices), changed, *scores)

    def _count_as_loop(self, indices: Sequence[int], padding: int) -> int:
        """How many of these sentences get the loop's ids in one plain batch, each with at least `padding` padding."""
        engine, trial = self._engine, self._trial
        ids, lengths = pad([trial.sources[index] for index in indices], engine.tokens.pad)
        width = min(ids.shape[1] + padding, engine.limits.source)
        ids = np.pad(ids, ((0, 0), (0, width - ids.shape[1])), constant_values=engine.tokens.pad)
        limits = [trial.limits[index] for index in indices]
        # The longest caches: slots beyond a row's positions must not matter.
        state = engine.allocate(len(indices), width, engine.limits.target)
        state.place(range(len(limits)), engine.encode(ids, lengths), range(len(limits)), limits)
        made = _until_finished(state, trial.prefix)
        return sum(row == self._loop_ids[index] for index, row in zip(indices, made, strict=True))


def _until_finished(state: DecoderState, prefix: Sequence[int]) -> list[list[int]]:
    """Greedy ids of all rows of a state, by its steps alone."""
    rows = range(state.rows)
    made: list[list[int]] = [[] for _ in rows]
    open_rows = set(rows)
    for token in prefix:
        state.step()
        state.read()
        state.override(rows, [token] * state.rows, [False] * state.rows)
        for row in rows:
            made[row].append(token)
    while open_rows:
        state.step()
        output = state.read()
        for row in open_rows:
            made[row].append(int(output.token_ids[-1, row]))
        open_rows = {row for row in open_rows if not output.finished[row]}
    return made
