"""Corpora of feature vectors: files, refusals, and the path from generated speech to a bundle that transcribes."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.checkpoint import load_checkpoint
from txport.runtime.engine import padded
from txport.runtime.errors import InputError
from txport.runtime.features import write_features
from txport.runtime.text.tokenizer import open_tokenizer
from txport.runtime.translator import Translator
from txport.training import corpora
from txport.training.examples import Examples
from txport.training.loop import train
from txport.training.options import FeaturesOptions
from txport.training.quality import evaluation
from txport.training.recipe import from_table, read
from txport.training.spoken import digits
from txport.training.spoken.recordings import Recording, read_recordings
from txport.training.spoken.speech import FRAME_RATE, HOP, MELS, RATE, WINDOW, WORDS, log_mel, speak
from txport.training.tokenizers import load_tokenizer, train_tokenizer
from txport.training.torch_engine import TorchEngine

CHECKPOINT = Path(__file__).parents[2] / "data" / "checkpoints" / "tiny"
SMALL = (
    *("corpus.train=24", "corpus.validation=6", "corpus.test=6", "training.validation_sentences=6"),
    *("model.d_model=32", "model.ffn=64", "model.encoder_layers=1", "model.decoder_layers=1", "model.dropout=0.0"),
    *("training.warmup_steps=5", "training.max_steps=50", "training.batch_tokens=4096"),
    *("training.keep=last", "training.cooldown=0.0", "training.validate_every=50", "training.learning_rate=0.005"),
)


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some steps on a few recordings."""
    output = tmp_path_factory.mktemp("digits") / "checkpoint"
    assert train(read("digits", SMALL), output, Path()) is not None
    return output


def losses(output: Path) -> list[float]:
    lines = next(output.with_name(output.name + ".run").rglob("metrics.csv")).read_text().splitlines()
    column = lines[0].split(",").index("training/loss")
    return [float(cells[column]) for cells in (line.split(",") for line in lines[1:]) if cells[column]]


def test_a_run_learns_and_its_bundle_transcribes_as_pytorch(digits_run: Path, tmp_path: Path) -> None:
    """The loss falls from that of a model that knows nothing, the logarithm of the vocabulary, to less than half."""
    checkpoint = load_checkpoint(digits_run)
    config = checkpoint.config
    assert (config.source, config.feature_size, config.frame_rate) == ("features", MELS, FRAME_RATE)
    found = losses(digits_run)
    assert found[-1] < 0.5 * np.log(config.target_vocabulary) < found[0] * 1.5
    assert len(checkpoint.features) == len(checkpoint.references) == 12 and checkpoint.sentences == []
    report = export_bundle(digits_run, tmp_path / "bundle", ExportOptions(attention=True, sentences=12, singles=2))
    assert report is not None and report.passed and report.sentences == 12
    ties = 12 - report.token_identical  # decided by rounding, or the report had not passed
    translator = Translator(tmp_path / "bundle", "cpu", "ort")
    tokenizer = open_tokenizer(digits_run, checkpoint.tokenizer, config.vocabularies)
    recordings = [Recording(str(number), each) for number, each in enumerate(checkpoint.features)]
    expected = evaluation.translate(TorchEngine(checkpoint.model), tokenizer, recordings)
    made = translator.translate_features(checkpoint.features, alignments=True)
    assert sum(ours.text != theirs for ours, theirs in zip(made, expected, strict=True)) <= ties <= 1 and any(expected)
    for each, vectors in zip(made, checkpoint.features, strict=True):
        assert each.alignment is not None and each.alignment.times is not None
        for token, time in zip(each.alignment.tokens, each.alignment.times, strict=True):
            assert (token is None) == (time is None)
            assert time is None or (token < len(vectors) and time == pytest.approx(token / FRAME_RATE))


@pytest.mark.skipif("TXPORT_WHOLE_GRID" not in os.environ, reason="trains for minutes: TXPORT_WHOLE_GRID=1")
def test_the_recipe_learns_to_transcribe(tmp_path: Path) -> None:
    """The whole recipe, which the number of steps ends on any machine. Speakers of another seed are transcribed."""
    assert train(read("digits"), tmp_path / "checkpoint", Path()) is not None
    report = export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(sentences=100, singles=2))
    assert report is not None and report.passed
    recordings, texts = zip(*digits.pairs(23, "test", 100), strict=True)
    made = Translator(tmp_path / "bundle", "cpu").translate_features([each.vectors for each in recordings])
    assert sum(ours.text == text for ours, text in zip(made, texts, strict=True)) >= 80


