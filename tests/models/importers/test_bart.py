"""BART and mBART imports against Hugging Face's own: numbers, greedy ids, and texts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import (
    WORDS,
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
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.tokenizer import open_tokenizer

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

BOS, PAD, EOS = 0, 1, 2
GRID: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("Bart", {"eos_bias": 5.5}),
    "bart_three_heads": ("Bart", {"d_model": 30, "encoder_attention_heads": 3, "decoder_attention_heads": 3}),
    "bart_scaled": ("Bart", {"scale_embedding": True, "activation_function": "relu", "encoder_layers": 1}),
    "distilbart": ("Bart", {"decoder_layers": 1, "encoder_layers": 3, "eos_bias": 1.6}),
    "sides": ("Bart", {"decoder_attention_heads": 4, "decoder_ffn_dim": 40, "eos_bias": 1.6}),
    "mbart": ("MBart", {"scale_embedding": True}),
    "blenderbot": ("Blenderbot", {"scale_embedding": True, "encoder_layers": 1}),
    "plbart": ("PLBart", {"scale_embedding": True}),
    "mvp": ("Mvp", {"decoder_layers": 1, "use_prompt": False}),
    "mbart_untied": ("MBart", {"tie_word_embeddings": False, "encoder_layers": 1, "activation_function": "relu"}),
}


def make(
    directory: Path,
    family: str = "Bart",
    seed: int = 0,
    vocabulary: int = 60,
    forced: int | None = BOS,
    eos_bias: float = 4.0,
    **changes: Any,
) -> Any:
    """A model with random weights, saved by `save_pretrained`."""
    fields = {
        "d_model": 16,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "max_position_embeddings": 40,
        "decoder_start_token_id": EOS,
        **changes,
    }
    config = getattr(transformers, f"{family}Config")(
        vocab_size=vocabulary, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS, forced_eos_token_id=EOS, **fields
    )
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    shake(model, seed, scale=1.6)
    generator = torch.Generator().manual_seed(seed)
    model.final_logits_bias = 0.3 * torch.randn(model.final_logits_bias.shape, generator=generator)
    model.final_logits_bias[0, EOS] = eos_bias
    model.tie_weights()
    model.generation_config.forced_bos_token_id = forced
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("name", GRID)
def test_same_numbers_and_ids_as_hugging_face(name: str, tmp_path: Path) -> None:
    family, changes = GRID[name]
    model = make(tmp_path / "bart", family, seed=len(name), **changes)
    checkpoint = import_here(tmp_path / "bart", tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.tokenizer.target_prefix == (BOS,)
    sources = random_sources(range(4, 55), [EOS], [BOS])
    assert_same_numbers(checkpoint, model, sources)
    assert_same_ids(checkpoint, model, sources, [BOS])


def test_rates_of_dropout_come_along(tmp_path: Path) -> None:
    """They matter to further training; unset, Hugging Face has none on weights and activations."""
    make(tmp_path / "bart", dropout=0.3, attention_dropout=0.2)
    config = import_here(tmp_path / "bart", tmp_path / "first", tokenizer=False).config
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0.2, 0.0)
    changed_json(tmp_path / "bart" / "config.json", activation_dropout=0.4, attention_dropout=None)
    config = import_here(tmp_path / "bart", tmp_path / "second", tokenizer=False).config
    assert (config.attention_dropout, config.activation_dropout) == (0.0, 0.4)


def test_a_model_saved_without_its_head(tmp_path: Path) -> None:
    """As facebook/bart-base is: its names have no prefix, and the projection is the embedding."""
    model = make(tmp_path / "bart")
    model.final_logits_bias.zero_()
    model.model.save_pretrained(tmp_path / "base")
    assert (tmp_path / "base" / "config.json").is_file()
    checkpoint = import_here(tmp_path / "base", tmp_path / "checkpoint", tokenizer=False)
    assert_same_numbers(checkpoint, model, random_sources(range(4, 55), [EOS], [BOS]))


@pytest.mark.parametrize(
    "fields", [{"normalize_before": True}, {"add_final_layer_norm": True}, {"static_position_embeddings": True}]
)
def test_options_that_make_another_model(tmp_path: Path, fields: dict[str, Any]) -> None:
    make(tmp_path / "bart")
    changed_json(tmp_path / "bart" / "config.json", **fields)
    with pytest.raises(CheckpointError, match=f"{next(iter(fields))} = True is not supported"):
        import_here(tmp_path / "bart", tmp_path / "checkpoint", tokenizer=False)


def test_prompts_of_mvp_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "mvp", "Mvp", use_prompt=True, prompt_length=3, prompt_mid_dim=8)
    with pytest.raises(CheckpointError, match="use_prompt = True is not supported"):
        import_here(tmp_path / "mvp", tmp_path / "checkpoint", tokenizer=False)


@pytest.mark.parametrize(("codes", "languages"), [("base", 3), ("multi", 7)])
def test_plbart_texts(codes: str, languages: int, tmp_path: Path) -> None:
    """Its languages come after a text's end, and the decoder starts from the one of the answer."""
    spm = sentencepiece_model()
    make(tmp_path / "plbart", "PLBart", vocabulary=len(pieces(spm)) + 12, forced=None)
    (tmp_path / "plbart" / "sentencepiece.bpe.model").write_bytes(spm)
    stated = {"tokenizer_class": "PLBartTokenizer", "language_codes": codes, "src_lang": "python", "tgt_lang": "java"}
    write_json(tmp_path / "plbart" / "tokenizer_config.json", stated)
    theirs = transformers.PLBartTokenizer.from_pretrained(str(tmp_path / "plbart"))
    checkpoint = import_here(tmp_path / "plbart", tmp_path / "checkpoint", target_language="en_XX")
    ids = {name.strip("_"): token for name, token in theirs.lang_code_to_id.items()}
    table = checkpoint.tokenizer.languages
    assert table is not None and table.source == ids and len(ids) == languages and table.source_default == "python"
    assert checkpoint.config.bos_id == ids["en_XX"]
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for language in ids:
        theirs.src_lang = language
        for text in ("the cat sees a bird", "unseen 漢字", "a"):
            encoded, around = ours.encode_source(text, language)
            assert around.wrap(encoded) == list(theirs(text).input_ids) and around.target_prefix == []
            known = [token for token in encoded if token != checkpoint.config.unk_id]
            assert ours.decode(known).strip() == theirs.decode(known, skip_special_tokens=True).strip()


