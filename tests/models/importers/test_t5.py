"""T5's family against Hugging Face's own: numbers, greedy ids, files of two ages, and what is refused."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from foreign_models import (
    MADE,
    WORDS,
    assert_same_ids,
    assert_same_numbers,
    changed_json,
    generate,
    import_here,
    padded,
    random_sources,
    shake,
    translators,
    until_end,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.checkpoint import Checkpoint
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.sides import Bytes
from txport.runtime.text.tokenizer import open_tokenizer
from txport.runtime.translator import Translator

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

PAD, EOS = 0, 1
OWN_HEAD = {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}
# Head sizes that d_model does not have, layers that differ, and vocabularies with rows that no piece has.
GRID: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", {}),
    "t5_small_heads": ("T5", {"d_kv": 6, "num_heads": 3, "d_model": 20}),
    "t5_few_buckets": ("T5", {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 5}),
    "t5_far": ("T5", {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 200}),
    "t5_1_1": ("T5", {**OWN_HEAD, "seed": 3, "num_decoder_layers": 1, "d_kv": 12}),
    "t5_silu": ("T5", {"feed_forward_proj": "gated-silu", "num_layers": 3}),
    "t5_gelu": ("T5", {"feed_forward_proj": "gelu", "layer_norm_epsilon": 1e-3}),
    "mt5": ("MT5", OWN_HEAD),
    "umt5": ("UMT5", {**OWN_HEAD, "d_kv": 10}),
}


def make(directory: Path, family: str = "T5", seed: int = 0, vocabulary: int = 60, **changes: Any) -> Any:
    """A model with random weights, saved by `save_pretrained`."""
    fields = {
        **{"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2},
        **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, **changes},
    }
    own = fields.get("tie_word_embeddings") is False
    config = getattr(transformers, f"{family}Config")(
        **{"vocab_size": vocabulary, "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD, **fields}
    )
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    if own:  # which version 5 ties whatever the config says
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    shake(model, seed, scale=1.3)
    scaled = config.scale_decoder_outputs if family == "T5" else family == "UMT5"
    for name, weight in model.named_parameters():
        if name.endswith(".q.weight"):
            weight.data *= config.d_kv**-0.5  # as T5 itself begins
    model.shared.weight.data *= 0.3  # else a tied model would say each token again
    if not own and scaled:
        model.decoder.final_layer_norm.weight.data *= 4.0
    model.lm_head.weight.data[EOS] *= 3.0
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("name", GRID)
def test_same_numbers_and_ids_as_hugging_face(name: str, tmp_path: Path) -> None:
    family, changes = GRID[name]
    model = make(tmp_path / "theirs", family, **changes)
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.config.tie_projection == (changes.get("tie_word_embeddings") is not False)
    sources = random_sources(range(3, 60), [EOS])
    assert_same_numbers(checkpoint, model, sources)
    assert_same_ids(checkpoint, model, sources)


def beams_of(theirs: Any, sources: list[list[int]]) -> list[list[int]]:
    """The best of four hypotheses by `generate` without further settings."""
    ids, lengths = padded(sources, PAD)
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    rows = theirs.generate(input_ids=ids, attention_mask=mask, num_beams=4, do_sample=False, max_new_tokens=MADE)
    return until_end(rows.tolist(), EOS)


@pytest.mark.parametrize("name", GRID if os.environ.get("TXPORT_WHOLE_GRID") else ["t5", "umt5"])
def test_ids_and_beams_of_every_lowering_and_of_the_fused_engine(name: str, tmp_path: Path) -> None:
    """All of 200 inputs, padded, and beams of some; TXPORT_WHOLE_GRID=1 tries all models, and beams of all inputs."""
    family, changes = GRID[name]
    model = make(tmp_path / "theirs", family, **changes)
    import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(verify=False, max_source=20))
    with pytest.raises(InputError, match="has 21 tokens, more than the 20 that this bundle supports"):
        Translator(tmp_path / "bundle", "cpu", workers=0).translate_ids([[5] * 20 + [EOS]])
    sources = random_sources(range(3, 60), [EOS])
    expected, few = generate(model, sources), sources if os.environ.get("TXPORT_WHOLE_GRID") else sources[:40]
    hypotheses = beams_of(model, few)
    for engine, translator in translators(tmp_path / "bundle"):
        made = translator.translate_ids(sources, max_length=MADE)
        assert [each.ids for each in made] == expected, engine
        made = translator.translate_ids(few, beam=4, max_length=MADE, length_penalty=1.0, renormalize=False)
        assert [each.ids for each in made] == hypotheses, engine


def test_both_layouts_of_names(tmp_path: Path) -> None:
    """As transformers 4 saves them, with tables that nothing reads, and as MADLAD was published."""
    model = make(tmp_path / "theirs", feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    file = tmp_path / "theirs" / "model.safetensors"
    tensors, sources = load_file(file), random_sources(range(3, 60), [EOS])
    shared = tensors.pop("shared.weight")
    stray = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    sides = {f"{side}.embed_tokens.weight": shared.clone() for side in ("encoder", "decoder")}
    decoder = {name: table for name, table in sides.items() if name.startswith("decoder")}
    for number, tables in enumerate(({"shared.weight": shared, **sides, stray: torch.ones(8, 2)}, decoder)):
        save_file({**tensors, **tables}, file, metadata={"format": "pt"})
        checkpoint = import_here(tmp_path / "theirs", tmp_path / f"checkpoint{number}", tokenizer=False)
        assert checkpoint.config.share_embeddings and not checkpoint.config.tie_projection
        assert_same_numbers(checkpoint, model, sources)


def scale_of(directory: Path, output: Path, **fields: Any) -> float:
    """How much larger the import's logits are than if nothing were scaled."""
    changed_json(directory / "config.json", **fields)
    theirs = load_file(directory / "model.safetensors")["decoder.final_layer_norm.weight"]
    ours = import_here(directory, output, tokenizer=False).model.decoder_norm.weight.detach()
    ratio = (ours / theirs).mean()
    torch.testing.assert_close(ours, theirs * ratio)
    return round(float(ratio), 6)


