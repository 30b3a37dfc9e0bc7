"""Pegasus imports against Hugging Face's own: numbers, greedy ids, and texts."""

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from foreign_models import (
    WORDS,
    assert_same_ids,
    assert_same_numbers,
    changed_json,
    import_here,
    random_sources,
    shake,
)
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.tokenizer import open_tokenizer

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

PAD, EOS = 0, 1
GRID: dict[str, dict[str, Any]] = {
    "pegasus": {"scale_embedding": True},
    "sides": {"encoder_attention_heads": 4, "decoder_ffn_dim": 40, "decoder_layers": 1, "eos_bias": 1.4},
}


def make(directory: Path, seed: int = 0, vocabulary: int = 60, eos_bias: float = 4.0, **changes: Any) -> Any:
    """A model with random weights, saved by `save_pretrained`."""
    fields = {
        **{"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
        **{"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_layers": 2, "decoder_layers": 2},
        **{"max_position_embeddings": 40, **changes},
    }
    config = transformers.PegasusConfig(vocab_size=vocabulary, forced_eos_token_id=None, **fields)
    model = transformers.PegasusForConditionalGeneration(config).eval()
    shake(model, seed, scale=1.6)
    model.final_logits_bias[0, EOS] = eos_bias
    model.tie_weights()
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("name", GRID)
def test_same_numbers_and_ids_as_hugging_face(name: str, tmp_path: Path) -> None:
    model = make(tmp_path / "theirs", **GRID[name])
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)
    sources = random_sources(range(3, 60), [EOS])
    assert_same_numbers(checkpoint, model, sources)
    assert_same_ids(checkpoint, model, sources)


def test_texts(tmp_path: Path) -> None:
    """Ids 103 above SentencePiece's, since masks come before its pieces; what is special leaves no text."""
    make(tmp_path / "theirs", vocabulary=220)
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS)] * 40 + list("abcdefghijklmnopqrstuvwxyz") * 3),
        model_writer=out, vocab_size=60, hard_vocab_limit=False, model_type="unigram", minloglevel=2, num_threads=1,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    (tmp_path / "theirs" / "spiece.model").write_bytes(out.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint")
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for text in ("the cat sees a bird", " two  spaces ", "naïve 漢字", ""):
        expected = [i + 103 for i in processor.encode(text)]
        assert ours.encode(text) == [*expected, EOS]
        assert ours.decode([0, 1, 2, 3, 50, 104, *expected]).replace(" ", "") == "".join(
            processor.id_to_piece(i - 103) for i in expected if i != 105
        ).replace("▁", "")
    with pytest.raises(InputError, match="--target-language fr"):
        import_here(tmp_path / "theirs", tmp_path / "other", target_language="fr")
    theirs = transformers.PegasusTokenizer.from_pretrained(str(tmp_path / "theirs"))
    theirs.save_pretrained(tmp_path / "theirs")  # as transformers 5 does, without spiece.model
    (tmp_path / "theirs" / "spiece.model").unlink()
    again = import_here(tmp_path / "theirs", tmp_path / "of_json")
    ours = open_tokenizer(again.directory, again.tokenizer, again.config.vocabularies)
    assert again.tokenizer.kind == "sentencepiece"
    for text in ("the cat sees a bird", "naïve 漢字", "two  spaces"):
        assert ours.encode(text) == list(theirs(text).input_ids)


@pytest.mark.parametrize("fields", [{"normalize_before": False}, {"add_final_layer_norm": False}])
def test_options_that_make_another_model(tmp_path: Path, fields: dict[str, Any]) -> None:
    make(tmp_path / "theirs")
    changed_json(tmp_path / "theirs" / "config.json", **fields)
    with pytest.raises(CheckpointError, match=f"{next(iter(fields))} = False is not supported"):
        import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)
