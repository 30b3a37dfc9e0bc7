"""TensorRT-RTX whose engines compute on the CPU: its own parser and networks, and ONNX Runtime in place of a GPU.

Nothing is built. `wrong` plants a fault: the layers that it names compute wrongly in every row after the first, as
TensorRT 8.6.0 did. Networks are those that the library parsed and tx-build changed.
"""

import ctypes
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from txport.exporter.engines.decoder_step import head_broadcasts
from txport.exporter.engines.network import kind_of, layers_of
from txport.runtime.engines.build_record import SCORES
from txport.runtime.engines.tensorrt import TensorRt, find_tensorrt

# Returns the names of the layers of a network that compute wrongly.
Fault = Callable[[Any], Iterable[str]]
_ADDED = re.compile(r"(/Where)?(_\d+)?$")  # what tx-build and the parser add to the name of a node


def none(_network: Any) -> Iterable[str]:
    """Plant no fault."""
    return ()


def broadcasts_over_heads(network: Any) -> Iterable[str]:
    """Plant the fault of TensorRT 8.6.0: an input with one head is read as if it had all."""
    return {layer.name for layer, *_ in head_broadcasts(network, 4)}


def fused_attention(network: Any) -> Iterable[str]:
    """Plant the other fault of TensorRT 8.6.0: attention with a computed mask, unless its scores are outputs."""
    outputs = {network.get_output(index).name for index in range(network.num_outputs)}
    made = {layer.get_output(0).name: layer for layer in layers_of(network)}
    for layer in layers_of(network):
        scores = layer.get_input(0)
        if kind_of(layer) != "SOFTMAX" or scores.name in outputs:
            continue
        mask = made.get(made[scores.name].get_input(1).name)
        if mask is not None and kind_of(mask) == "CONCATENATION":  # repeated over heads
            mask = made.get(mask.get_input(0).name)
        if mask is not None and kind_of(mask) == "SELECT":
            yield layer.name


# Those that a rehearsal may plant by `TXPORT_GPU_FAULT`.
FAULTS: dict[str, Fault] = {
    "none": none,
    "broadcasts_over_heads": broadcasts_over_heads,
    "fused_attention": fused_attention,
}


def of_node(*parts: str) -> Fault:
    """Plant a fault in layers whose names contain one of these."""
    return lambda network: [layer.name for layer in layers_of(network) if any(part in layer.name for part in parts)]


def of_kind(*kinds: str) -> Fault:
    """Plant a fault in layers of these types."""
    return lambda network: [layer.name for layer in layers_of(network) if kind_of(layer) in kinds]


@dataclass(frozen=True)
class ComputingRtx(TensorRt):
    """See the module."""

    wrong: Fault = none
    files: dict[int, str] = field(default_factory=dict)  # of each network

    @staticmethod
    def with_fault(wrong: Fault) -> "ComputingRtx":
        """Return the installed TensorRT-RTX with this fault."""
        real = find_tensorrt("tensorrt_rtx")
        return ComputingRtx(real.module, real.library, real.messages, real.logger, wrong)

    @property
    def selects_caches(self) -> bool:
        """As TensorRT does."""
        return True

    @property
    def lowering(self) -> Literal["scatter", "tensorscatter"]:
        """As TensorRT 8.6 does."""
        return "scatter"

    def new_parser(self, network: Any) -> Any:
        """Note which file becomes this network."""
        parser = super().new_parser(network)

        def parse(model: bytes, path: str) -> bool:
            self.files[id(network)] = path
            return bool(parser.parse(model, path))

        def parse_from_file(path: str) -> bool:
            self.files[id(network)] = path
            return bool(parser.parse_from_file(path))

        return SimpleNamespace(parse=parse, parse_from_file=parse_from_file, num_errors=0, held=parser)

    def serialize_to(self, builder: Any, network: Any, config: Any, file: Any) -> bool:
        """Write the graph's file, its outputs, and the layers that compute wrongly."""
        wrong = sorted(self.wrong(network))
        outputs = [network.get_output(index).name for index in range(network.num_outputs)]
        nodes = {layer.get_output(0).name: layer.name for layer in layers_of(network)}  # tx-build renames scores
        scores = {name: nodes[name] for name in outputs if name.startswith(SCORES)}
        plan = {"file": self.files[id(network)], "wrong": wrong, "outputs": outputs, "scores": scores}
        file.write(json.dumps(plan).encode())
        return True

    def open_engine(self, data: Any, version_compatible: bool) -> tuple[Any, Any]:
        """Open what `serialize_to` wrote."""
        return None, ComputingEngine(**json.loads(data))

    def scratch_bytes(self, engine: Any) -> int:
        """None is needed."""
        return 1

    def new_context(self, engine: Any, scratch: int, size: int) -> Any:
        """One context."""
        return engine


