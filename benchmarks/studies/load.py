"""Response time by load in an open loop: txport's queue compared with CTranslate2's asynchronous translator.

`python -m txport.benchmarks.studies.load CT2_MODEL --pair BUNDLE float32 --pair INT8_BUNDLE int8 -o load.svg`

Requests of one sentence each arrive at random times (a Poisson process), also while earlier ones are unanswered, so a
slower system has more waiting requests. Both systems get the same sentences at the same times, in turns within one
process. CTranslate2 runs in two variants, on N cores: N batches of one thread (Nx1), and one batch of N threads (1xN).
At each load, the ratio uses the variant with the lower p99. On a busy machine, exclude 1xN by --settings, since its
threads wait for each other and take seconds for a sentence. CTranslate2 does not batch requests of several callers, so
max_batch_size has no effect. Loads are shares of the maximum load of CTranslate2, its throughput for many waiting
sentences, which is measured first.
Timed: from the planned arrival of a request to its answer. Not timed: loading, tokenization, a warm-up.
Sources are random ids with 4 to 60 tokens, distributed like sentences. Each answer must be as long as its source:
CTranslate2 is forced to this length, whereas txport only has a maximum length. The model must therefore never generate
eos, as is usual with random weights. The numbers of generated tokens are checked.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import ctranslate2
import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from txport.benchmarks.contestants.ctranslate2 import token
from txport.benchmarks.report.plots import COLOURS, style
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.native import NativeEngine
from txport.runtime.files import new_file
from txport.runtime.search.queue import Queue
from txport.runtime.search.requests import Request
from txport.runtime.system import cores

Seconds = npt.NDArray[np.float64]
# A function that submits a request, and calls its second argument with the number of tokens of the answer.
Submit = Callable[[Request, Callable[[int], None]], None]
OURS = "txport, submit"
_LOAD_SENTENCES = 48  # number of sentences for the measurement of the maximum load


def requests_of(manifest: Manifest, count: int) -> list[Request]:
    """Return random sentences, the same in every run. The maximum length of an answer is that of its source."""
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(np.log(22), 0.5, count).astype(int), 4, 60)
    vocabulary = manifest.model.source_vocabulary
    eos = manifest.tokens.eos
    return [Request([*draw.integers(4, vocabulary, n - 1).tolist(), eos], int(n)) for n in lengths]


@dataclass
class System:
    """A system that answers requests: an engine with one of its settings."""

    name: str
    submit: Submit


def txport_system(bundle: Path, threads: int) -> System:
    """Return txport's queue with the fused engine."""
    queue = Queue(NativeEngine(bundle, Manifest.load(bundle), threads), max_waiting=1 << 20)

    def submit(request: Request, answered: Callable[[int], None]) -> None:
        queue.submit(request).add_done_callback(lambda done: answered(len(done.result().ids)))

    return System(OURS, submit)


def ctranslate2_systems(model: Path, compute_type: str, unused_end: int, settings: str) -> list[System]:
    """Return CTranslate2's asynchronous translator, with each of the settings.

    Args:
        model: directory of the CTranslate2 model.
        compute_type: of CTranslate2.
        unused_end: an id that the model never generates. As end token, it does not end an answer early.
        settings: inter_threads x intra_threads of each translator, separated by commas.
    """
    waiters = ThreadPoolExecutor(512)  # CTranslate2's results have no callbacks, so a thread waits for each

    def system(inter: int, intra: int) -> System:
        translator: Any = ctranslate2.Translator(
            str(model), device="cpu", compute_type=compute_type, inter_threads=inter, intra_threads=intra
        )

        def submit(request: Request, answered: Callable[[int], None]) -> None:
            (pending,) = translator.translate_batch(
                [[token(each) for each in request.source_ids]],
                asynchronous=True,
                beam_size=1,
                max_decoding_length=request.max_length,
                max_input_length=0,
                min_decoding_length=request.max_length,
                end_token=[token(unused_end)],
            )
            waiters.submit(lambda: answered(len(pending.result().hypotheses[0])))

        return System(f"CTranslate2, {inter} x {intra} threads", submit)

    return [system(*map(int, setting.split("x"))) for setting in settings.split(",")]


def answer_times(system: System, requests: list[Request], arrivals: Seconds) -> tuple[Seconds, int]:
    """Return the seconds from each arrival to its answer, and the number of tokens of all answers."""
    ends: list[Future[tuple[float, int]]] = [Future() for _ in requests]
    start = time.perf_counter() + 0.05
    for request, arrival, end in zip(requests, arrivals, ends, strict=True):
        time.sleep(max(0.0, start + arrival - time.perf_counter()))
        system.submit(request, lambda count, end=end: end.set_result((time.perf_counter(), count)))  # type: ignore[misc]
    results = [end.result(120) for end in ends]
    return np.array([time_of_end - start for time_of_end, _ in results]) - arrivals, sum(count for _, count in results)


def highest_load(system: System, requests: list[Request]) -> float:
    """Return the throughput in sentences per second for many requests that wait at the same time."""
    times, _ = answer_times(system, requests, np.zeros(len(requests)))
    return len(requests) / float(times.max())


@dataclass
class Row:
    """Response times of one system at one load."""

    system: str
    load: float
    p50: float
    p99: float


