"""Time of cross-attention over long sources in a decoder step, compared with reading its keys and values once.

`python -m txport.benchmarks.studies.cross_attention BUNDLE`, with a float32 or int8 bundle for the fused engine whose
model has at least 1,500 positions. A step over 16 source tokens is subtracted, so what remains is cross-attention. One
thread; processor time, the minimum of rounds in turns.
"""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from txport.benchmarks.report.tables import markdown_table
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engine import Engine
from txport.runtime.engines.native import NativeEngine
from txport.runtime.errors import InputError

LENGTHS = (600, 1500)
SHORT = 16
BATCHES = ((1, 1), (8, 1), (1, 4), (8, 4))  # sentences and beams
STEPS = 8
ROUNDS = 5
MEMORY = 512 << 20  # bytes; larger than the processor's caches


def stepper(engine: Engine, length: int, sentences: int, beams: int) -> Callable[[], object]:
    """Return a call that runs several steps of a batch. The beams of a sentence share its keys and values."""
    ids = np.full((1, length), 5, np.int64)
    rows = sentences * beams
    state = engine.allocate(rows, length, (ROUNDS + 1) * STEPS)
    for first in range(0, rows, beams):
        memory = engine.encode(ids, np.array([length]))
        state.place(list(range(first, first + beams)), memory, [0] * beams, [(ROUNDS + 1) * STEPS] * beams)

    def run() -> None:
        state.step(STEPS)
        if state.read().finished.any():
            raise InputError("a sentence ended too early: use a model of random weights (random_checkpoint)")

    return run


def reader(size: int) -> Callable[[], object]:
    """Return a call that reads `size` bytes of memory in each step, by products of matrices and a vector."""
    rows = size // 4096
    matrix = np.ones((max(2, MEMORY // size) * rows, 1024), np.float32)  # read in turns, so that no part is in a cache
    parts = itertools.cycle(matrix[first : first + rows] for first in range(0, len(matrix), rows))
    vector = np.ones(1024, np.float32)
    return lambda: [next(parts) @ vector for _ in range(STEPS)]


def milliseconds(calls: list[Callable[[], object]]) -> list[float]:
    """Return the processor time of a step of each call, the minimum of rounds in turns."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for index, call in enumerate(calls):
            start = time.process_time()
            call()
            best[index] = min(best[index], 1000 * (time.process_time() - start) / STEPS)
    return best


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
def main(bundle: Path) -> None:
    """Print a table of batches and source lengths."""
    manifest = Manifest.load(bundle)
    model = manifest.model
    if manifest.precision.weights == "int8":
        size = 2 * model.head_dim + 12  # bytes of a token in a head: key, value, their scales and the sum of the key
    else:
        size = 8 * model.head_dim
    size *= model.heads * model.decoder_layers
    engine = NativeEngine(bundle, manifest, threads=1)
    rows = []
    for sentences, beams in BATCHES:
        for length in LENGTHS:
            calls = [stepper(engine, each, sentences, beams) for each in (length, SHORT)]
            long, short, read = milliseconds([*calls, reader(sentences * length * size)])
            batch = f"{sentences} x {beams} beams, {length:,}"
            rows.append((batch, f"{long - short:.2f}", f"{read:.2f}", f"{(long - short) / read:.2f}"))
    heads = ("sentences, source tokens", "cross-attention, ms", "reading, ms", "ratio")
    click.echo("\n".join(markdown_table(heads, rows, heads[:1])))


if __name__ == "__main__":
    main()
