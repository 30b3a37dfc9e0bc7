"""Texts of models in CTranslate2's format: tokenizers beside them, languages, and tokens between spaces."""

from pathlib import Path
from typing import Any

import pytest
from ctranslate2_models import EOS, PAD, UNK, ctranslate2, write_model
from foreign_models import MADE, WORDS, assert_refused, greedy, import_here, pieces, sentencepiece_model
from tiny_marian import tiny_marian
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.runtime.errors import InputError
from txport.runtime.text.tokenizer import open_tokenizer


def texts(directory: Path, output: Path, **options: Any) -> Any:
    """The tokenizer of an import, and the import's notes."""
    imported = import_model(str(directory), None, ImportOptions(**options))
    checkpoint = import_here(directory, output, **options)
    return open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies), imported.notes


def test_sentencepiece_models_beside_it(tmp_path: Path) -> None:
    model = sentencepiece_model()
    names = [UNK, PAD, "<s>", EOS, *reversed(pieces(model))]
    write_model(tmp_path / "theirs", names=(names, names))
    assert_refused(
        tmp_path / "theirs", "no SentencePiece model, and the model's tokens are SentencePiece's", tokenizer=True
    )
    (tmp_path / "theirs" / "sentencepiece.model").write_bytes(model)
    tokenizer, _ = texts(tmp_path / "theirs", tmp_path / "ours")
    ids = tokenizer.encode("the cat sees")
    assert [names[each] for each in ids] == ["▁the", "▁cat", "▁sees"]
    assert tokenizer.decode(ids) == "the cat sees"


def test_sources_of_converted_hugging_face_models_end(tmp_path: Path) -> None:
    """Their converters leave eos to Hugging Face's tokenizers: a note says so. Two vocabularies, and source.spm."""
    model = sentencepiece_model()
    names = [UNK, "<pad>", EOS, *pieces(model)]
    write_model(
        tmp_path / "theirs", names=(names, names), config={"decoder_start_token": "<pad>", "bos_token": "<pad>"}
    )
    for side in ("source", "target"):
        (tmp_path / "theirs" / f"{side}.spm").write_bytes(model)
    tokenizer, notes = texts(tmp_path / "theirs", tmp_path / "ours")
    assert [names[each] for each in tokenizer.encode("the cat")] == ["▁the", "▁cat", EOS]
    assert any("config.json adds no token to a source; texts end with </s>" in note for note in notes)


def test_languages_of_converted_models(tmp_path: Path) -> None:
    model = sentencepiece_model()
    names = [UNK, "<pad>", EOS, *pieces(model), "eng_Latn", "fra_Latn", "deu_Latn"]
    write_model(tmp_path / "theirs", names=(names, names), config={"decoder_start_token": EOS, "bos_token": "<pad>"})
    (tmp_path / "theirs" / "sentencepiece.bpe.model").write_bytes(model)
    assert_refused(tmp_path / "theirs", "has tokens of many languages", error=InputError, tokenizer=True)
    options = {"source_language": "eng_Latn", "target_language": "fra_Latn"}
    tokenizer, _ = texts(tmp_path / "theirs", tmp_path / "ours", **options)
    assert [names[each] for each in tokenizer.encode("the cat")] == ["eng_Latn", "▁the", "▁cat", EOS]
    ids, around = tokenizer.encode_source("the cat", "deu_Latn", "eng_Latn")
    assert [names[each] for each in around.wrap(ids)] == ["deu_Latn", "▁the", "▁cat", EOS]
    assert [names[each] for each in around.target_prefix] == ["eng_Latn"]
    ids, around = tokenizer.encode_source("the cat")
    assert [names[each] for each in around.target_prefix] == ["fra_Latn"]
    assert tokenizer.decode([*around.target_prefix, *ids]) == "the cat"
    english, _ = texts(tmp_path / "theirs", tmp_path / "english", target_language="deu_Latn")
    assert english.encode("the cat") == tokenizer.encode("the cat")
    assert_refused(
        tmp_path / "theirs",
        "--source-language ita is not a token",
        error=InputError,
        tokenizer=True,
        source_language="ita",
    )


