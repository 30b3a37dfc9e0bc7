"""What `tx-build` asks of TensorRT 8.6's builder, which chooses precisions itself, by the library's own rules.

Layers have the names that its parser gives (onnx-tensorrt 8.6-EA): those of the node only where an importer registers
its layer. Within a network it says float32 of every floating tensor until it is built, as it did on an H200: inputs,
weights and casts alone state their type. A timing cache that was serialized in this process is not taken back, as 8.6
was seen to do.
"""

from types import SimpleNamespace

FLOAT, HALF, INT32, BOOL = "DataType.FLOAT", "DataType.HALF", "DataType.INT32", "DataType.BOOL"


class Layer:
    """An `ILayer`; `taken` holds the types that outputs were told to have.

    Args:
        name: as the parser gives it.
        kind: of `LayerType`.
        inputs: layers, whose first output is read, or the types of inputs of the network; of a CONSTANT its weights'.
        to: of a CAST.
    """

    def __init__(self, name: str, kind: str, *inputs: "Layer | str", to: str | None = None) -> None:
        self.name, self.type = name, f"LayerType.{kind}"
        self.read = [each.tensor(0) if isinstance(each, Layer) else _input(each) for each in inputs]
        types = [tensor.is_of for tensor in self.read]
        assert len({each for each in types if each in (FLOAT, HALF)}) < 2, "it is refused where a layer reads both"
        of_kind = {"CAST": (to,), "SHAPE": (INT32,), "TOPK": (types[0], INT32)}
        self.outputs = of_kind.get(kind, (types[0],))
        self.num_outputs, self.num_inputs = len(self.outputs), 0 if kind == "CONSTANT" else len(self.read)
        self.precision: str | None = None
        self.taken: dict[int, str] = {}

    def tensor(self, index: int) -> SimpleNamespace:
        """An output: what it is of, and what is said of it."""
        kind = str(self.outputs[index])
        return SimpleNamespace(
            name=f"{self.name} {id(self)} {index}", is_of=kind, dtype=FLOAT if kind == HALF else kind
        )

    get_output = tensor

    def get_input(self, index: int) -> SimpleNamespace:
        return self.read[index]

    def set_output_type(self, index: int, dtype: str) -> None:
        self.taken[index] = dtype


class CastLayer(Layer):
    """An `ICastLayer`."""

    @property
    def to_type(self) -> str:
        return str(self.outputs[0])


class ConstantLayer(Layer):
    """An `IConstantLayer`, whose weights are an array."""

    @property
    def weights(self) -> SimpleNamespace:
        return SimpleNamespace(dtype={FLOAT: "float32", HALF: "float16", INT32: "int32"}[self.outputs[0]])


def _input(kind: str) -> SimpleNamespace:
    """An input of the network, which states its type."""
    return SimpleNamespace(name=f"a {kind}", is_of=kind, dtype=kind)


class Network:
    """An `INetworkDefinition`, the first outputs of some of whose layers are its own."""

    def __init__(self, *layers: Layer, outputs: tuple[Layer, ...] = ()) -> None:
        self.layers, self.num_layers = layers, len(layers)
        self.outputs, self.num_outputs = outputs, len(outputs)
        named = {tensor.name: tensor for layer in layers if layer.num_inputs for tensor in layer.read}
        made = {layer.tensor(index).name for layer in layers for index in range(layer.num_outputs)}
        self.inputs = [tensor for name, tensor in named.items() if name not in made]
        self.num_inputs = len(self.inputs)

    def get_layer(self, index: int) -> Layer:
        return self.layers[index]

    def get_input(self, index: int) -> SimpleNamespace:
        return self.inputs[index]

    def get_output(self, index: int) -> SimpleNamespace:
        """It states its type."""
        tensor = self.outputs[index].tensor(0)
        return SimpleNamespace(name=tensor.name, dtype=tensor.is_of)


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
    ICastLayer=CastLayer,
    IConstantLayer=ConstantLayer,
    BuilderFlag=named("TF32", "FP16", "PREFER_PRECISION_CONSTRAINTS"),
    ProfilingVerbosity=named("DETAILED"),
    PreviewFeature=named("PROFILE_SHARING_0806"),
)
