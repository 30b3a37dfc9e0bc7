"""TensorRT 8.6, which chooses precisions itself: what it is told, over a builder in memory that keeps its rules."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from memory_builder import BOOL, FLOAT, HALF, INT32, MODULE, Builder, Config, Layer, Network
from toy import BUNDLE
from txport.exporter.engines.builder import BuildOptions, EngineBuilder
from txport.exporter.engines.decoder_step import _take_over
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.build_record import LibraryVersion
from txport.runtime.engines.tensorrt import TensorRt, _logger
from txport.runtime.errors import EngineError


def library(version: str = "8.6.0") -> TensorRt:
    return TensorRt(MODULE, LibraryVersion("tensorrt", version), [], None)


def test_what_the_library_cannot_make_is_one_sentence() -> None:
    """As 8.6 says it on a machine whose driver is too old, or which has no GPU."""

    def none(*_arguments: object) -> None:
        messages.append("CUDA initialization failure with error: 35")
        raise TypeError("pybind11::init(): factory function returned nullptr")

    messages = ["of an earlier build"]
    module = SimpleNamespace(Builder=none, OnnxParser=none, Runtime=none)
    tensorrt = TensorRt(module, LibraryVersion("tensorrt", "8.6.0"), messages, None)
    with pytest.raises(EngineError, match="^TensorRT 8.6.0 cannot build engines here: CUDA initialization failure"):
        tensorrt.new_builder()
    with pytest.raises(EngineError, match="^TensorRT 8.6.0 cannot read ONNX files here: CUDA initialization failure"):
        tensorrt.new_parser(None)
    with pytest.raises(EngineError, match="^TensorRT 8.6.0 cannot run engines here: CUDA initialization failure"):
        tensorrt.open_engine(b"", False)


def test_why_no_implementation_was_found_is_said() -> None:
    """In the words of 8.6.0 on an H200."""
    messages: list[str] = []
    tensorrt = TensorRt(MODULE, LibraryVersion("tensorrt", "8.6.0"), messages, None)
    logger = _logger(SimpleNamespace(ILogger=type("ILogger", (), {})), messages)
    logger.log("Severity.INTERNAL_ERROR", "9: Could not find any implementation for node {a}.")
    assert tensorrt.why() == "9: Could not find any implementation for node {a}"
    messages.clear()
    logger.log("Severity.VERBOSE", "Skipping tactic 0x0 due to exception Could not infer output types: mul: f16, f32")
    logger.log("Severity.ERROR", "10: Could not find any implementation for node {b}.")
    refused = "10: Could not find any implementation for node {b} (Could not infer output types: mul: f16, f32)"
    assert tensorrt.why() == refused


@pytest.mark.parametrize("half", [False, True])
def test_engines_need_neither_cublas_nor_cudnn(half: bool) -> None:
    config = Config()
    library().set_precision(config, Network(), half)
    assert config.tactic_sources == 0
    assert config.flags == ({"FP16", "PREFER_PRECISION_CONSTRAINTS"} if half else set()), "never TF32"


def test_a_strongly_typed_network_is_left_alone() -> None:
    config, layer = Config(), Layer("norm/LayerNormalization", "NORMALIZATION", FLOAT)
    library("10.3.0").set_precision(config, Network(layer), half=True)
    assert config.flags == set() and config.tactic_sources == 0b11111 and layer.precision is None


def test_islands_are_found_by_what_states_its_type() -> None:
    """The parser names few layers of an island after their node; before the build all floats are said to be float32."""
    weights = Layer("(Unnamed Layer* 3) [Constant]", "CONSTANT", FLOAT)
    halves = Layer("(Unnamed Layer* 4) [Constant]", "CONSTANT", HALF)
    before = Layer("layers.0.self_output/Gemm", "MATRIX_MULTIPLY", HALF, halves)
    begin = Layer("layers.0/Cast", "CAST", before, to=FLOAT)
    norm = Layer("(Unnamed Layer* 12) [Normalization]", "NORMALIZATION", begin)
    inner = Layer("layers.0.feed_forward.inner/Gemm", "MATRIX_MULTIPLY", norm, weights)
    bias = Layer("(Unnamed Layer* 14) [Shuffle]", "SHUFFLE", weights)
    added = Layer("(Unnamed Layer* 15) [ElementWise]", "ELEMENTWISE", inner, bias)
    relu = Layer("layers.0.feed_forward/Relu_1", "ACTIVATION", added)
    best = Layer("argmax", "TOPK", relu)
    end = Layer("layers.0/Cast_1", "CAST", relu, to=HALF)
    outer = Layer("layers.0.feed_forward.outer/Gemm", "MATRIX_MULTIPLY", end, halves)
    rows = Layer("embedding/Gather", "GATHER", halves, INT32)
    sizes = Layer("(Unnamed Layer* 5) [Shape]", "SHAPE", outer)
    positions = Layer("positions/Add", "ELEMENTWISE", INT32, sizes)
    finished = Layer("finished/Or", "ELEMENTWISE", BOOL, BOOL)
    cache = Layer("layers.0/ScatterElements/Where", "SELECT", HALF)
    transposed = Layer("layers.0/Transpose", "SHUFFLE", cache)
    repeated = Layer("(Unnamed Layer* 20) [Concatenation]", "CONCATENATION", begin)  # added behind its reader
    masked = Layer("layers.0/Add", "ELEMENTWISE", norm, repeated)
    layers = [weights, halves, before, begin, norm, inner, bias, added, relu, best, end, outer]
    layers += [
        masked,
        rows,
        sizes,
        positions,
        finished,
        transposed,
        cache,
        repeated,
    ]  # what writes a cache was added last
    library().set_precision(Config(), Network(*layers, outputs=(cache,)), half=True)
    island = [norm, inner, added, relu, best, masked, repeated]  # not `bias`: weights are only given another shape
    assert all(layer.precision == FLOAT and layer.taken == {0: FLOAT} for layer in island)
    assert not any(layer.precision or layer.taken for layer in layers if layer not in island)
    layer = Layer("(Unnamed Layer* 12) [Normalization]", "NORMALIZATION", FLOAT)
    library().set_precision(Config(), Network(layer), half=False)
    assert layer.precision is None, "a float32 network has nothing to choose"


def test_a_cache_that_is_written_by_another_layer_keeps_its_type() -> None:
    """What becomes an output is float32 there, as on an H200, until it is given another type."""

    def mark(tensor: SimpleNamespace) -> None:
        outputs.append(tensor)
        tensor.dtype = FLOAT

    old, new = SimpleNamespace(name="next_self_key_0", dtype=HALF), SimpleNamespace(name="Where", dtype=FLOAT)
    outputs = [old]
    network = SimpleNamespace(num_layers=0, get_output=outputs.__getitem__, num_outputs=1, mark_output=mark)
    network.unmark_output = outputs.remove
    _take_over(library(), network, old, new)
    assert [(tensor.name, tensor.dtype) for tensor in outputs] == [("next_self_key_0", HALF)]


def test_all_engines_of_a_run_have_one_timing_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """8.6 does not take back what it serialized itself: all but the first engine would be timed again."""

    def builder_with(known: bytes) -> EngineBuilder:
        manifest = Manifest.load(BUNDLE)
        return EngineBuilder(library(), BUNDLE, manifest, BuildOptions(), tmp_path, known, lambda file, part: None)

    builder = builder_with(b"earlier")
    first, second = (builder._config(Builder(), Network(), True, f"{each}.plan") for each in (1, 2))
    assert first.timing_cache is not None and first.timing_cache is second.timing_cache
    assert builder.timing_cache == b"earliermeasured" and "rejects" not in caplog.text
    again = builder_with(builder.timing_cache)
    assert again._config(Builder(), Network(), True, "3.plan").timing_cache.known == b""
    assert "TensorRT 8.6.0 rejects its timing cache" in caplog.text
