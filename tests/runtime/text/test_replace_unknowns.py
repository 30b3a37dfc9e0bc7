"""`replace_unknowns`: unknown tokens of translations are replaced as CTranslate2 replaces them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy import BUNDLE as TOY
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import BundleError, InputError
from txport.runtime.translator import Translator
from unknown_words import UNKNOWN, texts, unknown_bundle, unknown_checkpoint

pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")

COUNT = 200
LONGEST = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("unknown") / "checkpoint"
    return directory, unknown_checkpoint(directory)


@pytest.fixture(scope="module")
def translator(model: tuple[Path, Any]) -> Translator:
    bundle = model[0].with_name("bundle")
    unknown_bundle(model[0], bundle)
    return Translator(bundle, "cpu", threads=1)


def by_ctranslate2(model: tuple[Path, Any], lines: list[str], **options: Any) -> list[list[str]]:
    """Return the texts of all hypotheses of CTranslate2, with pieces as its tokens, as Argos Translate uses it."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")
    import sentencepiece
    from txport.benchmarks.contestants.ctranslate2_weights import write_ctranslate2

    place = model[0].with_name("ctranslate2")
    sides = []
    for side in ("source", "target"):
        sides.append(sentencepiece.SentencePieceProcessor(model_file=str(model[0] / "tokenizer" / f"{side}.model")))
    if not place.exists():
        write_ctranslate2(model[1], place)
        (place / "shared_vocabulary.json").unlink(missing_ok=True)
        for side, pieces in zip(("source", "target"), sides, strict=True):
            names = [pieces.id_to_piece(token) for token in range(pieces.get_piece_size())]
            (place / f"{side}_vocabulary.json").write_text(json.dumps(names))
        config = json.loads((place / "config.json").read_text())
        config |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "decoder_start_token": "<s>"}
        (place / "config.json").write_text(json.dumps(config | {"add_source_eos": True}))
    tokens = [sides[0].encode(line, out_type=str) for line in lines]
    engine = ctranslate2.Translator(str(place), "cpu", compute_type="float32", intra_threads=1)
    options |= {"replace_unknowns": True, "max_decoding_length": LONGEST}
    # One by one: in batches, beams of CTranslate2 4.8 have the attention of another sentence in their first step.
    found = [each for line in tokens for each in engine.translate_batch([line], **options)]
    return [["".join(tokens).replace("▁", " ").removeprefix(" ") for tokens in each.hypotheses] for each in found]


def test_texts_are_those_of_ctranslate2(model: tuple[Path, Any], translator: Translator) -> None:
    lines = texts(COUNT)
    expected = by_ctranslate2(model, lines, beam_size=1)
    made = translator.translate(lines, replace_unknowns=True, max_length=LONGEST)
    assert [result.text for result in made] == [each[0] for each in expected]
    plain = translator.translate(lines, max_length=LONGEST)
    assert [result.ids for result in made] == [result.ids for result in plain]
    copied = [result.text for result in made if any(word in result.text for word in UNKNOWN)]
    assert len(copied) > COUNT / 4
    assert sum(one.text != other.text for one, other in zip(made, plain, strict=True)) > COUNT / 2


def test_beams_and_settings_of_the_model_are_those_of_ctranslate2(
    model: tuple[Path, Any], translator: Translator
) -> None:
    """The model's own settings set the option, as those of an Argos package do."""
    lines = texts(COUNT)
    expected = by_ctranslate2(model, lines, beam_size=4, num_hypotheses=4, length_penalty=0.2)
    made = translator.translate(lines, generation="model", n_best=4, max_length=LONGEST)
    assert [[each.text for each in result.hypotheses] for result in made] == expected
    off = translator.translate(lines[:9], generation="model", replace_unknowns=False, max_length=LONGEST)
    assert any("⁇" in result.text for result in off)


