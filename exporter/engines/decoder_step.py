"""Changes of a parsed network that TensorRT 8.6 and some other versions need. Exported graphs suit ONNX Runtime best.

Caches are written by `Where` instead of ScatterElements, whose kernels are slower: `Where` selects the new key or value
at the position of the row, and the old one elsewhere. Measured on an H200 with TensorRT 8.6, base preset, float16:
0.350 instead of 0.402 ms for a step at batch 1, 0.602 instead of 0.647 ms at batch 32.

Inputs with one head are repeated for each head, so that nothing is broadcast over heads. TensorRT 8.6.0 reads the bias
of cross-attention, which has one head, as if it had all heads. On an H200 with four heads, row 1 used the bias of row
4, and row 2 read memory after the last row. Masks of self-attention and conditions have the same shapes.

The scores of self-attention become outputs that are not read. TensorRT 8.6.0 fuses attention with one query, and
computes it wrongly in all rows if the mask is computed in the network. On an H200, networks of self-attention alone
were right in both precisions as soon as scores or weights were outputs.
"""

from collections.abc import Iterator
from typing import Any

from txport.exporter.engines.network import kind_of, layers_of
from txport.runtime.engines.build_record import SCORES
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.errors import CheckFailed

# indices of inputs of a scatter layer
_DATA = 0
_UPDATES = 2
_HEAD_AXES = (1, 2)
# layers between a cache of keys and the softmax
_TO_SOFTMAX = ("SHUFFLE", "CAST", "MATRIX_MULTIPLY", "ELEMENTWISE")


def write_caches_by_select(tensorrt: TensorRt, network: Any) -> int:
    """Replace every scatter into a cache, and return their number.

    Args:
        tensorrt: the library.
        network: of a decoder step in the `scatter` lowering: caches `[b, h, t, k]`, updates `[b, h, 1, k]`.

    Raises:
        CheckFailed: a cache is not written by a scatter.
    """
    trt = tensorrt.module
    inputs = {tensor.name: tensor for tensor in map(network.get_input, range(network.num_inputs))}
    caches = {name for name in inputs if name.startswith("self_")}
    # The copy mechanism also uses a scatter, which is not changed.
    layers = [layer for layer in layers_of(network) if kind_of(layer) == "SCATTER"]
    scatters = [layer for layer in layers if layer.get_input(_DATA).name in caches]
    if len(scatters) != len(caches):
        raise CheckFailed(f"{len(scatters)} of {len(caches)} caches are written by scattering: tx-build expects all")
    # [b, 1, 1, 1] compared with [1, 1, t, 1]: true at the position of each row.
    position = _reshaped(network, inputs["positions"], (-1, 1, 1, 1))
    slots = _reshaped(network, inputs["cache_positions"], (1, 1, -1, 1))
    is_position = network.add_elementwise(position, slots, trt.ElementWiseOperation.EQUAL).get_output(0)
    for layer in scatters:
        select = network.add_select(is_position, layer.get_input(_UPDATES), layer.get_input(_DATA))
        select.name = f"{layer.name}/Where"
        _take_over(tensorrt, network, layer.get_output(0), select.get_output(0))
    return len(scatters)


def repeat_over_heads(network: Any, heads: int) -> int:
    """Repeat every input that a layer would broadcast over heads, and return the number of repeated tensors.

    Args:
        network: of any graph.
        heads: number of attention heads.
    """
    repeated: dict[tuple[str, int], Any] = {}
    for layer, index, axis in [*head_broadcasts(network, heads)]:
        tensor = layer.get_input(index)
        if (tensor.name, axis) not in repeated:
            repeat = network.add_concatenation([tensor] * heads)
            repeat.axis = axis
            repeated[tensor.name, axis] = repeat.get_output(0)
        layer.set_input(index, repeated[tensor.name, axis])
    return len(repeated)


def mark_scores(tensorrt: TensorRt, network: Any) -> int:
    """Make the scores of self-attention outputs, `self_scores_0` and so on, and return their number.

    Args:
        tensorrt: the library.
        network: of a decoder step in the `scatter` lowering: caches `[b, h, t, k]`, scores `[b, h, 1, t]`.

    Raises:
        CheckFailed: no softmax reads the keys of a cache.
    """
    prefix = "next_self_key_"
    outputs = map(network.get_output, range(network.num_outputs))
    for key in [tensor for tensor in outputs if tensor.name.startswith(prefix)]:
        scores, kind = _scores_of(tensorrt, network, key)
        scores.name = f"{SCORES}{key.name.removeprefix(prefix)}"
        network.mark_output(scores)
        if not tensorrt.strongly_typed:
            scores.dtype = kind  # the default is float32
    return sum(network.get_output(index).name.startswith(SCORES) for index in range(network.num_outputs))


def _scores_of(tensorrt: TensorRt, network: Any, key: Any) -> tuple[Any, Any]:
    """Return the input of the softmax over these keys, and its type. Casts surround layers that stay in float32."""
    tensor, kind = key, key.dtype
    while True:
        readers = [(layer, kind_of(layer)) for layer, _ in _readers(network, tensor.name)]
        if any(name == "SOFTMAX" for _, name in readers):
            return tensor, kind
        layer, name = next((reader for reader in readers if reader[1] in _TO_SOFTMAX), (None, ""))
        if layer is None:
            raise CheckFailed(f"no softmax reads {key.name}: tx-build expects the scores of self-attention")
        if name == "CAST":
            layer.__class__ = tensorrt.module.ICastLayer  # the network returns an ILayer
            kind = layer.to_type
        tensor = layer.get_output(0)


def head_broadcasts(network: Any, heads: int) -> Iterator[tuple[Any, int, int]]:
    """Yield (layer, input, axis) for each input with one head that is broadcast to an input with all heads.

    Heads are axis 1 of scores and caches, `[b, h, m, n]`, and axis 2 of inputs of rotary positions, `[n, 3, h, k]`.
    Constants with one element are not reported.
    """
    for layer in layers_of(network):
        if heads == 1 or kind_of(layer) not in ("ELEMENTWISE", "SELECT"):
            continue
        shapes = [tuple(layer.get_input(index).shape) for index in range(layer.num_inputs)]
        if len(shapes[0]) != 4:
            continue
        for index, shape in enumerate(shapes):
            for axis in _HEAD_AXES:
                if shape[axis] == 1 and set(shape) != {1} and any(other_shape[axis] == heads for other_shape in shapes):
                    yield layer, index, axis


def _readers(network: Any, name: str) -> Iterator[tuple[Any, int]]:
    """Yield each layer that reads a tensor, and the index of the input."""
    for layer in layers_of(network):
        for index in range(layer.num_inputs):
            tensor = layer.get_input(index)
            if tensor is not None and tensor.name == name:
                yield layer, index


def _reshaped(network: Any, tensor: Any, shape: tuple[int, ...]) -> Any:
    shuffle = network.add_shuffle(tensor)
    shuffle.reshape_dims = shape
    return shuffle.get_output(0)


def _take_over(tensorrt: TensorRt, network: Any, old: Any, new: Any) -> None:
    """Let all readers of `old` read `new`. A network output is also moved to `new`, with the same name."""
    name = old.name
    kind = old.dtype
    for layer, index in _readers(network, name):
        layer.set_input(index, new)
    outputs = {network.get_output(index).name for index in range(network.num_outputs)}
    if name in outputs:
        network.unmark_output(old)
    old.name = f"{name}_scattered"
    new.name = name
    if name in outputs:
        network.mark_output(new)
        if not tensorrt.strongly_typed:
            new.dtype = kind  # the default is float32
