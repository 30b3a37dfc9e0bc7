"""Every lowering of every kind of model against PyTorch."""

import collections
import functools
import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy_runner import OPTIONS, STEPS, NumpyRunner, open_session, random_model
from numpy_runner import graphs_of as write_graphs
from txport.exporter.graphs.capturable import not_capturable
from txport.exporter.graphs.decoder import write_state
from txport.exporter.graphs.lowerings import Ort, TensorScatter
from txport.exporter.graphs.tensors import ModelTensors
from txport.exporter.graphs.writer import Writer
from txport.models.config import preset
from txport.models.transformer import Transformer
from txport.runtime.bundle import interface
from txport.runtime.bundle.interface import cross_names
from txport.runtime.bundle.schema import Tensor

graphs_of = functools.cache(write_graphs)  # no test changes them


@functools.cache
def model_of(option: str) -> Transformer:
    return random_model(**OPTIONS[option])


@pytest.fixture(params=OPTIONS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return model_of(request.param)


@pytest.fixture(params=STEPS)
def lowering(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_graphs_equal_pytorch(model: Transformer, lowering: str) -> None:
    """Ragged sources; every step's logits and the encoder's keys and values."""
    runner = NumpyRunner(model, *graphs_of(model, lowering))
    source, lengths = torch.randint(4, 64, (3, 7)), torch.tensor([7, 4, 1])
    target = torch.randint(4, 64, (3, 9))
    with torch.inference_mode():
        expected = model(source, lengths, target).numpy()
        memory = model.encode(source, lengths)
        cross_expected = [tensor.numpy() for pair in model.cross_key_values(memory) for tensor in pair]
    cross = runner.encode(source.numpy(), lengths.numpy())
    for name, wanted in zip(cross_names(model.config.decoder_layers), cross_expected, strict=True):
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(cross[name][row, :, :length], wanted[row, :, :length], atol=1e-4)
    caches = runner.empty_caches(3, 12)
    for position in range(9):
        output = runner.step(cross, caches, token_ids=target[:, position].numpy(), positions=np.full(3, position))
        np.testing.assert_allclose(output["logits"], expected[:, position], atol=1e-4, rtol=1e-4)
        np.testing.assert_array_equal(output["next_token_ids"], output["logits"].argmax(-1))


@pytest.fixture(scope="module")
def runners() -> dict[str, tuple[Transformer, NumpyRunner]]:
    model = random_model()
    return {name: (model, NumpyRunner(model, *graphs_of(model, name))) for name in STEPS}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rows_are_independent(
    runners: dict[str, tuple[Transformer, NumpyRunner]], lowering: str, data: st.DataObject
) -> None:
    """Rows at positions of their own, in caches longer than needed, over sources of other lengths, each as if alone."""
    model, runner = runners[lowering]
    rows = data.draw(st.integers(1, 4))
    lengths = np.array(data.draw(st.lists(st.integers(1, 6), min_size=rows, max_size=rows)))
    positions = np.array(data.draw(st.lists(st.integers(0, 8), min_size=rows, max_size=rows)))
    seed = data.draw(st.integers(0, 2**16))
    random = np.random.default_rng(seed)
    source, target = random.integers(4, 64, (rows, 6)), random.integers(4, 64, (rows, 9))
    cross, caches = runner.encode(source, lengths), runner.empty_caches(rows, data.draw(st.integers(9, 16)))
    # Each row reaches its own position by its own steps; rows that are ahead repeat their first token meanwhile, which
    # writes the same slot again and must not matter.
    for step in range(positions.max() + 1):
        now = np.maximum(0, step - (positions.max() - positions))
        output = runner.step(cross, caches, token_ids=target[np.arange(rows), now], positions=now)
    with torch.inference_mode():
        for row in range(rows):
            alone = torch.from_numpy(source[row : row + 1, : lengths[row]])
            prefix = torch.from_numpy(target[row : row + 1, : positions[row] + 1])
            expected = model(alone, torch.tensor([lengths[row]]), prefix)[0, -1].numpy()
            np.testing.assert_allclose(output["logits"][row], expected, atol=1e-4, rtol=1e-4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**16), rows=st.integers(1, 5))
def test_end_of_sentence_is_decided_in_the_graph(
    runners: dict[str, tuple[Transformer, NumpyRunner]], lowering: str, seed: int, rows: int
) -> None:
    """Against the rule of txport.runtime.bundle.interface, written out in Python."""
    model, runner = runners[lowering]
    config, random = model.config, np.random.default_rng(seed)
    finished, positions = random.random(rows) < 0.4, random.integers(0, 4, rows)
    limits, tokens = random.integers(1, 7, rows), random.integers(0, 64, rows)
    cross = runner.encode(random.integers(4, 64, (rows, 3)), np.full(rows, 3))
    # Logits are made to choose eos in some rows by what the token leads to; with 64 ids that is rare, so the rule is
    # checked from the graph's own logits.
    output = runner.step(
        cross,
        runner.empty_caches(rows, 8),
        token_ids=tokens,
        positions=positions,
        finished=finished,
        target_limits=limits,
    )
    for row in range(rows):
        token = config.pad_id if finished[row] else int(output["logits"][row].argmax())
        ended = bool(finished[row] or token == config.eos_id or positions[row] + 1 >= limits[row])
        assert output["next_token_ids"][row] == token
        assert output["next_finished"][row] == ended
        assert output["next_positions"][row] == positions[row] + (not ended)


@pytest.mark.parametrize("wanted", [3, 9])
def test_eos_finishes_a_row(lowering: str, wanted: int) -> None:
    """A projection bias makes the model choose one id; only eos (3) ends the row."""
    model = random_model(projection_bias=True)
    with torch.no_grad():
        model.projection.bias[wanted] = 1000.0
    runner = NumpyRunner(model, *graphs_of(model, lowering))
    cross = runner.encode(np.array([[5, 3]]), np.array([2]))
    output = runner.step(cross, runner.empty_caches(1, 4), token_ids=np.array([2]), positions=np.array([0]))
    assert output["next_token_ids"].tolist() == [wanted]
    assert output["next_finished"].tolist() == [wanted == 3]
    assert output["next_positions"].tolist() == [0 if wanted == 3 else 1]


def test_step_is_capturable_and_fused(model: Transformer, lowering: str) -> None:
    """No control flow, no shape that depends on data, one operator for a norm, packed Q, K and V, Gemm only."""
    encoder, step = graphs_of(model, lowering)
    config = model.config
    assert not_capturable(node.op_type for node in step.graph) == []
    mixture = [node for node in step.graph if (node.name or "").startswith("copying")]
    count = collections.Counter(node.op_type for node in step.graph if node not in mixture)
    assert bool(mixture) == config.copies and [n.op_type for n in mixture].count("ScatterElements") == config.copies
    assert not any("reduction" in node.attributes for node in mixture if node.op_type == "ScatterElements")
    assert all(len(node.inputs) == 1 for node in step.graph if node.op_type == "Split"), "into equal parts"
    parts = {"Pow", "Sqrt", "ReduceMean"} if config.norm_kind != "rms" else set()
    assert not {"If", "Loop", "Scan", "NonZero", *parts} & {n.op_type for n in encoder.graph}
    norms = 3 * config.decoder_layers + (config.norm != "post") + config.embedding_norm
    if config.norm_kind == "layer":
        assert count["LayerNormalization"] + count["SkipLayerNormalization"] == norms
    elif config.norm_kind == "rms":
        added = 3 * config.decoder_layers  # those that follow an addition
        kind = STEPS[lowering].name
        whole = {"ort": "SkipSimplifiedLayerNormalization", "tensorscatter": "RMSNormalization"}.get(kind, "none")
        assert count[whole] == {"ort": added, "tensorscatter": norms}.get(kind, 0)
        assert count["Pow"] == norms - count[whole]
    # For each layer: packed projection, self output, cross query, cross output, two of the feed-forward network.
    assert count["Gemm"] == 6 * config.decoder_layers + 1
    biased = lowering == "ort.float16" and config.positions == "relative"
    shaw = config.positions == "shaw"  # needs the weights of attention, and two more products
    fused = config.decoder.head_dim % 8 == 0 and not biased and not shaw
    expected = {
        "ort": {
            "GroupQueryAttention": fused,
            "ScatterElements": 2 * (not fused),
            "MultiHeadAttention": 1,
            "Softmax": not fused,
        },
        "ort.float16": {
            "GroupQueryAttention": fused,
            "ScatterElements": 2 * (not fused),
            "MultiHeadAttention": 0,
            "Softmax": 1 + (not fused),
        },
        "scatter": {"ScatterElements": 2, "Softmax": 2, "MatMul": 4 + 2 * shaw, "Attention": 0},
        "tensorscatter": {"TensorScatter": 2, "Attention": 2 - shaw, "Softmax": shaw, "MatMul": 4 * shaw},
    }[lowering]
    assert {name: count[name] for name in expected} == {n: c * config.decoder_layers for n, c in expected.items()}


def test_interface(model: Transformer, lowering: str) -> None:
    """Names and dtypes as documented; all inputs of a kind are there; ONNX's checker and shape inference agree."""
    encoder, step = graphs_of(model, lowering)
    sizes = model.config.sizes
    of_encoder, of_step = interface.encoder(sizes, "float32"), interface.decoder_step(sizes, "float32")
    for graph, expected in ((encoder.graph, of_encoder), (step.graph, of_step)):
        assert [value.name for value in graph.inputs] == [tensor.name for tensor in expected.inputs]
        assert [value.name for value in graph.outputs] == [tensor.name for tensor in expected.outputs]
    for graph in (encoder, step):
        onnx.checker.check_model(ir.to_proto(graph), full_check=True)
    assert step.opset_imports[""] == STEPS[lowering].opset
    assert ("com.microsoft" in step.opset_imports) == (STEPS[lowering].name == "ort")


def test_every_node_says_where_it_comes_from(lowering: str) -> None:
    _, step = graphs_of(random_model(), lowering)
    names = [node.name for node in step.graph]
    assert len(set(names)) == len(names)
    assert {"layers.0.self_qkv/Gemm", "layers.1.feed_forward.inner/Gemm", "projection/Gemm"} <= set(names)


def test_masks_of_opset_24_are_explicit() -> None:
    """TensorRT drops Attention's seventh input without a word: no Attention may rely on it, each has a mask."""
    _, step = graphs_of(random_model(), TensorScatter.name)
    attention = [node for node in step.graph if node.op_type == "Attention"]
    assert attention
    for node in attention:
        assert len([value for value in node.inputs if value is not None]) == 4
        assert node.inputs[3] is not None
        assert len(node.outputs) == 1 or all(not output.name for output in node.outputs[1:])


@pytest.mark.parametrize("vocabulary", [256, 600, 521])
def test_ort_finds_the_first_of_the_best_ids(vocabulary: int) -> None:
    """In two steps where the vocabulary divides into blocks (521 is prime); most logits here have their equals."""
    ends = [
        Tensor(name, dtype, shape, False)
        for name, dtype, shape in (("logits", "float32", ("batch", vocabulary)), ("best", "int64", ("batch",)))
    ]
    w = Writer(interface.Interface(tuple(ends[:1]), tuple(ends[1:])), Ort.opset, ModelTensors())
    best = Ort(w, preset("tiny").sizes).best(w.inputs["logits"], vocabulary)
    model = w.model([best])
    assert ("GatherElements" in {node.op_type for node in model.graph}) == (vocabulary != 521)
    logits = np.random.default_rng(0).integers(-3, 3, (50, vocabulary)).astype(np.float32)
    (found,) = open_session(model).run(None, {"logits": logits})
    np.testing.assert_array_equal(found, logits.argmax(-1))


def test_float16_adds_the_biases_of_products_in_its_norms(model: Transformer) -> None:
    """Those of attention's outputs and of feed-forward networks, where a fused norm and nothing else reads them."""
    step, plain = graphs_of(model, "ort.float16")[1], graphs_of(model, "ort")[1]
    norms = [node for node in step.graph if node.op_type.startswith("Skip")]
    biased = [node for node in norms if len(node.inputs) == (5 if node.op_type == "SkipLayerNormalization" else 4)]
    config = model.config
    copies = len({layer for layer, _ in config.copy_heads[-1:]})  # its context is read by the gate as well
    outer = config.decoder_layers * (config.feed_forward_bias + 2 * config.attention_bias) - copies
    assert len(biased) == (outer if config.norm_kind in ("layer", "rms") else 0)
    without = [node for node in step.graph if node.op_type == "Gemm" and len(node.inputs) < 3]
    before = [node for node in plain.graph if node.op_type == "Gemm" and len(node.inputs) < 3]
    inner = config.decoder_layers * (config.activation == "relu" and config.feed_forward_bias)
    assert len(without) == len(before) + len(biased) + inner
    added = [value.name or "" for node in biased if (value := node.inputs[-1]) is not None]
    assert len(added) == len(biased) and all(
        name.endswith(("output.bias", "outer.bias", "folded_bias")) for name in added
    )


def test_float16_adds_the_bias_before_relu_behind_it(model: Transformer) -> None:
    """As max(W x, -c), with c in the bias of the layer after it; other activations have no such form."""
    step, plain = graphs_of(model, "ort.float16")[1], graphs_of(model, "ort")[1]
    relus = [node for node in plain.graph if node.op_type == "Relu" and not (node.name or "").startswith("copying")]
    biased = relus if model.config.feed_forward_bias else []
    largest = [node for node in step.graph if (node.name or "").endswith("feed_forward/Max")]
    assert len(largest) == len(biased)
    assert len(relus) == model.config.decoder_layers * (model.config.activation == "relu")
    for node in largest:
        product, (reader,) = node.inputs[0].producer(), [use.node for use in node.outputs[0].uses()]
        assert product.op_type == reader.op_type == "Gemm" and len(product.inputs) == 2
    assert not [name for name in step.graph.initializers if name.endswith("feed_forward.inner.bias")] or not largest


def assert_folded_biases_change_nothing(model: Transformer) -> None:
    """The form for float16, in float32, makes the logits of another lowering."""
    found = []
    for lowering in ("ort.float16", "scatter"):
        runner = NumpyRunner(model, *graphs_of(model, lowering))
        cross = runner.encode(np.array([[5, 9, 3]]), np.array([3]))
        caches = runner.empty_caches(1, 4)
        found.append(runner.step(cross, caches, token_ids=np.array([2]), positions=np.array([0]))["logits"])
    np.testing.assert_allclose(found[0], found[1], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post", "post_final"])
def test_large_biases_before_relu_change_no_logit(norm: str) -> None:
    """In float32 both forms are the same function; biases are larger here than what they are added to."""
    model = random_model(norm=norm)
    with torch.no_grad():
        for layer in model.decoder:
            layer.feed_forward.inner.bias.mul_(30)
            layer.feed_forward.outer.bias.mul_(30)
    assert_folded_biases_change_nothing(model)


@pytest.mark.parametrize("lowering", STEPS)
def test_rows_end_by_their_limit_or_the_end_of_a_sentence_and_not_by_padding(lowering: str) -> None:
    """All of token, position and flag, for each case of a row, against the rules of `interface`."""
    config = preset("tiny", source_vocabulary=64, target_vocabulary=64)
    sizes = config.sizes
    names = ("positions", "finished", "target_limits")
    vocabulary = config.target_vocabulary
    of_step = {tensor.name: tensor for tensor in interface.decoder_step(sizes, "float32").inputs}
    logits = Tensor("logits", "float32", ("batch", vocabulary), False)
    outputs = [Tensor(f"next_{name}", of_step[name].dtype, ("batch",), False) for name in ("token_ids", *names[:2])]
    w = Writer(
        interface.Interface((*map(of_step.get, names), logits), tuple(outputs)), STEPS[lowering].opset, ModelTensors()
    )  # type: ignore[arg-type]
    model = w.model(list(write_state(w, STEPS[lowering](w, sizes), config, w.inputs["logits"])))
    cases = np.array(list(itertools.product((config.eos_id, config.pad_id, 9), (0, 5), (False, True), (1, 6, 10**6))))
    best, positions, finished, limits = cases.T
    feed = {"positions": positions, "finished": finished.astype(bool), "target_limits": limits}
    found = open_session(model).run(None, {**feed, "logits": np.eye(vocabulary, dtype=np.float32)[best]})
    token = np.where(finished, config.pad_id, best)
    ended = finished.astype(bool) | (token == config.eos_id) | (positions + 1 >= limits)
    for array, expected in zip(found, (token, positions + ~ended, ended), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("norm_kind", ["layer", "rms"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_norm_adds_the_bias_before_it_gives_the_sum(norm: str, norm_kind: str) -> None:
    """A pre-norm model goes on in that sum; biases are larger here than what they are added to."""
    model = random_model(norm=norm, norm_kind=norm_kind)
    with torch.no_grad():
        for layer in model.decoder:
            for linear in (layer.self_attention.output, layer.cross_attention.output, layer.feed_forward.outer):
                linear.bias.mul_(30)
    assert_folded_biases_change_nothing(model)
