"""Table of parameters: the place of each tensor of the model in the weights file of the graphs, found by its values.

A graph contains a parameter unchanged, transposed, or packed with others into one matrix, and in float32, float16, or
int8 with scales. All of these are strided views, so an engine without graphs needs no second copy. Small tensors that
are inside graph files are appended to the weights file.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from torch import Tensor
from txport.exporter.graphs.int8 import quantised
from txport.exporter.graphs.tensors import query_scale
from txport.exporter.graphs.weights import ALIGNMENT, INLINE
from txport.models.positions import RelativePositions, rotations
from txport.models.transformer import Attention, Transformer
from txport.runtime.bundle.schema import Architecture, Parameter, Parameters, ParameterType

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
_DTYPES: dict[ir.DataType, ParameterType] = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.INT8: "int8",
}
# Maximum number of projections that a graph packs: query, key and value.
_PACKED = 3
_BLOCK = 1 << 20  # maximum number of values to read at once


def parameter_table(model: Transformer, graphs: Mapping[str, ir.Model], file: Path, longest: int) -> Parameters:
    """Find every parameter of a model in the weights file of its graphs.

    Args:
        model: the exported model.
        graphs: graphs by name, after `share_weights` has moved their weights into `file`.
        file: the weights file. Missing tensors are appended.
        longest: number of exported positions.
    """
    encoder = _Weights(file, [graphs["encoder"]])
    steps = _Weights(file, [graph for name, graph in graphs.items() if name.startswith("decoder_step.")])
    parameters: dict[str, Parameter] = {}
    with file.open("ab") as output:
        appended = _Added(output)
        for name, values in model_parameters(model, longest):
            # The encoder graph computes keys and values of cross-attention.
            in_encoder = name.startswith(("source", "encoder")) or "cross_attention.key" in name
            in_encoder = in_encoder or "cross_attention.value" in name
            parameters[name] = (encoder if in_encoder else steps).find(name, values, appended)
    config = model.config
    architecture = Architecture(
        config.norm,  # type: ignore[arg-type]
        config.activation,  # type: ignore[arg-type]
        model.target_embedding.scale,
        config.layer_norm_epsilon,
        config.norm_kind,  # type: ignore[arg-type]
    )
    return Parameters(architecture, tuple(_without_ties(parameters)))


def model_parameters(model: Transformer, longest: int) -> Iterator[tuple[str, Float32]]:
    """Yield every tensor with its name in the state dict, with the folded factors of graphs; tied ones under each name.

    Args:
        model: of a checkpoint.
        longest: number of exported positions.
    """
    scales = {
        f"{name}.query": query_scale(module) for name, module in model.named_modules() if isinstance(module, Attention)
    }
    tables = {
        f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, RelativePositions)
    }
    if model.config.positions == "rotary":
        stacks = [("decoder", model.config.decoder)]
        if not model.config.reads_states:
            stacks.insert(0, ("encoder", model.config.encoder))
        for stack, side in stacks:
            for part, table in zip(("cosines", "sines"), rotations(longest, side.head_dim), strict=True):
                yield f"{stack}_rotations.{part}", table.numpy()
    tensors = {**model.state_dict(keep_vars=True), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        value: Tensor = tensor.detach()
        if name.endswith(".positions"):
            value = value[:longest]
        if name in tables:
            value = tables[name].table(longest).detach()
        scale = scales.get(name.rpartition(".")[0])
        yield name, (value if scale is None else value * scale).float().numpy()


def _without_ties(parameters: Mapping[str, Parameter]) -> Iterator[Parameter]:
    """Yield parameters. A token table is left out if it is tied to the target's and stored in the same form."""
    target = parameters["target_embedding.tokens.weight"]
    for name, parameter in parameters.items():
        same = name in ("source_embedding.tokens.weight", "projection.weight")
        if not (same and (parameter.offset, parameter.dtype) == (target.offset, target.dtype)):
            yield parameter


class _View(NamedTuple):
    """View of the file: offset in bytes, strides in elements."""

    offset: int
    strides: tuple[int, ...]


