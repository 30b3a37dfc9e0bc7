"""Peers get the same weights: every id is PyTorch's, in float32, with and without an end of sentences."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from txport.benchmarks.contestants.backend import Task

pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
import numpy as np
import torch
from txport.benchmarks.contestants.backend import Backend
from txport.benchmarks.contestants.pytorch import PyTorchBackend
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.config import preset
from txport.models.transformer import Transformer
from txport.runtime.engines.native import missing
from txport.runtime.translator import Translator

ONE = {"threads": "1", "rows": "4"}


def tasks(vocabulary: int, absent: int = 0, beam: int = 1) -> list[Task]:
    """Three rows that make 12 tokens whatever they are, and ten of mixed lengths that end by themselves."""
    random = np.random.default_rng(0)
    rows = [[*random.integers(4, vocabulary, length).tolist(), 3] for length in (9, 9, 9, *range(1, 11))]
    return [Task(rows[:3], 12, True, [], absent, beam), Task(rows[3:], 30, False, [], absent, beam)]


def answers(backend: Backend, setting: dict[str, str], vocabulary: int, beam: int = 1) -> list[list[list[int]]]:
    found = []
    for task in tasks(vocabulary, absent=vocabulary - 1, beam=beam):
        backend.prepare(task, setting)
        backend.call()
        found.append(backend.ids())
    return found


def random_model(**fields: object) -> Transformer:
    torch.manual_seed(3)
    sizes = {"source_vocabulary": 61, "target_vocabulary": 61, "max_positions": 40, "dropout": 0.0}
    model = Transformer(preset("tiny", **(sizes | fields))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(2)
    return model


@pytest.fixture(scope="module")
def post_norm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("post") / "checkpoint"
    save_checkpoint(directory, random_model(projection_bias=True, activation="gelu"), None, [], {})
    return directory


def test_ctranslate2_has_positions_for_long_inputs(tmp_path: Path) -> None:
    """Beyond the model's own, which sinusoids have no end of: ids are PyTorch's."""
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")
    from txport.benchmarks.contestants.ctranslate2 import CTranslate2Backend
    from txport.benchmarks.contestants.ctranslate2_weights import write_ctranslate2

    model = random_model()
    write_ctranslate2(model, tmp_path / "model")
    task = Task([[*np.random.default_rng(1).integers(4, 60, 300).tolist(), 3]], 12, True, [], 60, 1)
    backend = CTranslate2Backend(str(tmp_path / "model"), "cpu", "float32", 3)
    backend.prepare(task, {"intra": "1", "inter": "1", "rows": "1"})
    backend.call()
    longer = Transformer(dataclasses.replace(model.config, max_positions=400)).eval()
    longer.load_state_dict(model.state_dict())
    ids, source = [2], torch.tensor(task.sources)
    with torch.no_grad():
        for _ in range(12):
            logits = longer(source, torch.tensor([source.shape[1]]), torch.tensor([ids]))[0, -1]
            logits[3] = -torch.inf  # the end of a sentence, which this task leaves out
            ids.append(int(logits.argmax()))
    assert backend.ids() == [ids[1:]]


@pytest.mark.parametrize(
    "fields", [{}, {"feed_forward": "gated", "activation": "gelu_tanh", "position_tables": "layer"}]
)
def test_ctranslate2_agrees_with_a_t5(fields: dict[str, Any], tmp_path: Path) -> None:
    """Relative positions, RMSNorm, gates, and heads of a width of their own."""
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")
    from txport.benchmarks.contestants.ctranslate2 import CTranslate2Backend
    from txport.benchmarks.contestants.ctranslate2_weights import write_ctranslate2

    biases = {"attention_bias": False, "feed_forward_bias": False, "scale_embedding": False}
    t5 = {"norm": "pre", "norm_kind": "rms", "positions": "relative", "head_dim": 24, "position_buckets": 8}
    model = random_model(**{**biases, **t5, "position_distance": 12, **fields})
    save_checkpoint(tmp_path / "checkpoint", model, None, [], {})
    write_ctranslate2(model, tmp_path / "model")
    backend = CTranslate2Backend(str(tmp_path / "model"), "cpu", "float32", 3)
    assert answers(backend, {"intra": "1", "inter": "1", "rows": "4"}, 61) == reference(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    "fields",
    [
        {"positions": "learned", "activation": "gelu"},
        {"positions": "relative", "position_buckets": 8, "position_distance": 12},
        {"positions": "rotary", "heads": 2},
        {"positions": "shaw", "position_distance": 3},
        {"positions": "rotary", "heads": 2, "head_dim": 24, "norm_kind": "rms"},
    ],
)
def test_ctranslate2_agrees_with_other_positions(fields: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")
    from txport.benchmarks.contestants.ctranslate2 import CTranslate2Backend
    from txport.benchmarks.contestants.ctranslate2_weights import write_ctranslate2

    # Answers of many different tokens, which tied embeddings and post-norm would repeat.
    model = random_model(**{"norm": "pre", "tie_projection": False, **fields})
    save_checkpoint(tmp_path / "checkpoint", model, None, [], {})
    write_ctranslate2(model, tmp_path / "model")
    backend = CTranslate2Backend(str(tmp_path / "model"), "cpu", "float32", 3)
    expected = reference(tmp_path / "checkpoint")
    assert answers(backend, {"intra": "1", "inter": "1", "rows": "4"}, 61) == expected
    assert smallest_margin(model, expected) > 1e-3, "rounding decides no id"


def smallest_margin(model: Transformer, found: list[list[list[int]]]) -> float:
    """The least difference of the two best logits, of all tokens of greedy answers."""
    margins = []
    for task, rows in zip(tasks(61), found, strict=True):
        for source, ids in zip(task.sources, rows, strict=True):
            with torch.inference_mode():
                logits = model(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[2, *ids[:-1]]]))
            best = logits[0].topk(2)
            assert best.indices[:, 0].tolist() == ids
            margins.append(float((best.values[:, 0] - best.values[:, 1]).min()))
    return min(margins)


@pytest.fixture(params=["pre_norm", "post_norm"])
def model(request: pytest.FixtureRequest) -> Path:
    """The trained one of all tests, and a random one of Marian's kind with a bias on its logits."""
    name = "checkpoint" if request.param == "pre_norm" else "post_norm"
    directory: Path = request.getfixturevalue(name)
    return directory