def plbart(directory: Path, stated: dict[str, Any], **changes: Any) -> Any:
    """Files of a PLBart, and Hugging Face's tokenizer of them."""
    spm = sentencepiece_model()
    make(directory, "PLBart", vocabulary=len(pieces(spm)) + 12, forced=None, **changes)
    (directory / "sentencepiece.bpe.model").write_bytes(spm)
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "PLBartTokenizer", **stated})
    return transformers.PLBartTokenizer.from_pretrained(str(directory))


@pytest.mark.parametrize(
    ("stated", "source"),
    [
        ({"language_codes": "base", "src_lang": None, "tgt_lang": None}, None),  # as the base model is published
        ({}, None),
        ({"language_codes": "base", "src_lang": "__python__", "tgt_lang": "__en_XX__"}, "python"),
        ({"language_codes": "multi", "src_lang": None, "tgt_lang": None}, "en_XX"),
    ],
)
def test_plbarts_languages_unless_some_are_chosen(stated: dict[str, Any], source: str | None, tmp_path: Path) -> None:
    theirs = plbart(tmp_path / "plbart", stated, decoder_start_token_id=EOS)
    checkpoint = import_here(tmp_path / "plbart", tmp_path / "checkpoint")
    assert checkpoint.config.bos_id == EOS, "as generate"
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    assert ours.encode("the cat") == list(theirs("the cat").input_ids)
    languages = checkpoint.tokenizer.languages
    assert (None if languages is None else languages.source_default) == source
    chosen = import_here(tmp_path / "plbart", tmp_path / "chosen", source_language="java")
    ours = open_tokenizer(chosen.directory, chosen.tokenizer, chosen.config.vocabularies)
    theirs.src_lang = "java"
    assert ours.encode("the cat") == list(theirs("the cat").input_ids)


