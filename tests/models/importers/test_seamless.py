"""SeamlessM4T's text to text and SMaLL-100, kin of M2M100, against Hugging Face: numbers, greedy ids, texts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import (
    assert_same_ids,
    assert_same_numbers,
    changed_json,
    import_here,
    pieces,
    random_sources,
    sentencepiece_model,
    shake,
    write_json,
)
from safetensors.torch import save_file
from txport.models.importers.m2m100 import m2m100_kind
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.tokenizer import open_tokenizer

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

PAD, UNK, EOS = 0, 1, 3
LANGUAGES = ["eng", "fra", "cmn_Hant"]
GRID: dict[str, tuple[str, dict[str, Any]]] = {
    "seamless": ("SeamlessM4T", {"seed": 3}),
    "sides": ("SeamlessM4T", {"encoder_attention_heads": 4, "decoder_ffn_dim": 40, "decoder_layers": 1, "seed": 5}),
    "unscaled": ("SeamlessM4T", {"scale_embedding": False, "activation_function": "silu", "seed": 1}),
    "v2": ("SeamlessM4Tv2", {"hidden_size": 24, "seed": 23}),
}


def make(directory: Path, family: str = "SeamlessM4T", vocabulary: int = 60, seed: int = 0, **changes: Any) -> Any:
    """A model with random weights, saved by `save_pretrained`."""
    fields = {
        **{"hidden_size": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24},
        **{"decoder_ffn_dim": 24, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 40, **changes},
    }
    special = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 2, "decoder_start_token_id": EOS}
    config = getattr(transformers, f"{family}Config")(vocab_size=vocabulary, **special, **fields)
    model = getattr(transformers, f"{family}ForTextToText")(config).eval()
    shake(model, seed, scale=1.6)
    model.shared.weight.data[PAD] = 0
    model.lm_head.weight.data[EOS] *= 2
    model.tie_weights()
    first = vocabulary - len(LANGUAGES)
    model.generation_config.text_decoder_lang_to_code_id = {name: first + i for i, name in enumerate(LANGUAGES)}
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("name", GRID)
def test_same_numbers_and_ids_as_hugging_face(name: str, tmp_path: Path) -> None:
    family, changes = GRID[name]
    model = make(tmp_path / "theirs", family, **changes)
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)
    sources = random_sources(range(4, 55), [EOS], [57])
    assert_same_numbers(checkpoint, model, sources)
    assert_same_ids(checkpoint, model, sources, [58], tgt_lang="fra")


def test_a_whole_model_gives_its_text_to_text_part(tmp_path: Path) -> None:
    """Speech and units are left out; what has no known name is not."""
    model = make(tmp_path / "theirs")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state |= {f"{part}.layer.weight": torch.ones(2) for part in ("speech_encoder", "t2u_model", "vocoder")}
    save_file(state, tmp_path / "theirs" / "model.safetensors")
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)
    assert_same_numbers(checkpoint, model, random_sources(range(4, 55), [EOS], [57]))
    save_file({**state, "text_adapter.weight": torch.ones(2)}, tmp_path / "theirs" / "model.safetensors")
    with pytest.raises(CheckpointError, match="text_adapter"):
        import_here(tmp_path / "theirs", tmp_path / "other", tokenizer=False)


def test_seamless_texts(tmp_path: Path) -> None:
    """<source language> text </s>, and answers that begin with their language; ids one above SentencePiece's."""
    spm = sentencepiece_model()
    size = len(pieces(spm)) + 4 + len(LANGUAGES)
    make(tmp_path / "theirs", vocabulary=size)
    (tmp_path / "theirs" / "sentencepiece.bpe.model").write_bytes(spm)
    first = size - len(LANGUAGES)
    languages = {name: first + i for i, name in enumerate(LANGUAGES)}
    write_json(tmp_path / "theirs" / "added_tokens.json", {f"__{name}__": i for name, i in languages.items()})
    write_json(tmp_path / "theirs" / "tokenizer_config.json", {"src_lang": "__eng__", "tgt_lang": "__fra__"})
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint")
    table = checkpoint.tokenizer.languages
    assert table is not None and table.source == table.target == languages
    assert (table.source_default, table.target_default) == ("eng", "fra")
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=spm)
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for text in ("the cat sees a bird", "unseen 漢字", "a", ""):
        expected = [i + 1 if i != processor.unk_id() else UNK for i in processor.encode(text)]
        ids, around = ours.encode_source(text, "cmn_Hant", "eng")
        assert around.wrap(ids) == [languages["cmn_Hant"], *expected, EOS]
        assert around.target_prefix == [languages["eng"]]
        known = [i for i in expected if i != UNK]
        assert ours.decode([EOS, languages["eng"], *known, EOS]) == processor.decode([i - 1 for i in known])


