"""Time of translation with shortlists, next to all words: `python -m txport.benchmarks.studies.shortlist BUNDLE`.

Searches of random sources alternate in one process, the same with all words and with each sentence's list: the most
frequent words and the candidates of each source word. Words have frequencies by Zipf's law, in sources and among
candidates, so that sentences share words as real ones do. Encoders are included. Of one thread it is the time of the
processor, which other programs do not change much; of more it is that of the clock.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.native import NativeEngine
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Search


def requests_of(
    manifest: Manifest, batch: int, source: int, target: int, frequent: int, candidates: int
) -> list[Request]:
    """Random sentences with lists of words."""
    random = np.random.default_rng(0)
    model = manifest.model
    by_rank = 1 / np.arange(1, max(model.source_vocabulary, model.target_vocabulary) + 1)
    of_source, of_target = (
        by_rank[:size] / by_rank[:size].sum() for size in (model.source_vocabulary, model.target_vocabulary)
    )
    always = np.append(np.arange(frequent), manifest.tokens.eos)
    table: dict[int, npt.NDArray[np.int64]] = {}
    requests = []
    for _ in range(batch):
        ids = random.choice(model.source_vocabulary, source, p=of_source).tolist()
        for word in ids:
            if word not in table:
                table[word] = random.choice(model.target_vocabulary, candidates, p=of_target)
        words = np.unique(np.concatenate([always, *(table[word] for word in ids)]))
        requests.append(Request(ids, target, min_length=0, search=Search(shortlist=True), words=words))
    return requests


def seconds(engine: NativeEngine, requests: list[Request], clock: Callable[[], float]) -> float:
    """Time of a token."""
    start = clock()
    results = decode_all(engine, requests)
    return (clock() - start) / sum(len(result.ids) for result in results)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--batch", "batches", multiple=True, default=(1, 8, 32), show_default=True)
@click.option("--frequent", default=1000, show_default=True, help="Number of words in every list.")
@click.option("--candidates", default=130, show_default=True, help="Number of candidates per source word.")
@click.option("--source", default=32, show_default=True, help="Source tokens per sentence.")
@click.option("--target", default=64, show_default=True, help="Maximum number of target tokens.")
@click.option("--threads", multiple=True, default=(1, 2), show_default=True)
@click.option("--rounds", default=7, show_default=True)
def main(
    bundle: Path, batches: tuple[int, ...], frequent: int, candidates: int, source: int, target: int,
    threads: tuple[int, ...], rounds: int,
) -> None:  # fmt: skip
    """Compare a BUNDLE with itself, all words against lists."""
    manifest = Manifest.load(bundle)
    for count in threads:
        engine = NativeEngine(bundle, manifest, count)
        if count == 1:
            clock = time.process_time
        else:
            clock = time.perf_counter
        for batch in batches:
            listed = requests_of(manifest, batch, source, target, frequent, candidates)
            lists = [request.words for request in listed if request.words is not None]
            union = np.unique(np.concatenate(lists)).size
            mean = np.mean([words.size for words in lists])
            whole = [Request(request.source_ids, target) for request in listed]
            times = [
                (seconds(engine, whole, clock), seconds(engine, listed, clock)) for _ in range(rounds + 1)
            ][1:]  # fmt: skip
            before, after = (1e6 * statistics.median(each) for each in zip(*times, strict=True))
            ratios = sorted(one / other for one, other in times)
            click.echo(
                f"{count} threads, batch {batch}, lists of {mean:.0f} words, {union} in all: "
                f"all words {before:.0f} us a token, lists {after:.0f}, "
                f"{statistics.median(ratios):.2f} times faster ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


if __name__ == "__main__":
    main()
