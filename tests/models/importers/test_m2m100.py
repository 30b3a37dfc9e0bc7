"""M2M100 and NLLB imports against Hugging Face's own: numbers, greedy ids, and texts with their languages."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from foreign_models import (
    INPUTS,
    MADE,
    WORDS,
    assert_same_ids,
    assert_same_numbers,
    assert_varied,
    changed_json,
    generate,
    greedy,
    identical,
    import_here,
    pieces,
    random_sources,
    sentencepiece_model,
    shake,
    write_json,
)
from txport.exporter.sample import choose_sample
from txport.models.importers.command import main
from txport.models.importers.tokenizers.languages import CODES
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.tokenizer import open_tokenizer

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

EOS, PAD, FORCED = 2, 1, 55
GRID: dict[str, dict[str, Any]] = {
    "relu": {},
    "five_heads": {"d_model": 30, "encoder_attention_heads": 5, "decoder_attention_heads": 5, "scale_embedding": False},
    "untied": {"tie_word_embeddings": False, "encoder_layers": 3, "decoder_layers": 1, "activation_function": "silu"},
    "long": {"max_position_embeddings": 300, "encoder_ffn_dim": 50, "decoder_ffn_dim": 50},
}


def make(directory: Path, seed: int = 0, vocabulary: int = 60, **changes: Any) -> Any:
    """An M2M100 model with random weights, saved by `save_pretrained`."""
    fields = {
        "d_model": 16,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "max_position_embeddings": 40,
        "activation_function": "relu",
        **changes,
    }
    config = transformers.M2M100Config(
        vocab_size=vocabulary, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=0, decoder_start_token_id=EOS, **fields
    )
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    shake(model, seed, scale=1.6)
    # As in trained models, pad has no embedding; a logit of 0 does not win.
    for table in {model.get_encoder().embed_tokens, model.get_decoder().embed_tokens}:
        table.weight.data[PAD] = 0
    model.lm_head.weight.data[EOS] *= 2
    model.tie_weights()
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("name", GRID)
def test_same_numbers_and_ids_as_hugging_face(name: str, tmp_path: Path) -> None:
    model = make(tmp_path / "m2m100", seed=1 if name == "long" else len(name), **GRID[name])
    checkpoint = import_here(tmp_path / "m2m100", tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.config.norm == "pre" and checkpoint.tokenizer.target_prefix == ()
    sources = random_sources(range(4, 55), [EOS], [56])
    assert_same_numbers(checkpoint, model, sources)
    assert_same_ids(checkpoint, model, sources, [FORCED], forced_bos_token_id=FORCED)


def test_positions_far_away(tmp_path: Path) -> None:
    """At the end of a long table rounding is at its worst."""
    model = make(tmp_path / "m2m100", max_position_embeddings=1024)
    checkpoint = import_here(tmp_path / "m2m100", tmp_path / "checkpoint", tokenizer=False)
    ours = checkpoint.model.source_embedding.positions
    theirs = model.get_encoder().embed_positions.weights[2:1026]
    assert ours.shape == theirs.shape and (ours - theirs).abs().max() < 1e-6


# --- tokenizers ------------------------------------------------------------------------------------------------------

TEXTS = ["the cat sees a bird", "unseen 漢字", "le chat", "a"]


@pytest.fixture(scope="module")
def m2m100(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """As facebook/m2m100_418M, which lists no ids of languages."""
    directory = tmp_path_factory.mktemp("m2m100") / "model"
    spm = sentencepiece_model()
    kept = sorted(pieces(spm))[:-5]
    vocabulary = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *kept])}
    make(directory, vocabulary=len(vocabulary) + 108)
    (directory / "sentencepiece.bpe.model").write_bytes(spm)
    write_json(directory / "vocab.json", vocabulary)
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer"})
    return directory, transformers.M2M100Tokenizer.from_pretrained(str(directory))


def test_m2m100_texts(m2m100: tuple[Path, Any], tmp_path: Path) -> None:
    directory, theirs = m2m100
    checkpoint = import_here(directory, tmp_path / "checkpoint", target_language="fr")
    description, config = checkpoint.tokenizer, checkpoint.config
    assert description.languages is not None
    assert description.languages.target == theirs.lang_code_to_id
    assert (description.languages.source_default, description.languages.target_default) == ("en", "fr")
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for language in ("en", "de", "zu"):
        theirs.src_lang = language
        for text in TEXTS:
            ids, around = ours.encode_source(text, language, "ast")
            assert around.wrap(ids) == list(theirs(text).input_ids)
            assert around.target_prefix == [theirs.get_lang_id("ast")]
            expected = theirs.decode([token for token in ids if token != config.unk_id], skip_special_tokens=True)
            # Hugging Face strips blanks, which SentencePiece leaves where an unknown piece stood.
            assert ours.decode([*around.target_prefix, *ids, EOS]).strip() == expected
    sample = choose_sample(checkpoint, 5, 20, 20)
    assert sample.prefix == [theirs.get_lang_id("fr")]
    assert all(source[0] == theirs.get_lang_id("en") and source[-1] == EOS for source in sample.sources)


def test_an_exported_import_forces_languages_as_hugging_face_does(m2m100: tuple[Path, Any], tmp_path: Path) -> None:
    """Through the graphs, the runtime's loop, verification and the self-check, in two languages."""
    from txport.exporter.export import ExportOptions, export_bundle
    from txport.runtime.golden import check_translator, load_golden
    from txport.runtime.translator import Translator

    directory, theirs = m2m100
    import_here(directory, tmp_path / "checkpoint", target_language="fr")
    options = ExportOptions(lowerings=("scatter",), sentences=32, singles=5)
    report = export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    assert report is not None and report.passed and report.token_identical == 32
    translator = Translator(tmp_path / "bundle", threads=1)
    golden = load_golden(tmp_path / "bundle")
    assert len(golden.cases) == 32 and check_translator(translator, golden) == []
    assert {case.target_ids[0] for case in golden.cases} == {theirs.get_lang_id("fr")}
    model = transformers.M2M100ForConditionalGeneration.from_pretrained(str(directory)).eval()
    for source, target in (("en", "fr"), ("zu", "de")):
        theirs.src_lang = source
        encoded = [list(theirs(text).input_ids) for text in TEXTS]
        expected = generate(model, encoded, forced_bos_token_id=theirs.get_lang_id(target))
        found = translator.translate(TEXTS, max_length=MADE, source_language=source, target_language=target)
        assert [result.ids for result in found] == expected
        assert [
            result.ids for result in translator.translate_ids(encoded, max_length=MADE, target_language=target)
        ] == expected


