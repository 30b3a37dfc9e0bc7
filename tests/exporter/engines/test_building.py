"""Every graph that TensorRT can take is parsed and built by TensorRT-RTX here, and what it made of it is looked at."""

import collections
import dataclasses
import functools
import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from feature_models import KINDS, READS
from numpy_runner import OPTIONS, attention_graphs_of, graphs_of, random_model
from txport.exporter.bundle import graph_record, write_graphs
from txport.exporter.engines import builder as builder_module
from txport.exporter.engines import directory
from txport.exporter.engines.builder import BuildOptions, add_profile
from txport.exporter.engines.decoder_step import write_caches_by_select
from txport.exporter.engines.network import check_network, computing_layers, kind_of, layers_of, leave_out_unknown
from txport.exporter.engines.parsing import NetworkChanges, make_network, parse_graph
from txport.exporter.engines.profiles import Buckets, beam_profiles, encoder_profiles, shapes, step_profiles
from txport.exporter.graphs.beams import write_beams
from txport.exporter.graphs.float16 import final_nodes, to_float16
from txport.exporter.graphs.tensors import ModelTensors
from txport.exporter.precision.islands import mixture_nodes
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import FileEntry, Graph, Island, Tensor
from txport.runtime.engines.build_record import BuildRecord, TargetGpu
from txport.runtime.engines.tensorrt import TensorRt, find_tensorrt
from txport.runtime.errors import BundleError, CheckFailed
from txport.runtime.files import sha256

pytest.importorskip("tensorrt_rtx_bindings", reason="needs TensorRT-RTX (x86-64): pip install 'txport[dev]'")

from tensorrt_graphs import CAPABILITY, LOWERINGS, TOY, rtx_builder, write_bundle

BUCKETS = Buckets((1, 4), (16, 32))
ONE_BUCKET = Buckets((4,), (32,))
PRECISIONS = ("float32", "float16")
VECTORS = {kind: {**READS, **option} for kind, option in KINDS.items()}
MODELS = {**OPTIONS, **{f"{kind}_of_vectors": option for kind, option in VECTORS.items()}}
GRID = [(option, precision) for option in MODELS for precision in PRECISIONS]
Written = Callable[[str, str], tuple[Path, Manifest]]
# A build takes seconds: each kind of norm, positions, heads and copying in one precision, all in `make test-all`.
BUILT = [
    *((option, "float32") for option in ("post", "umt5", "odd_heads", "batch", "pre_of_vectors")),
    *((option, "float16") for option in ("pre", "t5", "rotary", "copies", "states_of_vectors")),
]
SEVERAL_PROFILES = ("post", "t5")
WHOLE_GRID = os.environ.get("TXPORT_WHOLE_GRID") == "1"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """`written(option, precision)`: the bundle of a model, which is written once, and its manifest."""

    @functools.cache
    def write(option: str, precision: str) -> tuple[Path, Manifest]:
        directory = tmp_path_factory.mktemp(f"{option}-{precision}")
        return directory, write_bundle(directory, MODELS[option], precision)

    return write


def graph_of(manifest: Manifest, lowering: str) -> Graph:
    found = next(graph for graph in manifest.graphs if graph.lowering == lowering)
    return found


def parsed(bundle: Path, manifest: Manifest, lowering: str) -> Any:
    """(network, parser and builder that it needs)"""
    tensorrt = find_tensorrt("tensorrt_rtx")
    builder = tensorrt.module.Builder(tensorrt.logger)
    fixed = {"target": 32} if lowering == "tensorscatter" else None
    return *parse_graph(tensorrt, builder, bundle / graph_of(manifest, lowering).file, fixed), builder


@pytest.mark.parametrize(("option", "precision"), GRID if WHOLE_GRID else BUILT)
def test_every_graph_becomes_an_engine_of_its_precision(
    written: Written, option: str, precision: str, tmp_path: Path
) -> None:
    bundle, manifest = written(option, precision)
    builder = rtx_builder(bundle, manifest, tmp_path / "engines")
    buckets = BUCKETS if WHOLE_GRID or option in SEVERAL_PROFILES else ONE_BUCKET
    builds = [("standard", encoder_profiles(manifest, buckets), None)]
    builds += [("scatter", step_profiles(manifest, buckets.batches, buckets.targets), None)]
    builds += [("tensorscatter", step_profiles(manifest, buckets.batches, [32]), 32)]
    for lowering, profiles, target in builds:
        engine = builder.build(graph_of(manifest, lowering), f"{lowering}.plan", profiles, target)
        assert engine.profiles == profiles
        assert (tmp_path / "engines" / engine.file).stat().st_size == engine.bytes
    assert set(builder.layers) == {precision}, "strongly typed: nothing computes in another type"


