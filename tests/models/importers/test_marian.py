"""Marian imports against Hugging Face's own Marian, and exported ones against CTranslate2's conversion of the same."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_models import (
    INPUTS,
    MADE,
    assert_same_numbers,
    assert_varied,
    greedy,
    identical,
    import_here,
    padded,
    random_sources,
    until_end,
)
from tiny_marian import EOS, tiny_marian

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

GRID: dict[str, dict[str, Any]] = {
    "opus": {},
    "three_heads": {"d_model": 30, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
    "deep_encoder": {"seed": 3, "encoder_layers": 4, "decoder_layers": 1, "activation_function": "relu"},
    "two_vocabularies": {
        "seed": 3,
        "eos_bias": 6.0,
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 71,
    },
    "unscaled": {"seed": 2, "eos_bias": 70.0, "scale_embedding": False, "activation_function": "gelu"},
    "untied": {"tie_word_embeddings": False, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40},
}


def generate(model: Any, sources: list[list[int]]) -> list[list[int]]:
    ids, lengths = padded(sources, model.config.pad_token_id)
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    rows = model.generate(input_ids=ids, attention_mask=mask, num_beams=1, do_sample=False, max_new_tokens=MADE + 1)
    return until_end(rows.tolist(), EOS)


@pytest.mark.parametrize("name", GRID)
def test_same_numbers_and_ids_as_hugging_face(name: str, tmp_path: Path) -> None:
    model = tiny_marian(tmp_path / "marian", **{"seed": len(name), **GRID[name]})
    checkpoint = import_here(tmp_path / "marian", tmp_path / "checkpoint", tokenizer=False)
    pad_id = model.config.pad_token_id
    sources = random_sources([i for i in range(1, 60) if i != pad_id], [EOS])
    assert_same_numbers(checkpoint, model, sources, banned=[pad_id])
    expected = generate(model, sources)
    assert_varied(expected, EOS)
    assert identical(greedy(checkpoint, sources), expected) == INPUTS


# --- with its tokenizer, exported ------------------------------------------------------------------------------------

TEXTS = [
    "the cat sees a bird",
    "le chat voit grand",
    ">>fra<< a dog and a cat",
    ">>xyz<< big",
    "unseen 漢字 words",
    "a",
]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A directory as it comes from the hub, with tokenizer, and its model."""
    directory = tmp_path_factory.mktemp("marian") / "opus-mt"
    return directory, tiny_marian(directory, seed=5, vocabulary=60, tokenizer=True)


