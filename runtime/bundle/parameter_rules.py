"""Rules of the table of parameters: it is complete, its shapes match the model, its views are inside the file.

An engine reads raw memory by this table, so every value is checked. The C++ runtime checks the same.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from txport.runtime.bundle.schema import WEIGHTS, Architecture, Dimensions, FileEntry, ModelSizes, Parameter, Parameters

ELEMENT_BYTES = {"float32": 4, "float16": 2, "int8": 1}
# Without this tensor, source tokens use the target's table.
SOURCE_TOKENS = "source_embedding.tokens.weight"
_LARGEST_SIZE = 2**31 - 1
_SCALE_BYTES = 4
_PARTS = ("weight", "bias")
_ATTENTION = ("query", "key", "value")
_ROTATION = ("cosines", "sines")


@dataclass(frozen=True)
class Expected:
    """Expected tensor of a model.

    Attributes:
        name: in the state dict.
        shape: sizes, or words for sizes that the manifest does not contain.
        matrix: whether it may be int8, as weights of linear layers and tables of tokens.
        optional: whether a model may be without it.
        min_rows: the smallest first size.
    """

    name: str
    shape: tuple[int | str, ...]
    matrix: bool = False
    optional: bool = False
    min_rows: int = 1


def parameter_faults(
    parameters: Parameters, model: ModelSizes, dimensions: Dimensions, files: Mapping[str, FileEntry]
) -> Iterator[str]:
    """Faults of the table, the most basic first. Only the first one counts: the next may follow from it."""
    if WEIGHTS not in files:
        yield f"parameters are views of {WEIGHTS!r}, which is not listed under files"
        return
    architecture = parameters.architecture
    if not architecture.embedding_scale > 0:
        yield "parameters.architecture.embedding_scale must be greater than 0"
    if not 0 < architecture.layer_norm_epsilon < 1:
        yield "parameters.architecture.layer_norm_epsilon must be between 0 and 1"
    tensors: dict[str, Parameter] = {}
    for tensor in parameters.tensors:
        if tensor.name in tensors:
            yield f"parameters has the tensor {tensor.name!r} twice"
        tensors[tensor.name] = tensor
    expected_names = set()
    for expected in _expected(architecture, tensors, model, dimensions):
        expected_names.add(expected.name)
        if expected.name in tensors:
            yield from _tensor_faults(tensors[expected.name], expected, files[WEIGHTS].bytes)
        elif expected.name == SOURCE_TOKENS and model.source_vocabulary > model.target_vocabulary:
            yield (
                f"parameters misses the tensor {SOURCE_TOKENS!r}: the target's table has "
                f"{model.target_vocabulary} rows, too few for {model.source_vocabulary} source tokens"
            )
        elif not expected.optional:
            yield f"parameters misses the tensor {expected.name!r}"
    for name in tensors:
        if name not in expected_names:
            yield f"parameters has the tensor {name!r}, which this model does not have"


def _expected(
    architecture: Architecture, tensors: Mapping[str, Parameter], model: ModelSizes, dimensions: Dimensions
) -> Iterator[Expected]:
    """Yield the tensors of a model in order, lazily, because a damaged manifest may claim billions of layers."""
    width = model.d_model
    parts = _PARTS if architecture.norm_kind == "layer" else _PARTS[:1]
    normed = any(f"{side}_embedding.norm.{part}" in tensors for side in ("source", "target") for part in _PARTS)
    relative = any(f"{side}_positions.weight" in tensors for side in ("encoder", "decoder"))
    rotary = any(f"{side}_rotations.{part}" in tensors for side in ("encoder", "decoder") for part in _ROTATION)
    sides = (
        ("source", model.source_vocabulary, dimensions.source),
        ("target", model.target_vocabulary, dimensions.target),
    )
    for side, vocabulary, length in sides:
        if side == "source" and model.feature_size is not None:
            if model.encoder_layers == 0:
                continue
            yield from _linear("source_embedding.projection", width, model.feature_size)
        else:
            yield Expected(f"{side}_embedding.tokens.weight", (vocabulary, width), True, side == "source")
        if not relative and not rotary:
            yield Expected(f"{side}_embedding.positions", ("positions", width), min_rows=length.max)
        if normed:
            yield from _norm(f"{side}_embedding.norm", width, parts)
    stacks = (
        ("encoder", model.encoder_layers, model.encoder_heads or model.heads, dimensions.source, ("attention",)),
        ("decoder", model.decoder_layers, model.heads, dimensions.target, ("self_attention", "cross_attention")),
    )
    for stack, layers, heads, length, attentions in stacks if model.encoder_layers else stacks[1:]:
        if relative:
            yield from _relative(stack, layers, heads, tensors, dimensions)
        inner = _heads_width(stack, heads, model, tensors)
        for part in _ROTATION if rotary else ():
            yield Expected(f"{stack}_rotations.{part}", ("positions", inner // heads), min_rows=length.max)
        for layer in range(layers):
            for attention in attentions:
                states = attention == "cross_attention" and not model.encoder_layers
                keys = model.feature_size if states else None
                yield from _attention(f"{stack}.{layer}.{attention}", inner, width, keys or width)
                yield from _norm(f"{stack}.{layer}.{attention}_residual.norm", width, parts)
            yield from _feed_forward(f"{stack}.{layer}.feed_forward", width, tensors)
            yield from _norm(f"{stack}.{layer}.feed_forward_residual.norm", width, parts)
        if architecture.norm != "post":
            yield from _norm(f"{stack}_norm", width, parts)
    yield Expected("projection.weight", (model.target_vocabulary, width), True, True)
    yield Expected("projection.bias", (model.target_vocabulary,), optional=True)


def _heads_width(stack: str, heads: int, model: ModelSizes, tensors: Mapping[str, Parameter]) -> int:
    """Return the width of all heads of a stack. That of the encoder comes from its first tensor."""
    first = tensors.get("encoder.0.attention.query.weight")
    if first is not None and first.shape:
        encoder_width = first.shape[0]
    else:
        encoder_width = 0
    if stack == "encoder" and encoder_width > 0 and encoder_width % heads == 0:
        return encoder_width
    return heads * model.head_dim


def _relative(
    stack: str, layers: int, heads: int, tensors: Mapping[str, Parameter], dimensions: Dimensions
) -> Iterator[Expected]:
    """Yield the table of relative positions. The encoder's contains distances in both directions."""
    name = f"{stack}_positions.weight"
    tensor = tensors.get(name)
    if tensor is not None and tensor.shape[1:] == (layers * heads,):
        columns = layers * heads
    else:
        columns = heads
    if stack == "encoder":
        min_rows = 2 * dimensions.source.max - 1
    else:
        min_rows = dimensions.target.max
    yield Expected(name, ("distances", columns), min_rows=min_rows)


