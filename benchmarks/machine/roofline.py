"""The minimum time of a call: bytes divided by bandwidth, operations divided by peak (Williams et al., 2009).

A decoder step reads every weight of the decoder once for any number of rows, and the cache and the cross-attention keys
and values of each row. Only weights of matrices are counted, since other weights and embedding rows are small.
"""

from dataclasses import dataclass
from pathlib import Path

from txport.benchmarks.report.schema import Machine, Percentiles, Roofline
from txport.runtime.bundle.archive import files_of
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.strict_json import read
from txport.runtime.errors import InputError

_BYTES = {"float32": 4, "float16": 2, "int8": 1, "bfloat16": 2, "int16": 2}


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that determine its cost."""

    encoder_layers: int
    decoder_layers: int
    d_model: int
    ffn: int
    vocabulary: int

    @property
    def encoder_weights(self) -> int:
        """Number of weights of the encoder and of the cross-attention keys and values, which are computed with it."""
        layer = 4 * self.d_model**2 + 2 * self.d_model * self.ffn
        return self.encoder_layers * layer + self.decoder_layers * 2 * self.d_model**2

    @property
    def step_weights(self) -> int:
        """Number of weights of a step: self-attention, query and output of cross-attention, FFN, projection."""
        layer = 6 * self.d_model**2 + 2 * self.d_model * self.ffn
        return self.decoder_layers * layer + self.vocabulary * self.d_model


@dataclass(frozen=True)
class Cost:
    """Bytes that must be read, and operations (a multiplication and an addition are two operations)."""

    bytes: float
    operations: float


def read_shape(bundle: Path, manifest: Manifest) -> Shape:
    """Return the shape of a bundle's model.

    Raises:
        InputError: its config.json is damaged.
    """
    sizes = manifest.model
    ffn = read(files_of(bundle) / "config.json").get("ffn")
    if type(ffn) is not int:
        raise InputError(f"{bundle / 'config.json'} has no field ffn: export the bundle again")
    return Shape(sizes.encoder_layers, sizes.decoder_layers, sizes.d_model, ffn, sizes.target_vocabulary)


def encoder_cost(shape: Shape, rows: int, source: float, width: int) -> Cost:
    """Return the cost of the encoder for `rows` sentences of `source` tokens; a weight has `width` bytes."""
    attention = 4 * shape.encoder_layers * rows * source**2 * shape.d_model
    operations = 2 * shape.encoder_weights * rows * source + attention
    return Cost(shape.encoder_weights * width, operations)


def step_cost(shape: Shape, rows: int, source: float, tokens: float, width: int, cache_width: int) -> Cost:
    """Return the cost of a decoder step of `rows` rows with `tokens` tokens. Widths are bytes per element."""
    attended = rows * (source + tokens + 1) * shape.d_model * shape.decoder_layers
    # Keys and values are each read once, and each multiplied and added once.
    return Cost(shape.step_weights * width + 2 * attended * cache_width, 2 * shape.step_weights * rows + 4 * attended)


def roofline(
    shape: Shape,
    machine: Machine,
    precision: str,
    rows: int,
    source: float,
    steps: int,
    call_ms: Percentiles,
    beam: int = 1,
) -> Roofline | None:
    """Return the bound of a call that encodes `rows` sentences of `source` tokens and takes `steps` steps.

    Each sentence has `beam` rows. The result is None if the machine was not probed in this precision (a CPU computes
    float16 as float32).
    """
    peak = max((each.operations_per_second for each in machine.peaks if each.type == precision), default=None)
    if peak is None or not machine.bandwidth:
        return None
    width = _BYTES[precision]
    if precision in ("float16", "bfloat16"):
        cache = 2
    else:
        cache = 4
    encoder = encoder_cost(shape, rows, source, width)
    # The cost of a step grows linearly with the number of tokens, so the middle step has the mean cost.
    step = step_cost(shape, rows * beam, source, (steps - 1) / 2, width, cache)
    parts = ((encoder, 1), (step, steps))
    by_bytes = [count * cost.bytes / _bandwidth(machine, cost.bytes) for cost, count in parts]
    by_operations = [count * cost.operations / peak for cost, count in parts]
    # The maximum for each part, since the encoder may be limited by arithmetic and the steps by bandwidth.
    bound_ms = 1e3 * sum(map(max, by_bytes, by_operations))
    return Roofline(
        bytes=encoder.bytes + steps * step.bytes,
        operations=encoder.operations + steps * step.operations,
        bound_ms=bound_ms,
        ratio=call_ms.p50 / bound_ms,
        limit="bandwidth" if sum(by_bytes) >= sum(by_operations) else "compute",
    )


def _bandwidth(machine: Machine, size: float) -> float:
    """Return the bandwidth of the smallest probed array of at least this size, or of the largest array.

    The size matters because small arrays fit into a cache.
    """
    larger = [each for each in machine.bandwidth if each.bytes >= size]
    return [*larger, machine.bandwidth[-1]][0].bytes_per_second