@pytest.mark.parametrize("kind", KINDS)
def test_encoders_read_vectors_in_float32_of_any_number(written: Written, kind: str) -> None:
    """Without encoder layers only the keys and values of cross-attention are products."""
    bundle, manifest = written(f"{kind}_of_vectors", "float16")
    network, *_alive = parsed(bundle, manifest, "standard")
    inputs = {tensor.name: tensor for tensor in map(network.get_input, range(network.num_inputs))}
    size = VECTORS[kind]["feature_size"]
    assert tuple(inputs["features"].shape) == (-1, -1, size)
    assert find_tensorrt("tensorrt_rtx").type_name(inputs["features"].dtype) == "float32"
    (tensor,) = [tensor for tensor in manifest.encoder.inputs if tensor.name == "features"]
    profiles = encoder_profiles(manifest, BUCKETS)
    assert [shapes(tensor, each)[2] for each in profiles] == [[batch, 16, size] for batch in BUCKETS.batches]
    sizes = manifest.model
    products = [layer for layer in layers_of(network) if kind_of(layer) == "MATRIX_MULTIPLY"]
    of_encoder = 1 + 6 * sizes.encoder_layers if sizes.encoder_layers else 0
    assert len(products) == of_encoder + sizes.decoder_layers


@pytest.mark.parametrize(("option", "precision"), GRID)
def test_every_graph_becomes_its_layers(written: Written, option: str, precision: str) -> None:
    """What TensorRT parses; types and bindings are checked as before a build."""
    bundle, manifest = written(option, precision)
    config = random_model(**MODELS[option]).config
    for lowering in ("standard", "scatter", "tensorscatter"):
        model = onnx.load(bundle / graph_of(manifest, lowering).file, load_external_data=False)
        assert not [node for node in model.graph.node if node.op_type == "Shape" and node.attribute], "8.6 reads none"
        reductions = [node for node in model.graph.node if node.op_type in ("ReduceMean", "ReduceMax")]
        assert lowering == "tensorscatter" or {len(node.input) for node in reductions} <= {1}, "8.6 reads no axes there"
        assert set(checked(bundle, manifest, lowering)) == {precision}
    caches, attentions = 2 * config.decoder_layers, 2 * config.decoder_layers
    scatter = {"SCATTER": caches, "SOFTMAX": attentions, "KV_CACHE_UPDATE": 0, "ATTENTION_INPUT": 0}
    plain = config.decoder_layers * (config.positions == "shaw")  # self-attention that needs its weights
    tensorscatter = {
        **{"SCATTER": 0, "SOFTMAX": plain},
        **{"KV_CACHE_UPDATE": caches, "ATTENTION_INPUT": attentions - plain},
    }
    copying = collections.Counter({"SCATTER": int(config.copies), "SOFTMAX": len(config.copy_heads)})
    for lowering, counts in (("scatter", scatter), ("tensorscatter", tensorscatter)):
        expected = {kind: count + copying[kind] for kind, count in counts.items()}
        network, *_alive = parsed(bundle, manifest, lowering)
        kinds = collections.Counter(kind_of(layer) for layer in layers_of(network))
        assert {kind: kinds[kind] for kind in expected} == expected
        norms = 3 * config.decoder_layers if config.norm_kind == "layer" else 0
        assert kinds["NORMALIZATION"] >= norms, "LayerNorm is one layer, not its parts"
        assert kinds["TOPK"] == 1, "the choice of the token is in the engine"
        masks = [layer.get_input(3).name for layer in layers_of(network) if kind_of(layer) == "ATTENTION_INPUT"]
        assert masks.count("cross_bias") == (attentions // 2 if lowering == "tensorscatter" else 0)


@pytest.mark.parametrize("precision", PRECISIONS if WHOLE_GRID else ["float16"])
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (2, 32), (3, 16), (6, 64), (8, 12), (2, 128)])
def test_heads_that_have_no_kernel_are_computed_by_their_parts(
    heads: int, head_dim: int, precision: str, tmp_path: Path
) -> None:
    manifest = write_bundle(tmp_path, {**OPTIONS["t5"], "heads": heads, "head_dim": head_dim}, precision)
    builder = rtx_builder(tmp_path, manifest, tmp_path / "engines")
    profiles = step_profiles(manifest, BUCKETS.batches, [32])
    assert builder.build(graph_of(manifest, "tensorscatter"), "step.plan", profiles, 32).bytes > 0
    assert set(builder.layers) == {precision}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("option", ["post", "marian", "odd_heads", "copies"])