def test_who_scales_the_projection(tmp_path: Path) -> None:
    """Files of transformers 5 say it, those of version 4 by the tie; that of mT5 changed its meaning."""
    make(tmp_path / "theirs")
    cases: list[tuple[dict[str, Any], float]] = [
        ({"scale_decoder_outputs": False, "tie_word_embeddings": True}, 1.0),
        ({"scale_decoder_outputs": True, "tie_word_embeddings": True}, 0.25),
        ({"scale_decoder_outputs": None, "tie_word_embeddings": True}, 0.25),
        ({"scale_decoder_outputs": None, "tie_word_embeddings": False}, 1.0),
        ({"tie_word_embeddings": True, "model_type": "mt5", "transformers_version": "5.23.0"}, 1.0),
        ({"tie_word_embeddings": True, "model_type": "mt5", "transformers_version": "4.57.6"}, 0.25),
    ]
    for number, (fields, scale) in enumerate(cases):
        assert scale_of(tmp_path / "theirs", tmp_path / str(number), **fields) == scale, fields


def test_weights_of_bfloat16_keep_what_the_import_multiplies(tmp_path: Path) -> None:
    """sqrt(d_kv) and d_model^-0.5 are no numbers of bfloat16."""
    model = make(tmp_path / "theirs", d_kv=6)
    model.bfloat16().save_pretrained(tmp_path / "half")
    checkpoint = import_here(tmp_path / "half", tmp_path / "checkpoint", tokenizer=False)
    assert_same_numbers(checkpoint, model.float(), random_sources(range(3, 60), [EOS]))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"feed_forward_proj": "gated-swiglu", "dense_act_fn": None}, "dense_act_fn = 'swiglu' is not supported"),
        ({"d_kv": 9}, "has shape .* but its configuration needs"),
        ({"relative_attention_num_buckets": 16}, r"relative_attention_bias.weight has shape \(1, 8, 2\)"),
        ({"relative_attention_num_buckets": 7}, "position_buckets = 7 must be even"),
        ({"num_layers": 3, "num_decoder_layers": 2}, "lacks encoder.block.2.layer.0.layer_norm.weight"),
        ({"vocab_size": 61}, "shared.weight has 60 rows, but .* sets vocab_size = 61"),
        ({"num_heads": "2"}, "num_heads must be int, not '2'"),
        ({"model_type": "umt5"}, "lacks encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    make(tmp_path / "theirs")
    changed_json(tmp_path / "theirs" / "config.json", **fields)
    with pytest.raises(CheckpointError, match=words):
        import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    "name", ["shared.weight", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
)
def test_tables_that_are_missing(tmp_path: Path, name: str) -> None:
    make(tmp_path / "theirs")
    file = tmp_path / "theirs" / "model.safetensors"
    save_file({key: value for key, value in load_file(file).items() if key != name}, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"lacks {name}"):
        import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    "kind",
    [
        *("longt5", "switch_transformers", "t5gemma", "t5gemma2", "led", "bigbird_pegasus", "nllb-moe", "pegasus_x"),
        *("blenderbot-small", "prophetnet", "encoder-decoder"),
    ],
)
def test_relatives_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    make(tmp_path / "theirs")
    changed_json(tmp_path / "theirs" / "config.json", model_type=kind)
    with pytest.raises(CheckpointError, match=f"model_type '{kind}' is not supported: it has "):
        import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)


