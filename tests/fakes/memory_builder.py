"""What `tx-build` asks of TensorRT 8.6's builder, which chooses precisions itself, by the library's own rules.

Layers have the names that its parser gives (onnx-tensorrt 8.6-EA): those of the node only where an importer registers
its layer. Types follow from those of inputs, layer by layer. That 8.6 says them before it builds has not been seen: if
it says FLOAT of all, an engine is float32 throughout, and `precision.layers` of build.json shows it. A timing cache
that was serialized in this process is not taken back, as 8.6 was seen to do.
"""

from types import SimpleNamespace
from typing import Any

FLOAT, HALF, INT32, BOOL = "DataType.FLOAT", "DataType.HALF", "DataType.INT32", "DataType.BOOL"


class Layer:
    """An `ILayer`; `taken` holds the types that outputs were told to have.

    Args:
        name: as the parser gives it.
        kind: of `LayerType`.
        inputs: layers, whose first output is read, or the types of inputs of the network and of weights.
        to: of a CAST.
    """

    def __init__(self, name: str, kind: str, *inputs: "Layer | str", to: str | None = None) -> None:
        self.name, self.type = name, f"LayerType.{kind}"
        read = [each.outputs[0] if isinstance(each, Layer) else each for each in inputs]
        floats = {each for each in read if each in (FLOAT, HALF)}
        assert len(floats) < 2, "a network whose layers read both types is refused"
        of_kind = {"CAST": (to,), "SHAPE": (INT32,), "TOPK": (read[0], INT32)}
        self.outputs = of_kind.get(kind, (read[0],))
        self.num_outputs, self.num_inputs = len(self.outputs), len(read)
        self.precision: str | None = None
        self.taken: dict[int, str] = {}

    def get_output(self, index: int) -> Any:
        return SimpleNamespace(dtype=self.outputs[index])

    def set_output_type(self, index: int, dtype: str) -> None:
        self.taken[index] = dtype


class Network:
    """An `INetworkDefinition`."""

    def __init__(self, *layers: Layer) -> None:
        self.layers, self.num_layers = layers, len(layers)

    def get_layer(self, index: int) -> Layer:
        return self.layers[index]


class TimingCache:
    """An `ITimingCache`."""

    made: set[bytes] = set()

    def __init__(self, known: bytes) -> None:
        self.known = known

    def serialize(self) -> bytes:
        self.made.add(self.known + b"measured")
        return self.known + b"measured"


class Config:
    """An `IBuilderConfig`."""

    def __init__(self) -> None:
        self.flags, self.tactic_sources = {"TF32"}, 0b11111
        self.timing_cache: TimingCache | None = None

    def set_flag(self, flag: str) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: str) -> None:
        self.flags.discard(flag)

    def set_tactic_sources(self, tactic_sources: int) -> None:
        self.tactic_sources = tactic_sources

    def set_preview_feature(self, feature: str, enable: bool) -> None:
        assert feature == "PROFILE_SHARING_0806" and enable

    def create_timing_cache(self, serialized_timing_cache: bytes) -> TimingCache | None:
        return None if serialized_timing_cache in TimingCache.made else TimingCache(serialized_timing_cache)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        self.timing_cache = cache
        return not ignore_mismatch


class Builder:
    """An `IBuilder`."""

    def create_builder_config(self) -> Config:
        return Config()


def named(*names: str) -> SimpleNamespace:
    """An enumeration."""
    return SimpleNamespace(**{name: name for name in names})


MODULE = SimpleNamespace(
    float32=FLOAT,
    BuilderFlag=named("TF32", "FP16", "PREFER_PRECISION_CONSTRAINTS"),
    ProfilingVerbosity=named("DETAILED"),
    PreviewFeature=named("PROFILE_SHARING_0806"),
)