def test_tensorrt_takes_the_optional_graphs(option: str, precision: str, tmp_path: Path) -> None:
    """They parse, are built, and compute in the types that they say: the ending in float32, all else in theirs.

    In `make test` each model is built in one precision.
    """
    graphs = attention_graphs_of(random_model(**OPTIONS[option]))
    islands = {name: final_nodes(graph) | mixture_nodes(graph) for name, graph in graphs.items()}
    manifest = write_bundle(tmp_path, OPTIONS[option], precision)
    for name, graph in graphs.items() if precision == "float16" else ():
        to_float16(graph, islands[name])
    write_graphs(tmp_path / "onnx", graphs, "0")
    tensorrt = find_tensorrt("tensorrt_rtx")
    for name in graphs:
        builder = tensorrt.module.Builder(tensorrt.logger)
        network, _parser = parse_graph(tensorrt, builder, tmp_path / "onnx" / f"{name}.onnx")
        record = graph_record(name, graphs[name], manifest.model)
        counts = check_network(tensorrt, network, record, precision, islands[name] if precision == "float16" else set())
        assert set(counts) <= {"float32", precision}
        if not WHOLE_GRID and (option in ("post", "copies")) != (precision == "float32"):
            continue
        config = builder.create_builder_config()
        config.builder_optimization_level = 0
        tensorrt.set_target(config, (CAPABILITY,), False, False)
        profile = builder.create_optimization_profile()
        for tensor in record.inputs:
            sizes = [
                tensor.sizes({"batch": b, "source": s, "target": t}) for b, s, t in ((1, 1, 1), (2, 8, 8), (4, 16, 32))
            ]
            profile.set_shape(tensor.name, *sizes)
        config.add_optimization_profile(profile)
        assert builder.build_serialized_network(network, config) is not None, tensorrt.why()


