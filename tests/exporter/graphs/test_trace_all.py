"""Graphs that other processes traced are those that this one would have made."""

from pathlib import Path
from typing import Any

import pytest
from numpy_runner import random_model
from txport.exporter.bundle import write_graphs
from txport.exporter.graphs import trace_all as module
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.graphs.trace import trace_encoder, trace_step


def test_the_same_files(tmp_path: Path) -> None:
    model = random_model(encoder_layers=1, decoder_layers=1)
    parts: list[None] = []
    found = module.trace_all(model, ["ort", "scatter"], 32, lambda: parts.append(None))
    assert list(found) == ["encoder", "decoder_step.ort", "decoder_step.scatter"] and len(parts) == 3
    expected = {"encoder": trace_encoder(model, 32)}
    expected |= {f"decoder_step.{name}": trace_step(model, LOWERINGS[name], 32) for name in ("ort", "scatter")}
    write_graphs(tmp_path / "found", found, "1")
    write_graphs(tmp_path / "expected", expected, "1")
    names = sorted(path.name for path in (tmp_path / "expected").iterdir())
    assert names == ["decoder_step.ort.onnx", "decoder_step.scatter.onnx", "encoder.onnx", "weights.bin"]
    for name in names:
        assert (tmp_path / "found" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes(), name


def test_a_process_that_fails_ends_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "trace_step_module", fail)
    with pytest.raises(RuntimeError, match="the process that traced scatter ended with code 1"):
        module.trace_all(random_model(encoder_layers=1, decoder_layers=1), ["ort", "scatter"], 32, lambda: None)