@pytest.mark.parametrize(
    ("form", "source", "start"),
    [
        ("__{}__", "__en__ ▁the ▁cat </s>", EOS),
        ("[{}_XX]", "[en_XX] ▁the ▁cat </s>", EOS),
        ("{}_XX", "en_XX ▁the ▁cat </s>", EOS),
        ("{}_XX", "▁the ▁cat </s> en_XX", None),
    ],
)
def test_forms_of_languages(form: str, source: str, start: str | None, tmp_path: Path) -> None:
    """M2M-100's, fairseq's and Hugging Face's mBART-50; in mBART-25, answers start from their language."""
    model = sentencepiece_model()
    languages = [form.format(name) for name in ("en", "de", "ro")]
    names = ["<s>", "<pad>", EOS, UNK, *pieces(model), *languages, "<mask>"]
    write_model(tmp_path / "theirs", names=(names, names), config={"decoder_start_token": start})
    (tmp_path / "theirs" / "spm.128k.model").write_bytes(model)
    chosen = form.strip("_[]").format("en"), form.strip("_[]").format("ro")
    options = {"source_language": chosen[0], "target_language": chosen[1]}
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "ours", **options)
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    ids, around = tokenizer.encode_source("the cat")
    assert " ".join(names[each] for each in around.wrap(ids)) == source
    prefix = [checkpoint.config.bos_id, *around.target_prefix]
    assert [names[each] for each in prefix] == [*([] if start is None else [start]), languages[2]]
    assert tokenizer.decode([names.index(languages[0]), *ids, names.index("<mask>")]) == "the cat"


def test_letters_and_spaces(tmp_path: Path) -> None:
    """Where all tokens are characters, and a space is one, texts are characters."""
    letters = [UNK, PAD, "<s>", EOS, " ", *"abcdefghijklmnopqrstuvwxyz"]
    write_model(tmp_path / "theirs", names=(letters, letters))
    tokenizer, notes = texts(tmp_path / "theirs", tmp_path / "ours")
    assert [letters[each] for each in tokenizer.encode("a cat")] == list("a cat")
    assert tokenizer.decode([letters.index(each) for each in "a dog"]) == "a dog"
    assert any("all tokens are characters" in note for note in notes)


def test_languages_in_texts_of_opus_mt(tmp_path: Path) -> None:
    model = sentencepiece_model()
    names = [EOS, UNK, *pieces(model), ">>fra<<", ">>deu<<"]
    config = {"decoder_start_token": EOS, "add_source_eos": True}
    zero = {"start_from_zero_embedding": True}
    write_model(tmp_path / "theirs", names=(names, names), config=config, decoder=zero, pre_norm=False)
    for side in ("source", "target"):
        (tmp_path / "theirs" / f"{side}.spm").write_bytes(model)
    tokenizer, _ = texts(tmp_path / "theirs", tmp_path / "ours")
    assert [names[each] for each in tokenizer.encode(">>deu<< the cat")] == [">>deu<<", "▁the", "▁cat", EOS]
    tokenizer, _ = texts(tmp_path / "theirs", tmp_path / "french", target_language="fra")
    assert [names[each] for each in tokenizer.encode("the cat")] == [">>fra<<", "▁the", "▁cat", EOS]


def test_opus_mt_directories_of_the_hub(tmp_path: Path) -> None:
    """Texts as Hugging Face's tokenizer and CTranslate2 make them from the files of CTranslate2's own converter."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    from ctranslate2.converters import TransformersConverter

    tiny_marian(tmp_path / "original", tokenizer=True)
    files = ["source.spm", "target.spm", "tokenizer_config.json", "vocab.json"]
    TransformersConverter(str(tmp_path / "original"), copy_files=files).convert(str(tmp_path / "theirs"))
    theirs = transformers.MarianTokenizer.from_pretrained(str(tmp_path / "original"))
    translator = ctranslate2.Translator(str(tmp_path / "theirs"), compute_type="float32")
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "ours")
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    lines = [" ".join(WORDS[(first + 5 * i) % len(WORDS)] for i in range(1 + first % 7)) for first in range(60)]
    sources = [theirs.convert_ids_to_tokens(theirs.encode(line)) for line in [*lines, "unheard 漢字"]]
    results = translator.translate_batch(sources, beam_size=1, max_decoding_length=MADE, min_decoding_length=0)
    made = greedy(checkpoint, [tokenizer.encode(line) for line in [*lines, "unheard 漢字"]])
    expected = [theirs.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    assert [tokenizer.decode(row) for row in made] == [theirs.decode(row, skip_special_tokens=True) for row in expected]
    assert len({tuple(row) for row in made}) > 10


def test_tokens_between_spaces_without_sentencepiece(tmp_path: Path) -> None:
    """As a transliteration of letters has them, and CTranslate2's `translate_file`."""
    letters = [UNK, PAD, "<s>", EOS, "__hi__", "__ta__", "__bn__", *"abcdefghijklmnopqrstuvwxyz"]
    write_model(tmp_path / "theirs", names=(letters, letters), config={"add_source_eos": True})
    tokenizer, notes = texts(tmp_path / "theirs", tmp_path / "ours")
    assert [letters[each] for each in tokenizer.encode("__hi__ c a t é")] == ["__hi__", "c", "a", "t", UNK, EOS]
    assert tokenizer.decode([letters.index(each) for each in "dog"]) == "d o g"
    assert any("texts are tokens between spaces" in note and note.endswith("such as a b c d e") for note in notes)
    tagged, _ = texts(tmp_path / "theirs", tmp_path / "tagged", source_language="hi")
    assert tagged.encode("c a t") == tokenizer.encode("__hi__ c a t")
