"""Rules between the fields of a manifest, beyond their types. The C++ runtime checks the same."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar, get_args

from txport.runtime.bundle.archive import is_inside
from txport.runtime.bundle.interface import OPTIONAL_INPUTS, Interface, interface
from txport.runtime.bundle.parameter_rules import parameter_faults
from txport.runtime.bundle.schema import Graph, ManifestFields, ModelSizes, OptionalRole, Role, Tensor
from txport.runtime.bundle.strict_json import encode
from txport.runtime.bundle.tokenizer_rules import tokenizer_faults

T = TypeVar("T")
HEX = re.compile(r"[0-9a-f]{64}")
_LARGEST_SIZE = 2**31 - 1
_ROLES = get_args(Role)
_OPTIONAL_ROLES = get_args(OptionalRole)
# Never listed under `files`: the manifest itself, and files written on the device.
UNLISTED = ("manifest.json", "engines")


def faults(manifest: ManifestFields) -> Iterator[str]:
    """Contradictions between the fields, the most basic first."""
    yield from _size_faults(manifest)
    yield from _file_faults(manifest)
    yield from _graph_set_faults(manifest)
    for graph in manifest.graphs:
        yield from _graph_faults(graph)
        if (expected := interface(graph.role, _plausible_sizes(manifest), manifest.precision.type)) is not None:
            yield from _interface_faults(graph, expected)
    names = {graph.name for graph in manifest.graphs}
    precision = manifest.precision
    if precision.weights not in (precision.type, "int8"):
        yield f"precision.weights is {precision.weights!r}, which is neither its type {precision.type!r} nor 'int8'"
    for island in manifest.precision.islands:
        if island.graph not in names:
            yield f"precision.islands names the graph {island.graph!r}, which is not there"
    yield from _alignment_faults(manifest)
    if manifest.parameters is not None:
        yield from parameter_faults(manifest.parameters, manifest.model, manifest.dimensions, manifest.files)


def _size_faults(manifest: ManifestFields) -> Iterator[str]:
    features = manifest.model.feature_size is not None
    for name, size in encode(manifest.model).items():
        minimum = int(name != "encoder_layers" or not features)
        if not minimum <= size <= _LARGEST_SIZE:
            yield f"model.{name} is {size}, which is not between {minimum} and {_LARGEST_SIZE}"
    for name, sizes in encode(manifest.dimensions).items():
        minimum, optimum, maximum = sizes.values()
        if not 1 <= minimum <= optimum <= maximum <= _LARGEST_SIZE:
            span = f"must satisfy 1 <= min <= opt <= max <= {_LARGEST_SIZE}"
            yield f"dimensions.{name} {span}, but is {minimum}, {optimum}, {maximum}"
    for name, token in encode(manifest.tokens).items():
        if not 0 <= token < manifest.model.target_vocabulary:
            yield f"tokens.{name} is {token}, outside the target vocabulary of {manifest.model.target_vocabulary}"
    if manifest.model.copies and manifest.model.source_vocabulary != manifest.model.target_vocabulary:
        vocabularies = f"{manifest.model.source_vocabulary} and {manifest.model.target_vocabulary} ids"
        yield f"model.copies needs one vocabulary, but source and target have {vocabularies}"
    if manifest.model.copies and features:
        yield "model.copies needs source ids, but model.feature_size is set"
    if manifest.frame_rate is not None and not (features and manifest.frame_rate > 0):
        yield "frame_rate must be greater than 0, and needs model.feature_size"
    if manifest.external_encoder is not None and not (features and manifest.model.encoder_layers == 0):
        yield "external_encoder needs model.feature_size and model.encoder_layers = 0"
    if manifest.model.copies and manifest.parameters is not None:
        yield "parameters are for the fused engine, which has no copy mechanism, but model.copies is true"
    for name in ("pad", "eos"):
        if getattr(manifest.tokens, name) >= manifest.model.source_vocabulary:
            yield f"tokens.{name} is outside the source vocabulary of {manifest.model.source_vocabulary}"


def _file_faults(manifest: ManifestFields) -> Iterator[str]:
    for name, entry in manifest.files.items():
        if not is_inside(name):
            yield f"files names {name!r}, which is not a plain path inside the bundle"
        if name.split("/")[0] in UNLISTED:
            yield f"files names {name!r}, which must not be listed"
        if entry.bytes < 0 or not HEX.fullmatch(entry.sha256):
            yield f"files[{name!r}] has a negative size or a sha256 that is not 64 lower-case hexadecimal digits"
    yield from tokenizer_faults(manifest.tokenizer, manifest.files, manifest.vocabularies)
    if manifest.shortlist is not None and manifest.model.feature_size is not None:
        yield "shortlist needs source ids, but model.feature_size is set"
    if manifest.shortlist is not None and manifest.shortlist not in manifest.files:
        yield f"shortlist names the file {manifest.shortlist!r}, which is not listed under files"


def _graph_set_faults(manifest: ManifestFields) -> Iterator[str]:
    graphs = manifest.graphs
    if repeated := _repeated([graph.name for graph in graphs]):
        yield f"graphs has the name {repeated!r} twice"
    if repeated_role := _repeated([(graph.role, graph.lowering) for graph in graphs]):
        yield f"graphs has the role {repeated_role[0]!r} in the lowering {repeated_role[1]!r} twice"
    if [graph.role for graph in graphs].count("encoder") != 1:
        yield "graphs must have exactly one of role 'encoder'"
    if not any(graph.role == "decoder_step" for graph in graphs):
        yield "graphs must have at least one of role 'decoder_step'"
    for graph in graphs:
        is_known = graph.role in _ROLES + _OPTIONAL_ROLES
        if not is_known and not graph.optional:
            reason = "which this txport does not support, and is not optional"
            yield f"graph {graph.name!r} has the role {graph.role!r}, {reason}"
        if graph.role in _ROLES and graph.optional:
            yield f"graph {graph.name!r} is optional, but a runtime cannot do without its role {graph.role!r}"
        if graph.role in _OPTIONAL_ROLES and not graph.optional:
            yield f"graph {graph.name!r} is not optional, but a runtime can do without its role {graph.role!r}"
        if is_known and (graph.role == "decoder_step") == (graph.lowering == "standard"):
            reason = f"which does not match its role {graph.role!r}"
            yield f"graph {graph.name!r} has the lowering {graph.lowering!r}, {reason}"
        if graph.file not in manifest.files:
            yield f"graph {graph.name!r} names the file {graph.file!r}, which is not listed under files"


def _repeated(items: Sequence[T]) -> T | None:
    seen: set[T] = set()
    return next((item for item in items if item in seen or seen.add(item)), None)  # type: ignore[func-returns-value]


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


def _alignment_faults(manifest: ManifestFields) -> Iterator[str]:
    heads = manifest.alignment_heads
    model = manifest.model
    for layer, head in heads:
        if not (0 <= layer < model.decoder_layers and 0 <= head < model.heads):
            sizes = f"the model's {model.decoder_layers} decoder layers of {model.heads} heads"
            yield f"alignment_heads has the layer {layer} with the head {head}, outside {sizes}"
    if repeated := _repeated(heads):
        yield f"alignment_heads has the layer {repeated[0]} with the head {repeated[1]} twice"


def _plausible_sizes(manifest: ManifestFields) -> ModelSizes:
    """Return sizes with a plausible number of layers: a damaged manifest may claim billions of them."""
    max_layers = max((len(graph.inputs) + len(graph.outputs) for graph in manifest.graphs), default=0)
    return replace(manifest.model, decoder_layers=min(manifest.model.decoder_layers, max_layers + 1))


def _interface_faults(graph: Graph, expected: Interface) -> Iterator[str]:
    """Runtimes bind raw buffers by these names, types and shapes."""
    yield from _tensor_faults(graph, "input", expected.inputs, graph.inputs)
    yield from _tensor_faults(graph, "output", expected.outputs, graph.outputs)
    for name, output in sorted(set(expected.aliases) - set(graph.aliases)):
        yield f"graph {graph.name!r} misses the alias of {name!r} with {output!r}"


def _tensor_faults(graph: Graph, kind: str, expected: Sequence[Tensor], declared: Sequence[Tensor]) -> Iterator[str]:
    expected_names = {tensor.name for tensor in expected}
    tensors = {tensor.name: tensor for tensor in declared}
    for name, tensor in tensors.items():
        if name not in expected_names and not (kind == "output" and tensor.optional):
            yield f"graph {graph.name!r} has the {kind} {name!r}, which a {graph.role} graph does not have"
    for tensor in expected:
        actual = tensors.get(tensor.name)
        if actual is None:
            if tensor.name not in OPTIONAL_INPUTS:
                yield f"graph {graph.name!r} misses the {kind} {tensor.name!r}"
        elif (actual.dtype, actual.shape) != (tensor.dtype, tensor.shape):
            shape = list(tensor.shape)
            yield f"graph {graph.name!r}: the {kind} {tensor.name!r} must be {tensor.dtype} of shape {shape}"
        elif actual.optional and not tensor.optional:
            yield f"graph {graph.name!r}: the {kind} {tensor.name!r} must not be optional"
