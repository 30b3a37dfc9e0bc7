"""The operators of every lowering in every precision, as ONNX Runtime's optimisations leave them.

What this cannot see, since it runs on the CPU: fusions and copies that only the CUDA provider asks for, the choice of a
kernel within an operator (a MatMul that broadcasts), and Split into unequal parts that an optimisation would make.
`tests/gpu` checks the graph that the CUDA provider gets, and counts the nodes of what was captured.
"""

from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy_runner import OPTIONS, STEPS, graphs_of, random_model
from txport.exporter.graphs.beams import write_beams
from txport.exporter.graphs.capturable import CAPTURABLE, CPU_ONLY, not_capturable
from txport.exporter.graphs.float16 import final_nodes, to_float16
from txport.exporter.graphs.tensors import ModelTensors

LEVELS = ("BASIC", "EXTENDED", "ALL")
ISLAND = "layers.1.feed_forward.outer/"


def operators(step: ir.Model, level: str, directory: Path) -> list[str]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath, options.log_severity_level = str(directory / "step.onnx"), 3
    onnxruntime.InferenceSession(ir.to_proto(step).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(directory / "step.onnx", load_external_data=False).graph.node]


def check(step: ir.Model, directory: Path) -> None:
    before = Counter(node.op_type for node in step.graph)
    for level in LEVELS:
        after = Counter(operators(step, level, directory))
        assert not_capturable(after, on_cpu=True) == []
        assert after["Split"] == before["Split"], "an optimisation makes no Split of its own"


@pytest.mark.parametrize("lowering", STEPS)
@pytest.mark.parametrize("option", OPTIONS)
def test_optimised_steps_have_operators_that_may_be_captured(option: str, lowering: str, tmp_path: Path) -> None:
    check(graphs_of(random_model(**OPTIONS[option]), lowering)[1], tmp_path)


@pytest.mark.parametrize("option", OPTIONS)
def test_steps_of_beam_search_too(option: str, tmp_path: Path) -> None:
    model = random_model(**OPTIONS[option])
    step = write_beams(model, model.config.max_positions, ModelTensors())
    check(step, tmp_path)
    if option == "post":
        to_float16(step, final_nodes(step))
        check(step, tmp_path)


@pytest.mark.parametrize("islands", [False, True], ids=["float16", "islands"])
@pytest.mark.parametrize("lowering", STEPS)
def test_optimised_steps_in_float16_too(lowering: str, islands: bool, tmp_path: Path) -> None:
    step = graphs_of(random_model(), lowering)[1]
    single = {str(node.name) for node in step.graph if islands and (node.name or "").startswith(ISLAND)}
    assert bool(single) == islands
    to_float16(step, single)
    check(step, tmp_path)


def test_what_a_replay_would_read_again_is_named() -> None:
    assert not_capturable(["Gemm", "MemcpyToHost", "GatherND", "Gemm"]) == ["GatherND", "MemcpyToHost"]
    assert not_capturable(CPU_ONLY) == sorted(CPU_ONLY) and not_capturable(CPU_ONLY | CAPTURABLE, on_cpu=True) == []
