"""Corpora, measured: full batches, two processes, processes that are killed, and Ray beside plain shards.

`python -m txport.benchmarks.studies.machines.corpora windows BUNDLE TEXT`
`python -m txport.benchmarks.studies.machines.corpora processes BUNDLE TEXT`
`python -m txport.benchmarks.studies.machines.corpora kills BUNDLE TEXT --lines 1000000 --kills 20`
`python -m txport.benchmarks.studies.machines.corpora ray BUNDLE TEXT`

The lines of TEXT are taken again and again, each with a number before it so that no two are the same. What is compared
takes turns, round by round.
"""

import functools
import hashlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from txport.benchmarks.studies.turns import in_turns
from txport.runtime.console.flags import flags
from txport.runtime.corpus.batches import translate_dataset
from txport.runtime.corpus.formats import packed
from txport.runtime.corpus.lines import json_line
from txport.runtime.corpus.loop import Corpus, Layout
from txport.runtime.corpus.translation import Translate
from txport.runtime.options import Options
from txport.runtime.translator import Translator

COMMAND = "import sys; from txport.runtime.entry import translate_corpus; translate_corpus()"
Work = Callable[[Sequence[int]], None]  # in a process on each of some cores
# Programs that measure how much two cores slow each other down.
LOOPS = {
    "additions": "n = 0\nwhile n < 40_000_000: n += 1",
    "copies": "data, copy = bytes(1 << 26), memoryview(bytearray(1 << 26))\nfor _ in range(300): copy[:] = data",
}
# The arguments of all of these.
with_arguments = flags(
    click.argument("bundle", type=click.Path(path_type=Path)),
    click.argument("text", type=click.Path(path_type=Path)),
    click.option("--lines", default=20_000, show_default=True, help="Number of lines of the corpus."),
    click.option("--max-length", default=None, type=int, help="Maximum number of target tokens."),
)


def corpus(text: Path, lines: int) -> Iterator[dict[str, Any]]:
    """Yield rows, no two the same."""
    given = [line for line in text.read_text(encoding="utf-8").splitlines() if line.strip()]
    numbered = enumerate(itertools.islice(itertools.cycle(given), lines))
    return ({"id": number, "text": f"{number} {line}"} for number, line in numbered)


def write(path: Path, text: Path, lines: int) -> Path:
    """Return the corpus as zst of JSONL."""
    with path.open("wb") as file, packed(file, "zst") as plain:
        for row in corpus(text, lines):
            plain.write(json_line(row))
    return path


def process(core: int | None, *arguments: object) -> "subprocess.Popen[bytes]":
    """Return the command, on one core."""
    return pinned(core, sys.executable, "-c", COMMAND, *arguments, "--threads", 1, "--workers", 1)


def pinned(core: int | None, *line: object) -> "subprocess.Popen[bytes]":
    """Return a process, on one core with all threads that it starts."""
    pin = None if core is None else (lambda: os.sched_setaffinity(0, {core}))
    return subprocess.Popen(list(map(str, line)), preexec_fn=pin, stdout=subprocess.DEVNULL)


