"""From a module to a clean ONNX graph, by torch.onnx's dynamo exporter and a few passes over onnx-ir."""

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from functools import cache, partial
from importlib import import_module
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch
from torch import Tensor, nn
from torch.export import Dim
from txport.exporter.graphs.attention import DecoderGraph, EncoderAttentionGraph
from txport.exporter.graphs.lowerings import HALF_LOWERINGS, LOWERINGS, Lowering
from txport.exporter.graphs.modules import OPSET, DecoderStep, EncoderGraph
from txport.exporter.graphs.weights import remove_unused_weights
from txport.models.config import Config
from txport.models.transformer import Transformer
from txport.runtime.bundle.interface import Interface, decoder, decoder_step, encoder, encoder_attention
from txport.runtime.bundle.schema import ModelSizes
from txport.runtime.libraries import quiet, without_collection

# Any sizes above 1 will do: torch.export takes 0 and 1 for constants.
_BATCH, _SOURCE, _TARGET = 2, 5, 7


def model_sizes(config: Config) -> ModelSizes:
    """The sizes that the graphs' interface depends on."""
    return ModelSizes(**{field.name: getattr(config, field.name) for field in fields(ModelSizes)})


def trace_all(
    model: Transformer,
    lowerings: Sequence[str],
    longest: int,
    attention: bool,
    advance: Callable[[], None],
    *,
    half: bool = False,
) -> dict[str, ir.Model]:
    """The encoder and the decoder steps of `lowerings` by the names of their files.

    Args:
        model: in the dtype of the graphs.
        lowerings: one or more.
        longest: most tokens of a source and of an answer.
        attention: whether the graphs of `ATTENTION` follow.
        advance: called after each graph.
        half: the graphs will be converted to float16.
    """
    models = {"encoder": trace_encoder(model, longest)}
    advance()
    for name in lowerings:
        models[f"decoder_step.{name}"] = trace_step(model, (HALF_LOWERINGS if half else LOWERINGS)[name], longest)
        advance()
    for name, trace in ATTENTION.items() if attention else ():
        models[name] = trace(model, longest)
        advance()
    return models


def trace_encoder(model: Transformer, max_source: int) -> ir.Model:
    """The encoder graph, in the model's dtype, for sources of up to `max_source` tokens."""
    interface = encoder(model_sizes(model.config), "float32")
    return _trace_encoder(EncoderGraph(model, max_source), max_source, interface)


def trace_encoder_attention(model: Transformer, max_source: int) -> ir.Model:
    """The graph of the encoder's own output and attention, for sources of up to `max_source` tokens."""
    interface = encoder_attention(model_sizes(model.config), "float32")
    return _trace_encoder(EncoderAttentionGraph(model, max_source), max_source, interface)


def _trace_encoder(module: EncoderGraph, max_source: int, interface: Interface) -> ir.Model:
    batch, source = Dim("batch", min=1), Dim("source", min=1, max=max_source)
    example = (torch.ones(_BATCH, _SOURCE, dtype=torch.int64), torch.tensor([_SOURCE, 2]))
    return _trace(module, example, ({0: batch, 1: source}, {0: batch}), interface, OPSET)


def trace_decoder(model: Transformer, max_target: int) -> ir.Model:
    """The decoder over whole translations of up to `max_target` tokens."""
    config, layers = model.config, model.config.decoder_layers
    batch, source, target = Dim("batch", min=1), Dim("source", min=1), Dim("target", min=1, max=max_target)
    keys = torch.zeros(_BATCH, config.heads, _SOURCE, config.head_dim)
    ids = torch.ones(_BATCH, _TARGET, dtype=torch.int64)
    bias = torch.zeros(_BATCH, 1, 1, _SOURCE)
    example = (ids, torch.tensor([_TARGET, 2]), bias, [(keys.clone(), keys.clone()) for _ in range(layers)])
    cross = ({0: batch, 2: source},) * 2
    shapes = ({0: batch, 1: target}, {0: batch}, {0: batch, 3: source}, [cross] * layers)
    example, shapes = _with_ids(config, example, shapes, {0: batch, 2: source})
    interface = decoder(model_sizes(config), "float32")
    return _trace(DecoderGraph(model, max_target), example, shapes, interface, OPSET)


def trace_step(model: Transformer, lowering: Lowering, max_target: int, *, fold: bool = True) -> ir.Model:
    """One lowering of the decoder step, in the model's dtype, for caches of up to `max_target` tokens.

    See `DecoderStep` for `fold`.
    """
    config, layers = model.config, model.config.decoder_layers
    batch, source, target = Dim("batch", min=1), Dim("source", min=1), Dim("target", min=1, max=max_target)

    def pairs(length: int) -> list[tuple[Tensor, Tensor]]:
        shape = (_BATCH, config.heads, length, config.head_dim)
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(layers)]

    ids = torch.ones(_BATCH, dtype=torch.int64)
    state = (ids, torch.arange(_BATCH), torch.zeros(_BATCH, dtype=torch.bool), ids * _TARGET)
    bias = torch.zeros(_BATCH, 1, 1, _SOURCE)
    example = (*state, torch.arange(_TARGET), bias, pairs(_SOURCE), pairs(_TARGET))
    rows = {0: batch}
    cross, cache = ({0: batch, 2: source},) * 2, ({0: batch, 2: target},) * 2
    shapes = (rows, rows, rows, rows, {0: target}, {0: batch, 3: source}, [cross] * layers, [cache] * layers)
    example, shapes = _with_ids(config, example, shapes, {0: batch, 2: source})
    interface = decoder_step(model_sizes(config), "float32")
    step = DecoderStep(model, lowering, max_target, fold=fold)
    traced = _trace(step, example, shapes, interface, lowering.opset)
    lowering.finish(traced.graph)
    return traced