def test_each_unknown_token_becomes_the_source_token_with_the_most_attention(translator: Translator) -> None:
    """By hand: from the attention that the translation returns, and the pieces of SentencePiece itself."""
    import sentencepiece

    directory = translator.manifest.tokenizer
    bundle = Path(str(translator._bundle._files))
    assert directory.source is not None and directory.target is not None
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(bundle / each.model))
        for each in (directory.source, directory.target)
    )
    lines = [*texts(30), "Ω" * 3000, "漢 " + "cat " * 80]
    made = translator.translate(lines, replace_unknowns=True, attention=True, alignments=True, max_length=LONGEST)
    for line, result in zip(lines, made, strict=True):
        pieces = source.encode(line, out_type=str)[: result.attention.shape[1] - 1]
        shown = [target.id_to_piece(token) for token in result.ids if token != 3]
        for position, token in enumerate(result.ids):
            if token == 1:
                shown[position] = pieces[int(np.argmax(result.attention[position, :-1]))]
        assert result.text == "".join(shown).replace("▁", " ").removeprefix(" ")
        assert result.alignment is not None
        words = [result.text[start:end] for start, end in result.alignment.target_words]
        assert words == result.text.split()
        spans = [result.text[start:end] for start, end in result.alignment.target_spans]
        assert "".join(spans) == "".join(words), "the characters of a copy are those of its token"


def test_source_ids_are_copied_by_their_pieces(translator: Translator) -> None:
    """An id that is unknown in the source has no text to copy: the token stays unknown."""
    text = "tree small the"
    known = translator.tokenizer.encode(text)
    with_text = translator.translate([text], replace_unknowns=True, max_length=LONGEST)[0]
    of_ids, unknown = translator.translate_ids([known, [1, 1, 3]], replace_unknowns=True, max_length=LONGEST)
    assert 1 in of_ids.ids and (of_ids.ids, of_ids.text) == (with_text.ids, with_text.text)
    assert 1 in unknown.ids and "⁇" in unknown.text


def test_documents_and_submitted_texts_replace_as_well(translator: Translator) -> None:
    line = texts(7)[6]
    (expected,) = translator.translate([line], replace_unknowns=True, max_length=LONGEST)
    document = translator.translate_document(f"{line}\n\n{line}", replace_unknowns=True, max_length=LONGEST)
    assert document.text == f"{expected.text}\n\n{expected.text}"
    assert translator.submit(line, replace_unknowns=True, max_length=LONGEST).result(60).text == expected.text


def test_streams_refuse_it(translator: Translator) -> None:
    expected = "a stream cannot replace unknown tokens"
    with pytest.raises(InputError, match=expected):
        translator.stream("the cat", replace_unknowns=True)
    with pytest.raises(InputError, match=expected):
        translator.submit("the cat", replace_unknowns=True, on_piece=print)
    with pytest.raises(InputError, match=expected):
        translator.submit_document("the cat", replace_unknowns=True, on_piece=print)


def test_bundles_without_the_graph_or_unknown_tokens_are_refused(translator: Translator, tmp_path: Path) -> None:
    """Also where only the model's settings ask for it."""
    with pytest.raises(BundleError, match="replace_unknowns .* need: export it again with tx-export --with-attention"):
        Translator(TOY, "cpu").translate(["the cat"], replace_unknowns=True)
    manifest = Manifest.load(TOY)
    settings = {**vars(manifest.generation), "replace_unknowns": True}
    toy = Translator(TOY, "cpu")
    toy._bundle._model = type(toy._bundle._model)(manifest.tokens, 50, type(manifest.generation)(**settings))
    with pytest.raises(BundleError, match="tx-export --with-attention"):
        toy.translate(["the cat"], generation="model")
    kind = vars(translator.manifest.tokenizer) | {"kind": "bytes", "source": None, "target": None}
    described = type(manifest.tokenizer)(**kind)
    translator._bundle.scorer._manifest = type(manifest)(**{**vars(translator.manifest), "tokenizer": described})
    with pytest.raises(InputError, match="the tokenizer of this bundle is of the kind 'bytes'"):
        translator.translate(["the cat"], replace_unknowns=True)