def test_what_plbarts_answers_start_from(tmp_path: Path) -> None:
    """The user's language, else config.json's start, else tokenizer_config.json's language; else a sentence asks."""
    base = {"language_codes": "base", "src_lang": None}
    theirs = plbart(tmp_path / "plbart", {**base, "tgt_lang": "__java__"}, decoder_start_token_id=None)
    ids = {name.strip("_"): token for name, token in theirs.lang_code_to_id.items()}
    assert import_here(tmp_path / "plbart", tmp_path / "stated").config.bos_id == ids["java"]
    write_json(tmp_path / "plbart" / "tokenizer_config.json", {"tokenizer_class": "PLBartTokenizer", **base})
    with pytest.raises(InputError, match=r"set the default with --target-language \(java, python, en_XX\)"):
        import_here(tmp_path / "plbart", tmp_path / "other")
    told = import_here(tmp_path / "plbart", tmp_path / "told", target_language="en_XX")
    assert told.config.bos_id == ids["en_XX"] and told.tokenizer.target_prefix == ()
    changed_json(tmp_path / "plbart" / "config.json", decoder_start_token_id=EOS)
    changed_json(tmp_path / "plbart" / "generation_config.json", forced_bos_token_id=ids["python"])
    forced = import_here(tmp_path / "plbart", tmp_path / "forced")
    assert (forced.config.bos_id, forced.tokenizer.target_prefix) == (EOS, (ids["python"],))


# --- byte-level BPE --------------------------------------------------------------------------------------------------

TEXTS = ["the cat sees a bird", " two  spaces", "naïve 漢字 🙂", "</s> is text", ""]


