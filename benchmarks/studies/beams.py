"""Time of beam search by its own step, next to plain steps: `python -m txport.benchmarks.studies.beams BUNDLE`.

Searches of random sources alternate in one process. It is the time of the processor in one thread, which other
programs do not change much; encoders are included, and the loading of graphs is not.
"""

import dataclasses
import statistics
import time
from pathlib import Path

import click
import numpy as np
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Search


def seconds(engine: OrtEngine, requests: list[Request]) -> float:
    """Time of the processor for these sentences in one batch."""
    start = time.process_time()
    decode_all(engine, requests)
    return time.process_time() - start


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--beam", default=4, show_default=True)
@click.option("--batch", "batches", multiple=True, default=(1, 8), show_default=True)
@click.option("--source", default=32, show_default=True, help="Source tokens per sentence.")
@click.option("--target", default=64, show_default=True, help="Maximum number of target tokens.")
@click.option("--rounds", default=9, show_default=True)
def main(bundle: Path, beam: int, batches: tuple[int, ...], source: int, target: int, rounds: int) -> None:
    """Compare the two ways to search a BUNDLE that was exported with --with-beams."""
    manifest = Manifest.load(bundle)
    others = tuple(graph for graph in manifest.graphs if graph.role != "decoder_beams")
    plain = OrtEngine(bundle, dataclasses.replace(manifest, graphs=others), threads=1)
    own = OrtEngine(bundle, manifest, threads=1)
    random = np.random.default_rng(0)
    for batch in batches:
        ids = random.integers(4, manifest.model.source_vocabulary, (batch, source)).tolist()
        requests = [Request(row, target, search=Search(beam=beam)) for row in ids]
        times = [(seconds(plain, requests), seconds(own, requests)) for _ in range(rounds + 1)][1:]
        first, second = (statistics.median(each) for each in zip(*times, strict=True))
        ratios = sorted(after / before for before, after in times)
        click.echo(
            f"batch {batch}, beam {beam}: plain steps {1e3 * first:.0f} ms, own step {1e3 * second:.0f} ms, "
            f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
