"""The fused engine beside busy neighbours: one thread against its default, which learns how many are worth it.

`python -m txport.benchmarks.studies.busy_cores BUNDLE`

N processes that never wait run beside it, for each N. Both engines are in one process and take turns, call by call, so
that the neighbours disturb them alike. Timed: whole calls of random ids, encoder included. Not timed: loading, and the
calls in which the default learns.
"""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.native import NativeEngine
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request


def _spin() -> None:
    while True:
        pass


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run `count` processes that compute until the end of the block."""
    busy = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(count)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.join()


def compare(bundle: Path, *, batch: int, tokens: int, rounds: int, warm_up: int) -> tuple[list[float], list[float]]:
    """Return milliseconds a token of each round: one thread, and the default."""
    manifest = Manifest.load(bundle)
    random = np.random.default_rng(0)
    engines = [NativeEngine(bundle, manifest, threads) for threads in (1, 0)]
    eos = engines[0].tokens.eos
    requests = [
        Request([*random.integers(4, manifest.model.source_vocabulary, 31).tolist(), eos], tokens) for _ in range(batch)
    ]

    def timed(engine: NativeEngine) -> float:
        start = time.perf_counter()
        made = decode_all(engine, requests, rows=batch)
        return (time.perf_counter() - start) * 1e3 / max(len(result.ids) for result in made)

    turns = [[timed(engine) for engine in engines] for _ in range(warm_up + rounds)]
    one, default = zip(*turns[warm_up:], strict=True)
    return list(one), list(default)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--neighbours", "counts", default="0,1,2,4", show_default=True, help="Number of busy processes in the background."
)
@click.option("--batch", default="1,8,32", show_default=True, help="Batch sizes.")
@click.option("--tokens", default=64, show_default=True, help="Maximum number of target tokens.")
@click.option("--rounds", default=100, show_default=True)
@click.option("--warm-up", default=30, show_default=True, help="Number of warm-up rounds.")
def main(bundle: Path, counts: str, batch: str, tokens: int, rounds: int, warm_up: int) -> None:
    """Print ms/token of both and the default's share of one thread's time: 1.0 or less, whatever runs beside it."""
    click.echo("neighbours  batch  1 thread   p90  default   p90  default / 1 thread")
    for count in map(int, counts.split(",")):
        with neighbours(count):
            for rows in map(int, batch.split(",")):
                times = compare(bundle, batch=rows, tokens=tokens, rounds=rounds, warm_up=warm_up)
                (one, one_high), (default, high) = ((np.median(x), np.quantile(x, 0.9)) for x in times)
                ratio = sum(times[1]) / sum(times[0])
                click.echo(
                    f"{count:10}  {rows:5}  {one:8.4f} {one_high:7.4f} {default:8.4f} {high:7.4f}  "
                    f"{default / one:.2f} (of sums {ratio:.2f})"
                )


if __name__ == "__main__":
    main()
