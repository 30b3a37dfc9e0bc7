"""bench.json, field by field. `txport.benchmarks.report.report` writes and reads it; unknown fields are refused.

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
    """The first GPU, as its driver describes it."""

    name: str
    driver: str
    memory_bytes: int


@dataclass(frozen=True)
class Bandwidth:
    """Speed of reading an array of `bytes`, the best of some passes over it."""

    bytes: int
    bytes_per_second: float


@dataclass(frozen=True)
class Peak:
    """Speed of multiplying large matrices by `library` in `type`, best of some; operations are 2 m n k."""

    library: str
    type: str
    operations_per_second: float


@dataclass(frozen=True)
class Machine:
    """The machine of a run.

    Attributes:
        processor: as the system names it.
        cores: that this process may use.
        memory_bytes: of the machine.
        system: kernel and architecture.
        python: version.
        versions: of the libraries that are installed, by name.
        gpu: null without one.
        power_mode: of a Jetson, according to `nvpmodel -q`.
        load_average: of the minute before the run; above 0 something else was running too.
        bandwidth: of arrays of several sizes, smallest first.
        peaks: of matrix products.
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
    """Percentiles of some calls, by nearest rank. p99 is null for fewer than 100."""

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
        name: in the tables; unique in the file.
        kind: what runs the model.
        precision: of its weights.
        device: where it ran, "cpu" or "cuda"; as requested if it was skipped.
        threads: requested threads of each operator, 0 if not requested: the settings of a measurement then contain the
            best.
        engine: how the contestant describes itself, with versions; empty if it was skipped.
        bundle: null for a peer.
        load_ms: from the start of its process until it was ready.
        startup_ms: of a service with this bundle: from the start of a process until its first token, in fresh
            processes; only for bundles.
        engine_build_seconds: of the engines that tx-build made for this bundle.
        skipped: why there is no measurement, or why they end early.
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
        name: unique in the file.
        kind: "fixed": random ids, each sentence makes `target` tokens, eos is a token like any other. "text": real
            sentences, sorted and batched in the contestant's best way, ended by eos.
        batch: sentences that run together; null for text.
        source: tokens of each sentence, eos included; the mean for text.
        target: tokens to make; the most for text.
        sentences: of one call.
        beam: hypotheses of each sentence; 1 for greedy search.
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
    """End of the name of a workload with a beam."""
    if beam > 1:
        return f", beam {beam}"
    return ""


@dataclass(frozen=True)
class Roofline:
    """The least time of a call by the machine's measured bandwidth and peak; `ratio` is the median call over it.

    Attributes:
        bytes: weights, caches and cross-attention keys and values that a call must read.
        operations: multiplications and additions of a call.
        bound_ms: the sum, over the encoder and the steps, of the larger of both times.
        ratio: 1 is perfect.
        limit: which of both is the larger for most of the time.
    """

    bytes: float
    operations: float
    bound_ms: float
    ratio: float
    limit: Literal["bandwidth", "compute"]


@dataclass(frozen=True)
class Agreement:
    """Number of sentences of a call that have exactly the ids of the reference."""

    identical: int
    sentences: int


@dataclass(frozen=True)
class Ratio:
    """Time of this contestant over that of the first one, round by round: above 1 the first one is faster."""

    p10: float
    p50: float
    p90: float
    rounds: int


@dataclass(frozen=True)
class Measurement:
    """One contestant on one workload.

    Attributes:
        contestant, workload: by name.
        settings: the fastest settings that it tried (threads, batch size ...).
        calls: that were timed.
        warm_up_calls: before them, until three in a row took the same time within 5%.
        tokens: of one call.
        steps: of the longest row; null for text.
        call_ms: a whole call, encoder and loop.
        encoder_ms, first_token_ms: null where a contestant has no such part.
        ms_per_token: `call_ms` over `steps`: one token of every row; over `tokens` for text.
        tokens_per_second, sentences_per_second: of all calls together.
        peak_resident_bytes: of its process during these calls.
        gpu_memory_bytes: of its process after them.
        roofline: null if the machine was not probed for it.
        agreement: with the ids of the reference; null if this is the reference.
        ratio: null for the first contestant.
        rounds_ms: the median call of each round, in chronological order.
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
    """Fields that every report begins with; `txport.benchmarks.report.report.header` makes them.

    Attributes:
        format, format_version: of the file; any other is refused.
        created: UTC, ISO 8601.
        command: the arguments of the command.
        complete: false if the run was interrupted: the file holds what was measured until then.
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
        notes: what was timed and what was not, in sentences.
        reference: the contestant whose ids the others are compared with.
    """

    notes: tuple[str, ...]
    reference: str | None = None
    contestants: tuple[Contestant, ...] = ()
    workloads: tuple[Workload, ...] = ()
    measurements: tuple[Measurement, ...] = ()
