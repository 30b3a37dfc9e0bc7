"""Precision proven from the finished engine: its layers as the engine inspector lists them."""

import json
import re
from typing import Any

from txport.exporter.engines.network import is_island
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.errors import CheckFailed

_TYPES = (
    ("float16", re.compile(r"FP16|\bHalf\b", re.IGNORECASE)),
    ("bfloat16", re.compile(r"BF16|BFloat", re.IGNORECASE)),
    ("float32", re.compile(r"FP32|\bFloat\b", re.IGNORECASE)),
)
# Layers that only convert, move or hold values.
_MOVES = ("Reformat", "NoOp", "Constant", "Shuffle", "Cast", "Gather", "Scatter", "Slice", "Concat", "Select")


def engine_layers(tensorrt: TensorRt, engine: Any) -> list[dict[str, Any]]:
    """The inspector's description of each layer; the engine must be built with detailed profiling verbosity."""
    formats = tensorrt.module.LayerInformationFormat
    text = engine.create_engine_inspector().get_engine_information(formats.JSON)
    layers: list[dict[str, Any]] = [layer for layer in json.loads(text)["Layers"] if isinstance(layer, dict)]
    if not layers:
        raise CheckFailed(f"{tensorrt.library} lists no layers with their types: its engine's precision is unknown")
    return layers


def check_layers(layers: list[dict[str, Any]], file: str, precision: str, islands: set[str]) -> dict[str, int]:
    """Check that every layer outside the islands computes in `precision`, and every island in float32.

    A layer computes in a type if its outputs and at least one input have that type: a layer that reads float16 and
    writes float32 (or the reverse) converts.

    Returns:
        how many layers compute in each floating type.

    Raises:
        CheckFailed: a layer computes in another type.
    """
    counts: dict[str, int] = {}
    wrong = []
    for layer in layers:
        name = str(layer.get("Name", ""))
        kind = _computes_in(layer)
        if kind is None:
            continue
        counts[kind] = counts.get(kind, 0) + 1
        expected = "float32" if is_island(name, islands) or _holds_island(layer, islands) else precision
        if kind != expected:
            wrong.append(f"{name} ({kind})")
    if wrong:
        raise CheckFailed(
            f"{len(wrong)} layers of the engine of {file} do not compute in {precision} as its graph says: "
            f"{', '.join(wrong[:3])}"
        )
    return counts


def _holds_island(layer: dict[str, Any], islands: set[str]) -> bool:
    """A fused layer lists in its metadata the nodes that it was fused from."""
    nodes = set(re.findall(r"\[ONNX Layer: ([^\]]+)\]", str(layer.get("Metadata", ""))))
    return bool(nodes & islands)


def _computes_in(layer: dict[str, Any]) -> str | None:
    if any(str(layer.get("LayerType", "")).startswith(kind) for kind in _MOVES):
        return None
    written = {kind for kind in map(_type_of, layer.get("Outputs", [])) if kind is not None}
    read = {kind for kind in map(_type_of, layer.get("Inputs", [])) if kind is not None}
    both = written & read
    return next(iter(both)) if len(both) == 1 and len(written) == 1 else None


def _type_of(tensor: dict[str, Any]) -> str | None:
    text = str(tensor.get("Format/Datatype", ""))
    return next((name for name, pattern in _TYPES if pattern.search(text)), None)
