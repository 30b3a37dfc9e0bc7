"""What is remembered between traces changes none of them."""

import contextlib

import onnx_ir as ir
import pytest
from numpy_runner import copied, random_model
from torch.onnx._internal.exporter._registration import ONNXRegistry
from txport.exporter.graphs import trace
from txport.exporter.graphs.lowerings import LOWERINGS


def test_a_remembered_table_of_operators_changes_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """And PyTorch has its own function back."""
    model, own = random_model(encoder_layers=1, decoder_layers=1), ONNXRegistry.from_torchlib

    def traced() -> bytes:
        return ir.to_proto(copied(trace.trace_step(model, LOWERINGS["scatter"], 32))).SerializeToString()

    remembered = traced()
    assert trace._remembered.cache_info().currsize and ONNXRegistry.from_torchlib == own
    monkeypatch.setattr(trace, "_one_registry", contextlib.nullcontext)
    assert traced() == remembered