def vocabulary_of(directory: Path) -> int:
    return load_checkpoint(directory).config.target_vocabulary


def reference(directory: Path) -> list[list[list[int]]]:
    return answers(PyTorchBackend(str(directory), "cpu", False), ONE, vocabulary_of(directory))


def test_fixed_tasks_make_all_tokens_and_texts_end(checkpoint: Path) -> None:
    fixed, text = reference(checkpoint)
    assert {len(row) for row in fixed} == {12}
    assert any(row[-1] == 3 and len(row) < 30 for row in text)
    assert all(3 not in row[:-1] for row in text)


def test_a_bundle_by_the_greedy_loop_agrees(checkpoint: Path, bundle: Path) -> None:
    from txport.benchmarks.contestants.bundle import BundleBackend

    backend = BundleBackend(str(bundle), "cpu", "auto", None, 1)
    assert answers(backend, {}, vocabulary_of(checkpoint)) == reference(checkpoint)
    assert backend.parts() == {}, "a text has none"


def test_a_bundles_longest_answer_is_that_of_its_peers(post_norm: Path, tmp_path: Path) -> None:
    """Of a model that ends no answer; by itself it would make 24 tokens of these two."""
    from txport.benchmarks.contestants.bundle import BundleBackend

    export_bundle(post_norm, tmp_path / "bundle", ExportOptions(verify=False, lowerings=("ort",)))
    backend = BundleBackend(str(tmp_path / "bundle"), "cpu", "ort", None, 1)
    peer = PyTorchBackend(str(post_norm), "cpu", False)
    for target in (5, 30):
        for each in (backend, peer):
            each.prepare(Task([[7, 3]], target, False, [], 60), ONE)
            each.call()
        assert backend.ids() == peer.ids() and len(peer.ids()[0]) == target


