"""Precision of a finished engine, from the layers that TensorRT's engine inspector lists.

A strongly typed network (version 10 and later) has fixed precisions, which `network.py` checks before the build. The
inspector only confirms them. Version 8.6 chooses types itself, so its layers are the only information. They are not a
reason to refuse an engine: float32 is allowed for reductions of a float16 network.
"""

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
# Layers that only convert, move or store values.
_MOVES = ("Reformat", "NoOp", "Constant", "Shuffle", "Cast", "Gather", "Scatter", "Slice", "Concat", "Select")
# Matrix products. Other layers may use float32: LayerNorm, softmax, parts of a product.
_PRODUCTS = re.compile(r"gemm|matrix_?multiply|matmul|convolution|fullyconnected", re.IGNORECASE)
# Blocks compiled by Myelin, and its generated kernels. They may contain any operator.
_FUSED = re.compile(r"ForeignNode|\bMyelin|\bkgen\b", re.IGNORECASE)
_NODE = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
# 8.6 lists every layer for each profile.
_PROFILE = re.compile(r" \[profile \d+\]$")


def engine_layers(tensorrt: TensorRt, engine: Any) -> list[dict[str, Any]]:
    """Return the inspector's description of each layer. The engine needs detailed profiling verbosity."""
    formats = tensorrt.module.LayerInformationFormat
    return parse_layers(engine.create_engine_inspector().get_engine_information(formats.JSON), str(tensorrt.library))


def parse_layers(text: str, library: str) -> list[dict[str, Any]]:
    """Parse the inspector's JSON.

    Raises:
        CheckFailed: it contains only names.
    """
    layers: list[dict[str, Any]] = [layer for layer in json.loads(text)["Layers"] if isinstance(layer, dict)]
    if not layers:
        raise CheckFailed(f"{library} lists no layers with their types: its engine's precision is unknown")
    return layers


def count_types(layers: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of layers that compute in each floating type.

    A layer computes in a type if its outputs and at least one input have that type. A layer with a float16 input and a
    float32 output, or the reverse, is a conversion.
    """
    counts: dict[str, int] = {}
    for layer in layers:
        kind = _computes_in(layer)
        if kind is not None:
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def wrong_products(layers: list[dict[str, Any]], precision: str, islands: set[str]) -> list[str]:
    """Return the names of weight products that have no input in `precision` and do not belong to an island.

    A layer with some inputs in `precision` is correct. It may also read and write float32 sums, like parts of products.
    """
    faults = []
    for layer in layers:
        name = _PROFILE.sub("", str(layer.get("Name", "")))
        kind = str(layer.get("LayerType", ""))
        nodes = {*name.split(" + "), *_NODE.findall(str(layer.get("Metadata", "")))}
        is_product = _PRODUCTS.search(kind) or any(node.endswith("/Gemm") for node in nodes)
        if not is_product or kind.startswith(_MOVES) or _FUSED.search(f"{name} {kind}"):
            continue
        read = _types_of(layer, "Inputs")
        if read and precision not in read and not any(is_island(node, islands) for node in nodes):
            faults.append(f"{name} ({', '.join(sorted(read))})")
    return faults


def _computes_in(layer: dict[str, Any]) -> str | None:
    if str(layer.get("LayerType", "")).startswith(_MOVES):
        return None
    output_types = _types_of(layer, "Outputs")
    shared_types = output_types & _types_of(layer, "Inputs")
    if len(shared_types) == 1 and len(output_types) == 1:
        return next(iter(shared_types))
    return None


def _types_of(layer: dict[str, Any], side: str) -> set[str]:
    """Return the floating types of a layer's tensors, except tensors with one element, such as factors in float32."""
    tensors = [tensor for tensor in layer.get(side, []) if isinstance(tensor, dict)]
    kinds = (_type_of(tensor) for tensor in tensors if set(tensor.get("Dimensions", [0])) - {1})
    return {kind for kind in kinds if kind is not None}


def _type_of(tensor: dict[str, Any]) -> str | None:
    text = str(tensor.get("Format/Datatype", ""))
    return next((name for name, pattern in _TYPES if pattern.search(text)), None)
