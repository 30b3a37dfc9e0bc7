"""Clients with one sentence each, and all their sentences in one call.

`python -m txport.benchmarks.studies.serving.clients BUNDLE`

Clients submit to the queue ("submit"), or call, and share a batch with the others ("calls") or decode alone ("alone").
The ways take turns round by round, over one engine. Timed: from the moment at which all clients are ready to the
last answer. Not timed: loading, the making of threads, tokenization, rounds of warm-up. Sources are random ids, of
lengths from 4 to 60 as sentences have them, and each answer is as long as its source, since random weights end none.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Barrier

import click
import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engine import Engine
from txport.runtime.engines.native import NativeEngine
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.queue import Queue
from txport.runtime.search.requests import Request, Result
from txport.runtime.search.shared import SharedBatches

WAYS = ("one call", "submit", "calls", "alone")


def requests_of(manifest: Manifest, count: int) -> list[Request]:
    """Random sentences, the same in every run; each answer has as many tokens as its source."""
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(np.log(22), 0.5, count).astype(int), 4, 60)
    vocabulary = manifest.model.source_vocabulary
    eos = manifest.tokens.eos
    return [Request([*draw.integers(4, vocabulary, n - 1).tolist(), eos], int(n)) for n in lengths]


def by_clients(ask: Callable[[Request], Result], requests: list[Request]) -> tuple[float, list[Result]]:
    """Seconds until each client, a thread with one sentence, has its answer."""
    ready = Barrier(len(requests) + 1)

    def client(request: Request) -> Result:
        ready.wait()
        return ask(request)

    with ThreadPoolExecutor(len(requests)) as pool:
        futures = [pool.submit(client, request) for request in requests]
        ready.wait()
        start = time.perf_counter()
        results = [future.result() for future in futures]
        return time.perf_counter() - start, results


def compare(engine: Engine, requests: list[Request], rounds: int, warm_up: int) -> npt.NDArray[np.float64]:
    """Return tokens a second, `[rounds, 4]`: of `WAYS`."""
    queue = Queue(engine)
    shared = SharedBatches()

    def one_call() -> tuple[float, list[Result]]:
        start = time.perf_counter()
        results = decode_all(engine, requests)
        return time.perf_counter() - start, results

    ways = (
        one_call,
        lambda: by_clients(lambda request: queue.submit(request).result(), requests),
        lambda: by_clients(lambda request: shared.decode(engine, [request])[0], requests),
        lambda: by_clients(lambda request: decode_all(engine, [request])[0], requests),
    )
    rates = []
    for _ in range(warm_up + rounds):
        seconds, answers = zip(*(way() for way in ways), strict=True)
        ids = [[result.ids for result in results] for results in answers]
        if any(found != ids[0] for found in ids):
            raise click.ClickException("the ways gave different ids")
        rates.append(sum(map(len, ids[0])) / np.array(seconds))
    queue.close()
    return np.array(rates)[warm_up:]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--clients", default=64, show_default=True)
@click.option("--rounds", default=20, show_default=True)
@click.option("--warm-up", default=3, show_default=True, help="Number of warm-up rounds.")
@click.option("--threads", default=0, show_default=True, help="Threads of the engine, 0 for one per core.")
def main(bundle: Path, clients: int, rounds: int, warm_up: int, threads: int) -> None:
    """Print tokens a second of each way, and how those of `submit` and `calls` compare with the others, by rounds."""
    manifest = Manifest.load(bundle)
    engine = NativeEngine(bundle, manifest, threads)
    rates = compare(engine, requests_of(manifest, clients), rounds, warm_up)
    click.echo(f"{engine.name}, {clients} clients, {rounds} rounds")
    for name, values in zip(WAYS, rates.T, strict=True):
        low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
        click.echo(f"{name:10} {middle:8.0f} tokens/s, p10 {low:.0f}, p90 {high:.0f}")
    for way, other in product((1, 2), (0, 3)):
        low, middle, high = np.quantile(rates[:, way] / rates[:, other], [0.1, 0.5, 0.9])
        click.echo(f"{WAYS[way]:6} / {WAYS[other]:8} {middle:.2f}, p10 {low:.2f}, p90 {high:.2f}")


if __name__ == "__main__":
    main()
