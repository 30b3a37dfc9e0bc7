"""Models that read vectors: graphs in every lowering against PyTorch, verified bundles, golden cases and refusals."""

import json
import zipfile
from pathlib import Path
from types import ModuleType

import commands
import numpy as np
import onnx
import pytest
import torch
from feature_models import KINDS, SIZE, feature_checkpoint, feature_model, vectors
from numpy_runner import STEPS, NumpyRunner, graphs_of, open_session, run_graph
from txport.benchmarks import entry as benchmarks_entry
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.graphs.float16 import round_results, to_float16
from txport.exporter.reference import pad_sources
from txport.exporter.sample import choose_sample
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.transformer import Transformer
from txport.runtime import entry as runtime_entry
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import InputError
from txport.runtime.features import read_features, write_features
from txport.runtime.golden import check_translator, load_golden
from txport.runtime.translator import Translator
from txport.training import entry as training_entry

LENGTHS = (7, 4, 1)


def padded(model: Transformer) -> tuple[np.ndarray, np.ndarray]:
    """Sources with padding that must not be read as anything: large numbers."""
    assert model.config.feature_size is not None
    arrays, lengths = pad_sources(vectors(LENGTHS, model.config.feature_size), 0)
    for row, length in enumerate(LENGTHS):
        arrays[row, length:] = 1000.0
    return arrays, lengths


