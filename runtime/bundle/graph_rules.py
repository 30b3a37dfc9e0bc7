"""Rules for graphs of a bundle, checked before a library parses them. The C++ runtime checks the same.

Hashes of a bundle prove a complete copy, not an honest author, and the libraries that parse graphs read any file or
address that external data names. So graphs must contain only what tx-export writes: listed standard operators without
subgraphs, and weights whose data is in the graph itself or in a range of `weights.bin` (onnx.proto; Protocol Buffers
encoding).

Operators whose outputs have the sizes that an input contains, instead of those of their inputs, get these from shapes
of tensors and from small constants, so that a graph cannot demand any amount of memory by a number.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from pathlib import PurePosixPath
from typing import Any, NamedTuple, NoReturn

from txport.runtime.bundle.archive import File, Files, files_of, size_of
from txport.runtime.bundle.protobuf import tagged
from txport.runtime.bundle.schema import WEIGHTS
from txport.runtime.errors import BundleError

CONTRIB = "com.microsoft"
# Operators that any version of tx-export has written, and those of the test bundles.
OPERATORS: Mapping[str, frozenset[str]] = {
    "": frozenset(
        "Abs Add ArgMax Attention Cast Concat Div Equal Erf Exp Expand Gather GatherElements Gelu Gemm Greater "
        "GreaterOrEqual Identity LayerNormalization Less LessOrEqual Log MatMul Max Min Mod Mul Neg Not Or Pad Pow "
        "QuantizeLinear RMSNormalization Range Reciprocal ReduceMax ReduceMean ReduceSum Relu Reshape ScatterElements "
        "Shape Sigmoid Slice Softmax Softplus Split Sqrt Squeeze Sub Tanh TensorScatter TopK Transpose Unsqueeze "
        "Where".split()
    ),
    CONTRIB: frozenset(
        "FusedGemm GroupQueryAttention MatMulIntegerToFloat MultiHeadAttention QGemm SkipLayerNormalization "
        "SkipSimplifiedLayerNormalization".split()
    ),
}
# Operators with sizes as inputs: the first and the last of these inputs, and the maximum of a constant among them.
_SIZED = {b"Expand": (1, 1, 1), b"Pad": (1, 1, 1), b"Range": (0, 2, 65_536)}
# Operators that compute sizes by selecting from those of the first input; Concat from those of all.
_SELECTIONS = frozenset((b"Concat", b"Gather", b"Reshape", b"Slice", b"Squeeze", b"Unsqueeze"))
_SHAPE = b"Shape"
LARGEST_GRAPH = 64 << 20  # bytes; the base preset's have some 100 kB

# wire types
_NUMBER = 0
_BYTES = 2
_FIXED32 = 5
# TensorProto.DataType: bytes of an element.
_ELEMENTS = {1: 4, 2: 1, 3: 1, 6: 4, 7: 8, 9: 1, 10: 2}
_MAX_DIMENSIONS = 8
_FILE = PurePosixPath(WEIGHTS).name


def _tags(kind: int, *numbers: int) -> set[int]:
    return {number << 3 | kind for number in numbers}


class _Fields(NamedTuple):
    """Allowed fields of a message.

    Attributes:
        part: name of this part of a model, for error messages.
        allowed: their tags.
    """

    part: str
    allowed: set[int]


_GRAPH = 7 << 3 | _BYTES
_OPSET = 8 << 3 | _BYTES
_MODEL = _Fields("the model", _tags(_BYTES, 2, 3, 4, 6, 14) | _tags(_NUMBER, 1, 5) | {_GRAPH, _OPSET})
_NODE = 1 << 3 | _BYTES
_INITIALIZER = 5 << 3 | _BYTES
_PARTS = _Fields("the graph", _tags(_BYTES, 2, 10, 11, 12, 13, 16) | {_NODE, _INITIALIZER})
_INPUT, _OUTPUT, _KIND, _ATTRIBUTE, _DOMAIN = (number << 3 | _BYTES for number in (1, 2, 4, 5, 7))
_NODES = _Fields("a node", _tags(_BYTES, 3, 6, 9) | {_INPUT, _OUTPUT, _KIND, _ATTRIBUTE, _DOMAIN})
# Attributes are numbers and strings only: no tensors, graphs, sparse tensors, types, lists of these, or references.
_ATTRIBUTES = _Fields(
    "an attribute", _tags(_BYTES, 1, 4, 7, 8, 9, 13) | _tags(_NUMBER, 3, 8, 20) | _tags(_FIXED32, 2, 7)
)
_DIMENSION, _TYPE, _LOCATION = (number << 3 | _NUMBER for number in (1, 2, 14))
_NAME, _RAW = (number << 3 | _BYTES for number in (8, 9))
_INTEGERS = {6: "i", 7: "q"}  # TensorProto.DataType of sizes: format of an element
_EXTERNAL = 13 << 3 | _BYTES
_TENSORS = _Fields(
    "a weight",
    _tags(_BYTES, 4, 5, 7, 12, 16)
    | _tags(_NUMBER, 5, 7)
    | _tags(_FIXED32, 4)
    | {_DIMENSION, _TYPE, _LOCATION, _NAME, _RAW, _EXTERNAL},
)
_OPSETS = _Fields("an opset", _tags(_BYTES, 1) | _tags(_NUMBER, 2))
_KEY = 1 << 3 | _BYTES
_VALUE = 2 << 3 | _BYTES
_PAIRS = _Fields("external data", {_KEY, _VALUE})


def checked_graph(bundle: Files, name: str) -> bytes:
    """Return the bytes of a graph of the bundle after checking that a library may parse it.

    Raises:
        BundleError: it contains more than tx-export writes, or is not an ONNX model.
        OSError: it cannot be read.
    """
    files = files_of(bundle)
    path: File = files / name
    if PurePosixPath(name).parent != PurePosixPath(WEIGHTS).parent or not name.endswith(".onnx"):
        raise _refusal(path, f"is not a file {PurePosixPath(WEIGHTS).parent}/*.onnx")
    if size_of(path) > LARGEST_GRAPH:
        raise _refusal(path, f"is larger than {LARGEST_GRAPH} bytes")
    try:
        weights = size_of(files / WEIGHTS)
    except OSError:
        weights = 0  # no range of it is inside
    model = path.read_bytes()
    try:
        check_graph(model, weights)
    except ValueError as error:
        raise _refusal(path, str(error)) from error
    return model


def _refusal(path: File, reason: str) -> BundleError:
    return BundleError(f"txport does not load {path}, which {reason}: export the bundle again with tx-export")


def check_graph(model: bytes, weights: int) -> None:
    """Refuse graphs that tx-export cannot have written.

    Args:
        model: a serialised ModelProto.
        weights: the size of weights.bin, in bytes.

    Raises:
        ValueError: the reason, as the rest of a sentence that begins with the graph's name.
    """
    try:
        _check_model(model, weights)
    except _Refusal:
        raise
    except ValueError as error:
        raise ValueError(f"is not an ONNX model ({error})") from error


class _Refusal(ValueError):
    """Content that tx-export does not write."""


def _check_model(model: bytes, weights: int) -> None:
    graphs = 0
    for tag, value in _fields(model, _MODEL):
        if tag == _OPSET:
            for key, domain in _fields(value, _OPSETS):
                if key == _KEY and _text(domain) not in OPERATORS:
                    raise _Refusal(f"uses operators of the domain {_text(domain)!r}, which tx-export does not use")
        elif tag == _GRAPH:
            graphs += 1
            _check_graph(value, weights)
    if graphs != 1:
        raise _Refusal(f"contains {graphs} graphs instead of one")


class _Node(NamedTuple):
    kind: bytes
    inputs: list[bytes]


def _check_graph(message: bytes, weights: int) -> None:
    sized: list[_Node] = []
    sources: dict[bytes, _Node] = {}  # of sizes, by output
    constants: dict[bytes, tuple[int, ...]] = {}
    for tag, value in _fields(message, _PARTS):
        if tag == _NODE:
            kind, found = _check_node(value)
            if kind in _SIZED or kind in _SELECTIONS or kind == _SHAPE:
                node = _Node(kind, [name for key, name in found if key == _INPUT])
                sources |= {name: node for key, name in found if key == _OUTPUT}
                if kind in _SIZED:
                    sized.append(node)
        elif tag == _INITIALIZER:
            constants |= _check_tensor(value, weights)
    for node in sized:
        first, last, most = _SIZED[node.kind]
        _check_sizes(node.kind, node.inputs[first : last + 1], sources, constants, most)


def _check_sizes(
    kind: bytes,
    inputs: list[bytes],
    sources: Mapping[bytes, _Node],
    constants: Mapping[bytes, tuple[int, ...]],
    most: int,
) -> None:
    """Check that sizes are those of tensors, or constants up to `most`."""
    seen: set[bytes] = set()
    while inputs:
        name = inputs.pop()
        source = sources.get(name)
        if name in seen or (source is not None and source.kind == _SHAPE):
            continue
        seen.add(name)
        if source is not None and source.kind in _SELECTIONS:
            inputs += source.inputs if source.kind == b"Concat" else source.inputs[:1]
        elif source is not None or not all(abs(size) <= most for size in constants.get(name, (most + 1,))):
            raise _Refusal(f"contains the operator {_text(kind)!r} with sizes that tx-export does not write")


def _check_node(message: bytes) -> tuple[bytes, list[tuple[int, Any]]]:
    """Return the operator of a node, and its fields."""
    kinds: list[bytes] = []
    domains: list[bytes] = []
    found = _fields(message, _NODES)
    for tag, value in found:
        if tag == _ATTRIBUTE:
            _check_attribute(value)
        elif tag == _KIND:
            kinds.append(value)
        elif tag == _DOMAIN:
            domains.append(value)
    if len(kinds) != 1 or len(domains) > 1:
        raise _Refusal("contains a node without exactly one operator")
    _check_operator(kinds[0], domains[0] if domains else b"")
    return kinds[0], found


# A graph has thousands of nodes, but few different operators and attributes. Each is checked once.
@lru_cache(maxsize=1024)
def _check_operator(kind: bytes, domain: bytes) -> None:
    if _text(kind) not in OPERATORS.get(_text(domain), ()):
        name = ".".join(filter(None, (_text(domain), _text(kind))))
        raise _Refusal(f"contains the operator {name!r}, which tx-export does not write")


@lru_cache(maxsize=4096)
def _check_attribute(message: bytes) -> None:
    _fields(message, _ATTRIBUTES)


def _check_tensor(message: bytes, weights: int) -> dict[bytes, tuple[int, ...]]:
    """Return the integers of a weight that is in the graph, by its name."""
    values_by_tag: dict[int, list[Any]] = {_DIMENSION: [], _TYPE: [], _LOCATION: [], _RAW: [], _EXTERNAL: [], _NAME: []}
    for tag, value in _fields(message, _TENSORS):
        if tag in values_by_tag:
            values_by_tag[tag].append(value)
    dimensions, types, locations, raw, pairs, names = values_by_tag.values()
    if locations not in ([], [0], [1]) or (locations == [1]) != bool(pairs) or len(raw) + bool(pairs) > 1:
        _refuse_weight("is neither in the graph nor in a file")
    if len(types) != 1 or types[0] not in _ELEMENTS:
        _refuse_weight("has a type that tx-export does not write")
    if len(dimensions) > _MAX_DIMENSIONS:
        _refuse_weight(f"has {len(dimensions)} dimensions")
    count = prod(dimensions)
    size = count * _ELEMENTS[types[0]]
    if not raw and not pairs and count > len(message):
        _refuse_weight(f"has fewer than {count} elements")
    if raw and len(raw[0]) != size:
        _refuse_weight(f"has {len(raw[0])} bytes instead of {size}")
    if pairs:
        _check_range([_pair(pair) for pair in pairs], size, weights)
    if not raw or types[0] not in _INTEGERS:
        return {}
    return {name: struct.unpack(f"<{count}{_INTEGERS[types[0]]}", raw[0]) for name in names[-1:]}


def _check_range(pairs: list[tuple[str, str]], size: int, weights: int) -> None:
    """Check that the external data of a weight of this size lies in weights.bin."""
    entries = dict(pairs)
    if len(entries) != len(pairs) or not entries.keys() <= {"location", "offset", "length"}:
        _refuse_weight("has more than one location, offset or length")
    location = entries.get("location")
    if location != _FILE:
        _refuse_weight(f"is in the file {location!r} instead of {_FILE!r}")
    offset, length = (_number(entries.get(key, default)) for key, default in (("offset", "0"), ("length", str(size))))
    if length != size or offset + size > weights:
        _refuse_weight(f"is not a range of {size} bytes inside {_FILE}")


@lru_cache(maxsize=4096)
def _pair(message: bytes) -> tuple[str, str]:
    parts = [(tag, _text(value)) for tag, value in _fields(message, _PAIRS)]
    if [tag for tag, _ in parts] != [_KEY, _VALUE]:
        _refuse_weight("has external data without one key and one value")
    return parts[0][1], parts[1][1]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):  # 19 digits fit into 64 bits, as in C++
        _refuse_weight(f"has the offset or length {text[:40]!r}")
    return int(text)


def _refuse_weight(reason: str) -> NoReturn:
    raise _Refusal(f"contains a weight that {reason}")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _fields(message: bytes, fields: _Fields) -> list[tuple[int, Any]]:
    """Return tag and value of all fields; the tag decides whether a value is bytes or a number."""
    pairs = tagged(message)
    if not fields.allowed.issuperset([tag for tag, _ in pairs]):
        number = next(tag >> 3 for tag, _ in pairs if tag not in fields.allowed)
        raise _Refusal(f"contains {fields.part} with the field {number}, which tx-export does not write")
    return pairs
