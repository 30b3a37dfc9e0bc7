"""Writes the cases of the pattern tests: python tests/gpu/patterns/pattern_graphs.py DIRECTORY

The graphs are written by the exporter's own methods over random models, and their outputs computed by ONNX Runtime in
float32, each operator as written, on inputs that the precision represents. Rows have different lengths and values.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy_runner import OPTIONS, copied, random_model
from pattern_networks import PATTERNS, PRECISIONS, SIZES, STEP, SUBLAYERS
from txport.exporter.graphs.copying import CrossAttention, write_mixture
from txport.exporter.graphs.decoder import Decoder, write_state, write_step
from txport.exporter.graphs.float16 import to_float16
from txport.exporter.graphs.layers import Rotation, write_feed_forward
from txport.exporter.graphs.lowerings import LOWERINGS, KeyValue, Lowering, Scatter
from txport.exporter.graphs.norms import module_of
from txport.exporter.graphs.tensors import ModelTensors
from txport.exporter.graphs.writer import Writer
from txport.exporter.precision.islands import mixture_nodes
from txport.models.config import preset
from txport.models.transformer import Transformer
from txport.runtime.bundle.interface import CROSS_IDS, MASKED, MASKED_HALF, Interface
from txport.runtime.bundle.schema import Tensor

LENGTH = 32  # positions of the models
POSITIONS = (0, 5, 2, 9)
SOURCE_LENGTHS = (7, 3, 1, 5)
EOS = preset("tiny").eos_id

WRITTEN = ("next_self_key_0", "next_self_value_0")

Built = dict[str, ir.Value]


class Pattern:
    """One graph being written over a random model.

    Args:
        option: of the model, see `OPTIONS`.
        lowering: how the step is written.
    """

    def __init__(self, option: str, lowering: str) -> None:
        self.model: Transformer = random_model(**OPTIONS[option])
        self.sizes = self.model.config.sizes
        self.tensors = ModelTensors()
        self.inputs: list[Tensor] = []
        self._kind: type[Lowering] = LOWERINGS[lowering]
        heads, width = self.sizes.heads, self.sizes.head_dim
        self.cache = ("batch", heads, "target", width)
        self.cross = ("batch", heads, "source", width)

    def take(self, dtype: str, shape: Sequence[Any], *names: str) -> None:
        """Add inputs of the graph."""
        self.inputs += [Tensor(name, dtype, tuple(shape), False) for name in names]  # type: ignore[arg-type]

    def begin(self) -> tuple[Writer, Lowering]:
        """Return a writer of a graph with these inputs, and its lowering."""
        self.writer = Writer(Interface(tuple(self.inputs), ()), self._kind.opset, self.tensors)
        return self.writer, self._kind(self.writer, self.sizes)

    def begin_with_caches(self) -> tuple[Writer, Lowering]:
        """Add the caches of one layer and what they are written by, and begin."""
        self.take("float32", self.cache, "self_key_0", "self_value_0")
        self.take("int64", ("batch",), "positions")
        self.take("int64", ("target",), "cache_positions")
        return self.begin()

    @property
    def caches(self) -> KeyValue:
        """The caches among the inputs."""
        return self.writer.inputs["self_key_0"], self.writer.inputs["self_value_0"]

    def graph(self, outputs: Built, shapes: dict[str, Sequence[Any]]) -> ir.Model:
        """Finish the graph: its outputs by name, and their shapes."""
        types = {ir.DataType.FLOAT: "float32", ir.DataType.INT64: "int64", ir.DataType.BOOL: "bool"}
        named = [Tensor(n, types[v.dtype], tuple(shapes[n]), False) for n, v in outputs.items()]  # type: ignore[index,arg-type]
        self.writer._interface = Interface(tuple(self.inputs), tuple(named))
        return self.writer.model(list(outputs.values()))


def _self_attention(lowering: str, option: str = "post") -> ir.Model:
    pattern = Pattern(option, lowering)
    width = pattern.sizes.heads * pattern.sizes.head_dim
    pattern.take("float32", ("batch", 3 * width), "qkv")
    w, lower = pattern.begin_with_caches()
    bias = Decoder(w, pattern.model, lower, LENGTH)._biases()[0]
    context, cache = lower.self_attention(w.inputs["qkv"], pattern.caches, bias)
    shapes = {"context": ("batch", width), **dict.fromkeys(WRITTEN, pattern.cache)}
    return pattern.graph({"context": context, **dict(zip(WRITTEN, cache, strict=True))}, shapes)


def _cache_write(lowering: str) -> ir.Model:
    pattern = Pattern("post", lowering)
    pattern.take("float32", (*pattern.cache[:2], 1, pattern.cache[3]), "key", "value")
    w, lower = pattern.begin_with_caches()
    assert isinstance(lower, Scatter)
    cache = lower.write(pattern.caches, (w.inputs["key"], w.inputs["value"]))
    slots = w.op("Add", w.inputs["cache_positions"], 1)  # an input that writing by `Where` reads
    outputs = {**dict(zip(WRITTEN, cache, strict=True)), "slots": slots}
    return pattern.graph(outputs, {**dict.fromkeys(WRITTEN, pattern.cache), "slots": ("target",)})


def _cross_attention(lowering: str) -> ir.Model:
    pattern = Pattern("post", lowering)
    width = pattern.sizes.heads * pattern.sizes.head_dim
    pattern.take("float32", ("batch", width), "query")
    pattern.take("float32", pattern.cross, "cross_key_0", "cross_value_0")
    pattern.take("float32", ("batch", 1, 1, "source"), "cross_bias")
    w, lower = pattern.begin()
    context = lower.cross_attention(*(w.inputs[name] for name in ("query", "cross_key_0", "cross_value_0")))
    return pattern.graph({"context": context}, {"context": ("batch", width)})


def _norm(lowering: str, option: str) -> ir.Model:
    pattern = Pattern(option, lowering)
    shape = ("batch", pattern.model.config.d_model)
    pattern.take("float32", shape, "x", "residual")
    w, lower = pattern.begin()
    norm = pattern.model.decoder[0].self_attention_residual.norm
    total, normalised = lower.add_norm(w.inputs["x"], w.inputs["residual"], norm, "norm")
    return pattern.graph({"total": total, "normalised": normalised}, dict.fromkeys(("total", "normalised"), shape))


def _feed_forward(lowering: str, option: str) -> ir.Model:
    pattern = Pattern(option, lowering)
    shape = ("batch", pattern.model.config.d_model)
    pattern.take("float32", shape, "x")
    w, _ = pattern.begin()
    layer = pattern.model.decoder[0].feed_forward
    y = write_feed_forward(w, w.inputs["x"], layer, None, pattern.model.config.activation, w.linear)
    return pattern.graph({"y": y}, {"y": shape})


def _rotary(lowering: str) -> ir.Model:
    pattern = Pattern("rotary", lowering)
    shape = ("batch", 3 * pattern.sizes.heads * pattern.sizes.head_dim)
    pattern.take("float32", shape, "qkv")
    pattern.take("int64", ("batch",), "positions")
    w, _ = pattern.begin()
    config = pattern.model.config
    turned = Rotation(w, config, config.decoder, LENGTH, w.inputs["positions"]).turned(w.inputs["qkv"], [-1])
    return pattern.graph({"turned": turned}, {"turned": shape})


def _choice(lowering: str) -> ir.Model:
    pattern = Pattern("post", lowering)
    vocabulary = pattern.sizes.target_vocabulary
    pattern.take("float32", ("batch", vocabulary), "logits")
    w, lower = pattern.begin()
    return pattern.graph({"token": lower.best(w.inputs["logits"], vocabulary)}, {"token": ("batch",)})


def _state(lowering: str) -> ir.Model:
    pattern = Pattern("post", lowering)
    pattern.take("float32", ("batch", pattern.sizes.target_vocabulary), "logits")
    pattern.take("int64", ("batch",), "positions", "target_limits")
    pattern.take("bool", ("batch",), "finished")
    w, lower = pattern.begin()
    names = ("next_token_ids", "next_positions", "next_finished")
    outputs = dict(zip(names, write_state(w, lower, pattern.model.config, w.inputs["logits"]), strict=True))
    return pattern.graph(outputs, dict.fromkeys(names, ("batch",)))


def _mixture(lowering: str) -> ir.Model:
    pattern = Pattern("copies", lowering)
    sizes, model = pattern.sizes, pattern.model
    layers = range(sizes.decoder_layers)
    pattern.take("float32", ("batch", sizes.target_vocabulary), "logits")
    pattern.take("float32", ("batch", model.config.d_model), "state", "read", *(f"context_{n}" for n in layers))
    pattern.take("float32", ("batch", sizes.heads * sizes.head_dim), *(f"query_{n}" for n in layers))
    pattern.take("float32", pattern.cross, *(f"cross_key_{n}" for n in layers))
    pattern.take("float32", ("batch", 1, 1, "source"), "cross_bias")
    pattern.take("int64", ("batch", 1, "source", 1), CROSS_IDS)
    w, lower = pattern.begin()
    names = ("query", "cross_key", "context")
    read = {n: CrossAttention(*(w.inputs[f"{name}_{n}"] for name in names)) for n in layers}
    states = (w.inputs[name] for name in ("logits", "state", "read"))
    assert model.copying is not None
    mixture = write_mixture(w, lower, model.copying, sizes, *states, read)
    return pattern.graph({"mixture": mixture}, {"mixture": ("batch", sizes.target_vocabulary)})


_WRITERS: dict[str, Callable[[str], ir.Model]] = {
    "self_attention": _self_attention,
    "self_attention_t5": lambda lowering: _self_attention(lowering, "t5"),
    "cross_attention": _cross_attention,
    "cache_write": _cache_write,
    "layer_norm": lambda lowering: _norm(lowering, "post"),
    "rms_norm": lambda lowering: _norm(lowering, "rms"),
    "relu": lambda lowering: _feed_forward(lowering, "post"),
    "gelu": lambda lowering: _feed_forward(lowering, "pre"),
    "gate": lambda lowering: _feed_forward(lowering, "umt5"),
    "rotary": _rotary,
    "choice": _choice,
    "state": _state,
    "mixture": _mixture,
}
assert tuple(_WRITERS) == PATTERNS


def _step(lowering: str) -> ir.Model:
    return write_step(random_model(), LOWERINGS[lowering], LENGTH, ModelTensors())


def residuals(graph: ir.Graph) -> dict[str, str]:
    """Names of the values that the norms after each sublayer read, by sublayer; of a model with norms after them."""
    found = {}
    for layer in (0, 1):
        for kind in ("self", "cross", "feed_forward"):
            first = next(node for node in graph if module_of(node) == f"layers.{layer}.{kind}_norm")
            value = first.inputs[0]
            assert value is not None
            found[f"{kind} of layer {layer}"] = str(value.name)
    assert tuple(found) == SUBLAYERS
    return found


def inputs_of(graph: ir.Graph, half: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Different values for each row; floats that float16 represents if `half`."""
    chance = np.random.default_rng(0)
    fixed: dict[str, Any] = {
        "positions": np.array(POSITIONS),
        "cache_positions": np.arange(SIZES["target"]),
        "target_limits": np.array([8, 6, 30, 30]),
        "finished": np.array([False, False, True, False]),
        "token_ids": np.array([5, 40, 0, 17]),
        "cross_ids": chance.integers(4, 9, (SIZES["batch"], 1, SIZES["source"], 1)),
    }
    padding = np.arange(SIZES["source"]) >= np.array(SOURCE_LENGTHS)[:, None]
    fixed["cross_bias"] = np.where(padding, MASKED_HALF if half else MASKED, 0.0)[:, None, None]
    arrays = {}
    for value in graph.inputs:
        name, shape = str(value.name), [SIZES.get(str(d), d) for d in value.shape or ()]
        array = fixed[name] if name in fixed else chance.standard_normal([int(str(d)) for d in shape])
        arrays[name] = array.astype(value.dtype.numpy() if value.dtype else np.float32)
        if name not in fixed and half:
            arrays[name] = arrays[name].astype(np.float16).astype(np.float32)
    if "logits" in arrays and "finished" not in arrays:
        for row, logits in enumerate(arrays["logits"]):
            logits[[60 - row, 33, 12 + row]] = 5.0  # equal maxima: the lowest id is right
    elif "logits" in arrays:
        arrays["logits"][[0, 3], [9, EOS]] = 50.0  # an ordinary token, and the end of a sentence
    return arrays


