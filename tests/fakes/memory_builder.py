"""A fake of TensorRT 8.6's builder, which chooses precisions itself, with the parts that `tx-build` uses.

Layers have the names of its parser (onnx-tensorrt 8.6-EA): the name of the node only if an importer registers its
layer. Before the build, a network reports float32 for every floating tensor, as on an H200. Only inputs, weights and
casts report their real type. A timing cache that this process has serialized is refused, as by the real 8.6.
"""

from types import SimpleNamespace

FLOAT, HALF, INT32, BOOL = "DataType.FLOAT", "DataType.HALF", "DataType.INT32", "DataType.BOOL"


class Layer:
    """An `ILayer`; `taken` holds the types that outputs were told to have.

    Args:
        name: name by the parser.
        kind: name in `LayerType`.
        inputs: layers whose first output is read, or types of network inputs; for a CONSTANT, the type of its weights.
        to: target type of a CAST.
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
        """Return an output with its layer and its reported type."""
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
    """Return an input of the network, which reports its real type."""
    return SimpleNamespace(name=f"a {kind}", is_of=kind, dtype=kind)


class Network:
    """An `INetworkDefinition`. The first outputs of `outputs` are outputs of the network."""

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
        """Return an output, which reports its real type."""
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
    """Return an enumeration of these names."""
    return SimpleNamespace(**{name: name for name in names})


MODULE = SimpleNamespace(
    float32=FLOAT,
    ICastLayer=CastLayer,
    IConstantLayer=ConstantLayer,
    BuilderFlag=named("TF32", "FP16", "PREFER_PRECISION_CONSTRAINTS"),
    ProfilingVerbosity=named("DETAILED"),
    PreviewFeature=named("PROFILE_SHARING_0806"),
)