@pytest.mark.parametrize(
    ("option", "precision"),
    itertools.product(("post", "t5", "copies"), PRECISIONS)
    if WHOLE_GRID
    else [("post", "float32"), ("t5", "float16"), ("copies", "float16")],
)
def test_tensorrt_takes_the_step_of_beam_search(
    option: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a fixed number of beams and length of caches, which are written in place."""
    model = random_model(**OPTIONS[option])
    graph = write_beams(model, model.config.max_positions, ModelTensors())
    islands = final_nodes(graph) | mixture_nodes(graph)
    manifest = write_bundle(tmp_path, OPTIONS[option], precision)
    if precision == "float16":
        to_float16(graph, islands)
    write_graphs(tmp_path / "onnx", {"decoder_beams": graph}, "0")
    record = graph_record("decoder_beams", graph, manifest.model)
    found = Island("decoder_beams", tuple(sorted(islands)), "loss")
    manifest = replace(manifest, graphs=(*manifest.graphs, record))
    if precision == "float16":
        manifest = replace(manifest, precision=replace(manifest.precision, islands=(found,)))
    beams, target = 4, 16
    profiles = beam_profiles(manifest, Buckets((1, 3, 13), (target,), (beams,)), beams, target)
    assert [(profile.batch.max, profile.beams) for profile in profiles] == [(1, 4), (3, 4)], "13 rows are 3 sentences"
    kinds = collections.Counter[str]()
    check = builder_module.check_network

    def spy(tensorrt: TensorRt, network: Any, *others: Any) -> dict[str, int]:
        kinds.update(kind_of(layer) for layer in layers_of(network))
        shapes = {tensor.name: tuple(tensor.shape) for tensor in map(network.get_input, range(network.num_inputs))}
        assert shapes["token_ids"] == (-1, beams) and shapes["self_ancestors"] == (-1, beams, beams * target)
        return check(tensorrt, network, *others)

    monkeypatch.setattr(builder_module, "check_network", spy)
    builder = rtx_builder(tmp_path, manifest, tmp_path / "engines")
    engine = builder.build(record, "decoder_beams.4.16.plan", profiles, target)
    assert (engine.role, engine.profiles) == ("decoder_beams", profiles) and engine.bytes > 0
    assert kinds["KV_CACHE_UPDATE"] == 2 * model.config.decoder_layers and kinds["TOPK"] == 1
    assert set(builder.layers) <= {"float32", precision}


def test_a_profile_that_is_refused_is_said_with_the_reason() -> None:
    """By what it returns: the build afterwards would only say that there is no profile."""
    tensorrt = find_tensorrt("tensorrt_rtx")
    builder = tensorrt.module.Builder(tensorrt.logger)
    network, config = tensorrt.new_network(builder), builder.create_builder_config()
    given = network.add_input("ids", tensorrt.module.float32, (-1, 4))
    network.mark_output(network.add_identity(given).get_output(0))
    add_profile(tensorrt, config, builder, network, lambda name: [(1, 4), (2, 4), (3, 4)])
    tensorrt.messages.clear()
    with pytest.raises(BundleError, match="TensorRT-RTX .* refuses the sizes of a profile: .*MIN<=OPT<=MAX"):
        add_profile(tensorrt, config, builder, network, lambda name: [(3, 4), (2, 4), (1, 4)])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """A float16 bundle without islands."""
    directory = tmp_path_factory.mktemp("plain")
    return directory, write_bundle(directory, OPTIONS["post"], "float16")


def checked(bundle: Path, manifest: Manifest, lowering: str, islands: set[str] = frozenset()) -> dict[str, int]:  # type: ignore[assignment]
    network, *_alive = parsed(bundle, manifest, lowering)
    precision = manifest.precision.type
    return check_network(find_tensorrt("tensorrt_rtx"), network, graph_of(manifest, lowering), precision, islands)


def test_caches_are_written_by_select(plain: tuple[Path, Manifest], tmp_path: Path) -> None:
    """Each output of a cache is a choice between the new value and the cache, by the row's position."""
    bundle, manifest = plain
    tensorrt = find_tensorrt("tensorrt_rtx")
    network, *_alive = parsed(bundle, manifest, "scatter")
    before = [network.get_output(index).name for index in range(network.num_outputs)]
    shapes = {network.get_output(index).name: tuple(network.get_output(index).shape) for index in range(len(before))}
    count = write_caches_by_select(tensorrt, network)
    assert count == sum(name.startswith("next_self_") for name in before) == 4
    assert {n.name: tuple(n.shape) for n in map(network.get_output, range(network.num_outputs))} == shapes
    made = {layer.get_output(0).name: layer for layer in layers_of(network)}
    for name in (name for name in before if name.startswith("next_self_")):
        select = made[name]
        assert kind_of(select) == "SELECT"
        equal = made[select.get_input(0).name]
        sides = [made[equal.get_input(side).name].get_input(0).name for side in (0, 1)]
        assert kind_of(equal) == "ELEMENTWISE" and sides == ["positions", "cache_positions"]
        assert tuple(select.get_input(1).shape)[2] == 1, "what is new"
        assert select.get_input(2).name == name.removeprefix("next_"), "what was there"
    readers = [layer.get_input(index) for layer in layers_of(network) for index in range(layer.num_inputs)]
    read = {tensor.name for tensor in readers if tensor is not None}
    assert not any(name.endswith("_scattered") for name in read), "nothing reads what was scattered"
    assert read >= {name for name in before if name.startswith("next_self_")}, "attention reads what was written"


@pytest.mark.parametrize("option", MODELS)
def test_every_kind_of_step_has_its_caches_written_by_select(written: Written, option: str) -> None:
    """And nothing else: a copying model scatters its mixture as well."""
    bundle, manifest = written(option, "float32")
    network, *_alive = parsed(bundle, manifest, "scatter")
    caches = 2 * manifest.model.decoder_layers
    assert write_caches_by_select(find_tensorrt("tensorrt_rtx"), network) == caches
    made = {layer.get_output(0).name: kind_of(layer) for layer in layers_of(network)}
    outputs = [network.get_output(index).name for index in range(network.num_outputs)]
    assert [made[name] for name in outputs if name.startswith("next_self_")] == ["SELECT"] * caches


@pytest.mark.parametrize("option", MODELS)
def test_no_weakly_typed_network_broadcasts_over_heads(written: Written, option: str) -> None:
    """What 8.6 needs is written into the network of another version, which checks types and shapes alike."""
    bundle, manifest = written(option, "float32")
    tensorrt = find_tensorrt("tensorrt_rtx")
    eight: Any = SimpleNamespace(strongly_typed=False, fuses_scores_wrongly=False)
    for lowering in ("standard", "scatter"):
        graph = graph_of(manifest, lowering)
        changes = NetworkChanges.of(eight, graph, manifest.model, select_caches=True)
        plain, *_alive = parsed(bundle, manifest, lowering)
        builder = tensorrt.module.Builder(tensorrt.logger)
        network, _parser = make_network(tensorrt, builder, bundle / graph.file, changes)
        sizes = manifest.model
        heads = sizes.heads if lowering == "scatter" else sizes.encoder_heads or sizes.heads
        layers = sizes.decoder_layers if lowering == "scatter" else sizes.encoder_layers
        assert bool(one_head_meets_all(plain, heads)) == (layers > 0), "else this shows nothing"
        assert not one_head_meets_all(network, heads)
        check_network(tensorrt, network, graph, "float32", set())
        shapes = [{t.name: tuple(t.shape) for t in map(n.get_output, range(n.num_outputs))} for n in (plain, network)]
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("option", MODELS)
def test_scores_of_self_attention_are_outputs_for_8_6(written: Written, option: str, precision: str) -> None:
    """For each layer, the sum of products and mask, which the softmax reads, in the precision of the bundle."""
    bundle, manifest = written(option, precision)
    tensorrt = find_tensorrt("tensorrt_rtx")
    eight: Any = SimpleNamespace(strongly_typed=False, fuses_scores_wrongly=True)
    sizes = manifest.model
    graph = graph_of(manifest, "scatter")
    for select in (True, False):
        changes = NetworkChanges.of(eight, graph, sizes, select_caches=select)
        builder = tensorrt.module.Builder(tensorrt.logger)
        network, _parser = make_network(tensorrt, builder, bundle / graph.file, changes)
        names = {tensor.name for tensor in graph.outputs}
        assert leave_out_unknown(network, graph, names) == graph
        outputs = {tensor.name: tensor for tensor in map(network.get_output, range(network.num_outputs))}
        scores = {f"self_scores_{layer}": outputs.get(f"self_scores_{layer}") for layer in range(sizes.decoder_layers)}
        assert outputs.keys() - scores.keys() == names and None not in scores.values()
        assert {tuple(tensor.shape) for tensor in scores.values() if tensor} == {(-1, sizes.heads, 1, -1)}
        made = {layer.get_output(0).name: layer for layer in layers_of(network)}
        read = {layer.get_input(0).name for layer in layers_of(network) if kind_of(layer) == "SOFTMAX"}
        for layer, name in enumerate(scores):
            assert name in read and kind_of(made[name]) == "ELEMENTWISE"
            assert made[name].name.startswith(f"layers.{layer}/Add"), made[name].name
    encoder = NetworkChanges.of(eight, manifest.encoder, sizes, select_caches=True)
    strong: Any = SimpleNamespace(strongly_typed=True, fuses_scores_wrongly=False)
    assert not encoder.mark_scores and not NetworkChanges.of(strong, graph, sizes, select_caches=True).mark_scores


def one_head_meets_all(network: Any, heads: int) -> list[str]:
    """Layers of two or more inputs, one of which has size 1 where another has all heads, except for single numbers."""
    found = []
    for layer in layers_of(network):
        read = [layer.get_input(index) for index in range(layer.num_inputs)]
        shapes = [tuple(tensor.shape) for tensor in read if tensor is not None]
        if kind_of(layer) in ("ELEMENTWISE", "SELECT") and len(shapes[0]) == 4:
            rows = [shape for shape in shapes if any(size != 1 for size in shape)]
            found += [layer.name for axis in (1, 2) if {shape[axis] for shape in rows} == {1, heads}]
    return found


def test_a_reduction_over_other_axes_is_refused(tmp_path: Path) -> None:
    """As the parsers of 8.6 and 9 make one of the `axes` input of opset 18."""
    manifest = write_bundle(tmp_path, OPTIONS["rms"], "float32")
    tensorrt = find_tensorrt("tensorrt_rtx")
    for lowering in ("standard", "scatter"):
        network, *_alive = parsed(tmp_path, manifest, lowering)
        reductions = [layer for layer in layers_of(network) if kind_of(layer) == "REDUCE"]
        check_network(tensorrt, network, graph_of(manifest, lowering), "float32", set())
        reductions[-1].__class__ = tensorrt.module.IReduceLayer
        reductions[-1].axes = (1 << len(reductions[-1].get_input(0).shape)) - 1
        with pytest.raises(CheckFailed, match="ReduceMean.* over other axes than the last: it would mix rows"):
            check_network(tensorrt, network, graph_of(manifest, lowering), "float32", set())


def test_a_step_of_one_layer_whose_build_crashes_is_built_again_by_scattering(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TensorRT-RTX 1.7.1 crashes of caches by `Where`; a version that does not is built at once."""
    manifest = write_bundle(tmp_path, OPTIONS["deep_shallow"], "float32")
    shutil.copytree(TOY, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("onnx"))
    present = [name for name in manifest.files if (tmp_path / name).is_file()]
    files = {name: FileEntry((tmp_path / name).stat().st_size, sha256(tmp_path / name)) for name in present}
    dataclasses.replace(manifest, files=files).write(tmp_path)
    options = BuildOptions((CAPABILITY,), optimization_level=0, inspect=False, select_caches=True)
    gpu = TargetGpu(None, (CAPABILITY,), "same_compute_capability", None)
    plan = directory.BuildPlan(tmp_path, "tensorrt_rtx", ("scatter",), Buckets((1, 4), (16,)), options, gpu, None)
    made = tmp_path / "engines"
    made.mkdir()
    directory._build_in_process(plan, made, b"", 300, lambda file, part: None)
    crashed = "ended by SIGSEGV" in caplog.text
    assert ("once more, with caches written by ScatterElements" in caplog.text) == crashed
    assert BuildRecord.load(made).flags.caches == ("scatter" if crashed else "select")


def test_a_mask_that_tensorrt_drops_is_seen(plain: tuple[Path, Manifest], tmp_path: Path) -> None:
    """The opset has `nonpad_kv_seqlen` for what our mask says; TensorRT reads the node and ignores that input."""
    bundle, manifest = plain
    file = graph_of(manifest, "tensorscatter").file
    model = onnx.load(bundle / file, load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "Attention" and node.input[1].startswith("next_self"):
            node.input[3] = ""
            node.input.extend(["", "", "positions"])
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "weights.bin").symlink_to(bundle / "onnx" / "weights.bin")
    onnx.save(model, tmp_path / file)
    checked(bundle, manifest, "tensorscatter")
    with pytest.raises(CheckFailed, match="dropped the mask of layers.0/Attention"):
        checked(tmp_path, manifest, "tensorscatter")
    with pytest.raises(CheckFailed, match="dropped the mask"):
        rtx_builder(tmp_path, manifest, tmp_path / "engines").build(
            graph_of(manifest, "tensorscatter"), "step.plan", step_profiles(manifest, [1], [32]), 32
        )


@pytest.mark.parametrize("lowering", ["standard", *LOWERINGS])
def test_a_layer_of_another_precision_than_was_asked_for_fails(
    plain: tuple[Path, Manifest], lowering: str, tmp_path: Path
) -> None:
    bundle, manifest = plain
    with pytest.raises(CheckFailed, match="computes in float16 instead of float32"):
        checked(bundle, write_bundle(tmp_path, OPTIONS["post"], "float32"), lowering)
    with pytest.raises(CheckFailed, match="computes in float32 instead of float16"):
        checked(tmp_path, manifest, lowering)


def test_islands_compute_in_float32_and_only_where_the_manifest_says_so(tmp_path: Path) -> None:
    islands = {"layers.0.feed_forward.inner/Gemm", "layers.1.cross_norm/LayerNormalization"}
    manifest = write_bundle(tmp_path, OPTIONS["post"], "float16", islands)
    for lowering in LOWERINGS:
        network, *_alive = parsed(tmp_path, manifest, lowering)
        tensorrt = find_tensorrt("tensorrt_rtx")
        single = {layer.name for layer, kind in computing_layers(tensorrt, network) if kind == "float32"}
        assert islands <= single
        assert checked(tmp_path, manifest, lowering, islands)["float32"] == len(single)
        with pytest.raises(CheckFailed, match="computes in float32 instead of float16"):
            checked(tmp_path, manifest, lowering)
        with pytest.raises(CheckFailed, match="computes in float16 instead of float32"):
            checked(tmp_path, manifest, lowering, islands | {"layers.0.self_norm/LayerNormalization"})


@pytest.mark.parametrize("lowering", ["scatter", "tensorscatter"])
def test_a_mixture_is_computed_in_float32(lowering: str, tmp_path: Path) -> None:
    islands = mixture_nodes(graphs_of(random_model(**OPTIONS["copies"]), lowering)[1])
    manifest = write_bundle(tmp_path, OPTIONS["copies"], "float16", islands)
    counts = checked(tmp_path, manifest, lowering, islands)
    assert counts["float32"] > 20 and counts["float16"] > 20


def test_an_input_or_output_that_is_lost_is_seen(plain: tuple[Path, Manifest], tmp_path: Path) -> None:
    bundle, manifest = plain
    network, *_alive = parsed(bundle, manifest, "scatter")
    network.unmark_output(network.get_output(0))
    with pytest.raises(CheckFailed, match="dropped the output 'next_token_ids'"):
        check_network(find_tensorrt("tensorrt_rtx"), network, graph_of(manifest, "scatter"), "float16", set())


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_an_optional_output_that_the_runtime_does_not_know_is_not_bound(
    plain: tuple[Path, Manifest], lowering: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT wants every marked output bound; so the engine is built without it."""
    bundle, manifest = plain
    graph = graph_of(manifest, lowering)
    model = onnx.load(bundle / graph.file, load_external_data=False)
    inner = next(
        v for v in model.graph.value_info if any(n.op_type == "Gemm" and v.name in n.output for n in model.graph.node)
    )
    model.graph.output.append(inner)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "weights.bin").symlink_to(bundle / "onnx" / "weights.bin")
    onnx.save(model, tmp_path / graph.file)
    extra = Tensor(inner.name, "float16", ("batch", 3), optional=True)
    more = dataclasses.replace(graph, outputs=(*graph.outputs, extra))
    built: list[set[str]] = []
    serialize = TensorRt.serialize_to

    def spy(self: TensorRt, builder: Any, network: Any, config: Any, output: Any) -> bool:
        built.append({network.get_output(index).name for index in range(network.num_outputs)})
        return bool(serialize(self, builder, network, config, output))

    monkeypatch.setattr(TensorRt, "serialize_to", spy)
    profiles, target = step_profiles(manifest, [1], [32]), 32 if lowering == "tensorscatter" else None
    rtx_builder(tmp_path, manifest, tmp_path / "engines").build(more, "step.plan", profiles, target)
    assert built == [{tensor.name for tensor in graph.outputs}] and inner.name not in built[0]
    network, *_alive = parsed(tmp_path, manifest, lowering)
    assert inner.name in {network.get_output(index).name for index in range(network.num_outputs)}, "the graph has it"


def test_a_graph_that_does_not_parse_is_reported_with_the_reason(plain: tuple[Path, Manifest], tmp_path: Path) -> None:
    bundle, manifest = plain
    builder = rtx_builder(bundle, manifest, tmp_path)
    with pytest.raises(BundleError, match="does not parse .*tensorscatter.onnx: .*static sequence length"):
        builder.build(graph_of(manifest, "tensorscatter"), "step.plan", step_profiles(manifest, [1], [32]))
