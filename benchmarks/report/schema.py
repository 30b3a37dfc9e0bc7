"""The fields of bench.json. `txport.benchmarks.report.report` writes and reads the file and refuses unknown fields.

Times are milliseconds unless a name contains another unit, sizes are bytes, and null means not measured.
"""

from dataclasses import dataclass
from typing import Literal

from txport.runtime.bundle.schema import MadeBy

BENCH_FORMAT = "tx-bench"
BENCH_FORMAT_VERSION = 3

Kind = Literal["bundle", "cpp", "pytorch", "compile", "huggingface", "ctranslate2", "optimum"]


@dataclass(frozen=True)
class GpuFacts:
    """The first GPU, described by its driver."""

    name: str
    driver: str
    memory_bytes: int


@dataclass(frozen=True)
class Bandwidth:
    """Speed of reading an array of `bytes`, the best of several passes."""

    bytes: int
    bytes_per_second: float


@dataclass(frozen=True)
class Peak:
    """Speed of a product of large matrices by `library` in `type`, the best of several; operations are 2 m n k."""

    library: str
    type: str
    operations_per_second: float


@dataclass(frozen=True)
class Machine:
    """The machine of a run.

    Attributes:
        processor: name of the processor.
        cores: number of cores that this process may use.
        memory_bytes: memory of the machine.
        system: kernel and architecture.
        python: version of Python.
        versions: versions of the installed libraries, by name.
        gpu: the GPU; null without one.
        power_mode: power mode of a Jetson, by `nvpmodel -q`.
        load_average: load of the minute before the run; above 0, other programs were running.
        bandwidth: bandwidth for arrays of several sizes, the smallest first.
        peaks: peaks of matrix products.
    """

    processor: str
    cores: int
    memory_bytes: int
    system: str
    python: str
    versions: dict[str, str]
    gpu: GpuFacts | None
    power_mode: str | None
    load_average: float
    bandwidth: tuple[Bandwidth, ...] = ()
    peaks: tuple[Peak, ...] = ()


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of the times of calls, by nearest rank. p99 is null for fewer than 100 calls."""

    p50: float
    p90: float
    p99: float | None


@dataclass(frozen=True)
class BundleFacts:
    """The name of a bundle's directory, the hash of its manifest, its precision and size."""

    name: str
    manifest_sha256: str
    precision: str
    weights_bytes: int
    verified: bool


@dataclass(frozen=True)
class Contestant:
    """One of the compared contestants.

    Attributes:
        name: name in the tables, unique in the file.
        kind: library or runtime of the contestant.
        precision: precision of its weights.
        device: its actual device, "cpu" or "cuda"; the requested device if it was skipped.
        threads: requested threads of each operator; 0 if not requested. The settings of a measurement then contain the
            fastest number.
        engine: description of the engine by the contestant, with versions; empty if it was skipped.
        bundle: the bundle; null for a peer.
        load_ms: time from the start of its process until it was ready.
        startup_ms: time of a service with this bundle from the start of a fresh process until its first token; only for
            bundles.
        engine_build_seconds: time in which tx-build built the engines of this bundle.
        skipped: reason why there are no measurements, or why they end early.
    """

    name: str
    kind: Kind
    precision: str
    device: str
    threads: int
    engine: str = ""
    bundle: BundleFacts | None = None
    load_ms: float | None = None
    startup_ms: Percentiles | None = None
    engine_build_seconds: float | None = None
    skipped: str | None = None


@dataclass(frozen=True)
class Workload:
    """Work of all contestants.

    Attributes:
        name: name, unique in the file.
        kind: "fixed": random ids; each sentence generates `target` tokens, and eos is an ordinary token. "text": real
            sentences that end with eos, sorted and batched in the best way of each contestant.
        batch: number of sentences of a batch; null for text.
        source: number of tokens of each sentence, eos included; the mean for text.
        target: number of tokens to generate; the maximum for text.
        sentences: number of sentences of one call.
        beam: number of hypotheses of each sentence; 1 for greedy search.
    """

    name: str
    kind: Literal["fixed", "text"]
    batch: int | None
    source: float
    target: int
    sentences: int
    beam: int = 1


