"""The least time that a call can take: bytes over bandwidth, operations over peak (Williams et al., 2009).

A decoder step reads every weight of the decoder once, however many rows it has, and each row's own cache and
cross-attention keys and values. Counted are weights of matrices, since the rest is small; embedding rows that are
looked up are not. b rows, s source tokens, t tokens made so far.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txport.benchmarks.report.schema import Bandwidth, Machine, Peak, Percentiles, Roofline
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.strict_json import decode, parse
from txport.runtime.errors import InputError

PROBE_SIZES = (1 << 20, 8 << 20, 64 << 20, 256 << 20, 1 << 30)
_BYTES = {"float32": 4, "float16": 2, "int8": 1, "bfloat16": 2, "int16": 2}


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that decide what it costs."""

    encoder_layers: int
    decoder_layers: int
    d_model: int
    ffn: int
    vocabulary: int

    @property
    def encoder_weights(self) -> int:
        """Of the encoder, and of the cross-attention keys and values, which are computed once with it."""
        layer = 4 * self.d_model**2 + 2 * self.d_model * self.ffn
        return self.encoder_layers * layer + self.decoder_layers * 2 * self.d_model**2

    @property
    def step_weights(self) -> int:
        """Of a decoder step: self-attention, the query and output of cross-attention, feed-forward, projection."""
        layer = 6 * self.d_model**2 + 2 * self.d_model * self.ffn
        return self.decoder_layers * layer + self.vocabulary * self.d_model


@dataclass(frozen=True)
class Cost:
    """Bytes that must be read and operations (a multiplication and an addition are two)."""

    bytes: float
    operations: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes + other.bytes, self.operations + other.operations)


def read_shape(bundle: Path, manifest: Manifest) -> Shape:
    """The shape of a bundle's model.

    Raises:
        InputError: its config.json is damaged.
    """
    sizes = manifest.model
    ffn = parse((bundle / "config.json").read_bytes(), str(bundle / "config.json")).get("ffn")
    if type(ffn) is not int:
        raise InputError(f"{bundle / 'config.json'} has no field ffn: export the bundle again")
    return Shape(sizes.encoder_layers, sizes.decoder_layers, sizes.d_model, ffn, sizes.target_vocabulary)


def encoder_cost(shape: Shape, rows: int, source: float, width: int) -> Cost:
    """The encoder on `rows` sentences of `source` tokens, weights of `width` bytes."""
    attention = 4 * shape.encoder_layers * rows * source**2 * shape.d_model
    operations = 2 * shape.encoder_weights * rows * source + attention
    return Cost(shape.encoder_weights * width, operations)


def step_cost(shape: Shape, rows: int, source: float, made: float, width: int, cache_width: int) -> Cost:
    """One decoder step of `rows` rows that have made `made` tokens; caches have elements of `cache_width` bytes."""
    seen = rows * (source + made + 1) * shape.d_model * shape.decoder_layers
    return Cost(
        shape.step_weights * width + 2 * seen * cache_width,
        2 * shape.step_weights * rows + 4 * seen,
    )


def bound(costs: Sequence[tuple[Cost, int]], machine: Machine, precision: str) -> tuple[float, float] | None:
    """Seconds that (cost, how often) take at least, by bandwidth and by peak; None if the machine was not probed.

    The bandwidth is that of an array as large as what one of the costs reads: what fits a cache comes from there.
    """
    peak = max((each.operations_per_second for each in machine.peaks if each.type == precision), default=None)
    if peak is None or not machine.bandwidth:
        return None
    by_bytes = sum(times * cost.bytes / _bandwidth(machine, cost.bytes) for cost, times in costs)
    by_operations = sum(times * cost.operations / peak for cost, times in costs)
    return by_bytes, by_operations


def _bandwidth(machine: Machine, size: float) -> float:
    """Of the smallest probed array that is at least this large, else of the largest."""
    larger = [each for each in machine.bandwidth if each.bytes >= size]
    return (larger[0] if larger else machine.bandwidth[-1]).bytes_per_second


def roofline(
    shape: Shape, machine: Machine, precision: str, rows: int, source: float, steps: int, call_ms: Percentiles
) -> Roofline | None:
    """Of a call: `rows` sentences of `source` tokens are encoded and make `steps` tokens each.

    None if the machine was not probed in this precision (float16 on a CPU is computed as float32).
    """
    width = _BYTES[precision]
    cache = 2 if precision in ("float16", "bfloat16") else 4
    encoder = encoder_cost(shape, rows, source, width)
    # The mean step: what grows with the tokens made grows linearly.
    step = step_cost(shape, rows, source, (steps - 1) / 2, width, cache)
    found = bound([(encoder, 1)], machine, precision), bound([(step, steps)], machine, precision)
    if found[0] is None or found[1] is None:
        return None
    least = max(found[0]) + max(found[1])
    by_bytes, by_operations = found[0][0] + found[1][0], found[0][1] + found[1][1]
    total = encoder + Cost(steps * step.bytes, steps * step.operations)
    return Roofline(
        bytes=total.bytes,
        operations=total.operations,
        bound_ms=1e3 * least,
        ratio=call_ms.p50 / (1e3 * least),
        limit="bandwidth" if by_bytes >= by_operations else "compute",
    )


@dataclass(frozen=True)
class Probed:
    """What `txport.benchmarks.machine.probe` prints."""

    bandwidth: tuple[Bandwidth, ...]
    peaks: tuple[Peak, ...]


def probe(device: str, threads: int, memory_bytes: int) -> Probed:
    """Measure bandwidth and peaks of "cpu", with as many threads as the contestants have, or "cuda"; some seconds."""
    sizes = [str(size) for size in PROBE_SIZES if 4 * size < memory_bytes]
    variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **{name: str(threads) for name in variables}}
    command = [
        sys.executable,
        "-m",
        "txport.benchmarks.machine.probe",
        *sizes,
        "--threads",
        str(threads),
        "--device",
        device,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300)
    if done.returncode:
        raise InputError(f"the machine could not be probed: {done.stderr.decode().strip().splitlines()[-1]}")
    return decode(Probed, parse(done.stdout, "probe"), "probe")