@pytest.fixture
def byte_level(tmp_path: Path) -> tuple[Path, Any]:
    """A BART with vocab.json and merges.txt, and Hugging Face's tokenizer of it."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'txport[dev]'")
    trained = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator([" ".join(WORDS)] * 3, vocab_size=300, min_frequency=1, special_tokens=special)
    make(tmp_path / "bart", vocabulary=304)
    trained.save_model(str(tmp_path / "bart"))
    return tmp_path / "bart", transformers.BartTokenizer.from_pretrained(str(tmp_path / "bart"))


@pytest.mark.parametrize("fast", [False, True])
def test_bart_texts(byte_level: tuple[Path, Any], tmp_path: Path, fast: bool) -> None:
    directory, theirs = byte_level
    if fast:  # as newer directories have it
        theirs.save_pretrained(directory)
        (directory / "merges.txt").unlink(missing_ok=True)
        assert (directory / "tokenizer.json").is_file()
    checkpoint = import_here(directory, tmp_path / "checkpoint")
    assert checkpoint.tokenizer.kind == "tokenizers" and checkpoint.tokenizer.target_prefix == (BOS,)
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for text in TEXTS:
        expected = list(theirs(text).input_ids)
        assert ours.encode(text) == expected
        assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True)
    assert ours.decode([EOS, 10**6, BOS]) == ""


def test_byte_level_files_of_windows(byte_level: tuple[Path, Any], tmp_path: Path) -> None:
    r"""Byte order marks of JSON, and lines that end in "\r\n"."""
    directory, theirs = byte_level
    expected = [list(theirs(text).input_ids) for text in TEXTS]
    for number, names in enumerate((("vocab.json", "config.json", "merges.txt"), ("tokenizer.json",))):
        for name in names:
            data = (directory / name).read_bytes().replace(b"\n", b"\r\n")
            mark = b"" if name == "merges.txt" else b"\xef\xbb\xbf"
            (directory / name).write_bytes(mark + data)
        checkpoint = import_here(directory, tmp_path / f"checkpoint{number}")
        ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
        assert [ours.encode(text) for text in TEXTS] == expected
        if not number:
            (directory / "merges.txt").write_bytes(b"\xef\xbb\xbf" + (directory / "merges.txt").read_bytes())
            with pytest.raises(CheckpointError, match=r"merges\.txt begins with a byte order mark"):
                import_here(directory, tmp_path / "refused")
            theirs.save_pretrained(directory)


def test_byte_level_files_that_do_not_fit(byte_level: tuple[Path, Any], tmp_path: Path) -> None:
    directory, _theirs = byte_level
    merges = (directory / "merges.txt").read_text()
    for text, words in (
        ("a b c\n", "not a list of merges"),
        ("q j\n", "does not fit"),
        ("\ufeff" + merges, "begins with a byte order mark"),
        (None, "merges.txt is missing"),
    ):
        (directory / "merges.txt").unlink(missing_ok=True)
        if text is not None:
            (directory / "merges.txt").write_text(text)
        with pytest.raises(CheckpointError, match=words):
            import_here(directory, tmp_path / "checkpoint")
    (directory / "merges.txt").write_text(merges)
    changed_json(directory / "vocab.json", far=999)
    with pytest.raises(CheckpointError, match="ids up to 999, but the embedding has 304 rows"):
        import_here(directory, tmp_path / "checkpoint")
    (directory / "tokenizer.json").write_text("[]")
    with pytest.raises(CheckpointError, match="not a byte-level tokenizer"):
        import_here(directory, tmp_path / "checkpoint")
    with pytest.raises(InputError, match="--target-language fr"):
        import_here(directory, tmp_path / "checkpoint", target_language="fr")


# --- mBART -----------------------------------------------------------------------------------------------------------


def make_mbart(directory: Path, fifty: bool) -> bytes:
    spm = sentencepiece_model()
    count = 52 if fifty else 25
    size = len(pieces(spm)) + 4 + count + 1
    start = EOS if fifty else len(pieces(spm)) + 4 + 3
    make(directory, "MBart", vocabulary=size, forced=None, decoder_start_token_id=start)
    (directory / "sentencepiece.bpe.model").write_bytes(spm)
    write_json(
        directory / "tokenizer_config.json", {"tokenizer_class": "MBart50Tokenizer" if fifty else "MBartTokenizer"}
    )
    return spm


@pytest.mark.parametrize("fifty", [False, True])
def test_mbart_texts(tmp_path: Path, fifty: bool) -> None:
    make_mbart(tmp_path / "mbart", fifty)
    kind = transformers.MBart50Tokenizer if fifty else transformers.MBartTokenizer
    theirs = kind.from_pretrained(str(tmp_path / "mbart"), src_lang="de_DE")
    checkpoint = import_here(tmp_path / "mbart", tmp_path / "checkpoint", target_language="ro_RO")
    config, description = checkpoint.config, checkpoint.tokenizer
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    romanian = theirs.convert_tokens_to_ids("ro_RO")
    assert config.bos_id == (EOS if fifty else romanian)
    for text in ("the cat sees a bird", "le chat"):
        ids, around = ours.encode_source(text, "de_DE")
        assert around.wrap(ids) == list(theirs(text).input_ids)
        assert around.target_prefix == ([romanian] if fifty else [])
        assert ours.decode([romanian, *ids, EOS]) == text
    assert description.languages is not None and description.languages.source_default == "en_XX"
    assert len(description.languages.source) == (52 if fifty else 25)


def test_mbarts_target_language_is_fixed_by_the_import(tmp_path: Path) -> None:
    make_mbart(tmp_path / "mbart", fifty=False)
    start = json.loads((tmp_path / "mbart" / "config.json").read_text())["decoder_start_token_id"]
    assert import_here(tmp_path / "mbart", tmp_path / "checkpoint").config.bos_id == start
    with pytest.raises(InputError, match="--target-language xx"):
        import_here(tmp_path / "mbart", tmp_path / "other", target_language="xx")


def test_mbart_50_needs_a_target_language(tmp_path: Path) -> None:
    make_mbart(tmp_path / "mbart", fifty=True)
    with pytest.raises(InputError, match="--target-language \\(ar_AR"):
        import_here(tmp_path / "mbart", tmp_path / "checkpoint")
    changed_json(
        tmp_path / "mbart" / "generation_config.json", forced_bos_token_id=len(pieces(sentencepiece_model())) + 4
    )
    checkpoint = import_here(tmp_path / "mbart", tmp_path / "checkpoint")
    assert checkpoint.tokenizer.languages is not None and checkpoint.tokenizer.languages.target_default == "ar_AR"
