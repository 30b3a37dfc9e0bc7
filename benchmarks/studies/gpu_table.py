"""The step on a GPU, against its targets: `python -m txport.benchmarks.studies.gpu_table BUNDLE`.

For each device that runs the bundle, medians: the whole `translate_ids` call divided by the tokens of a row; the share
of it that is neither encoder nor step (host time); the encoder and the first token alone. Steps are timed by enqueuing
`--tokens` of them at once. Sources are random ids; rows that end earlier count with the tokens that they made. With
`--text`, throughput of refilled rows against fixed batches that wait for their longest row.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import DecoderState
from txport.runtime.errors import InputError, TxportError
from txport.runtime.greedy import Request, decode_all
from txport.runtime.translator import Translator

WARM_UP = 3


@dataclass(frozen=True)
class Row:
    """Milliseconds of one batch size; `host` is the share of the call that is neither encoder nor step."""

    engine: str
    batch: int
    call_per_token: float
    step: float
    host: float
    encoder: float
    first_token: float


@dataclass(frozen=True)
class Throughput:
    """Tokens a second of the same lines at the same batch size, in fixed batches and with refilled rows."""

    engine: str
    order: str
    fixed: float
    refilled: float


def measure(translator: Translator, batch: int, source: int, tokens: int, rounds: int) -> Row:
    """Time one batch size, after warm-up."""
    engine = translator.engine
    if not isinstance(engine, DeviceEngine):
        raise InputError(f"{engine.name} keeps its state on the host: this study measures devices only")
    ids = np.random.default_rng(batch).integers(4, translator.manifest.model.source_vocabulary, (batch, source))
    ids[:, -1] = engine.tokens.eos
    lengths = np.full(batch, source)
    sources = [row.tolist() for row in ids]
    longest = max(len(result.ids) for result in translator.translate_ids(sources, max_length=tokens))

    def placed() -> DecoderState:
        state = engine.allocate(batch, source, tokens)
        state.place(range(batch), engine.encode(ids, lengths), range(batch), [tokens] * batch)
        return state

    def steps() -> float:
        state = placed()
        engine.synchronize()
        start = time.perf_counter()
        state.step(longest)
        engine.synchronize()
        return time.perf_counter() - start

    def encode() -> None:
        engine.encode(ids, lengths)
        engine.synchronize()

    def first() -> None:
        state = placed()
        state.step()
        state.read()

    call = _median(lambda: _timed(lambda: translator.translate_ids(sources, max_length=tokens)), rounds)
    step, encoder = _median(steps, rounds), _median(lambda: _timed(encode), rounds)
    first_token = _median(lambda: _timed(first), rounds)
    host = 1 - (encoder + step) / call
    per = 1e3 / longest
    return Row(engine.name, batch, call * per, step * per, host, encoder * 1e3, first_token * 1e3)


def refill(translator: Translator, lines: Sequence[str], rows: int, rounds: int) -> list[Throughput]:
    """Fixed batches against refilled rows, in random order and sorted by length; the loop itself sorts its window."""
    engine, results = translator.engine, []
    sources = [around.around(ids) for ids, around in map(translator.tokenizer.encode_source, lines)]
    requests = [Request(ids[: engine.limits.source]) for ids in sources]
    for order in ("random", "sorted"):
        ordered = sorted(requests, key=lambda request: len(request.source_ids)) if order == "sorted" else requests
        chunks = [ordered[start : start + rows] for start in range(0, len(ordered), rows)]
        made = sum(len(result.ids) for result in decode_all(engine, ordered, rows=rows))

        def fixed(chunks: Sequence[Sequence[Request]] = chunks) -> float:
            return _timed(lambda: [decode_all(engine, chunk, rows=rows, batch_tokens=1 << 30) for chunk in chunks])

        def refilled(ordered: Sequence[Request] = ordered) -> float:
            return _timed(lambda: decode_all(engine, ordered, rows=rows, batch_tokens=1 << 30))

        results.append(Throughput(engine.name, order, made / _median(fixed, rounds), made / _median(refilled, rounds)))
    return results


def mixed_lines(text: Path) -> list[str]:
    """A file's lines, and half as many joins of 2 to 6 of them, in random order."""
    lines = [line for line in text.read_text(encoding="utf-8").split("\n") if line.strip()]
    chance = random.Random(0)
    joins = [" ".join(chance.sample(lines, chance.randint(2, 6))) for _ in range(len(lines) // 2)]
    mixed = lines + joins
    chance.shuffle(mixed)
    return mixed


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _median(call: Callable[[], float], rounds: int) -> float:
    for _ in range(WARM_UP):
        call()
    return statistics.median(call() for _ in range(rounds))


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--device", "devices", multiple=True, default=("cuda", "trt"), show_default=True, help="Repeatable.")
@click.option("--batch", "batches", multiple=True, type=int, default=(1, 32), show_default=True, help="Repeatable.")
@click.option("--poll", "polls", multiple=True, type=int, help="Steps between two polls. [default: the engine's]")
@click.option("--source", default=32, show_default=True, help="Source tokens, eos included.")
@click.option("--tokens", type=click.IntRange(1, 64), default=64, show_default=True, help="Most tokens to make.")
@click.option("--rounds", default=20, show_default=True)
@click.option("--text", type=click.Path(path_type=Path), help="Lines for the throughput of refilled rows.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the figures as JSON.")
def main(
    bundle: Path,
    devices: tuple[str, ...],
    batches: tuple[int, ...],
    polls: tuple[int, ...],
    source: int,
    tokens: int,
    rounds: int,
    text: Path | None,
    output: Path | None,
) -> None:
    """Print the table of BUNDLE on this machine's GPU."""
    rows: list[Row] = []
    throughputs: list[Throughput] = []
    click.echo("| engine | batch | poll | call ms/token | step ms | host | encoder ms | first token ms |")
    click.echo("|---|---|---|---|---|---|---|---|")
    for device in devices:
        try:
            translator = Translator(bundle, device)
        except TxportError as error:
            click.echo(f"{device} is skipped: {error}", err=True)
            continue
        for batch in (batch for batch in batches if batch <= translator.engine.limits.batch):
            for poll in polls or (translator.engine.poll,):
                translator.engine.poll = poll
                row = measure(translator, batch, source, tokens, rounds)
                rows.append(row)
                times = f"{row.call_per_token:.3f} | {row.step:.3f} | {row.host:.1%}"
                click.echo(f"| {row.engine} | {batch} | {poll} | {times} | {row.encoder:.3f} | {row.first_token:.3f} |")
        if text is not None:
            throughputs += refill(translator, mixed_lines(text), max(batches), max(3, rounds // 5))
    for each in throughputs:
        ratio = each.refilled / each.fixed
        speeds = f"{each.fixed:.0f} tokens/s in fixed batches, {each.refilled:.0f} refilled ({ratio:.2f})"
        click.echo(f"{each.engine}, {each.order} order: {speeds}")
    if output is not None:
        figures = {"rows": [asdict(row) for row in rows], "throughput": [asdict(each) for each in throughputs]}
        output.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