def compare(
    systems: list[System], requests: list[Request], shares: list[float], seconds: float, turns: int
) -> list[Row]:
    """Measure each system at each load, in turns."""
    highest = {system.name: highest_load(system, requests[:_LOAD_SENTENCES]) for system in systems}
    for name, load in highest.items():
        click.echo(f"  {name:32} at most {load:6.1f} sentences a second")
    best_load = max(load for name, load in highest.items() if name != OURS)
    draw = np.random.default_rng(1)
    times: dict[tuple[str, float], list[Seconds]] = {}
    for _ in range(turns):
        for share in shares:
            count = max(1, int(share * best_load * seconds))
            arrivals = np.sort(draw.uniform(0, seconds, count))  # a Poisson process with a given number of arrivals
            sample = [requests[index] for index in draw.integers(0, len(requests), count)]
            token_counts = set()
            for system in systems:
                latencies, tokens = answer_times(system, sample, arrivals)
                times.setdefault((system.name, share * best_load), []).append(latencies)
                token_counts.add(tokens)
            assert max(token_counts) <= 1.02 * min(token_counts), "the systems made answers of different lengths"
    rows = []
    for (name, load), parts in times.items():
        p50, p99 = np.quantile(np.concatenate(parts), [0.5, 0.99])
        rows.append(Row(name, load, float(p50), float(p99)))
    return rows


def report(rows: list[Row], shares: list[float]) -> None:
    """Print milliseconds at each load, and the ratio of txport's p99 to the lowest p99 of CTranslate2."""
    loads = sorted({row.load for row in rows})
    for share, load in zip(shares, loads, strict=True):
        rows_at_load = [row for row in rows if row.load == load]
        for row in rows_at_load:
            click.echo(
                f"  {share:4.0%}, {load:6.1f}/s  {row.system:32} p50 {row.p50 * 1e3:7.0f}  p99 {row.p99 * 1e3:7.0f} ms"
            )
        (ours,) = (row for row in rows_at_load if row.system == OURS)
        theirs = min(row.p99 for row in rows_at_load if row.system != OURS)
        click.echo(f"  {share:4.0%}  p99 of txport / of CTranslate2 {ours.p99 / theirs:.2f}")


def draw_plot(model: str, rows_by_type: dict[str, list[Row]], output: Path) -> None:
    """Write plots of p50 and p99 by load, one for each precision of a model."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, (compute_type, rows) in zip(
        np.atleast_1d(figure.subplots(1, len(rows_by_type))), rows_by_type.items(), strict=True
    ):
        style(axes)
        for colour, name in zip(COLOURS, dict.fromkeys(row.system for row in rows), strict=False):
            rows_of_system = sorted((row for row in rows if row.system == name), key=lambda row: row.load)
            loads = [row.load for row in rows_of_system]
            axes.plot(
                loads, [row.p99 * 1e3 for row in rows_of_system], "-o", color=colour, label=f"{name}, p99", markersize=4
            )
            axes.plot(loads, [row.p50 * 1e3 for row in rows_of_system], "--", color=colour, label="p50", linewidth=1)
        axes.set_yscale("log")
        axes.set_title(f"{model}, {compute_type}", fontsize=10, loc="left")
        axes.set_xlabel("sentences a second (Poisson arrivals)")
        axes.set_ylabel("ms to the answer")
        axes.legend(fontsize=7, frameon=False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "txport"}), new_file(output) as file:
        figure.savefig(file, format="svg", metadata={"Date": None})


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--pair",
    "pairs",
    type=(click.Path(path_type=Path), str),
    multiple=True,
    required=True,
    help="Bundle, and the compute type of CTranslate2 to compare it with. Repeatable.",
)
@click.option(
    "--shares", default="0.3,0.5,0.7,0.9", show_default=True, help="Loads, as fractions of CTranslate2's maximum."
)
@click.option("--seconds", default=5.0, show_default=True, help="Seconds per system, load and turn.")
@click.option("--turns", default=2, show_default=True, help="Number of measurements of each system and load.")
@click.option(
    "--settings",
    help="Threads of CTranslate2, as INTERxINTRA, separated by commas. [default: Nx1,1xN for N cores]",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="SVG file for the plot.")
def main(
    model: Path,
    pairs: list[tuple[Path, str]],
    shares: str,
    seconds: float,
    turns: int,
    settings: str | None,
    output: Path | None,
) -> None:
    """Compare bundles with the CTranslate2 MODEL of the same weights. Each bundle is compared in one compute type."""
    rows_by_type = {}
    default = ",".join(dict.fromkeys((f"{cores()}x1", f"1x{cores()}")))
    for bundle, compute_type in pairs:
        manifest = Manifest.load(bundle)
        systems = [
            txport_system(bundle, cores()),
            *ctranslate2_systems(model, compute_type, manifest.tokens.pad, settings or default),
        ]
        requests = requests_of(manifest, 256)
        click.echo(f"{bundle.name} and CTranslate2 {ctranslate2.__version__} {compute_type}, {cores()} cores")
        for system in systems:
            highest_load(system, requests[:4])  # a warm-up
        fractions = [float(share) for share in shares.split(",")]
        rows_by_type[compute_type] = compare(systems, requests, fractions, seconds, turns)
        report(rows_by_type[compute_type], fractions)
    if output is not None:
        draw_plot(model.name, rows_by_type, output)


if __name__ == "__main__":
    main()