def test_a_target_language_is_needed(m2m100: tuple[Path, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--target-language \\(af, am, ar"):
        import_here(m2m100[0], tmp_path / "checkpoint")
    for option, words in (("target_language", "--target-language xx"), ("source_language", "--source-language xx")):
        with pytest.raises(InputError, match=words):
            import_here(m2m100[0], tmp_path / "checkpoint", **{"target_language": "fr", option: "xx"})


def test_ids_with_a_forced_language(m2m100: tuple[Path, Any], tmp_path: Path) -> None:
    checkpoint = import_here(m2m100[0], tmp_path / "checkpoint", tokenizer=False, target_language="fr")
    assert checkpoint.tokenizer.kind == "none"
    assert checkpoint.tokenizer.target_prefix == (m2m100[1].get_lang_id("fr"),)


def test_a_source_language_needs_a_tokenizer(m2m100: tuple[Path, Any], tmp_path: Path) -> None:
    languages = ["--source-language", "en", "--target-language", "fr"]
    done = CliRunner().invoke(main, [str(m2m100[0]), "-o", str(tmp_path / "new"), "--no-tokenizer", *languages])
    assert str(done.exception) == "--source-language has no effect with --no-tokenizer: leave it out"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("in_map", [False, True])
def test_a_language_that_was_added_hides_no_other(m2m100: tuple[Path, Any], in_map: bool, tmp_path: Path) -> None:
    """added_tokens.json has nothing but the new one; M2M100's languages are known by their order alone."""
    shutil.copytree(m2m100[0], tmp_path / "theirs")
    new = m2m100[1].get_lang_id("zu") + 3
    write_json(tmp_path / "theirs" / "added_tokens.json", {"__xxx__": new})
    if in_map:
        write_json(tmp_path / "theirs" / "special_tokens_map.json", {"additional_special_tokens": ["__xxx__"]})
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint", target_language="xxx")
    languages = checkpoint.tokenizer.languages
    assert languages is not None
    assert languages.target == languages.source == {**m2m100[1].lang_code_to_id, "xxx": new}


def test_listed_languages_of_another_order_stand_alone(m2m100: tuple[Path, Any], tmp_path: Path) -> None:
    """A model that was trimmed to a few languages has no others."""
    shutil.copytree(m2m100[0], tmp_path / "theirs")
    first = m2m100[1].get_lang_id("af")
    write_json(tmp_path / "theirs" / "added_tokens.json", {"__en__": first, "__fr__": first + 1})
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint", target_language="fr")
    assert checkpoint.tokenizer.languages is not None
    assert checkpoint.tokenizer.languages.target == {"en": first, "fr": first + 1}


NLLB = ["ace_Arab", "eng_Latn", "fra_Latn", "zul_Latn"]


@pytest.fixture
def nllb(tmp_path: Path) -> tuple[Path, bytes]:
    """As facebook/nllb-200: SentencePiece's own order one further, and a list of languages."""
    spm = sentencepiece_model()
    size = len(pieces(spm)) + 4 + len(NLLB) + 3
    make(tmp_path / "nllb", vocabulary=size)
    (tmp_path / "nllb" / "sentencepiece.bpe.model").write_bytes(spm)
    write_json(tmp_path / "nllb" / "special_tokens_map.json", {"additional_special_tokens": NLLB})
    write_json(tmp_path / "nllb" / "tokenizer_config.json", {"tokenizer_class": "NllbTokenizer"})
    return tmp_path / "nllb", spm


@pytest.mark.parametrize("legacy", [False, True])
def test_nllb_texts(nllb: tuple[Path, bytes], tmp_path: Path, legacy: bool) -> None:
    import sentencepiece

    changed_json(nllb[0] / "tokenizer_config.json", legacy_behaviour=legacy)
    checkpoint = import_here(nllb[0], tmp_path / "checkpoint", target_language="fra_Latn")
    languages = checkpoint.tokenizer.languages
    processor = sentencepiece.SentencePieceProcessor(model_proto=nllb[1])
    first = processor.get_piece_size() + 1
    assert languages is not None and languages.target == {name: first + i for i, name in enumerate(NLLB)}
    assert languages.source_default == "eng_Latn"
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for text in TEXTS:
        own = [token + 1 if token else 3 for token in processor.encode(text)]
        ids, around = ours.encode_source(text, "zul_Latn")
        zulu = first + 3
        assert around.wrap(ids) == ([*own, EOS, zulu] if legacy else [zulu, *own, EOS])
        assert around.target_prefix == [first + 2]
        assert ours.decode([*around.target_prefix, *ids, EOS]) == processor.decode(
            [t for t in processor.encode(text) if t]
        )


def test_nllb_with_a_language_that_was_added(nllb: tuple[Path, bytes], tmp_path: Path) -> None:
    first = len(pieces(nllb[1])) + 4
    write_json(nllb[0] / "added_tokens.json", {"tyv_Cyrl": first + len(NLLB) + 1})
    write_json(nllb[0] / "special_tokens_map.json", {"additional_special_tokens": [*NLLB, "tyv_Cyrl"]})
    checkpoint = import_here(nllb[0], tmp_path / "checkpoint", target_language="tyv_Cyrl")
    languages = checkpoint.tokenizer.languages
    assert languages is not None
    assert languages.target == {**{name: first + i for i, name in enumerate(NLLB)}, "tyv_Cyrl": first + len(NLLB) + 1}


def test_nllb_without_a_list_of_languages(nllb: tuple[Path, bytes], tmp_path: Path) -> None:
    (nllb[0] / "special_tokens_map.json").unlink()
    with pytest.raises((CheckpointError, InputError), match="language"):
        import_here(nllb[0], tmp_path / "checkpoint", target_language="fra_Latn")


def test_a_tokenizer_of_another_model(nllb: tuple[Path, bytes], tmp_path: Path) -> None:
    write_json(nllb[0] / "added_tokens.json", {"fra_Latn": 5000})
    with pytest.raises(CheckpointError, match="fra_Latn the id 5000, but the embedding has"):
        import_here(nllb[0], tmp_path / "checkpoint", target_language="fra_Latn")


NLLB_GRID: dict[str, dict[str, Any]] = {
    "as_600m": {"seed": 0, "scale_embedding": True},
    "five_heads": {"seed": 3, "d_model": 30, "encoder_attention_heads": 5, "decoder_attention_heads": 5},
    "shallow_decoder": {
        "seed": 5,
        "encoder_layers": 3,
        "decoder_layers": 1,
        "decoder_ffn_dim": 40,
        "encoder_ffn_dim": 40,
    },
}


@pytest.fixture(scope="module")
def nllb_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The files beside NLLB's weights, and Hugging Face's own tokenizer of them."""
    directory = tmp_path_factory.mktemp("nllb")
    # Hugging Face takes the model for byte pair encoding, which NLLB's is.
    spm = sentencepiece_model(kind="bpe")
    (directory / "sentencepiece.bpe.model").write_bytes(spm)
    write_json(directory / "special_tokens_map.json", {"additional_special_tokens": NLLB})
    # As in NLLB's tokenizer.json: pieces, languages, <mask>.
    added = {
        str(len(pieces(spm)) + 4 + i): {"content": name, "special": True} for i, name in enumerate([*NLLB, "<mask>"])
    }
    fields = {"tokenizer_class": "NllbTokenizer", "extra_special_tokens": NLLB, "added_tokens_decoder": added}
    write_json(directory / "tokenizer_config.json", fields)
    return directory, transformers.NllbTokenizer.from_pretrained(str(directory), src_lang="eng_Latn")


@pytest.mark.parametrize("name", NLLB_GRID)
def test_nllb_gives_the_same_numbers_and_ids_from_texts(
    nllb_tokenizer: tuple[Path, Any], name: str, tmp_path: Path
) -> None:
    """Source texts through both tokenizers, language tokens around them, and a forced first token."""
    files, theirs = nllb_tokenizer
    model = make(tmp_path / "nllb", vocabulary=len(theirs) + 3, **NLLB_GRID[name])
    shutil.copytree(files, tmp_path / "nllb", dirs_exist_ok=True)
    checkpoint = import_here(tmp_path / "nllb", tmp_path / "checkpoint", target_language="fra_Latn")
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=draw.randrange(1, 8))) for _ in range(INPUTS)]
    sources = [ours.encode(text) for text in texts]
    assert sources == theirs(texts).input_ids
    prefix = ours.encode_source("")[1].target_prefix
    assert prefix == [theirs.convert_tokens_to_ids("fra_Latn")]
    assert_same_numbers(checkpoint, model, sources)
    expected = generate(model, sources, forced_bos_token_id=prefix[0])
    assert_varied(expected, EOS)
    assert identical(greedy(checkpoint, sources, prefix), expected) == INPUTS


def test_only_tokenizer_json(tmp_path: Path) -> None:
    """What transformers 5 saves of an NLLB tokenizer: for Python only."""
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'txport[dev]'")
    source = tmp_path / "source"
    source.mkdir()
    (source / "sentencepiece.bpe.model").write_bytes(sentencepiece_model(kind="bpe"))
    write_json(source / "tokenizer_config.json", {"tokenizer_class": "NllbTokenizer", "extra_special_tokens": NLLB})
    theirs = transformers.NllbTokenizer.from_pretrained(str(source), src_lang="eng_Latn")
    make(tmp_path / "nllb", vocabulary=len(theirs) + 3)
    theirs.save_pretrained(tmp_path / "nllb")
    checkpoint = import_here(tmp_path / "nllb", tmp_path / "checkpoint", target_language="zul_Latn")
    assert checkpoint.tokenizer.kind == "tokenizers"
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for text in TEXTS:
        expected = list(theirs(text).input_ids)
        assert ours.encode(text) == expected
        assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True)


def test_the_codes_are_those_of_hugging_face() -> None:
    from transformers.models.m2m_100 import tokenization_m2m_100
    from transformers.models.mbart import tokenization_mbart
    from transformers.models.mbart50 import tokenization_mbart50

    for name, codes in tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES.items():
        assert CODES[name].split() == codes
    assert CODES["mbart"].split() == tokenization_mbart.FAIRSEQ_LANGUAGE_CODES
    assert f"{CODES['mbart']} {CODES['mbart50']}".split() == tokenization_mbart50.FAIRSEQ_LANGUAGE_CODES
