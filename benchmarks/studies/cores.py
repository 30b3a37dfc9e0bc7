"""Speed of the fused engine by its number of threads, and by the number of batches that share the cores.

`python -m txport.benchmarks.studies.cores BUNDLE`

All engines are in one process and take turns. Timed: whole calls of random ids, encoder included, per token of the
longest answer, and the encoder alone. Not timed: loading, and the calls in which an engine finds its best number of
threads.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np
from txport.benchmarks.report.tables import markdown_table
from txport.benchmarks.studies.turns import in_turns
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.native import NativeEngine
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.system import cores

_MAX_THREADS = 64  # maximum threads of an engine


def powers(maximum: int) -> list[int]:
    """Return 1, 2, 4 ... and `maximum`."""
    return sorted({*(2**power for power in range(maximum.bit_length())), maximum})


def requests(engine: NativeEngine, vocabulary: int, count: int, tokens: int) -> list[Request]:
    """Return sentences of 32 random tokens, with answers of up to `tokens` tokens."""
    random = np.random.default_rng(0)
    eos = engine.tokens.eos
    ids = random.integers(4, vocabulary, (count, 31))
    return [Request([*row.tolist(), eos], tokens) for row in ids]


def lengths(engine: NativeEngine, sentences: Sequence[Request]) -> list[int]:
    """Return the number of tokens of each answer, which does not depend on the number of threads."""
    return [len(result.ids) for result in decode_all(engine, sentences)]


def encoding(engine: NativeEngine, sentences: Sequence[Request]) -> Callable[[], object]:
    """Return a call of the encoder for all sentences in one batch."""
    ids = np.array([request.source_ids for request in sentences], np.int64)
    return partial(engine.encode, ids, np.full(len(ids), ids.shape[1], np.int64))


def by_threads(
    bundle: Path, threads: Sequence[int], batches: Sequence[int], tokens: int, rounds: int, warm_up: int
) -> list[str]:
    """Return the lines of a Markdown table: times of each batch size, with a row for each number of threads."""
    manifest = Manifest.load(bundle)
    engines = [NativeEngine(bundle, manifest, count) for count in threads]
    columns = []
    for batch in batches:
        sentences = requests(engines[0], manifest.model.source_vocabulary, batch, tokens)
        steps = [partial(decode_all, engine, sentences, rows=batch) for engine in engines]
        times = in_turns([*steps, *(encoding(engine, sentences) for engine in engines)], rounds, warm_up)
        total, encoder = np.split(np.median(times, axis=0), 2)
        columns += [total / max(lengths(engines[0], sentences)), encoder]
    names = [f"{quantity}, batch {batch}" for batch in batches for quantity in ("ms a token", "ms of the encoder")]
    rows = [
        [str(count), *(f"{value:.4g}" for value in row)]
        for count, row in zip(threads, np.transpose(columns), strict=True)
    ]
    return markdown_table(("threads", *names), rows)


def by_workers(bundle: Path, workers: Sequence[int], tokens: int, rounds: int, warm_up: int) -> list[str]:
    """Return the lines of a Markdown table: throughput of many sentences by the number of parallel batches."""
    manifest = Manifest.load(bundle)
    threads = [max(1, max(workers) // count) for count in workers]
    engines = [
        NativeEngine(bundle, manifest, each, concurrent=count > 1) for count, each in zip(workers, threads, strict=True)
    ]
    sentences = requests(engines[0], manifest.model.source_vocabulary, 32 * max(workers), tokens)
    calls = [
        partial(decode_all, engine, sentences, workers=count) for engine, count in zip(engines, workers, strict=True)
    ]
    speeds = sum(lengths(engines[0], sentences)) / np.median(in_turns(calls, rounds, warm_up), axis=0)
    rows = [
        [str(count), str(each), f"{speed:.4g}"] for count, each, speed in zip(workers, threads, speeds, strict=True)
    ]
    return markdown_table(("workers", "threads of each", "tokens a millisecond"), rows)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--threads", type=click.IntRange(1), help="Maximum number of threads. [default: one per core]")
@click.option("--batch", default="1,8,32", show_default=True, help="Batch sizes.")
@click.option(
    "--tokens", type=click.IntRange(1), default=64, show_default=True, help="Maximum number of target tokens."
)
@click.option("--rounds", type=click.IntRange(1), default=30, show_default=True)
@click.option("--warm-up", type=click.IntRange(0), default=30, show_default=True, help="Number of warm-up rounds.")
def main(bundle: Path, threads: int | None, batch: str, tokens: int, rounds: int, warm_up: int) -> None:
    """Print times of BUNDLE by threads, and the throughput of many sentences by workers."""
    counts = powers(min(threads or cores(), _MAX_THREADS))
    batches = [int(size) for size in batch.split(",")]
    table = by_threads(bundle, counts, batches, tokens, rounds, warm_up)
    reduced = max(2, rounds // 10), max(2, warm_up // 10)  # rounds: calls of many sentences take longer
    click.echo("\n".join([*table, "", *by_workers(bundle, counts, tokens, *reduced)]))


if __name__ == "__main__":
    main()
