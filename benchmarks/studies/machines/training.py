"""Training by two processes on two cores beside one: `python -m txport.benchmarks.studies.machines.training`.

All make the same steps: one process accumulates the batches that two share. A step's time is that between two entries
of its log, so that starts and validations are not counted. The ways take turns, round by round.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SCRIPT = Path(sys.executable).parent / "tx-train"  # a file, which Lightning starts again for the second process
RECIPE = """
[corpus]
kind = "builtin"
train = 20_000
validation = 4
test = 4

[tokenizer]
vocabulary = 4_000

[training]
keep = "last"
accelerator = "cpu"
"""
# Of one process: its threads, and whether it is pinned to a core. The first is what others are compared with.
WAYS = {
    "one process on one core": (1, 1, True),
    "one process of two threads": (1, 2, False),
    "two processes": (2, 1, False),
}


def run(output: Path, way: tuple[int, int, bool], preset: str, batch_tokens: int, steps: int) -> None:
    """Train for some steps.

    Raises:
        ClickException: it failed.
    """
    devices, threads, one_core = way
    values = {
        "model.preset": preset, "training.batch_tokens": batch_tokens, "training.accumulate": 2 // devices,
        "training.max_steps": steps, "training.validate_every": steps, "training.devices": f'"{devices}"',
        "training.strategy": "auto" if devices == 1 else "ddp",
    }  # fmt: skip
    recipe = output.parent / "recipe.toml"
    recipe.write_text(RECIPE)
    sets = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    line = [sys.executable, str(SCRIPT), "--recipe", str(recipe), "-o", str(output), *sets]
    first = min(os.sched_getaffinity(0))
    done = subprocess.run(
        line, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, capture_output=True, text=True,
        preexec_fn=(lambda: os.sched_setaffinity(0, {first})) if one_core else None,
    )  # fmt: skip
    if done.returncode:
        raise click.ClickException(f"{line!r} failed: {done.stderr}")


def seconds_a_step(output: Path) -> npt.NDArray[np.float64]:
    """Means between the entries of a run's log, without the first two, in which caches are cold."""
    log = EventAccumulator(str(Path(f"{output}.run", "logs", "tensorboard")))
    log.Reload()
    entries = log.Scalars("training/loss")
    times = np.diff([entry.wall_time for entry in entries])
    return np.array(times / np.diff([entry.step for entry in entries]))[1:]


@click.command()
@click.option("--preset", default="small", show_default=True)
@click.option("--batch-tokens", default=1_024, show_default=True, help="Tokens per batch; a step has two batches.")
@click.option("--steps", default=60, show_default=True)
@click.option("--rounds", default=1, show_default=True)
def main(preset: str, batch_tokens: int, steps: int, rounds: int) -> None:
    """Print the tokens a second of each way, and how many times the first it is."""
    seconds: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for name, way in WAYS.items():
                output = Path(folder, f"{number}-{len(name)}")
                run(output, way, preset, batch_tokens, steps)
                seconds[name].append(seconds_a_step(output))
    medians = {name: float(np.median(np.concatenate(each))) for name, each in seconds.items()}
    for name, median in medians.items():
        rate = 2 * batch_tokens / median
        times = medians["one process on one core"] / median
        click.echo(
            f"{name}: {rate:,.0f} tokens/s, padding included; {median:.2f} s a step; {times:.2f} times the first"
        )


if __name__ == "__main__":
    main()
