"""Comparison of all numbers of a bundle's weights with the checkpoint, by the bundle's table of parameters.

Comparing output is not enough: an error in the row of a rare word changes no output for most sentences.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from txport.exporter.graphs.int8 import quantised
from txport.exporter.graphs.parameters import Array, Float32, model_parameters
from txport.exporter.verification.report import WeightsReport
from txport.models.transformer import Transformer
from txport.runtime.bundle.archive import File, Files, files_of
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.schema import Parameter, Parameters
from txport.runtime.errors import CheckFailed

# Maximum error of a number in int8, in steps: half a step, and the rounding of the division by the scale.
_HALF_STEP = 0.501
# Number of values that are compared at once, since an embedding may be larger than all other memory of verification.
_BLOCK = 1 << 20
# Maximum number of different tensors that count as errors. More mean that the checkpoint was changed.
MAX_NAMED = 3


def compare_weights(model: Transformer, parameters: Parameters, file: File, longest: int) -> WeightsReport:
    """Compare every tensor of a bundle with the checkpoint's.

    Args:
        model: of the checkpoint, float32.
        parameters: table of the bundle.
        file: weights file of the bundle.
        longest: number of exported positions.
    """
    data = np.memmap(file, np.uint8, "r") if isinstance(file, Path) else np.frombuffer(file.view(), np.uint8)
    expected = dict(model_parameters(model, longest))
    failures: list[str] = []
    for parameter in parameters.tensors:
        failures += _differences(parameter, expected[parameter.name], data)
    numbers = sum(expected[parameter.name].size for parameter in parameters.tensors)
    return WeightsReport(len(parameters.tensors), numbers, failures)


def check_same_state(model: Transformer, bundle: Files, manifest: Manifest, checkpoint: Path) -> None:
    """Refuse a bundle of another state of the checkpoint, for example before more training: all results would differ.

    Args:
        model: of the checkpoint, float32.
        bundle: the bundle.
        manifest: of the bundle. Without a table of parameters, or with other sizes, nothing is checked.
        checkpoint: path of the checkpoint, for messages.

    Raises:
        CheckFailed: more tensors than `MAX_NAMED` differ.
    """
    parameters = manifest.parameters
    longest = max(manifest.limits.source, manifest.limits.target)
    if parameters is None:
        return
    shapes = {name: array.shape for name, array in model_parameters(model, longest)}
    if any(shapes.get(parameter.name) != tuple(parameter.shape) for parameter in parameters.tensors):
        return
    report = compare_weights(model, parameters, files_of(bundle) / WEIGHTS, longest)
    if (count := len(report.failures)) > MAX_NAMED:
        names = [failure.partition(" weights of ")[2].partition(" ")[0] for failure in report.failures[:MAX_NAMED]]
        raise CheckFailed(
            f"{bundle} has other weights than {checkpoint} ({count} of {report.tensors} tensors differ: "
            f"{', '.join(names)} and {count - MAX_NAMED} more): it was exported from another state, export it again"
        )


def _differences(parameter: Parameter, expected: Float32, data: Array) -> Iterator[str]:
    """Yield a message if a tensor differs from the checkpoint's."""
    stored = _Stored(parameter, data)
    largest = float(np.abs(expected).max(initial=0))
    block = max(1, _BLOCK * len(expected) // max(1, expected.size))
    count = 0
    first = ""
    for row in range(0, len(expected), block):
        expected_rows = expected[row : row + block]
        stored_rows = stored.rows(row, row + block)
        is_wrong = ~(np.abs(stored_rows - expected_rows) <= _tolerances(parameter, expected_rows, largest))
        if is_wrong.any() and count == 0:
            position = tuple(int(index) for index in np.argwhere(is_wrong)[0])
            place = [row + position[0], *position[1:]]
            first = f"{stored_rows[position]:.6g} instead of {expected_rows[position]:.6g}, at {place}"
        count += int(is_wrong.sum())
    if count > 0:
        weights = f"{count:,} of {expected.size:,} weights of {parameter.name}"
        yield f"{weights} are not the checkpoint's: the first is {first}"


class _Stored:
    """Tensor in the weights file."""

    def __init__(self, parameter: Parameter, data: Array) -> None:
        dtype = np.dtype(parameter.dtype)
        strides = [stride * dtype.itemsize for stride in parameter.strides]
        self._values: Array = np.ndarray(parameter.shape, dtype, data, parameter.offset, strides)
        self._scales: Array | None = None
        if parameter.scales is not None:
            self._scales = np.ndarray((parameter.shape[0], 1), np.float32, data, parameter.scales)

    def rows(self, start: int, end: int) -> Float32:
        """Return some rows as float32."""
        values: Float32 = self._values[start:end].astype(np.float32)
        if self._scales is None:
            return values
        return values * self._scales[start:end]


def _tolerances(parameter: Parameter, expected: Float32, largest: float) -> Array:
    """Return the maximum error of each number, by rounding to the tensor's dtype and by other implementations of sin.

    Args:
        parameter: the tensor.
        expected: some of its rows.
        largest: maximum magnitude in the whole tensor.
    """
    if parameter.dtype == "int8":
        _, steps = quantised(expected)
        return steps[:, None] * _HALF_STEP
    dtype = np.finfo(parameter.dtype)
    last_place = float(np.finfo(np.float32).eps) * largest
    relative: Array = np.abs(expected) * (dtype.eps / 2)
    return relative + (float(dtype.smallest_subnormal) / 2 + last_place)
