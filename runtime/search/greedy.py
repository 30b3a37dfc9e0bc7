"""Greedy search: each token is the most probable one, which the device chooses, unless a constraint overrides it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from txport.runtime.bundle.schema import SpecialTokens
from txport.runtime.engine import DecoderState, Engine, Float32, Int64
from txport.runtime.search.constraints import best_but, forbidden_tokens, forced_token, may_forbid
from txport.runtime.search.requests import Request, Result, Slot, Token
from txport.runtime.search.scheduler import BATCH_TOKENS, Scheduler


def decode_all(
    engine: Engine,
    requests: Sequence[Request],
    *,
    rows: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    workers: int = 1,
) -> list[Result]:
    """Answer all requests, the longest sources first.

    Args:
        engine: what runs the model.
        requests: the sentences; pass a long text in windows of some hundred.
        rows: the most rows of a batch; at most `Limits.batch`, which is also the meaning of None.
        batch_tokens: the most source tokens, padding included, that the rows of a batch hold, but one row at least.
        workers: threads that decode side by side. Each takes a share of the sentences, of the rows and of the tokens of
            a batch; the engine must allow it, as those of the CPU do.

    Returns:
        one result for each request, in their order.

    Raises:
        InputError: a source is empty or longer than the engine takes, or a length is not positive.
    """
    workers = max(1, min(workers, len(requests)))
    rows = max(1, (rows or engine.limits.batch) // workers)
    # Who shares a batch may change the last digits of a score. So each worker has a queue of its own: with one for all,
    # batches would depend on who is faster.
    order = sorted(range(len(requests)), key=lambda index: -len(requests[index].source_ids))
    shares = [order[first::workers] for first in range(workers)]
    policy = Greedy(engine.tokens)
    schedulers = [Scheduler(engine, policy, rows=rows, batch_tokens=batch_tokens // workers) for _ in shares]
    for scheduler, share in zip(schedulers, shares, strict=True):
        scheduler.submit([requests[index] for index in share])

    def answers(scheduler: Scheduler, share: Sequence[int]) -> list[Result]:
        with _stopped_by_errors(schedulers):
            return [replace(result, index=share[result.index]) for result in scheduler.drain()]

    if workers == 1:
        results = answers(schedulers[0], shares[0])
    else:
        # An error in a thread, or Ctrl-C in this one: nobody will take what the others would make.
        with ThreadPoolExecutor(workers) as pool, _stopped_by_errors(schedulers):
            futures = [pool.submit(answers, *each) for each in zip(schedulers, shares, strict=True)]
            results = [result for future in futures for result in future.result()]
    return sorted(results, key=lambda result: result.index)


def stream(engine: Engine, request: Request) -> Iterator[Token]:
    """Answer one request and yield its tokens as they are made, eos too."""
    scheduler = Scheduler(engine, Greedy(engine.tokens), rows=1, poll=1)
    scheduler.submit([request])
    count = 0
    for (slot,) in scheduler.steps():
        for position in range(count, len(slot.ids)):
            last = slot.done and position == len(slot.ids) - 1
            yield Token(slot.ids[position], slot.scores[position] if request.scores else None, last)
        count = len(slot.ids)


@contextmanager
def _stopped_by_errors(schedulers: Sequence[Scheduler]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for scheduler in schedulers:
            scheduler.stop()
        raise


class Greedy:
    """The policy of greedy search; see `txport.runtime.search.scheduler.Policy`."""

    def __init__(self, tokens: SpecialTokens) -> None:
        self._tokens = tokens

    def needs_logits(self, request: Request) -> bool:
        """Whether the host reads the logits of some step."""
        return request.scores or may_forbid(request)

    def stepwise(self, slots: Sequence[Slot]) -> bool:
        """Whether the host sees the next step before the one after it begins."""
        return any(slot.request.scores or len(slot.ids) < slot.constraints for slot in slots)

    def choose(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64, stepwise: bool) -> None:
        """Take the tokens `[steps, rows]` that the device chose, or override them."""
        eos = self._tokens.eos
        if stepwise:
            self._choose_one(state, slots, token_ids[0])
            return
        for slot, column in zip(slots, token_ids.T.tolist(), strict=True):
            if slot is None:
                continue
            slot.extend(column, eos)

    def _choose_one(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64) -> None:
        """One token for each row, with its score."""
        logits: Float32 | None = None
        overrides: list[tuple[int, int, bool]] = []
        scored: list[tuple[int, Slot]] = []
        for row, slot in enumerate(slots):
            if slot is None:
                continue
            token = forced_token(slot)
            if token is None:
                token = int(token_ids[row])
                if token in (forbidden := forbidden_tokens(slot, self._tokens)):
                    logits = state.logits() if logits is None else logits
                    token = best_but(logits[row], forbidden)
            slot.extend([token], self._tokens.eos)
            if token != token_ids[row]:
                overrides.append((row, token, slot.done))
            if slot.request.scores:
                scored.append((row, slot))
        if overrides:
            state.override(*map(list, zip(*overrides, strict=True)))
        if scored:
            scores = state.log_probabilities([row for row, _ in scored], [slot.ids[-1] for _, slot in scored])
            for (_, slot), score in zip(scored, scores.tolist(), strict=True):
                slot.scores.append(score)