def test_hugging_face_agrees(model: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    from txport.benchmarks.contestants.huggingface import HuggingFaceBackend

    assert answers(HuggingFaceBackend(str(model), "cpu"), ONE, vocabulary_of(model)) == reference(model)


def test_ctranslate2_agrees(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")
    from txport.benchmarks.contestants.ctranslate2 import CTranslate2Backend
    from txport.benchmarks.contestants.ctranslate2_weights import write_ctranslate2

    write_ctranslate2(load_checkpoint(model).model, tmp_path / "model")
    backend = CTranslate2Backend(str(tmp_path / "model"), "cpu", "float32", 3)
    setting = {"intra": "1", "inter": "1", "rows": "4"}
    assert answers(backend, setting, vocabulary_of(model)) == reference(model)


def test_beams_of_all_are_the_same(checkpoint: Path, bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")
    from txport.benchmarks.contestants.bundle import BundleBackend
    from txport.benchmarks.contestants.ctranslate2 import CTranslate2Backend
    from txport.benchmarks.contestants.ctranslate2_weights import write_ctranslate2
    from txport.benchmarks.contestants.huggingface import HuggingFaceBackend

    write_ctranslate2(load_checkpoint(checkpoint).model, tmp_path / "model")
    vocabulary = vocabulary_of(checkpoint)
    theirs = answers(HuggingFaceBackend(str(checkpoint), "cpu"), ONE, vocabulary, beam=4)
    assert theirs != reference(checkpoint), "greedy search"
    for engine in ["ort"] if missing() else ["ort", "fused"]:
        assert answers(BundleBackend(str(bundle), "cpu", engine, None, 1), {}, vocabulary, beam=4) == theirs
    backend = CTranslate2Backend(str(tmp_path / "model"), "cpu", "float32", 3)
    assert answers(backend, {"intra": "1", "inter": "1", "rows": "4"}, vocabulary, beam=4) == theirs


@pytest.mark.parametrize("length_penalty", [1.0, 2.0])
def test_n_best_lists_are_those_of_ctranslate2(model: Path, length_penalty: float, tmp_path: Path) -> None:
    """Its beams end a sentence as `early_stopping` does; ids, and scores within 1e-4."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")
    from txport.benchmarks.contestants.ctranslate2 import token
    from txport.benchmarks.contestants.ctranslate2_weights import write_ctranslate2

    write_ctranslate2(load_checkpoint(model).model, tmp_path / "model")
    export_bundle(model, tmp_path / "bundle", ExportOptions(verify=False))
    random = np.random.default_rng(7)
    sources = [[*random.integers(4, 61, 1 + row % 12).tolist(), 3] for row in range(40)]
    theirs = ctranslate2.Translator(str(tmp_path / "model"), intra_threads=1).translate_batch(
        [[token(each) for each in source] for source in sources],
        beam_size=4,
        num_hypotheses=4,
        length_penalty=length_penalty,
        max_decoding_length=30,
        min_decoding_length=0,
        return_end_token=True,
        return_scores=True,
    )
    ids = [[[int(name[1:]) for name in made] for made in result.hypotheses] for result in theirs]
    for engine in ["ort"] if missing() else ["ort", "fused"]:
        ours = Translator(tmp_path / "bundle", "cpu", engine).translate_ids(
            sources, beam=4, n_best=4, early_stopping=True, length_penalty=length_penalty, max_length=30
        )
        assert [[made.ids for made in result.hypotheses] for result in ours] == ids
        for result, right in zip(ours, theirs, strict=True):
            assert [made.score for made in result.hypotheses] == pytest.approx(right.scores, abs=1e-4)


def test_hugging_face_agrees_with_an_imported_marian(tmp_path: Path) -> None:
    """Its positions are a table, in the order of Marian's own."""
    pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    from txport.benchmarks.contestants.huggingface import HuggingFaceBackend
    from txport.models.importers.marian import concatenated_sinusoids

    model = random_model(positions="learned", activation="silu")
    with torch.no_grad():
        for embedding in (model.source_embedding, model.target_embedding):
            embedding.positions.copy_(concatenated_sinusoids(*embedding.positions.shape))
    save_checkpoint(tmp_path / "checkpoint", model, None, [], {})
    backend = HuggingFaceBackend(str(tmp_path / "checkpoint"), "cpu")
    assert answers(backend, ONE, 61) == reference(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"positions": "learned"}, "sinusoidal positions"),
        ({"positions": "rotary"}, "sinusoidal positions instead of rotary ones"),
        ({"norm": "post_final"}, "LayerNorm before or after"),
        ({"norm_kind": "power"}, "LayerNorm"),
        ({"copy_heads": ((1, 0),)}, "no copy mechanism"),
        ({"embedding_norm": True}, "no LayerNorm on embeddings"),
        ({"tie_projection": False}, "one embedding"),
        ({"layer_norm_epsilon": 1e-6}, "epsilon of 1e-5"),
    ],
)
def test_what_hugging_face_cannot_be_is_said(fields: dict[str, object], what: str) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    from txport.benchmarks.contestants.huggingface_weights import hugging_face_model, unsupported
    from txport.runtime.errors import InputError

    assert unsupported(random_model()) is None
    with pytest.raises(InputError, match=what):
        hugging_face_model(random_model(**fields))


def test_batches_of_a_text_are_sorted_and_those_of_a_fixed_task_whole() -> None:
    sources = [[4] * length for length in (2, 5, 3)]
    assert Task(sources, 8, False, [], 0).batches(2) == [[1, 2], [0]]
    assert Task(sources, 8, True, [], 0).batches(2) == [[0, 1, 2]]