def _with_ids(
    config: Config, example: tuple[Any, ...], shapes: tuple[Any, ...], shape: dict[int, Dim]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """With the source's ids, which a model that copies reads in every step."""
    if not config.copies:
        return example, shapes
    return (*example, torch.ones(_BATCH, 1, _SOURCE, 1, dtype=torch.int64)), (*shapes, shape)


# The optional graphs, by their names and roles.
ATTENTION: dict[str, Callable[[Transformer, int], ir.Model]] = {
    "decoder": trace_decoder,
    "encoder_attention": trace_encoder_attention,
}


def _trace(module: nn.Module, example: tuple[Any, ...], shapes: Any, interface: Interface, opset: int) -> ir.Model:
    # It reports its progress, and the deprecations of its own internals, on every export.
    with torch.no_grad(), without_collection(), quiet("torch.onnx", "onnxscript", "torch.export"):
        export = partial(
            torch.onnx.export,
            module.eval(),
            example,
            dynamo=True,
            opset_version=opset,
            input_names=[tensor.name for tensor in interface.inputs],
            output_names=[tensor.name for tensor in interface.outputs],
            dynamic_shapes=shapes,
            verbose=False,
        )
        try:
            with _with_less_work():
                program = export()
        except torch.onnx.OnnxExporterError:
            program = export()
    assert program is not None
    model = program.model
    _clean(model)
    return model


@cache
def _remembered(make: Callable[..., object], *arguments: Any, **named: Any) -> object:
    return make(*arguments, **named)


def _as_it_is(program: Any, registry: Any) -> Any:
    return program


@contextmanager
def _with_less_work() -> Iterator[None]:
    """Spare PyTorch's exporter two things that take two thirds of its time, as long as this process lives.

    It makes its table of ONNX operators once an opset: for each graph it would read the sources of 500 functions again.
    And it translates a graph as it was captured: it would trace it a second time, to decompose operators that the table
    has not, of which the modules here use none. One that does is an error of the export, which then does without this.
    These are not public functions: where another version of PyTorch has none of these names, all is as it was.
    """
    private = "torch.onnx._internal.exporter."
    with ExitStack() as stack:
        with suppress(ImportError, AttributeError):
            registry = import_module(f"{private}_registration").ONNXRegistry
            _replaced(stack, registry, "from_torchlib", staticmethod(partial(_remembered, registry.from_torchlib)))
        with suppress(ImportError, AttributeError):
            _replaced(stack, import_module(f"{private}_fx_passes"), "decompose_with_registry", _as_it_is)
        yield


def _replaced(stack: ExitStack, owner: object, name: str, value: object) -> None:
    stack.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, value)


def _clean(model: ir.Model) -> None:
    """Keep what a runtime needs: no traces of source lines, no unused outputs, inputs or weights, descriptive names."""
    graph = model.graph
    passes.CommonSubexpressionEliminationPass()(model)
    passes.RemoveUnusedNodesPass()(model)
    _name_nodes(graph)
    model.metadata_props.clear()
    graph.metadata_props.clear()
    model.functions.clear()
    remove_unused_weights(graph)
    for value in [value for value in graph.inputs if not value.uses()]:
        graph.inputs.remove(value)
    for value in [*graph.inputs, *graph.initializers.values()]:
        value.metadata_props.clear()
    for node in graph:
        node.metadata_props.clear()
        node.doc_string = None
        for output in node.outputs:
            output.metadata_props.clear()
            if not output.uses() and not output.is_graph_output():
                output.name = ""  # an optional output that nothing reads
        if node.op_type == "Reshape":
            node.attributes.pop("allowzero", None)  # no shape here holds a zero, and older parsers reject the attribute


def _name_nodes(graph: ir.Graph) -> None:
    """Name each node by the module that it comes from, as in `layers.0.self_qkv/Gemm`: islands are listed by these."""
    taken: dict[str, int] = {}
    layer = ""
    for node in graph:
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        modules = [scope for scope in scopes[:-1] if scope and not scope.startswith("_")]
        if modules:
            layer = ".".join(modules[-1].split(".")[:2]) if modules[-1].startswith("layers.") else ""
        name = f"{modules[-1] if modules else layer}/{node.op_type}".lstrip("/")
        taken[name] = taken.get(name, 0) + 1
        node.name = name if taken[name] == 1 else f"{name}_{taken[name]}"


def module_of(node: ir.Node) -> str:
    """The module that a node of a traced graph comes from; "" for those of the graph itself."""
    return (node.name or "").rpartition("/")[0]