# --- tokenizers ------------------------------------------------------------------------------------------------------

TEXTS = ["the cat sees a bird", " two  spaces ", "naïve 漢字 🙂", "", "le chien\tvoit"]


def spiece(directory: Path, **options: Any) -> None:
    """A SentencePiece model with T5's special ids."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS)] * 40 + list("abcdefghijklmnopqrstuvwxyz") * 3),
        model_writer=out, vocab_size=55, hard_vocab_limit=False, model_type="unigram", minloglevel=2, num_threads=1,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, **options},
    )  # fmt: skip
    (directory / "spiece.model").write_bytes(out.getvalue())


def opened(checkpoint: Checkpoint) -> Any:
    return open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)


def test_t5_texts(tmp_path: Path) -> None:
    """Ids as Hugging Face's, and no text for special ids, extra ids and rows that no piece has."""
    make(tmp_path / "theirs", vocabulary=200)
    spiece(tmp_path / "theirs")
    theirs = transformers.T5Tokenizer.from_pretrained(str(tmp_path / "theirs"))
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint")
    ours = opened(checkpoint)
    for text in TEXTS:
        expected = list(theirs(text).input_ids)
        assert ours.encode(text) == expected
        assert ours.decode([*expected, 0, 1, 2, 150, 199, 10**6]) == theirs.decode(expected, skip_special_tokens=True)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "theirs" / "spiece.model"))
    extra = "<extra_id_0>, <pad> and </s> are text"
    assert ours.encode(extra) == [*processor.encode(extra), EOS]


def only_json(directory: Path, kind: Any) -> Any:
    """Leave what transformers 5 writes: its tokenizer without the SentencePiece model that it came from."""
    theirs = kind.from_pretrained(str(directory))
    theirs.save_pretrained(directory)
    (directory / "spiece.model").unlink()
    return theirs


def test_a_tokenizer_json_is_the_sentencepiece_model_that_it_was_made_from(tmp_path: Path) -> None:
    """So that C++ reads it too: ids of the original, also of what it does not know, for any line of TXPORT_TEXTS."""
    make(tmp_path / "theirs", vocabulary=200)
    spiece(tmp_path / "theirs")
    original = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "theirs" / "spiece.model"))
    theirs = only_json(tmp_path / "theirs", transformers.T5Tokenizer)
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint")
    ours = opened(checkpoint)
    assert checkpoint.tokenizer.kind == "sentencepiece" and checkpoint.config.unk_id == 2
    lines = [*TEXTS, "ＡＢＣ\u00a0ﬁ ①", "a\u3000b\n\nc", "\ufeffnai\u0308ve 한국어", "<pad> <extra_id_7> </s>"]
    if "TXPORT_TEXTS" in os.environ:
        lines += Path(os.environ["TXPORT_TEXTS"]).read_text(encoding="utf-8").split("\n")
    for text in lines:
        assert ours.encode(text) == [*original.encode(text), EOS]
    for text in TEXTS:
        ids = list(theirs(text).input_ids)
        assert ours.encode(text) == ids
        assert ours.decode([*ids, 0, 1, 2, 150, 199]) == theirs.decode(ids, skip_special_tokens=True)


def test_languages_in_a_tokenizer_json(tmp_path: Path) -> None:
    make(tmp_path / "theirs", vocabulary=200)
    spiece(tmp_path / "theirs", user_defined_symbols=["<2de>", "<2fr>"])
    theirs = only_json(tmp_path / "theirs", transformers.T5Tokenizer)
    ours = opened(import_here(tmp_path / "theirs", tmp_path / "checkpoint", target_language="fr"))
    ids, around = ours.encode_source("the cat", None, "de")
    assert around.wrap(ids) == list(theirs("<2de> the cat").input_ids)


