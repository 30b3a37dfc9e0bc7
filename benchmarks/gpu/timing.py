"""Stages "table" and "refill": whole calls and their parts, and refilled rows against batches that wait.

The whole call is encoder and greedy loop from ids to ids; a step is timed by enqueuing those of a call at once; the
host's share is what of the call is neither. Sources are random ids; rows that end earlier count with what they made.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from txport.benchmarks.gpu.engines import engines, largest
from txport.benchmarks.gpu.stage_context import Skip, StageContext
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import DecoderState, Engine
from txport.runtime.golden import load_golden
from txport.runtime.greedy import Request, decode_all

BATCHES, POLLS = (1, 8, 32), (1, 4, 8, 16)
SOURCE, TARGET = 32, 64
WARM_UP = 3


def median_seconds(call: Callable[[], object], rounds: int) -> float:
    """The median of some calls, after warm-up."""

    def timed() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    for _ in range(min(WARM_UP, rounds)):
        call()
    return statistics.median(timed() for _ in range(rounds))


def random_sources(engine: DeviceEngine, batch: int, source: int) -> list[list[int]]:
    """Rows of random ids that end with eos, of as many as the bundle takes."""
    source = min(source, engine.limits.source)
    ids = np.random.default_rng(batch).integers(4, engine.manifest.model.source_vocabulary, (batch, source))
    ids[:, -1] = engine.tokens.eos
    return [row.tolist() for row in ids]


def placed(engine: DeviceEngine, sources: Sequence[Sequence[int]], target: int) -> DecoderState:
    """A batch before its first step."""
    batch, source = len(sources), len(sources[0])
    state = engine.allocate(batch, source, target)
    memory = engine.encode(np.array(sources), np.full(batch, source))
    state.place(range(batch), memory, range(batch), [target] * batch)
    return state


def step_seconds(engine: DeviceEngine, batch: int, source: int, target: int, rounds: int) -> float:
    """One step, of `target` that are enqueued at once."""
    sources = random_sources(engine, batch, source)

    def run() -> float:
        state = placed(engine, sources, target)
        engine.synchronize()
        start = time.perf_counter()
        state.step(target)
        engine.synchronize()
        return time.perf_counter() - start

    for _ in range(min(WARM_UP, rounds)):
        run()
    return statistics.median(run() for _ in range(rounds)) / target


def table(context: StageContext) -> None:
    """Whole calls at several batch sizes and polls, on every device that runs the largest bundle in float16."""
    bundle = largest(context)
    for device, engine in engines(context, bundle):
        for batch in (batch for batch in BATCHES if batch <= engine.limits.batch):
            _calls(context, f"whole calls, {bundle.name}", device, engine, batch)


def _calls(context: StageContext, title: str, device: str, engine: DeviceEngine, batch: int) -> None:
    sources = random_sources(engine, batch, SOURCE)
    ids, lengths, target = np.array(sources), np.full(batch, len(sources[0])), min(TARGET, engine.limits.target)
    requests = [Request(source, target) for source in sources]
    made = max(len(result.ids) for result in decode_all(engine, requests))

    def encode() -> None:
        engine.encode(ids, lengths)
        engine.synchronize()

    def first_token() -> None:
        state = placed(engine, sources, target)
        state.step()
        state.read()

    rounds = context.rounds
    step = step_seconds(engine, batch, SOURCE, made, rounds)
    encoder, first = median_seconds(encode, rounds), median_seconds(first_token, rounds)
    for poll in POLLS:
        engine.poll = poll
        call = median_seconds(lambda: decode_all(engine, requests), rounds)
        context.row(
            f"{title}, {len(sources[0])} source tokens, {made} new ones",
            device=device,
            batch=batch,
            poll=poll,
            call_ms_per_token=round(1e3 * call / made, 4),
            step_ms=round(1e3 * step, 4),
            encoder_ms=round(1e3 * encoder, 3),
            first_token_ms=round(1e3 * first, 3),
            host_share=round(1 - (encoder + made * step) / call, 4),
        )


def mixed_sources(bundle: Path) -> list[list[int]]:
    """The sources of the bundle's golden cases, and joins of 2 to 6 of them, in random order."""
    sources = [list(case.source_ids) for case in load_golden(bundle).cases if case.source]
    if not sources:
        raise Skip("no bundle has golden cases of real text")
    chance, mixed = random.Random(0), sources * 8
    for _ in range(len(mixed) // 2):
        parts = [chance.choice(sources) for _ in range(chance.randint(2, 6))]
        mixed.append([token for part in parts[:-1] for token in part[:-1]] + parts[-1])
    chance.shuffle(mixed)
    return mixed


def refilling(context: StageContext) -> None:
    """Tokens a second of real text, in batches that wait for their longest row and with rows that are refilled."""
    trained = [path for path in context.bundles.values() if any(case.source for case in load_golden(path).cases)]
    if not trained:
        raise Skip("no bundle has golden cases of real text")
    bundle = trained[-1]
    for device, engine in engines(context, bundle):
        requests = [Request(source[-engine.limits.source :]) for source in mixed_sources(bundle)]
        _refill(context, f"refilling, {bundle.name}", device, engine, requests)
        _refill(context, f"refilling, {bundle.name}, sorted", device, engine, sorted(requests, key=_source_length))


def _refill(context: StageContext, title: str, device: str, engine: Engine, requests: Sequence[Request]) -> None:
    rows = min(32, engine.limits.batch)
    batches = [requests[start : start + rows] for start in range(0, len(requests), rows)]
    made = sum(len(result.ids) for result in decode_all(engine, requests, rows=rows))

    def decode(part: Sequence[Request]) -> None:
        decode_all(engine, part, rows=rows, batch_tokens=1 << 30)

    rounds = (context.rounds + 2) // 3
    fixed = median_seconds(lambda: list(map(decode, batches)), rounds)
    refilled = median_seconds(lambda: decode(requests), rounds)
    speeds = {"fixed_tokens_per_second": round(made / fixed), "refilled_tokens_per_second": round(made / refilled)}
    context.row(title, device=device, **speeds, ratio=round(fixed / refilled, 3))


def _source_length(request: Request) -> int:
    return len(request.source_ids)