def _norm(name: str, width: int, parts: Sequence[str]) -> Iterator[Expected]:
    for part in parts:
        yield Expected(f"{name}.{part}", (width,))


def _linear(name: str, outputs: int | str, inputs: int | str) -> Iterator[Expected]:
    yield Expected(f"{name}.weight", (outputs, inputs), True)
    yield Expected(f"{name}.bias", (outputs,), optional=True)


def _attention(name: str, inner: int, width: int, keys: int) -> Iterator[Expected]:
    """Yield the projections of an attention layer; `keys` is the width of the states behind its keys and values."""
    for part in _ATTENTION:
        yield from _linear(f"{name}.{part}", inner, width if part == "query" else keys)
    yield from _linear(f"{name}.output", width, inner)


def _feed_forward(name: str, width: int, tensors: Mapping[str, Parameter]) -> Iterator[Expected]:
    """Return the inner width, from the first tensor of the layer."""
    yield Expected(f"{name}.inner.weight", ("inner", width), True)
    inner = tensors[f"{name}.inner.weight"].shape[0]
    yield Expected(f"{name}.inner.bias", (inner,), optional=True)
    if f"{name}.gate.weight" in tensors:
        yield from _linear(f"{name}.gate", inner, width)
    yield from _linear(f"{name}.outer", width, inner)


def _tensor_faults(tensor: Parameter, expected: Expected, size: int) -> Iterator[str]:
    start = f"parameter {tensor.name!r}"
    if not _matches(tensor.shape, expected.shape):
        yield f"{start} must be of shape {_show(expected.shape)}, not {_show(tensor.shape)}"
    if tensor.shape[0] < expected.min_rows:
        yield f"{start} has {tensor.shape[0]} rows, but sentences have up to {expected.min_rows} tokens"
    if tensor.dtype == "int8" and not expected.matrix:
        yield f"{start} must not be int8: it is not a matrix of weights"
    if (tensor.dtype == "int8") != (tensor.scales is not None):
        yield f"{start} must have scales if it is int8, and none otherwise"
    if len(tensor.strides) != len(tensor.shape) or any(stride < 1 for stride in tensor.strides):
        yield f"{start} must have a positive stride for each dimension"
    element = ELEMENT_BYTES[tensor.dtype]
    if tensor.offset < 0 or tensor.offset % element:
        yield f"{start} has the offset {tensor.offset}, which is not a multiple of {element} from 0 on"
    last_element = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.strides, strict=True))
    if tensor.offset + (last_element + 1) * element > size:
        yield f"{start} leads beyond the {size} bytes of {WEIGHTS!r}"
    if _overlaps(tensor):
        yield f"{start} has strides by which its elements overlap"
    if tensor.scales is not None:
        if tensor.scales < 0 or tensor.scales % _SCALE_BYTES:
            yield f"{start} has scales at {tensor.scales}, which is not a multiple of {_SCALE_BYTES} from 0 on"
        if tensor.scales + tensor.shape[0] * _SCALE_BYTES > size:
            yield f"{start} has scales that lead beyond the {size} bytes of {WEIGHTS!r}"


def _overlaps(tensor: Parameter) -> bool:
    """Return whether elements of a view share memory; such a view may be larger than the file."""
    if len(tensor.shape) != 2:
        return False
    spans = [(count - 1) * stride for count, stride in zip(tensor.shape, tensor.strides, strict=True)]
    return tensor.strides[0] <= spans[1] and tensor.strides[1] <= spans[0]


def _matches(shape: tuple[int, ...], expected: tuple[int | str, ...]) -> bool:
    return len(shape) == len(expected) and all(
        1 <= size <= _LARGEST_SIZE if isinstance(expected_size, str) else size == expected_size
        for size, expected_size in zip(shape, expected, strict=True)
    )


def _show(shape: Collection[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"