def test_a_tokenizer_json_that_does_more_than_sentencepiece(tmp_path: Path) -> None:
    """It is for Python alone, and a note says so; a damaged one is refused."""
    make(tmp_path / "theirs", vocabulary=200)
    spiece(tmp_path / "theirs")
    theirs = only_json(tmp_path / "theirs", transformers.T5Tokenizer)
    file = tmp_path / "theirs" / "tokenizer.json"
    value = json.loads(file.read_text())
    value["normalizer"] = {"type": "Sequence", "normalizers": [value["normalizer"], {"type": "Lowercase"}]}
    file.write_text(json.dumps(value))
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint")
    assert checkpoint.tokenizer.kind == "tokenizers"
    assert opened(checkpoint).encode("THE cat") == list(theirs("the cat").input_ids)
    training = json.loads((checkpoint.directory / "training.json").read_text())
    (note,) = (note for note in training["notes"] if "tokenizer.json" in note)
    assert "texts need Python, or spiece.model beside it" in note
    for text in ("{", "[]", json.dumps({**value, "model": {}}), json.dumps({**value, "added_tokens": 3})):
        file.write_text(text)
        with pytest.raises(CheckpointError, match="tokenizer.json is not a .*tokenizer"):
            import_here(tmp_path / "theirs", tmp_path / "other")


def test_madlad_says_the_language_before_the_text(tmp_path: Path) -> None:
    make(tmp_path / "theirs", vocabulary=80, eos_token_id=2, pad_token_id=1, decoder_start_token_id=0)
    languages = ["<2de>", "<2fr>", "<2zh_Hant>"]
    spiece(tmp_path / "theirs", unk_id=0, bos_id=1, eos_id=2, pad_id=-1, user_defined_symbols=languages)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "theirs" / "spiece.model"))
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint", target_language="fr")
    ours = opened(checkpoint)
    assert checkpoint.config.unk_id == 0 and checkpoint.config.eos_id == 2
    for name in ("de", "zh_Hant", None):
        ids, around = ours.encode_source("the cat", None, name)
        assert around.wrap(ids) == [*processor.encode(f"<2{name or 'fr'}> the cat"), 2]
    with pytest.raises(InputError, match="target language 'xx' is unknown"):
        ours.encode_source("the cat", None, "xx")
    with pytest.raises(InputError, match="--target-language xx is not a target language"):
        import_here(tmp_path / "theirs", tmp_path / "other", target_language="xx")


@pytest.mark.parametrize("json_alone", [False, True])
def test_a_text_chooses_its_language(json_alone: bool, tmp_path: Path) -> None:
    """MADLAD's own form, as Hugging Face reads it; other text between such marks stays text."""
    make(tmp_path / "theirs", vocabulary=200)
    spiece(tmp_path / "theirs", user_defined_symbols=["<2de>", "<2fr>"])
    theirs = transformers.T5Tokenizer.from_pretrained(str(tmp_path / "theirs"), extra_ids=0)
    if json_alone:
        only_json(tmp_path / "theirs", transformers.T5Tokenizer)
    ours = opened(import_here(tmp_path / "theirs", tmp_path / "checkpoint", target_language="de"))
    for text in (
        "<2fr> the cat",
        "<2fr>the cat",
        " <2fr>  the cat",
        "<2fr> the <2de> cat",
        "<2de> the",
        "<2fr><2de> a",
    ):
        expected = list(theirs(text).input_ids)
        assert without_blank(ours.encode(text), ours) == expected, text
        ids, spans, around = ours.locate_source(text)
        assert without_blank(around.wrap(ids), ours) == expected
        assert all(text[start:end] for start, end in spans)
    chosen, around = ours.encode_source("the cat", None, "fr")
    assert ours.encode("<2fr> the cat") == around.wrap(chosen)
    default = ours.affixes().source_prefix
    for text in ("<2xx> the", "the <2fr> cat", "<2fr"):
        assert ours.encode(text) == [*default, *theirs(text).input_ids]


@pytest.mark.parametrize("json_alone", [False, True])
def test_names_of_languages(json_alone: bool, tmp_path: Path) -> None:
    """Names with digits and hyphens."""
    make(tmp_path / "theirs", vocabulary=200)
    spiece(tmp_path / "theirs", user_defined_symbols=["<2fr>", "<2zh-CN>", "<2es_419>"])
    theirs = transformers.T5Tokenizer.from_pretrained(str(tmp_path / "theirs"), extra_ids=0)
    if json_alone:
        only_json(tmp_path / "theirs", transformers.T5Tokenizer)
    ours = opened(import_here(tmp_path / "theirs", tmp_path / "checkpoint", target_language="zh-CN"))
    for text in ("<2fr> the cat", "<2zh-CN> the cat", "<2es_419>the", "<2fr> the <2zh-CN> cat"):
        assert without_blank(ours.encode(text), ours) == list(theirs(text).input_ids), text
    chosen, around = ours.encode_source("the cat", None, "es_419")
    assert ours.encode("<2es_419> the cat") == around.wrap(chosen)