@pytest.fixture(scope="module")
def exported(marian: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of it, verified."""
    from txport.exporter.export import ExportOptions, export_bundle

    directory = tmp_path_factory.mktemp("exported")
    import_here(marian[0], directory / "checkpoint")
    report = export_bundle(
        directory / "checkpoint",
        directory / "bundle",
        ExportOptions(lowerings=("scatter",), sentences=32, singles=5, attention=True),
    )
    assert report is not None and report.passed and report.token_identical == 32
    assert report.lowerings[0].mean_logit_error < 1e-4, "banned ids do not count"
    return directory / "bundle"


def test_an_exported_import_agrees_with_ctranslate2(marian: tuple[Path, Any], exported: Path, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")
    from txport.runtime.translator import Translator

    ctranslate2.converters.TransformersConverter(str(marian[0])).convert(str(tmp_path / "ct2"))
    theirs = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32", inter_threads=1, intra_threads=1)
    tokens = {i: token for token, i in json.loads((marian[0] / "vocab.json").read_text()).items()}
    sources = random_sources(range(2, 56), [EOS])
    hypotheses = theirs.translate_batch(
        [[tokens[i] for i in source] for source in sources],
        beam_size=1,
        max_decoding_length=MADE,
        min_decoding_length=0,  # its default forbids empty answers
        max_batch_size=64,
    )
    made = [result.ids for result in Translator(exported, threads=1).translate_ids(sources, max_length=MADE)]
    assert_varied(made, EOS)
    found = [[tokens[i] for i in ids if i != EOS] for ids in made]
    assert identical(found, [result.hypotheses[0] for result in hypotheses]) == INPUTS


def test_attention_and_scores_of_an_exported_import_agree_with_ctranslate2(
    marian: tuple[Path, Any], exported: Path, tmp_path: Path
) -> None:
    """Its attention is of the first head of the last layer, by its own converter's choice, and has no row for eos."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")
    from txport.runtime.bundle.manifest import Manifest
    from txport.runtime.translator import Translator

    ctranslate2.converters.TransformersConverter(str(marian[0])).convert(str(tmp_path / "ct2"))
    theirs = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32", inter_threads=1, intra_threads=1)
    tokens = {i: token for token, i in json.loads((marian[0] / "vocab.json").read_text()).items()}
    sources = random_sources(range(2, 56), [EOS])[:60]
    named = [[tokens[i] for i in source] for source in sources]
    bundle = Path(shutil.copytree(exported, tmp_path / "bundle"))
    manifest = Manifest.load(bundle)
    dataclasses.replace(manifest, alignment_heads=((manifest.model.decoder_layers - 1, 0),)).write(bundle)
    translator = Translator(bundle, "cpu", threads=1)
    made = translator.translate_ids(sources, max_length=MADE, attention=True)
    expected = theirs.translate_batch(
        named, beam_size=1, max_decoding_length=MADE, min_decoding_length=0, return_attention=True
    )
    errors: list[float] = []
    for ours, found in zip(made, expected, strict=True):
        kept = [i for i, token in enumerate(ours.ids) if token != EOS]
        assert ours.attention is not None and len(found.attention[0]) >= len(kept)
        for row in kept:
            weights = np.array(found.attention[0][row])
            errors += np.abs(ours.attention[row, : len(weights)] - weights).tolist()
    # These are sharp: where two tokens are nearly even, the last digit of a sum decides much.
    assert len(errors) > 1000 and np.mean(errors) < 1e-5 and max(errors) < 1e-3
    ended = [(source, ours) for source, ours in zip(sources, made, strict=True) if ours.ids[-1] == EOS]
    scores = translator.score_ids([source for source, _ in ended], [ours.ids for _, ours in ended])
    texts = [[tokens[i] for i in ours.ids[:-1]] for _, ours in ended]
    for ours, found in zip(scores, theirs.score_batch([named[sources.index(s)] for s, _ in ended], texts), strict=True):
        np.testing.assert_allclose(ours.scores, found.log_probs, atol=2e-3)
    assert len(ended) > 10


def test_text_in_text_out_as_hugging_face_has_it(marian: tuple[Path, Any], exported: Path) -> None:
    from txport.runtime.golden import check_translator, load_golden
    from txport.runtime.translator import Translator

    tokenizer = transformers.MarianTokenizer.from_pretrained(str(marian[0]))
    texts = TEXTS * 2
    encoded = [list(tokenizer(text).input_ids) for text in texts]
    expected = [
        tokenizer.decode(ids, skip_special_tokens=True, use_source_tokenizer=False)
        for ids in generate(marian[1], encoded)
    ]
    translator = Translator(exported, threads=1)
    assert [translator.tokenizer.encode(text) for text in texts] == encoded
    assert [result.text for result in translator.translate(texts, max_length=MADE)] == expected
    golden = load_golden(exported)
    assert len({case.source for case in golden.cases}) == 32 and check_translator(translator, golden) == []
    (chosen,) = translator.translate(["a dog and a cat"], target_language="fra", max_length=MADE)
    assert chosen.text == expected[2]


def test_an_import_in_float16(tmp_path: Path) -> None:
    """Banned ids have logits near -30,000, which float16 must hold, and no other id may be chosen for it."""
    from txport.exporter.export import ExportOptions, export_bundle

    # A seed with which no two ids are nearly as likely: random models have such ties, and float16 decides them anew.
    model = tiny_marian(tmp_path / "marian", seed=8, vocabulary=60, tokenizer=True, encoder_layers=1, decoder_layers=1)
    import_here(tmp_path / "marian", tmp_path / "checkpoint")
    options = ExportOptions(float16=True, lowerings=("scatter",), sentences=24, singles=2)
    report = export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    assert report is not None and report.passed and report.precision == "float16"
    assert report.token_identical == 24 and 1e-3 < report.max_logit_error < 0.5
    weights = sum(parameter.numel() * 2 for parameter in model.parameters())
    assert (tmp_path / "bundle" / "onnx" / "weights.bin").stat().st_size < 1.4 * weights, "of two bytes each"


def test_the_bundle_stores_no_tensor_twice(marian: tuple[Path, Any], exported: Path) -> None:
    config = json.loads((exported / "config.json").read_text())
    assert config["projection_bias"] and config["tie_projection"] and config["share_embeddings"]
    weights = sum(p.numel() * 4 for p in marian[1].parameters())
    assert (exported / "onnx" / "weights.bin").stat().st_size < 1.3 * weights, "at this size alignment counts"
