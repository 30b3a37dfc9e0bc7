"""Writers for parts of a bundle: graph files with a common weights file, and their records in the manifest."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import onnx
import onnx_ir as ir
from txport.exporter.graphs.weights import share_weights
from txport.runtime.bundle.interface import OPTIONAL_OUTPUTS, interface
from txport.runtime.bundle.schema import Graph, ModelSizes, OptionalRole, Tensor
from txport.runtime.bundle.strict_json import finite

_DTYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.INT64: "int64",
    ir.DataType.INT32: "int32",
    ir.DataType.BOOL: "bool",
}


def write_graphs(directory: Path, models: Mapping[str, ir.Model], version: str) -> dict[str, Path]:
    """Save graphs as `<name>.onnx` beside one `weights.bin`, and check each with ONNX's checker and shape inference.

    Args:
        directory: created if it does not exist.
        models: graphs by name; their weights are replaced by references to the file.
        version: of txport, written as the producer version.

    Returns:
        path of each graph file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    share_weights(models.values(), directory / "weights.bin")
    files = {}
    for name, model in models.items():
        model.producer_name = "txport"
        model.producer_version = version
        model.graph.name = name
        files[name] = directory / f"{name}.onnx"
        ir.save(model, files[name])
        onnx.checker.check_model(files[name], full_check=True)
    return files


def graph_record(name: str, model: ir.Model, sizes: ModelSizes) -> Graph:
    """Return the manifest's record of one graph."""
    role, _, lowering = name.partition(".")
    inputs = {value.name for value in model.graph.inputs}
    contract = interface(role, sizes, "float32")
    if contract is not None:
        aliases = contract.aliases
    else:
        aliases = ()
    return Graph(
        name=name,
        role=role,
        lowering=lowering or "standard",  # type: ignore[arg-type]
        optional=role in get_args(OptionalRole),
        file=f"onnx/{name}.onnx",
        opsets=dict(model.opset_imports),
        inputs=tuple(_tensor(value) for value in model.graph.inputs),
        outputs=tuple(_tensor(value) for value in model.graph.outputs),
        aliases=tuple(pair for pair in aliases if pair[0] in inputs),
    )


def _tensor(value: ir.Value) -> Tensor:
    assert value.name and value.dtype and value.shape is not None
    shape = tuple(dim if isinstance(dim, int) else str(dim.value) for dim in value.shape)
    return Tensor(value.name, _DTYPES[value.dtype], shape, value.name in OPTIONAL_OUTPUTS)  # type: ignore[arg-type]


def write_json(file: Path, value: Any) -> None:
    """Write UTF-8 JSON with a final line break."""
    file.write_text(json.dumps(finite(value), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