@pytest.mark.parametrize("family", ["t5", "byt5"])
@pytest.mark.parametrize("special", [False, True])
def test_languages_that_were_added(family: str, special: bool, tmp_path: Path) -> None:
    """As people add them to mT5: texts contain them, and nothing has to be chosen."""
    from added_tokens import TOKEN, saved

    tokens = [TOKEN(name, special=special, normalized=not special) for name in ("<2fr>", "<2zh-CN>")]
    theirs = saved(family, tmp_path / "theirs", tokens=tokens)
    ours = opened(import_here(tmp_path / "theirs", tmp_path / "checkpoint"))
    for text in ("<2fr> the cat", "<2zh-CN>the", " <2fr>  the <2zh-CN> cat", "the cat", "<2xx> the"):
        assert ours.encode(text) == list(theirs(text).input_ids), text


def without_blank(ids: list[int], ours: Any) -> list[int]:
    """Ids without the piece before a language that SentencePiece, and so the model in training, has there."""
    return ids[len(ours.affixes().source_prefix) - 1 :]


def test_the_language_is_asked_for_at_import(tmp_path: Path) -> None:
    make(tmp_path / "theirs", vocabulary=80)
    spiece(tmp_path / "theirs", user_defined_symbols=["<2de>", "<2fr>"])
    with pytest.raises(InputError, match=r"set the default with --target-language \(de, fr\)"):
        import_here(tmp_path / "theirs", tmp_path / "checkpoint")
    import_here(tmp_path / "theirs", tmp_path / "ids", tokenizer=False)


def test_byt5_texts(tmp_path: Path) -> None:
    make(tmp_path / "theirs", vocabulary=384)
    theirs = transformers.ByT5Tokenizer()
    theirs.save_pretrained(tmp_path / "theirs")
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint")
    ours = opened(checkpoint)
    assert checkpoint.tokenizer.kind == "bytes"
    for text in TEXTS:
        ids = list(theirs(text).input_ids)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == text
    changed_json(tmp_path / "theirs" / "config.json", vocab_size=60)
    with pytest.raises(CheckpointError, match="vocab_size = 60"):
        import_here(tmp_path / "theirs", tmp_path / "other")


@given(st.lists(st.integers(0, 400)), st.lists(st.integers(0, 255)))
@settings(deadline=None)
def test_bytes_of_no_character_leave_no_text(ids: list[int], random: list[int]) -> None:
    theirs = transformers.ByT5Tokenizer()
    for row in (ids, [byte + 3 for byte in random]):
        ordinary = [i for i in row if i < 259]  # theirs has no bytes for others
        assert Bytes().decode(row) == theirs.decode(ordinary, skip_special_tokens=True)


def test_codet5_texts(tmp_path: Path) -> None:
    """The tokenizer decides: byte-level BPE with <s> and </s> around a text."""
    make(tmp_path / "theirs", vocabulary=320, eos_token_id=2, bos_token_id=1)
    trained = pytest.importorskip(
        "tokenizers", reason="needs tokenizers: pip install 'txport[tokenizers]'"
    ).ByteLevelBPETokenizer()
    special = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator([" ".join(WORDS)] * 3, vocab_size=300, min_frequency=1, special_tokens=special)
    trained.save_model(str(tmp_path / "theirs"))
    theirs = transformers.RobertaTokenizer.from_pretrained(str(tmp_path / "theirs"))
    ours = opened(import_here(tmp_path / "theirs", tmp_path / "checkpoint"))
    theirs.save_pretrained(tmp_path / "theirs")  # as transformers 5 does: tokenizer.json, and no lists
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "theirs" / name).unlink(missing_ok=True)
    again = import_here(tmp_path / "theirs", tmp_path / "of_json")
    assert "SentencePiece" not in (again.directory / "training.json").read_text()
    for text in TEXTS:
        assert ours.encode(text) == opened(again).encode(text) == list(theirs(text).input_ids)


def test_tokenizers_that_do_not_fit(tmp_path: Path) -> None:
    make(tmp_path / "theirs", vocabulary=40)
    with pytest.raises(CheckpointError, match="holds neither spiece.model nor tokenizer.json"):
        import_here(tmp_path / "theirs", tmp_path / "checkpoint")
    spiece(tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="gives ids up to .* but the embedding has 40 rows"):
        import_here(tmp_path / "theirs", tmp_path / "checkpoint")
    with pytest.raises(InputError, match="--target-language fr means nothing"):
        import_here(tmp_path / "theirs", tmp_path / "checkpoint", target_language="fr")