@pytest.fixture(scope="module")
def small100(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """As alirezamsh/small100: its files call the tokenizer that of M2M100."""
    directory = tmp_path_factory.mktemp("small100") / "model"
    spm = sentencepiece_model()
    vocabulary = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces(spm))])}
    sizes = {
        **{"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 40},
        **{"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_layers": 4, "decoder_layers": 1},
    }
    config = transformers.M2M100Config(vocab_size=len(vocabulary) + 108, decoder_start_token_id=2, **sizes)
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    shake(model, 4, scale=1.6)
    model.model.shared.weight.data[1] = 0
    model.tie_weights()
    model.save_pretrained(directory)
    (directory / "sentencepiece.bpe.model").write_bytes(spm)
    write_json(directory / "vocab.json", vocabulary)
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer"})
    return directory, model, transformers.M2M100Tokenizer.from_pretrained(str(directory))


@pytest.mark.parametrize("marked", [True, False])
def test_small100(small100: tuple[Path, Any, Any], marked: bool, tmp_path: Path) -> None:
    """<language of the answer> text </s>: the code beside the tokenizer says so, or --from does."""
    directory, model, theirs = small100
    directory = Path(shutil.copytree(directory, tmp_path / "theirs"))
    if marked:
        (directory / "tokenization_small100.py").write_text("raise SystemExit('nobody runs this')")
    kind = None if marked else "small100"
    with pytest.raises(InputError, match="--target-language"):
        import_here(directory, tmp_path / "none", kind)
    with pytest.raises(InputError, match="--source-language en means nothing"):
        import_here(directory, tmp_path / "none", kind, source_language="en", target_language="fr")
    checkpoint = import_here(directory, tmp_path / "checkpoint", kind, target_language="fr")
    assert checkpoint.tokenizer.target_prefix == ()
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for language in ("fr", "de"):
        theirs.src_lang = language  # its tokenizer is that of M2M100 with the one language in the other's place
        for text in ("the cat sees a bird", "unseen 漢字", ""):
            ids, around = ours.encode_source(text, None, language)
            assert around.wrap(ids) == list(theirs(text).input_ids) and around.target_prefix == []
    sources = random_sources(range(4, 50), [2], [theirs.get_lang_id("fr")])
    assert_same_numbers(checkpoint, model, sources)
    assert_same_ids(checkpoint, model, sources)


def test_nothing_says_that_it_is_small100(small100: tuple[Path, Any, Any], tmp_path: Path) -> None:
    """Its shape alone is no answer, and no guess: a sentence asks which it is. The name of a tokenizer is one."""
    directory = Path(shutil.copytree(small100[0], tmp_path / "theirs"))
    config, stated = directory / "config.json", directory / "tokenizer_config.json"
    changed_json(config, encoder_layers=12, decoder_layers=3, vocab_size=128112)
    with pytest.raises(CheckpointError, match="give --from small100, or --from m2m100"):
        import_here(directory, tmp_path / "none", target_language="fr")
    assert m2m100_kind(directory, {"encoder_layers": 12, "decoder_layers": 12}) == "m2m100"
    for name, kind in (("SMALL100Tokenizer", "small100"), ("NllbTokenizer", "m2m100")):
        write_json(stated, {"tokenizer_class": name})
        assert m2m100_kind(directory, json.loads(config.read_text())) == kind
    changed_json(config, encoder_layers=4, decoder_layers=1, vocab_size=small100[1].config.vocab_size)
    write_json(stated, {"tokenizer_class": "M2M100Tokenizer"})
    told = import_here(directory, tmp_path / "m2m100", "m2m100", target_language="fr")
    assert len(told.tokenizer.target_prefix) == 1


def test_small100_without_its_tokenizer(small100: tuple[Path, Any, Any], tmp_path: Path) -> None:
    checkpoint = import_here(small100[0], tmp_path / "checkpoint", "small100", tokenizer=False)
    assert checkpoint.tokenizer.kind == "none" and checkpoint.tokenizer.target_prefix == ()