def expected_of(graph: ir.Model, feed: dict[str, Any], values: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Return outputs and inner values by ONNX Runtime, each operator as written, on the CPU in float32."""
    model = ir.to_proto(ir.external_data.load_to_model(graph))
    outputs = [value.name for value in model.graph.output]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in values)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [*outputs, *values]
    return dict(zip(names, session.run(names, feed), strict=True))


def write_case(directory: Path, name: str, lowering: str, precision: str) -> dict[str, Any]:
    """Write the files of one case; return its record."""
    graph = _step(lowering) if name == STEP else _WRITERS[name](lowering)
    heads = random_model(**OPTIONS["copies" if name == "mixture" else "post"]).config.sizes.heads
    values = residuals(graph.graph) if name == STEP else {}
    half = precision == "float16"
    feed = inputs_of(graph.graph, half)
    expected = expected_of(graph, feed, list(values.values()))
    inner = {name: expected.pop(value) for name, value in values.items()}
    written = copied(graph)
    if half:
        to_float16(written, mixture_nodes(written))
    file = directory / f"{name}.{lowering}.{precision}.onnx"
    ir.save(written, file)
    onnx.checker.check_model(file, full_check=True)
    kinds = {"in": feed, "out": expected, "value": inner}
    arrays = {f"{kind}/{key}": array for kind, named in kinds.items() for key, array in named.items()}
    np.savez_compressed(file.with_suffix(".npz"), **arrays)
    shapes = {
        str(v.name): [d if isinstance(d, int) else str(d.value) for d in v.shape or ()] for v in graph.graph.inputs
    }
    record = {"name": name, "precision": precision, "lowering": lowering, "heads": heads}
    return {**record, "inputs": shapes, "values": values}


def write_cases(directory: Path) -> None:
    """Write all cases in every lowering and precision that TensorRT builds."""
    directory.mkdir(parents=True, exist_ok=True)
    records = [
        write_case(directory, name, lowering, precision)
        for name in (*PATTERNS, STEP)
        for lowering in ("scatter", "tensorscatter")
        for precision in PRECISIONS
    ]
    (directory / "cases.json").write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    write_cases(Path(sys.argv[1]))