class _Weights:
    """Weights of some graphs by dtype and size. They are read when they are compared, so that few are in memory.

    Args:
        file: the weights file.
        graphs: graphs with their weights in it.
    """

    def __init__(self, file: Path, graphs: Sequence[ir.Model]) -> None:
        self._file = file
        self._stored: dict[tuple[str, int], dict[int, tuple[int, ...]]] = {}
        for graph in graphs:
            for value in graph.graph.initializers.values():
                tensor = value.const_value
                if isinstance(tensor, ir.ExternalTensor) and tensor.dtype in _DTYPES:
                    assert tensor.offset is not None and tensor.length is not None
                    shape = tensor.shape.numpy()
                    shape = shape[:1] if shape[1:] == (1,) else shape  # scales stored as a column
                    self._stored.setdefault((_DTYPES[tensor.dtype], math.prod(shape)), {})[tensor.offset] = shape

    def find(self, name: str, values: Float32, appended: "_Added") -> Parameter:
        """Return the most exact stored form of a tensor. If there is none, append it."""
        if (place := self._place(values)) is not None:
            return Parameter(name, "float32", place.offset, values.shape, place.strides, None)
        with np.errstate(over="ignore"):  # values that overflow are stored in float32
            half = values.astype(np.float16)
        if (place := self._place(half)) is not None:
            return Parameter(name, "float16", place.offset, values.shape, place.strides, None)
        if values.ndim == 2:
            ints, scales = quantised(values)
            if (place := self._place(ints)) is not None:
                factors = self._place(scales) or appended.place(name, scales)
                return Parameter(name, "int8", place.offset, values.shape, place.strides, factors.offset)
        place = appended.place(name, values)
        return Parameter(name, "float32", place.offset, values.shape, place.strides, None)

    def _place(self, values: Array) -> _View | None:
        """Return a view of stored data that equals `values`, or None."""
        matrix = values.reshape(len(values), -1)
        rows, columns = matrix.shape
        for parts in range(1, _PACKED + 1):
            for offset, shape in self._stored.get((values.dtype.name, parts * values.size), {}).items():
                for part in range(parts):
                    if shape == (parts * rows, *values.shape[1:]):
                        start = offset + part * values.nbytes
                        if self._contains(start, matrix, columns):
                            return _View(start, (columns, 1)[-values.ndim :])
                    if shape == (columns, parts * rows):  # transposed
                        start = offset + part * rows * values.itemsize
                        if self._contains(start, matrix.T, parts * rows):
                            return _View(start, (1, parts * rows))
        return None

    def _contains(self, offset: int, matrix: Array, stride: int) -> bool:
        """Return whether the rows of `matrix` are stored at this offset with this stride.

        The file is read, not mapped, since mapped pages count as memory. Usually the first row is enough to decide.
        """
        rows, columns = matrix.shape
        first = 0
        end = 1
        while first < rows:
            count = (end - first - 1) * stride + columns
            start = offset + first * stride * matrix.itemsize
            read = np.fromfile(self._file, matrix.dtype, count, offset=start)
            strides = (stride * matrix.itemsize, matrix.itemsize)
            stored: Array = np.ndarray((end - first, columns), matrix.dtype, read, 0, strides)
            if not np.array_equal(stored, matrix[first:end]):
                return False
            first = end
            end = min(rows, end + max(1, _BLOCK // stride))
        return True


class _Added:
    """Tensors that are appended to the file, once each.

    Args:
        output: the file, open for appending.
    """

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._offsets: dict[bytes, int] = {}

    def place(self, name: str, values: Float32) -> _View:
        """Append a tensor once, and return its place. A large matrix is an error: a graph must contain it."""
        missing = f"no graph has {name}, of {values.size} elements, in the file of weights"
        assert values.ndim == 1 or values.size < INLINE, missing
        data = values.tobytes()
        if data not in self._offsets:
            self._output.write(b"\0" * (-self._output.tell() % ALIGNMENT))
            self._offsets[data] = self._output.tell()
            self._output.write(data)
        return _View(self._offsets[data], (values.shape[1], 1) if values.ndim == 2 else (1,))