def fixed_name(batch: int, source: int, target: int, beam: int = 1) -> str:
    """Return the name of a fixed workload, such as "8 x 32 -> 64, beam 4": sentences, source tokens, new tokens."""
    return f"{batch} x {source} -> {target}{of_beam(beam)}"


def of_beam(beam: int) -> str:
    """Return the suffix of the name of a workload with beams, or an empty string."""
    if beam > 1:
        return f", beam {beam}"
    return ""


@dataclass(frozen=True)
class Roofline:
    """The minimum time of a call by the measured bandwidth and peak of the machine.

    Attributes:
        bytes: weights, caches and cross-attention keys and values that a call must read.
        operations: multiplications and additions of a call.
        bound_ms: the sum, over the encoder and the steps, of the larger of both times.
        ratio: median call divided by `bound_ms`; 1 is perfect.
        limit: the time that is larger for most of the bound: bandwidth or peak.
    """

    bytes: float
    operations: float
    bound_ms: float
    ratio: float
    limit: Literal["bandwidth", "compute"]


@dataclass(frozen=True)
class Agreement:
    """Number of sentences of a call with exactly the ids of the reference."""

    identical: int
    sentences: int


@dataclass(frozen=True)
class Ratio:
    """Time of this contestant divided by that of the first one, by rounds. Above 1, the first one is faster."""

    p10: float
    p50: float
    p90: float
    rounds: int


@dataclass(frozen=True)
class Measurement:
    """One contestant on one workload.

    Attributes:
        contestant, workload: names.
        settings: the fastest settings (threads, batch size ...).
        calls: number of timed calls.
        warm_up_calls: number of calls before them, until three in a row took the same time within 5%.
        tokens: tokens of one call.
        steps: steps of the longest row; null for text.
        call_ms: time of a whole call, encoder and loop.
        encoder_ms, first_token_ms: times of parts of a call; null if the contestant cannot measure the part.
        ms_per_token: `call_ms` divided by `steps` (one token of every row), or by `tokens` for text.
        tokens_per_second, sentences_per_second: throughput of all calls together.
        peak_resident_bytes: peak of memory of its process during these calls.
        gpu_memory_bytes: GPU memory of its process after them.
        roofline: the roofline; null if the machine was not probed in this precision.
        agreement: agreement with the ids of the reference; null for the reference itself.
        ratio: ratio to the first contestant; null for the first contestant.
        rounds_ms: median call of each round, in chronological order.
    """

    contestant: str
    workload: str
    settings: dict[str, str]
    calls: int
    warm_up_calls: int
    tokens: int
    steps: int | None
    call_ms: Percentiles
    encoder_ms: Percentiles | None
    first_token_ms: Percentiles | None
    ms_per_token: Percentiles
    tokens_per_second: float
    sentences_per_second: float
    peak_resident_bytes: int | None
    gpu_memory_bytes: int | None
    roofline: Roofline | None
    agreement: Agreement | None
    ratio: Ratio | None
    rounds_ms: tuple[float, ...]


@dataclass(frozen=True)
class ReportHeader:
    """The first fields of every report; see `txport.benchmarks.report.report.header`.

    Attributes:
        format, format_version: format of the file. Other formats and versions are refused.
        created: time, UTC, ISO 8601.
        command: arguments of the command.
        complete: false if the run was interrupted; the file then contains the measurements until that time.
    """

    format: str
    format_version: int
    made_by: MadeBy
    created: str
    command: tuple[str, ...]
    complete: bool
    machine: Machine


@dataclass(frozen=True)
class BenchReport(ReportHeader):
    """The whole file.

    Attributes:
        notes: sentences about the timed and the untimed parts.
        reference: the contestant whose ids are compared with those of the others.
    """

    notes: tuple[str, ...]
    reference: str | None = None
    contestants: tuple[Contestant, ...] = ()
    workloads: tuple[Workload, ...] = ()
    measurements: tuple[Measurement, ...] = ()
