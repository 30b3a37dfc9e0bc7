"""Two versions of txport on one bundle, in turns: `python -m txport.benchmarks.studies.versions OTHER_PYTHON BUNDLE`.

Each version runs in a separate process: one of this interpreter, and one of another interpreter with the other version.
All ids must be equal. Times are processor times of one thread, on which other programs have less influence than on the
clock. With --clock, they are clock times, with one thread per core.
"""

import contextlib
import json
import statistics
import subprocess
import sys
from pathlib import Path

import click
from txport.runtime.errors import CheckFailed, EngineError

# Program of a process. It uses only `translate_ids`, which both versions have.
CHILD = """
import json, sys, time
import numpy as np
from txport.runtime.translator import Translator
bundle, engine, batch, source, target, clock = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
translator = Translator(bundle, "cpu", engine, threads=0 if clock else 1)
last = translator.manifest.model.source_vocabulary - 1
ids = np.random.default_rng(0).integers(4, last, (batch, source - 1))
sources = [[*row, translator.manifest.tokens.eos] for row in ids.tolist()]
now = time.perf_counter if clock else time.process_time
for _ in sys.stdin:
    start = now()
    results = translator.translate_ids(sources, max_length=target)
    print(json.dumps([now() - start, [each.ids for each in results]]), flush=True)
"""


class Version:
    """The process of one version."""

    def __init__(self, python: str, arguments: list[str]) -> None:
        self._python = python
        command = [python, "-c", CHILD, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self) -> tuple[float, list[list[int]]]:
        """Return the seconds of one call, and its ids."""
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"{self._python} failed: its message is above")
        seconds, ids = json.loads(line)
        return seconds, ids

    def close(self) -> None:
        self._process.communicate()


@click.command()
@click.argument("python")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--engine", default="auto", show_default=True)
@click.option("--batch", "batches", multiple=True, type=int, default=(1, 32), show_default=True)
@click.option("--source", default=32, show_default=True, help="Source tokens per sentence.")
@click.option("--target", default=64, show_default=True, help="Maximum number of target tokens.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--clock", is_flag=True, help="Measure wall-clock time with one thread per core.")
def main(
    python: str, bundle: Path, engine: str, batches: tuple[int, ...], source: int, target: int, rounds: int, clock: bool
) -> None:
    """Compare greedy search of this version with that of the interpreter PYTHON, on a BUNDLE that both read."""
    for batch in batches:
        sizes = [str(number) for number in (batch, source, target, int(clock))]
        versions = [Version(each, [str(bundle.resolve()), engine, *sizes]) for each in (sys.executable, python)]
        try:
            results = [[version.call() for version in versions] for _ in range(rounds + 2)]
        finally:
            for version in versions:
                version.close()
        if any(ours[1] != theirs[1] for ours, theirs in results):
            raise CheckFailed(f"batch {batch}: the ids of the two versions differ")
        # The first two rounds allocate memory and start threads.
        ratios = sorted(ours[0] / theirs[0] for ours, theirs in results[2:])
        click.echo(
            f"batch {batch}: identical ids, this version's time over the other's: median "
            f"{statistics.median(ratios):.3f} ({ratios[len(ratios) // 10]:.3f} to {ratios[-1 - len(ratios) // 10]:.3f})"
        )


if __name__ == "__main__":
    main()