def test_a_corpus_of_files_is_that_of_arrays(tmp_path: Path) -> None:
    pairs = digits.pairs(3, "train", 30)
    arrays, texts = [source.vectors for source, _ in pairs], [target for _, target in pairs]
    write_features(tmp_path / "train.npz", arrays, texts)
    corpus = corpora.load(FeaturesOptions(held_out=4), tmp_path)
    found = [*corpus.train, *corpus.validation, *corpus.test]
    assert len(found) == 30 and len(corpus.validation) == len(corpus.test) == 4
    by_name = {str(source): (source.vectors, target) for source, target in found}
    for number, (vectors, text) in enumerate(zip(arrays, texts, strict=True)):
        ours, target = by_name[f"train.npz, recording {number}"]
        assert np.array_equal(ours, vectors) and target == text
    train_tokenizer(
        [(text, text) for text in texts], read("digits", ["tokenizer.vocabulary=16"]).tokenizer, tmp_path / "tokenizer"
    )
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    examples = Examples.of(corpus.train, tokenizer, 200)
    batch = examples[[0, 3, 5]]
    expected, lengths = padded([list(corpus.train)[row][0].vectors for row in (0, 3, 5)], 0)
    assert np.array_equal(batch.source_ids.numpy(), expected) and np.array_equal(batch.source_lengths.numpy(), lengths)
    row = [token for token in batch.target_ids[0].tolist() if token]
    assert row[0] == 2 and row[-1] == 3 and tokenizer.decode(row[1:-1]) == next(iter(corpus.train))[1]


def test_equal_recordings_are_one_source(tmp_path: Path) -> None:
    arrays = [np.full((3, 5), value, np.float32) for value in (1, 2, 1, 3, 2, 4)]
    write_features(tmp_path / "train.npz", arrays, list("abcdef"))
    for name in ("validation.npz", "test.npz"):
        write_features(tmp_path / name, arrays[-1:], ["g"])
    options = FeaturesOptions(validation="validation.npz", test="test.npz", unique_sources=True)
    assert sorted(target for _, target in corpora.load(options, tmp_path).train) == list("abdf")


def test_parquet_has_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'txport[corpus]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    arrays = [np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((1, 2), np.float32)]
    columns = {"mel": [each.tolist() for each in arrays], "said": ["one two", " "]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "train.parquet")
    ((source, text),) = read_recordings(tmp_path / "train.parquet", "mel", "said")
    assert isinstance(source, Recording) and np.array_equal(source.vectors, arrays[0]) and text == "one two"
    with pytest.raises(InputError, match=r"train.parquet .*features"):
        read_recordings(tmp_path / "train.parquet", "features", "said")
    for wrong in ([[1.0, 2.0], [3.0]], [[1.0, None]], [None, [1.0]], [], None, [[1.0, float("nan")]], [[1e300, 1.0]]):
        columns["mel"] = [[[1.0, 2.0]], wrong]
        parquet.write_table(pyarrow.table(columns), tmp_path / "wrong.parquet")
        with pytest.raises(InputError, match="wrong.parquet, row 1, mel is not a list of vectors of one size"):
            read_recordings(tmp_path / "wrong.parquet", "mel", "said")


@pytest.mark.parametrize("number", ["float64", "float32", "float16", "int16"])
@pytest.mark.parametrize("outer", ["list", "large", "fixed"])
def test_types_of_parquet_give_the_same_numbers(number: str, outer: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'txport[corpus]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    arrays = [np.arange(6, dtype=number).reshape(3, 2), np.ones((1, 2), number)]
    inner = pyarrow.from_numpy_dtype(number)
    kinds = {"list": pyarrow.list_(inner), "large": pyarrow.large_list(inner), "fixed": pyarrow.list_(inner, 2)}
    column = pyarrow.array([list(map(list, each)) for each in arrays], pyarrow.list_(kinds[outer]))
    parquet.write_table(pyarrow.table({"features": column, "text": ["a", "b"]}), tmp_path / "train.parquet")
    found = [source.vectors for source, _ in read_recordings(tmp_path / "train.parquet", "features", "text")]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, arrays, strict=True))
    assert {each.dtype.name for each in found} == {"float32"}


