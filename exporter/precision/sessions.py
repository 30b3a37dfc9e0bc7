"""ONNX Runtime sessions of graph files, for one run with all values as outputs, or for given targets."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from txport.runtime.engines.ort_session import CPU, avoid_overflow

Array = npt.NDArray[np.generic]
Values = Mapping[str, Array]


def session(file: Path) -> onnxruntime.InferenceSession:
    """Return a session for a graph file on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Time is not measured, so threads should not occupy cores while they wait.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    avoid_overflow(options)
    return onnxruntime.InferenceSession(file, options, providers=[CPU])


def outputs_of(runner: onnxruntime.InferenceSession, feed: Values) -> dict[str, Array]:
    """Return all outputs of a session by name."""
    names = [value.name for value in runner.get_outputs()]
    return dict(zip(names, runner.run(names, dict(feed)), strict=True))


def with_all_outputs(file: Path) -> Path:
    """Write a copy of `file` with every float tensor as an output, in the same directory, and return its path."""
    model = onnx.load(file, load_external_data=False)
    output_names = {value.name for value in model.graph.output}
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    inner = [v for v in model.graph.value_info if v.type.tensor_type.elem_type in floats and v.name not in output_names]
    model.graph.output.extend(inner)
    copy = file.with_suffix(".all.onnx")
    onnx.save(model, copy)
    return copy


class TeacherForced:
    """Encoder and decoder step for given targets, so that several versions of them get the same inputs.

    Args:
        encoder: session of the encoder.
        step: session of a step in any lowering.
    """

    def __init__(self, encoder: onnxruntime.InferenceSession, step: onnxruntime.InferenceSession) -> None:
        self._encoder = encoder
        self._step = step

    def encode(self, sources: Array, lengths: npt.NDArray[np.int64]) -> tuple[Values, Values]:
        """Return inputs and outputs of the encoder, for int64 ids `[b, s]` or vectors `[b, s, f]` of lengths `[b]`."""
        names = {value.name for value in self._encoder.get_inputs()}
        (source,) = names - {"source_lengths"}
        feed: dict[str, Array] = {source: sources, "source_lengths": lengths}
        return feed, outputs_of(self._encoder, feed)

    def steps(
        self, cross: Values, targets: Sequence[Sequence[int]], bos: int, length: int
    ) -> Iterator[tuple[Values, Values]]:
        """Yield inputs and outputs of up to `length` steps, until all targets are complete.

        `length` is also the length of the caches.

        Args:
            cross: outputs of the encoder for these rows.
            targets: input tokens of each row after `bos`; rows with shorter targets read id 0 at the end.
            bos: first input token.
            length: maximum number of steps.
        """
        rows = len(targets)
        caches = self._empty_caches(rows, length)
        fixed: dict[str, Array] = {
            "finished": np.zeros(rows, dtype=np.bool_),
            "target_limits": np.full(rows, length + 1, dtype=np.int64),
            "cache_positions": np.arange(length, dtype=np.int64),
        }
        names = {value.name for value in self._step.get_inputs()}
        for position in range(min(length, max(map(len, targets)) + 1)):
            tokens = [[bos, *target][position] if position <= len(target) else 0 for target in targets]
            state: dict[str, Array] = {"token_ids": np.array(tokens, dtype=np.int64)}
            state["positions"] = np.full(rows, position, dtype=np.int64)
            feed = {k: v for k, v in {**cross, **fixed, **caches, **state}.items() if k in names}
            outputs = outputs_of(self._step, feed)
            yield feed, outputs
            caches = {name: outputs[f"next_{name}"] for name in caches}

    def _empty_caches(self, rows: int, length: int) -> dict[str, Array]:
        caches: dict[str, Array] = {}
        for value in self._step.get_inputs():
            if value.name.startswith("self_"):
                dtype = np.float16 if value.type == "tensor(float16)" else np.float32
                caches[value.name] = np.zeros((rows, value.shape[1], length, value.shape[3]), dtype=dtype)
        return caches
