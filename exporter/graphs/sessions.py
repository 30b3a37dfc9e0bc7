"""Graph files run by plain sessions of ONNX Runtime, whole or with every value as an output."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from txport.runtime.engines.ort_session import CPU

Array = npt.NDArray[np.generic]


def session(file: Path, providers: Sequence[str] = (CPU,), *, fused: bool = True) -> onnxruntime.InferenceSession:
    """A session for a graph file; if not `fused`, every operator is computed as it is written."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not fused:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(file, options, providers=list(providers))


def outputs_of(runner: onnxruntime.InferenceSession, feed: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs of a session by name."""
    names = [value.name for value in runner.get_outputs()]
    return dict(zip(names, runner.run(names, dict(feed)), strict=True))


def with_all_outputs(file: Path, copy: Path) -> None:
    """Write `copy`, beside `file`, which gives every float tensor of the graph as an output too."""
    model = onnx.load(file, load_external_data=False)
    known = {value.name for value in model.graph.output}
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    inner = [v for v in model.graph.value_info if v.type.tensor_type.elem_type in floats and v.name not in known]
    model.graph.output.extend(inner)
    onnx.save(model, copy)
