"""Time of translation with shortlists, next to all words: `python -m txport.benchmarks.studies.shortlist BUNDLE`.

Searches of random sources alternate in one process, the same with all words and with a random list for each sentence:
`--words` of them, of which `--common` are in every list. Encoders are included. Of one thread it is the time of the
processor, which other programs do not change much; of more it is that of the clock.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.native import NativeEngine
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Search


def requests_of(manifest: Manifest, batch: int, source: int, target: int, words: int, common: int) -> list[Request]:
    """Random sentences with lists of words."""
    random = np.random.default_rng(0)
    vocabulary = manifest.model.target_vocabulary
    ids = random.integers(4, manifest.model.source_vocabulary, (batch, source)).tolist()
    always = np.append(np.arange(common), manifest.tokens.eos)
    lists = [np.unique(np.append(always, random.choice(vocabulary, words - common, replace=False))) for _ in ids]
    return [
        Request(row, target, min_length=0, search=Search(shortlist=True), words=own)
        for row, own in zip(ids, lists, strict=True)
    ]


def seconds(engine: NativeEngine, requests: list[Request], clock: Callable[[], float]) -> float:
    """Time of a token."""
    start = clock()
    results = decode_all(engine, requests)
    return (clock() - start) / sum(len(result.ids) for result in results)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--batch", "batches", multiple=True, default=(1, 8, 32), show_default=True)
@click.option("--words", default=2000, show_default=True, help="Words of a sentence's list.")
@click.option("--common", default=1000, show_default=True, help="How many of them all sentences have.")
@click.option("--source", default=32, show_default=True, help="Tokens of a sentence.")
@click.option("--target", default=64, show_default=True, help="Most tokens of an answer.")
@click.option("--threads", multiple=True, default=(1, 2), show_default=True)
@click.option("--rounds", default=7, show_default=True)
def main(
    bundle: Path, batches: tuple[int, ...], words: int, common: int, source: int, target: int,
    threads: tuple[int, ...], rounds: int,
) -> None:  # fmt: skip
    """Compare a BUNDLE with itself, all words against lists."""
    manifest = Manifest.load(bundle)
    for count in threads:
        engine = NativeEngine(bundle, manifest, count)
        clock = time.process_time if count == 1 else time.perf_counter
        for batch in batches:
            listed = requests_of(manifest, batch, source, target, words, common)
            whole = [Request(request.source_ids, target) for request in listed]
            times = [
                (seconds(engine, whole, clock), seconds(engine, listed, clock)) for _ in range(rounds + 1)
            ][1:]  # fmt: skip
            before, after = (1e6 * statistics.median(each) for each in zip(*times, strict=True))
            ratios = sorted(one / other for one, other in times)
            click.echo(
                f"{count} threads, batch {batch}: all words {before:.0f} us a token, lists {after:.0f}, "
                f"{statistics.median(ratios):.2f} times faster ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


if __name__ == "__main__":
    main()
