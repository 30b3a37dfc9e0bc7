"""Whether a wrong optional graph is seen: one fault at a time, in a real bundle."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from txport.exporter.sample import choose_sample
from txport.exporter.verification.attention import check_attention, check_beams
from txport.exporter.verification.report import AttentionReport
from txport.models.checkpoint import Checkpoint, load_checkpoint
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.ort import OrtEngine


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Checkpoint:
    return load_checkpoint(checkpoint)


def checked(model: Checkpoint, bundle: Path) -> AttentionReport:
    manifest = Manifest.load(bundle)
    sample = choose_sample(model, 6, manifest.limits.source, manifest.limits.target)
    return check_attention(model.model, sample, bundle, manifest, OrtEngine(bundle, manifest, ["scatter"], 1))


def test_a_right_one_passes(model: Checkpoint, attention_bundle: Path) -> None:
    report = checked(model, attention_bundle)
    assert report.sentences == 6 and report.failures == []
    assert report.max_weight_error < 1e-5 and report.max_memory_error < 1e-4 and report.mean_own_score_error < 1e-5


def test_a_wrong_step_of_beam_search_is_seen(model: Checkpoint, attention_bundle: Path, tmp_path: Path) -> None:
    """Hypotheses that see what the others of their sentence have made."""
    bundle = Path(shutil.copytree(attention_bundle, tmp_path / "bundle"))
    manifest = Manifest.load(bundle)
    sample = choose_sample(model, 6, manifest.limits.source, manifest.limits.target)
    right = check_beams(sample, bundle, manifest, OrtEngine(bundle, manifest, ["ort"], 1))
    assert (right.sentences, right.identical, right.failures) == (6, 6, []) and right.max_score_error < 1e-5
    file = bundle / "onnx" / "decoder_beams.onnx"
    graph = onnx.load(file, load_external_data=False)
    (seen,) = (node for node in graph.graph.node if node.op_type == "Where")
    seen.input[2] = seen.input[1]
    onnx.save(graph, file)
    wrong = check_beams(sample, bundle, manifest, OrtEngine(bundle, manifest, ["ort"], 1))
    assert len(wrong.failures) == 1 and "scores of beam search differ" in wrong.failures[0]


def without_the_causal_mask(graph: onnx.GraphProto) -> None:
    """Every position is visible: LessOrEqual(a, b) becomes LessOrEqual(a, a)."""
    (node,) = (node for node in graph.node if node.op_type == "LessOrEqual")
    node.input[1] = node.input[0]


def with_other_temperatures(graph: onnx.GraphProto) -> None:
    """The softmax of the last cross-attention is of another axis."""
    node = [node for node in graph.node if node.op_type == "Softmax"][-1]
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("axis", 2))


def with_probabilities(graph: onnx.GraphProto) -> None:
    """The logarithm is left out."""
    (node,) = (node for node in graph.node if node.op_type == "Log")
    node.op_type = "Identity"


def with_nan(graph: onnx.GraphProto) -> None:
    (node,) = (node for node in graph.node if node.op_type == "Log")
    minus = onnx.helper.make_node("Mul", [node.input[0], "minus"], ["negative"])
    graph.initializer.append(numpy_helper.from_array(np.float32(-1), "minus"))
    graph.node.insert(list(graph.node).index(node), minus)
    node.input[0] = "negative"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (without_the_causal_mask, "a token attends to a later one by"),
        (with_other_temperatures, "a row of attention sums to 1 only within"),
        (with_probabilities, "scores differ from those of the steps by"),
        (with_nan, "NaN or infinity in attention, scores or the encoder's output"),
    ],
)
def test_a_wrong_one_is_seen(
    model: Checkpoint,
    attention_bundle: Path,
    tmp_path: Path,
    fault: Callable[[onnx.GraphProto], None],
    words: str,
) -> None:
    bundle = Path(shutil.copytree(attention_bundle, tmp_path / "bundle"))
    file = bundle / "onnx" / "decoder.onnx"
    proto = onnx.load(file, load_external_data=False)
    fault(proto.graph)
    onnx.save(proto, file)
    manifest = Manifest.load(attention_bundle)
    sample = choose_sample(model, 6, manifest.limits.source, manifest.limits.target)
    engine = OrtEngine(bundle, manifest, ["scatter"], 1)
    failures = check_attention(model.model, sample, bundle, manifest, engine).failures
    assert any(failure.startswith(words) for failure in failures), failures