def finish(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Wait for all.

    Raises:
        ClickException: one failed.
    """
    for each in processes:
        if each.wait():
            raise click.ClickException(f"{each.args!r} failed")


def in_python(code: str) -> Work:
    """Return a program in as many processes as there are cores."""

    def work(cores: Sequence[int]) -> None:
        finish([pinned(core, sys.executable, "-c", code) for core in cores])

    return work


def cost(call: Callable[[], object]) -> tuple[float, float]:
    """Return seconds by the clock, and of processors, that a call took whose work is that of processes it waits for."""
    before = os.times()
    call()
    after = os.times()
    processors = after.children_user + after.children_system - before.children_user - before.children_system
    return after.elapsed - before.elapsed, processors


def limit(max_length: int | None) -> list[str]:
    if max_length is None:
        return []
    return ["--max-length", str(max_length)]


def say(name: str, ratios: npt.NDArray[np.float64], bar: str = "") -> None:
    """Print the quantiles of a ratio."""
    low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9])
    click.echo(f"{name}: {middle:.3f} (p10 {low:.3f}, p90 {high:.3f}, {len(ratios)} rounds)", nl=False)
    click.echo(bar and f"; the bar is {bar}")


@click.group()
def main() -> None:
    """Measure work on corpora."""


@main.command()
@with_arguments
@click.option("--rounds", default=5, show_default=True)
@click.option("--window-rows", default=8_192, show_default=True)
def windows(bundle: Path, text: Path, lines: int, max_length: int | None, rounds: int, window_rows: int) -> None:
    """Compare the tokens a second of a corpus, files included, with those of `translate` on all its sorted texts."""
    rows = list(corpus(text, lines))
    options = Options(max_length=max_length)
    tokens: list[list[int]] = [[], []]
    with Translator(bundle, threads=1) as translator, tempfile.TemporaryDirectory() as folder:
        files = [str(write(Path(folder, "a.jsonl.zst"), text, lines))]
        texts = sorted((row["text"] for row in rows), key=len)
        outputs = itertools.count()

        def sorted_texts() -> None:
            results = translator.translate(texts, options)
            tokens[0].append(sum(len(result.ids) for result in results))

        def in_parts() -> None:
            task = Translate(bundle, lambda: translator, options)
            layout = Layout(window_rows=window_rows)
            tokens[1].append(Corpus(files, f"{folder}/out{next(outputs)}", layout, task).run().tokens)

        times = in_turns([sorted_texts, in_parts], rounds, 1)
        name = translator.engine.name
    rates = 1e3 * np.array(tokens).T[1:] / times
    click.echo(f"{name}, {lines:,} lines: sorted {np.median(rates[:, 0]):,.0f} tokens/s, in parts ", nl=False)
    click.echo(f"{np.median(rates[:, 1]):,.0f}")
    say("in parts / sorted", rates[:, 1] / rates[:, 0], "0.95 or more")


@main.command()
@with_arguments
@click.option("--rounds", default=5, show_default=True)
def processes(bundle: Path, text: Path, lines: int, max_length: int | None, rounds: int) -> None:
    """Compare two processes, each on a core of its own, with twice the rate of one; each has as many lines.

    What two cores give is shown by two loops beside it: of additions, which touch no memory, and of copies, which touch
    nothing else. By processor time a process is slower only by what its core shares with the other one: caches, memory,
    or the core itself, where both are threads of one. By the clock also by what other processes take.
    """
    with tempfile.TemporaryDirectory() as folder:
        translations = [translating(Path(folder), bundle, text, count, limit(max_length)) for count in (lines, 1)]
        costs = one_and_two([*translations, *map(in_python, LOOPS.values())], rounds)
    rates = lines / np.median(costs[:, 0, :, 0], axis=0)
    click.echo(f"{rates[0]:,.0f} lines/s by one process, {2 * rates[1]:,.0f} by two; ", nl=False)
    click.echo(f"{np.median(costs[:, 1, 0, 0]):.2f} s for a single line, start included")
    compared = {"two processes / twice one": costs[:, 0], "  without their starts": costs[:, 0] - costs[:, 1]}
    compared |= {f"  two loops of {name}": costs[:, 2 + number] for number, name in enumerate(LOOPS)}
    for name, each in compared.items():
        by_clock, by_processors = (each[:, 0] / each[:, 1]).T
        say(f"{name}, by the clock", by_clock, "" if "loops" in name else "0.9 or more")
        say(f"{name}, by processor time", by_processors)


def translating(folder: Path, bundle: Path, text: Path, lines: int, flags: Sequence[object]) -> Work:
    """Return a corpus for each core, so that each process has as many lines."""
    paths = [write(folder / f"{lines}-{cores}.jsonl.zst", text, lines * cores) for cores in (1, 2)]
    outputs = itertools.count()

    def work(cores: Sequence[int]) -> None:
        line = [bundle, paths[len(cores) - 1], "-o", folder / f"out{lines}-{next(outputs)}", *flags]
        line += ["--part-rows", max(1, lines // 8)]
        shares = [["--shard", f"{number}/{len(cores)}"] for number in range(1, len(cores) + 1)]
        finish([process(core, *line, *share) for core, share in zip(cores, shares, strict=True)])

    return work


def one_and_two(works: Sequence[Work], rounds: int) -> npt.NDArray[np.float64]:
    """Seconds of one process, the mean of two cores, and of each of two: `[rounds, works, 2, clock and processors]`."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if not cores[1:]:
        raise click.ClickException("two processes need two cores, and this one may use one only")
    chosen = [cores[:1], cores[1:], cores]
    measured = [[[cost(functools.partial(work, each)) for each in chosen] for work in works] for _ in range(1 + rounds)]
    seconds = np.array(measured)[1:]
    return np.stack([seconds[:, :, :2].mean(axis=2), seconds[:, :, 2] / [1, 2]], axis=2)


@main.command()
@with_arguments
@click.option("--kills", default=20, show_default=True, help="Number of processes to kill at random moments.")
@click.option("--shards", default=2, show_default=True)
@click.option("--part-rows", default=10_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def kills(
    bundle: Path, text: Path, lines: int, max_length: int | None, kills: int, shards: int, part_rows: int, seed: int
) -> None:
    """Kill processes at random moments, start them again, and compare all bytes with those of an undisturbed run."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "corpus.jsonl.zst"), text, lines)
        fixed = [bundle, path, "--part-rows", part_rows, *limit(max_length)]
        start = time.monotonic()
        finish([process(None, *fixed, "-o", f"{folder}/calm", "--shard", f"{i}/{shards}") for i in shares_of(shards)])
        calm = time.monotonic() - start
        click.echo(f"undisturbed: {calm:.0f} s")
        parts = len(list(Path(folder, "calm", "_parts").iterdir()))
        moments = sorted(draw.uniform(0, 0.95 * parts) for _ in range(kills))
        killed = disturb(fixed, f"{folder}/disturbed", shards, moments, draw)
        digests = [digest_of(Path(folder, name)) for name in ("calm", "disturbed")]
        click.echo(f"{killed} processes killed; {time.monotonic() - start - calm:.0f} s")
        if digests[0] != digests[1]:
            raise click.ClickException("the files differ")
        click.echo(f"{len(digests[0])} files, all the same bytes")


def shares_of(shards: int) -> range:
    return range(1, shards + 1)


def disturb(fixed: Sequence[object], output: str, shards: int, moments: list[float], draw: random.Random) -> int:
    """Run all shards, kill a process at each of `moments`, and return the number of killed processes.

    A moment is a number of finished parts. Its fraction is a time after that part, by the pace so far.
    """

    def begin(shard: int) -> "subprocess.Popen[bytes]":
        return process(None, *fixed, "-o", output, "--shard", f"{shard}/{shards}", "--resume")

    running = {shard: begin(shard) for shard in shares_of(shards)}
    killed = 0
    count = 0
    since = time.monotonic()
    pace = 0.0  # seconds a part
    while running:
        time.sleep(0.01)
        if Path(output, "_parts").exists():
            made = len(list(Path(output, "_parts").glob("[!.]*")))
        else:
            made = 0
        if made > count:
            now = time.monotonic()
            pace = (now - since) / (made - count)
            count = made
            since = now
        if moments and (moments[0] < made or count + (time.monotonic() - since) / (pace or 5.0) > moments[0]):
            alive = [each for each in running.values() if each.poll() is None]
            if alive:
                moments.pop(0)
                draw.choice(alive).kill()
        for shard, each in list(running.items()):
            if each.poll() == -signal.SIGKILL:
                killed += 1
                running[shard] = begin(shard)
            elif each.poll() is not None:
                finish([running.pop(shard)])
    return killed


def digest_of(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder, hidden ones too."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@main.command()
@with_arguments
@click.option("--rounds", default=3, show_default=True)
def ray(bundle: Path, text: Path, lines: int, max_length: int | None, rounds: int) -> None:
    """Compare two actors of Ray with two shards, from and to Parquet; the cluster runs before, all else is timed.

    The same number of files with one line each measures their start times: of processes, of actors, of Ray's plan.
    """
    import ray as ray_

    os.environ["RAY_DATA_PARQUET_FOOTER_NUM_ACTORS"] = "1"  # as runtime/corpus/README.md recommends for a small machine
    ray_.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    ray_.data.DataContext.get_current().enable_progress_bars = False
    with tempfile.TemporaryDirectory() as folder:
        size = max(1, lines // 16)
        outputs = itertools.count()
        options: dict[str, Any] = {} if max_length is None else {"max_length": max_length}

        def by_ray(files: list[str]) -> None:
            rows = translate_dataset(ray_.data.read_parquet(files), bundle, actors=2, block_rows=size, **options)
            rows.write_parquet(f"{folder}/out{next(outputs)}")

        def by_shards(files: list[str]) -> None:
            fixed = ["-o", f"{folder}/out{next(outputs)}", *limit(max_length)]
            finish([process(None, bundle, *files, *fixed, "--shard", f"{share}/2") for share in (1, 2)])

        files, starts = (parquet_files(Path(folder, str(rows)), text, rows) for rows in (size, 1))
        calls = [functools.partial(call, each) for each in (files, starts) for call in (by_shards, by_ray)]
        times = in_turns(calls, rounds, 1)
    ray_.shutdown()
    shards, by_actors = np.median(times, axis=0).reshape(2, 2).T / 1e3
    click.echo(f"{lines / shards[0]:,.0f} lines/s by shards, {lines / by_actors[0]:,.0f} by Ray; ", nl=False)
    click.echo(f"a line a file takes {shards[1]:.1f} s and {by_actors[1]:.1f} s")
    say("time of Ray / time of shards", times[:, 1] / times[:, 0])
    net = times[:, :2] - times[:, 2:]
    say("  without their starts", net[:, 1] / net[:, 0], "1.1 or less")


def parquet_files(folder: Path, text: Path, rows: int) -> list[str]:
    """Return the corpus in 16 files of `rows` rows each."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    table = pyarrow.Table.from_pylist(list(corpus(text, 16 * rows)))
    files = [str(folder / f"{number:02d}.parquet") for number in range(16)]
    for number, file in enumerate(files):
        pyarrow.parquet.write_table(table.slice(number * rows, rows), file)
    return files


if __name__ == "__main__":
    main()
