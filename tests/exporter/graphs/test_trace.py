"""What PyTorch's exporter is spared changes no graph."""

import contextlib
import itertools
from types import SimpleNamespace
from typing import Any, cast

import onnx_ir as ir
import pytest
import torch
from numpy_runner import OPTIONS, TRACERS, random_model
from torch.export import Dim, ExportedProgram
from torch.onnx._internal.exporter import _fx_passes
from torch.onnx._internal.exporter._registration import ONNXRegistry
from txport.exporter.graphs import trace
from txport.runtime.bundle.interface import Interface


def described(model: ir.Model) -> list[tuple[object, ...]]:
    """Each node with its attributes and inputs; values that nodes make by when they do, not by name."""
    numbers: dict[ir.Value, int] = {}

    def number(value: ir.Value | None) -> object:
        if value is None or value.is_graph_input():
            return value and value.name
        if value.const_value is not None:
            return value.const_value.dtype, value.const_value.numpy().tobytes()
        return numbers.setdefault(value, len(numbers))

    return [
        (node.domain, node.op_type, node.name, sorted(map(str, node.attributes.items())), *map(number, node.inputs))
        for node in model.graph
        if [number(output) for output in node.outputs]
    ]


@pytest.mark.parametrize("name", ["encoder", "scatter"])
def test_less_work_makes_the_same_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And PyTorch has its own functions back."""
    model = random_model(encoder_layers=1, decoder_layers=1)
    own = ONNXRegistry.from_torchlib, _fx_passes.decompose_with_registry
    less = described(TRACERS[name](model, 32))
    assert trace._remembered.cache_info().currsize
    assert (ONNXRegistry.from_torchlib, _fx_passes.decompose_with_registry) == own
    monkeypatch.setattr(trace, "_with_less_work", contextlib.nullcontext)
    assert described(TRACERS[name](model, 32)) == less


# A model that copies has every module but these norms.
GRAPHS = [("copies", name) for name in TRACERS]
GRAPHS += itertools.product(["rms", "power", "batch"], ["encoder", "scatter"])


@pytest.mark.parametrize(("kind", "name"), GRAPHS)
def test_no_graph_has_an_operator_to_decompose(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That would double the time of each export."""
    decompositions = _count_decompositions(monkeypatch)
    graph = TRACERS[name](random_model(**{**OPTIONS[kind], "encoder_layers": 1}), 32)
    assert len(graph.graph) > 30 and decompositions == []


def _count_decompositions(monkeypatch: pytest.MonkeyPatch) -> list[ExportedProgram]:
    found, own = [], ExportedProgram.run_decompositions

    def decompose(program: ExportedProgram, *arguments: Any) -> ExportedProgram:
        found.append(program)
        return own(program, *arguments)

    monkeypatch.setattr(ExportedProgram, "run_decompositions", decompose)
    return found


class Cast(torch.nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids.to(torch.int32)  # PyTorch's exporter has this operator only decomposed


def test_an_operator_to_decompose_is_decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    decompositions = _count_decompositions(monkeypatch)
    names = SimpleNamespace(inputs=[SimpleNamespace(name="ids")], outputs=[SimpleNamespace(name="cast")])
    graph = trace._trace(Cast(), (torch.ones(2, dtype=torch.int64),), ({0: Dim("b")},), cast(Interface, names), 18)
    assert [node.op_type for node in graph.graph] == ["Cast"] and len(decompositions) == 1