class ComputingEngine:
    """An `ICudaEngine` and its `IExecutionContext`, over memory of the host."""

    def __init__(self, file: str, wrong: list[str], outputs: list[str], scores: dict[str, str]) -> None:
        model = onnx.load(file)
        nodes = {node.name for node in model.graph.node}
        values = {node.name: node.output[0] for node in model.graph.node}
        for name, node in scores.items():
            model.graph.node.append(helper.make_node("Identity", [values[node]], [name]))
        plant(model, {name if name in nodes else _ADDED.sub("", name) for name in wrong})
        known = {value.name for value in model.graph.output}
        model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs if name not in known)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        self._types = {value.name: value.type for value in (*self._session.get_inputs(), *self._session.get_outputs())}
        self._inputs = {value.name for value in self._session.get_inputs()}
        self._outputs = outputs
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    @property
    def num_io_tensors(self) -> int:
        """Inputs and outputs."""
        return len(self._inputs) + len(self._outputs)

    def get_tensor_name(self, index: int) -> str:
        """Name one of them."""
        return [*sorted(self._inputs), *self._outputs][index]

    def get_tensor_dtype(self, name: str) -> str:
        """As `TensorRt.type_name` reads it."""
        kind = self._types[name].removeprefix("tensor(").removesuffix(")")
        return "DataType." + {"float": "FLOAT", "float16": "HALF"}.get(kind, kind.upper())

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        """There is one."""
        return profile_index == 0

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        """Note a shape."""
        self._shapes[name] = tuple(shape)
        return name in self._inputs

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Note an address."""
        self._addresses[name] = memory
        return memory % 256 == 0

    def execute_async_v3(self, stream_handle: int) -> bool:
        """Compute at once: the devices of the tests are eager."""
        kinds = {"FLOAT": np.float32, "HALF": np.float16}
        feed = {}
        for name in self._inputs:
            kind = self.get_tensor_dtype(name).rpartition(".")[2]
            dtype = np.dtype(kinds.get(kind, kind.lower()))
            size = int(np.prod(self._shapes[name])) * dtype.itemsize
            feed[name] = np.frombuffer(ctypes.string_at(self._addresses[name], size), dtype).reshape(self._shapes[name])
        for name, array in zip(self._outputs, self._session.run(self._outputs, feed), strict=True):
            ctypes.memmove(self._addresses[name], np.ascontiguousarray(array).tobytes(), array.nbytes)
        return True


def plant(model: onnx.ModelProto, names: set[str]) -> None:
    """Let nodes of these names give other values in every row after the first: those of the row before, and more."""
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        if node.name not in names:
            continue
        for index, output in enumerate(node.output):
            right = f"{output}.right"
            node.output[index] = right
            nodes += _moved(model, right, output)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _moved(model: onnx.ModelProto, right: str, wrong: str) -> list[onnx.NodeProto]:
    """Rows 0, 0, 1, 2 of a value with four rows."""
    rows = f"{wrong}.rows"
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 0, 1, 2]), rows))
    return [helper.make_node("Gather", [right, rows], [wrong], axis=0)]
