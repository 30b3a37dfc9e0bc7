"""What must hold between the fields of a manifest, beyond their types. The C++ runtime checks the same."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from txport.runtime.bundle.schema import Dimension, DType, Graph, Role, Tensor
from txport.runtime.bundle.strict_json import encode
from txport.runtime.bundle.tokenizer_rules import tokenizer_faults

if TYPE_CHECKING:
    from txport.runtime.bundle.manifest import Manifest

HEX = re.compile(r"[0-9a-f]{64}")
_LARGEST_SIZE = 2**31 - 1
# Never listed under `files`: the manifest itself, and what is made on the device.
UNLISTED = ("manifest.json", "engines")


def faults(manifest: "Manifest") -> Iterator[str]:
    """What the fields contradict, the most basic first."""
    yield from _size_faults(manifest)
    yield from _file_faults(manifest)
    yield from _graph_set_faults(manifest)
    for graph in manifest.graphs:
        yield from _graph_faults(graph)
        yield from _interface_faults(manifest, graph)
    names, precision = {graph.name for graph in manifest.graphs}, manifest.precision
    if precision.weights not in (precision.type, "int8"):
        yield f"precision.weights is {precision.weights!r}, which is neither its type {precision.type!r} nor 'int8'"
    for island in manifest.precision.islands:
        if island.graph not in names:
            yield f"precision.islands names the graph {island.graph!r}, which is not there"


def _size_faults(manifest: "Manifest") -> Iterator[str]:
    for name, size in encode(manifest.model).items():
        if not 1 <= size <= _LARGEST_SIZE:
            yield f"model.{name} is {size}, which is not between 1 and {_LARGEST_SIZE}"
    for name, sizes in encode(manifest.dimensions).items():
        if not 1 <= sizes["min"] <= sizes["opt"] <= sizes["max"] <= _LARGEST_SIZE:
            yield f"dimensions.{name} must rise from min over opt to max, from 1 to {_LARGEST_SIZE}, but is {sizes}"
    for name, token in encode(manifest.tokens).items():
        if not 0 <= token < manifest.model.target_vocabulary:
            yield f"tokens.{name} is {token}, outside the target vocabulary of {manifest.model.target_vocabulary}"
    for name in ("pad", "eos"):
        if getattr(manifest.tokens, name) >= manifest.model.source_vocabulary:
            yield f"tokens.{name} is outside the source vocabulary of {manifest.model.source_vocabulary}"


def _file_faults(manifest: "Manifest") -> Iterator[str]:
    for name, entry in manifest.files.items():
        if not _is_inside(name):
            yield f"files names {name!r}, which is not a plain path inside the bundle"
        if name.split("/")[0] in UNLISTED:
            yield f"files names {name!r}, which must not be listed"
        if entry.bytes < 0 or not HEX.fullmatch(entry.sha256):
            yield f"files[{name!r}] has a negative size or a sha256 that is not 64 lower-case hexadecimal digits"
    vocabularies = {"source": manifest.model.source_vocabulary, "target": manifest.model.target_vocabulary}
    yield from tokenizer_faults(manifest.tokenizer, manifest.files, vocabularies)


def _is_inside(name: str) -> bool:
    """Relative, POSIX, without empty, '.' or '..' parts, backslashes or control characters."""
    parts = name.split("/")
    return not (set(parts) & {"", ".", ".."} or "\\" in name or any(ord(character) < 32 for character in name))


def _graph_set_faults(manifest: "Manifest") -> Iterator[str]:
    graphs = manifest.graphs
    if repeated := _repeated([graph.name for graph in graphs]):
        yield f"graphs has the name {repeated!r} twice"
    if repeated := _repeated([graph.lowering for graph in graphs]):
        yield f"graphs has the lowering {repeated!r} twice"
    if [graph.role for graph in graphs].count("encoder") != 1:
        yield "graphs must have exactly one of role 'encoder'"
    if not any(graph.role == "decoder_step" for graph in graphs):
        yield "graphs must have at least one of role 'decoder_step'"
    for graph in graphs:
        if (graph.role == "encoder") != (graph.lowering == "standard"):
            yield f"graph {graph.name!r} has the lowering {graph.lowering!r}, unfit for its role {graph.role!r}"
        if graph.file not in manifest.files:
            yield f"graph {graph.name!r} names the file {graph.file!r}, which is not listed under files"


def _repeated(names: list[str]) -> str | None:
    return next((name for i, name in enumerate(names) if name in names[:i]), None)


def _graph_faults(graph: Graph) -> Iterator[str]:
    if "" not in graph.opsets or any(not 1 <= version <= _LARGEST_SIZE for version in graph.opsets.values()):
        yield f"graph {graph.name!r} has opsets without a positive version of the standard domain ''"
    if repeated := _repeated([tensor.name for tensor in graph.inputs + graph.outputs]):
        yield f"graph {graph.name!r} has the tensor {repeated!r} twice"
    for tensor in graph.inputs + graph.outputs:
        if any(isinstance(size, int) and not 1 <= size <= _LARGEST_SIZE for size in tensor.shape):
            yield f"graph {graph.name!r}: {tensor.name!r} has a size that is not between 1 and {_LARGEST_SIZE}"
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    outputs = {tensor.name: tensor for tensor in graph.outputs}
    for side in (0, 1):
        if repeated := _repeated([pair[side] for pair in graph.aliases]):
            yield f"graph {graph.name!r} aliases {repeated!r} twice"
    for name, output in graph.aliases:
        if name not in inputs or output not in outputs:
            yield f"graph {graph.name!r} aliases {name!r} with {output!r}, which are not an input and an output of it"
        elif (inputs[name].dtype, inputs[name].shape) != (outputs[output].dtype, outputs[output].shape):
            yield f"graph {graph.name!r} aliases {name!r} with {output!r}, which differ in dtype or shape"


def _interface_faults(manifest: "Manifest", graph: Graph) -> Iterator[str]:
    """Compare a graph with the interface of its role: runtimes bind raw buffers by these names, types and shapes."""
    inputs, outputs = interface(manifest, graph.role)
    optional = {"cache_positions"}
    for kind, expected, given in (("input", inputs, graph.inputs), ("output", outputs, graph.outputs)):
        found = {tensor.name: tensor for tensor in given}
        for name in found.keys() - expected.keys():
            yield f"graph {graph.name!r} has the {kind} {name!r}, which a {graph.role} graph does not have"
        for name, tensor in expected.items():
            if name not in found:
                if name not in optional:
                    yield f"graph {graph.name!r} misses the {kind} {name!r}"
            elif (found[name].dtype, found[name].shape) != (tensor.dtype, tensor.shape):
                yield f"graph {graph.name!r}: the {kind} {name!r} must be {tensor.dtype} of shape {list(tensor.shape)}"
            elif found[name].optional and not tensor.optional:
                yield f"graph {graph.name!r}: the {kind} {name!r} must not be optional"
    if graph.role == "decoder_step":
        missing = {(name, f"next_{name}") for name in _state_names(manifest)} - set(graph.aliases)
        for name, output in sorted(missing):
            yield f"graph {graph.name!r} misses the alias of {name!r} with {output!r}"


def _layer_names(manifest: "Manifest") -> list[str]:
    """Keys and values of each decoder layer.

    A manifest may claim billions of layers; its graphs' tensors tell how many can be true, and one more is a fault.
    """
    most = max((len(graph.inputs) + len(graph.outputs) for graph in manifest.graphs), default=0)
    layers = range(min(manifest.model.decoder_layers, most + 1))
    return [f"{kind}_{layer}" for layer in layers for kind in ("key", "value")]


def _state_names(manifest: "Manifest") -> list[str]:
    return ["token_ids", "positions", "finished", *(f"self_{name}" for name in _layer_names(manifest))]


def interface(manifest: "Manifest", role: Role) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The inputs and outputs that a graph of this role has (format 1), by name.

    `cache_positions` is listed by the lowerings that need it; `logits` may be left unbound.
    """
    sizes, floating = manifest.model, manifest.precision.type
    names = _layer_names(manifest)

    def tensors(dtype: DType, shape: tuple[Dimension | int, ...], *names: str) -> dict[str, Tensor]:
        return {name: Tensor(name, dtype, shape, name == "logits") for name in names}

    cross = tensors(floating, ("batch", 1, 1, "source"), "cross_bias")
    cross |= tensors(floating, ("batch", sizes.heads, "source", sizes.head_dim), *(f"cross_{name}" for name in names))
    if role == "encoder":
        ids = tensors("int64", ("batch", "source"), "input_ids")
        return ids | tensors("int64", ("batch",), "source_lengths"), cross
    cache: tuple[Dimension | int, ...] = ("batch", sizes.heads, "target", sizes.head_dim)
    inputs = tensors("int64", ("batch",), "token_ids", "positions", "target_limits")
    inputs |= tensors("bool", ("batch",), "finished") | tensors("int64", ("target",), "cache_positions") | cross
    inputs |= tensors(floating, cache, *(f"self_{name}" for name in names))
    outputs = tensors("int64", ("batch",), "next_token_ids", "next_positions")
    outputs |= tensors("bool", ("batch",), "next_finished")
    outputs |= tensors(floating, cache, *(f"next_self_{name}" for name in names))
    return inputs, outputs | tensors(floating, ("batch", sizes.target_vocabulary), "logits")