@pytest.mark.parametrize(
    ("values", "texts", "message"),
    [
        ([[[True]], [[False]]], ["a", "b"], "features has values of list<.*bool>>: give lists of lists of numbers"),
        ([[["1.5"]], [["2"]]], ["a", "b"], "features has values of list<.*string>>: give lists of lists of numbers"),
        ([[1.0], [2.0]], ["a", "b"], "features has values of list<.*double>: give lists of lists of numbers"),
        ([1.0, 2.0], ["a", "b"], "features has values of double: give lists of lists of numbers"),
        ([[[1.0]], [[2.0]]], [0, 1], "row 0, text is of type int: give text"),
        ([[[1.0]], [[2.0]]], [["a"], ["b"]], "row 0, text is of type list: give text"),
    ],
)
def test_columns_of_other_types_are_refused(values: list[Any], texts: list[Any], message: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'txport[corpus]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"features": values, "text": texts}), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match="bad.parquet, " + message):
        read_recordings(tmp_path / "bad.parquet", "features", "text")


def test_files_without_texts_and_recipes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_features(tmp_path / "train.npz", [np.ones((3, 5), np.float32)] * 4)
    with pytest.raises(InputError, match="train.npz has no array 'texts'"):
        corpora.load(FeaturesOptions(), tmp_path)
    with pytest.raises(InputError, match="model.source is ids, but the corpus has feature vectors: set it to features"):
        from_table({"corpus": {"kind": "digits"}, "training": {"max_steps": 1}}, "mine.toml")
    with pytest.raises(InputError, match="model.source is features, but the corpus has text: set it to ids"):
        read("tiny", ["model.source=features", "model.feature_size=40"])
    write_features(tmp_path / "train.npz", [np.full((3, 5), i, np.float32) for i in range(4)], ["one", "two"] * 2)
    recipe = read("digits", [*SMALL[4:], "training.validation_sentences=1"])
    small = replace(recipe, corpus=FeaturesOptions(held_out=1))
    with pytest.raises(InputError, match="has vectors of 5 numbers, but model.feature_size is 40"):
        train(small, tmp_path / "checkpoint", tmp_path)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_every_split_has_vectors_of_the_model(split: str, tmp_path: Path) -> None:
    for name in ("train", "validation", "test"):
        arrays = [np.ones((3, 40 + (name == split)), np.float32)] * 4
        write_features(tmp_path / f"{name}.npz", arrays, ["one", "two"] * 2)
    recipe = replace(
        read("digits", [*SMALL[4:], "training.validation_sentences=1"]),
        corpus=FeaturesOptions(validation="validation.npz", test="test.npz"),
    )
    with pytest.raises(InputError, match=f"{split}.npz, recording 0 has vectors of 41 numbers, but model.feature_size"):
        train(recipe, tmp_path / "checkpoint", tmp_path)


def test_a_checkpoint_of_vectors_is_fine_tuned(digits_run: Path, tmp_path: Path) -> None:
    recipe = read("digits", [*SMALL, "training.max_steps=20", "training.warmup_steps=1"])
    recipe = replace(recipe, training=replace(recipe.training, from_checkpoint=str(digits_run)))
    assert train(recipe, tmp_path / "checkpoint", Path()) is not None
    assert losses(tmp_path / "checkpoint")[0] < 0.6 * losses(digits_run)[0]


def test_a_checkpoint_of_text_is_not_fine_tuned_with_vectors(digits_run: Path, tmp_path: Path) -> None:
    training = {"max_steps": 2, "batch_tokens": 512, "max_length": 64}
    corpora_of = {
        "feature vectors": ({"kind": "digits", "train": 24, "validation": 6, "test": 6}, CHECKPOINT),
        "text": ({"kind": "builtin", "train": 24, "validation": 6, "test": 6}, digits_run),
    }
    for kind, (corpus, checkpoint) in corpora_of.items():
        table = {"corpus": corpus, "training": {**training, "from_checkpoint": str(checkpoint)}}
        with pytest.raises(InputError, match=f"the corpus has {kind}, but the model reads"):
            train(from_table(table, "mine.toml"), tmp_path / kind, Path())


def test_spectrograms_show_a_tone_where_it_is() -> None:
    """Against the definition: the loudest band is the one around the tone, and silence is the lowest value."""
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), MELS + 2) / 2595) - 1)
    for frequency in (300.0, 1000.0, 2900.0):
        tone = np.sin(2 * np.pi * frequency * np.arange(5 * HOP) / RATE).astype(np.float32)
        frames = log_mel(tone)
        assert frames.shape == (5, MELS) and frames.dtype == np.float32
        loudest = int(frames[1].argmax())
        assert edges[loudest] < frequency < edges[loudest + 2]
    assert (log_mel(np.zeros(1, np.float32)) == -1).all() and WINDOW > HOP


def test_speech_is_the_same_for_a_seed_and_speakers_differ() -> None:
    first, again, other = (speak(["seven"], np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and len(first) != len(other)
    assert all(0.1 < np.abs(speak([word], np.random.default_rng(0))).max() <= 1 for word in WORDS)
    splits = [digits.pairs(1, split, 3) for split in ("train", "test")]
    assert len({source.vectors.tobytes() for pairs in splits for source, _ in pairs}) == 6