@pytest.mark.parametrize("lowering", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_equal_pytorch(kind: str, lowering: str) -> None:
    model = feature_model(**KINDS[kind])
    encoder, step = graphs_of(model, lowering)
    runner = NumpyRunner(model, encoder, step)
    source, lengths = padded(model)
    target = torch.randint(4, 40, (3, 6), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model(torch.from_numpy(source), torch.from_numpy(lengths), target).numpy()
    cross = run_graph(open_session(encoder), {"features": source, "source_lengths": lengths})
    caches = runner.empty_caches(3, 8)
    for position in range(6):
        output = runner.step(cross, caches, token_ids=target[:, position].numpy(), positions=np.full(3, position))
        np.testing.assert_allclose(output["logits"], expected[:, position], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["pre", "states"])
def test_float16_reads_vectors_in_float32_and_is_near_pytorch(kind: str) -> None:
    model = feature_model(**KINDS[kind])
    encoder, _ = graphs_of(model, "scatter")
    source, lengths = padded(model)
    with torch.inference_mode():
        memory = model.encode(torch.from_numpy(source), torch.from_numpy(lengths))
        expected = model.cross_key_values(memory)[1][0].numpy()
    to_float16(encoder, ())
    round_results(encoder)
    assert encoder.graph.inputs[0].dtype.name == "FLOAT"
    found = run_graph(open_session(encoder), {"features": source, "source_lengths": lengths})["cross_key_1"]
    for row, length in enumerate(LENGTHS):
        error = np.abs(found[row, :, :length].astype(np.float32) - expected[row, :, :length]).max()
        assert 0 < error < 0.02


@pytest.fixture(scope="module", params=["pre", "states"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    feature_checkpoint(directory / "checkpoint", **KINDS[request.param])
    options = ExportOptions(attention=True, beams=True, sentences=24, singles=3)
    report = export_bundle(directory / "checkpoint", directory / "bundle", options)
    assert report is not None and report.passed and report.attention is not None and report.beams is not None
    assert report.token_identical == report.sentences == 24
    assert not report.weights.failures and report.weights.tensors > 20
    return directory / "bundle"


def test_golden_cases_have_small_vectors_and_are_answered(bundle: Path) -> None:
    golden = load_golden(bundle)
    assert len(golden.cases) > 4 and (bundle / "golden.json").stat().st_size < 300_000
    size = Manifest.load(bundle).model.feature_size
    for case in golden.cases:
        assert case.source_ids == () and case.read.dtype == np.float32 and case.read.shape[1:] == (size,)
    for engine in ("ort", "auto"):
        assert check_translator(Translator(bundle, "cpu", engine), golden) == []


def test_a_changed_golden_vector_is_noticed(bundle: Path) -> None:
    golden = load_golden(bundle)
    other = vectors((5,), Manifest.load(bundle).model.feature_size or 0, seed=9)[0]
    cases = [case.of("", other * 3, case.target_ids) for case in golden.cases]
    assert check_translator(Translator(bundle, "cpu", "ort"), type(golden)(1, tuple(cases))) != []


def test_a_model_that_reads_states_has_no_graph_for_its_encoder(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    roles = {graph.role for graph in manifest.graphs}
    assert ("encoder_attention" in roles) == (manifest.model.encoder_layers > 0)
    kinds = [node.op_type for node in onnx.load(bundle / manifest.encoder.file, load_external_data=False).graph.node]
    assert kinds.count("MatMul") == (manifest.model.decoder_layers if not manifest.model.encoder_layers else 15)
    assert not any(each.name.startswith(("source", "encoder")) for each in manifest.parameters.tensors) or (
        manifest.model.encoder_layers > 0
    )


@pytest.mark.parametrize("kind", ["post", "pre", "states"])
def test_int8_rounds_matrices_and_no_positions(kind: str, tmp_path: Path) -> None:
    feature_checkpoint(tmp_path / "checkpoint", **KINDS[kind])
    options = ExportOptions(int8=True, lowerings=("ort",), verify=False)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    parameters = Manifest.load(tmp_path / "bundle").parameters
    assert parameters is not None
    for tensor in parameters.tensors:
        matrix = tensor.name.endswith(".weight") and len(tensor.shape) == 2
        assert (tensor.dtype == "int8") == matrix, tensor.name
    arrays = vectors((5, 9, 2), KINDS[kind].get("feature_size", SIZE))
    for name in ("ort", "auto"):  # each in its own arithmetic
        assert all(each.ids for each in Translator(tmp_path / "bundle", "cpu", name).translate_features(arrays))


def test_float16_holds_vectors_that_float16_cannot(tmp_path: Path) -> None:
    """Their projection stays in float32."""
    model = feature_model(norm="pre")
    with torch.no_grad():
        model.source_embedding.projection.weight.mul_(1e-5)
    arrays = [array * 1e5 for array in vectors((9, 5, 7, 3) * 4, SIZE)]
    save_checkpoint(tmp_path / "model", model, None, [], {}, features=arrays)
    options = ExportOptions(float16=True, lowerings=("scatter",), sentences=16, singles=2)
    report = export_bundle(tmp_path / "model", tmp_path / "bundle", options)
    assert report is not None and report.passed
    (island,) = [
        each
        for each in Manifest.load(tmp_path / "bundle").precision.islands
        if each.graph == "encoder" and each.reason == "overflow"
    ]
    assert "embedding.projection/MatMul" in island.nodes


def test_held_out_vectors_of_a_checkpoint_and_a_file_are_samples(tmp_path: Path) -> None:
    model = feature_model()
    arrays = vectors((4, 30, 6), SIZE)
    save_checkpoint(tmp_path / "model", model, None, [], {}, features=arrays, references=["a", "b", "c"])
    checkpoint = load_checkpoint(tmp_path / "model")
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(checkpoint.features, arrays, strict=True))
    sample = choose_sample(checkpoint, 2, 24, 24)
    assert [len(source) for source in sample.sources] == [4, 24] and sample.references == ["a", "b"] and sample.is_real
    assert sample.limits == [24, 24] and sample.origin == "held-out vectors of the checkpoint"
    write_features(tmp_path / "more.npz", vectors((2,), SIZE, seed=1), ["d"])
    sample = choose_sample(checkpoint, 5, 24, 24, features=tmp_path / "more.npz")
    assert [len(source) for source in sample.sources] == [2] and sample.references == ["d"]
    write_features(tmp_path / "other.npz", vectors((2,), SIZE + 1), [])
    with pytest.raises(InputError, match=r"other.npz has vectors of 11 numbers, but the model reads 10: give"):
        choose_sample(checkpoint, 5, 24, 24, features=tmp_path / "other.npz")
    with pytest.raises(InputError, match=r"reads vectors; give them with --features"):
        choose_sample(checkpoint, 5, 24, 24, text=tmp_path / "lines.txt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": None}, "has no array 'features'"),
        ({"lengths": None}, "has no array 'lengths'"),
        ({"lengths": np.array([2, 2])}, "has 5 vectors, but lengths of 4"),
        ({"lengths": np.array([5, 0])}, "has 'lengths' that are not a list of positive whole numbers"),
        ({"features": np.ones((5, 2, 2))}, r"has 'features' of float64 and the shape \[5, 2, 2\]"),
        ({"features": np.array([["a"] * 4] * 5)}, "has 'features' of <U1"),
        ({"features": np.ones((5, 0))}, r"has 'features' of float64 and the shape \[5, 0\]"),
        ({"features": np.diag([1.0, 1.0, np.nan, 1.0, 1.0])[:, :4]}, "has NaN or infinity in vector 2, counted from 0"),
        ({"features": np.full((5, 4), 1e300)}, "has NaN or infinity in vector 0, counted from 0"),
        ({"lengths": np.array([2**62] * 4 + [5])}, "has 5 vectors, but lengths of 18446744073709551621"),
        ({"lengths": np.array([2**63, 2**63 + 5], np.uint64)}, "has 5 vectors, but lengths of 18446744073709551621"),
        ({"texts": np.array(["a", "\ud800"])}, "has a text that is not valid Unicode, 1 counted from 0"),
        ({"texts": np.array(["one"])}, "has 'texts' that are not one string for each of 2 sources"),
    ],
)
def test_files_of_vectors_that_do_not_fit_are_refused(
    tmp_path: Path, change: dict[str, np.ndarray | None], message: str
) -> None:
    arrays = {"features": np.ones((5, 4), np.float16), "lengths": np.array([2, 3]), "texts": np.array(["a", "b"])}
    np.savez(tmp_path / "good.npz", **arrays)
    good = read_features(tmp_path / "good.npz", 4)
    assert [array.shape for array in good.arrays] == [(2, 4), (3, 4)] and good.texts == ["a", "b"]
    np.savez(tmp_path / "bad.npz", **{name: each for name, each in {**arrays, **change}.items() if each is not None})
    with pytest.raises(InputError, match=message):
        read_features(tmp_path / "bad.npz", 4)


def test_pickled_files_and_others_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "pickled.npz", features=np.array([{}], dtype=object), lengths=np.array([1]))
    (tmp_path / "text.npz").write_text("no archive")
    for name in ("pickled", "text"):
        with pytest.raises(InputError, match=rf"{name}.npz is not an .npz archive of"):
            read_features(tmp_path / f"{name}.npz")
    for data in (b"\x93NUMPY\1\0\4\0{'''", b"no array"):
        with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive:
            for name in ("features", "lengths"):
                archive.writestr(f"{name}.npy", data)
        with pytest.raises(InputError, match=r"bad\.npz"):
            read_features(tmp_path / "bad.npz")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_features(tmp_path / "missing.npz")


def test_a_compressed_file_cannot_fill_memory(tmp_path: Path) -> None:
    count = 3 << 20  # of 24 bytes: 72 MiB, in a file of 300 kB
    np.savez_compressed(tmp_path / "small.npz", features=np.zeros((count, 6), np.float32), lengths=np.array([count]))
    with pytest.raises(InputError, match=r"small.npz would unpack to more than 67,108,864 bytes: save it with numpy"):
        read_features(tmp_path / "small.npz")
    np.savez_compressed(tmp_path / "good.npz", features=np.zeros((1000, 6), np.float32), lengths=np.array([1000]))
    assert read_features(tmp_path / "good.npz").arrays[0].shape == (1000, 6)


def test_a_manifest_without_features_has_no_new_fields(bundle: Path) -> None:
    text = json.loads((bundle / "manifest.json").read_text())
    assert text["model"]["feature_size"] in (SIZE, 24)
    toy = json.loads((Path(__file__).parents[1] / "data" / "toy_bundle" / "manifest.json").read_text())
    assert "feature_size" not in toy["model"] and "frame_rate" not in toy


DATA = Path(__file__).parents[1] / "data"
VECTORS = "feature_bundle reads feature vectors, and this command reads text: use translate_features in Python, C or C"
COMMANDS: list[tuple[ModuleType, str, list[str], str]] = [
    (runtime_entry, "tx-translate", [], VECTORS),
    (runtime_entry, "tx-translate-corpus", ["lines.txt", "-o", "out"], VECTORS),
    (runtime_entry, "tx-triton", ["-o", "out"], VECTORS),
    (benchmarks_entry, "tx-bench", ["-o", "out"], VECTORS),
    (benchmarks_entry, "tx-attention", ["text", "-o", "out.svg"], "this bundle reads feature vectors, not text or ids"),
    (
        *(training_entry, "tx-evaluate", ["--source", "lines.txt", "--reference", "lines.txt"]),
        "feature_bundle reads vectors of 6 numbers, but lines.txt has text: give another test set",
    ),
    (training_entry, "tx-distill", ["--source", "lines.txt", "-o", "out"], VECTORS),
    (training_entry, "tx-shortlist", ["--source", "lines.txt", "--target", "lines.txt", "--no-check"], VECTORS),
]


@pytest.mark.parametrize(("entry", "command", "options", "message"), COMMANDS, ids=[each[1] for each in COMMANDS])
def test_commands_for_text_refuse_bundles_of_vectors(
    entry: ModuleType,
    command: str,
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text("a b\nc\n")
    done = commands.run(entry, command, DATA / "feature_bundle", *options, stdin="a b\n")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["lines.txt"]


def test_recordings_and_models_of_other_inputs_are_refused_by_tx_evaluate(tmp_path: Path) -> None:
    write_features(tmp_path / "test.npz", vectors((3, 4), SIZE), ["a", "b"])
    recipe = f'[corpus]\nkind = "features"\ntrain = "{tmp_path}/test.npz"\ntest = "{tmp_path}/test.npz"\n'
    (tmp_path / "vectors.toml").write_text(
        recipe + f'[model]\nsource = "features"\nfeature_size = {SIZE}\n[training]\nmax_steps = 1\n'
    )
    for bundle, reads in (("toy_bundle", "text"), ("feature_bundle", "vectors of 6 numbers")):
        done = commands.run(training_entry, "tx-evaluate", DATA / bundle, "--recipe", tmp_path / "vectors.toml")
        assert done.returncode == 2 and f"{bundle} reads {reads}, but the test split of" in done.stderr
        assert f"has vectors of {SIZE} numbers: give another test set" in done.stderr
