"""fairseq imports.

Here the oracle is Hugging Face, who ported fairseq's models one by one: FSMT is its transformer (post-norm, two
dictionaries), M2M100 the pre-norm one with one table for all, and BART has its learned positions and its LayerNorm on
embeddings. Their weights are saved under fairseq's names, in its file formats old and new. `test_fairseq_itself` has
fairseq's own models.
"""

import argparse
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
    pieces,
    random_sources,
    sentencepiece_model,
    shake,
    until_end,
)
from token_lists import check_lists
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.tokenizer import open_tokenizer

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

PAD, EOS = 1, 2
SIZES = {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24}
SIZES |= {"decoder_ffn_dim": 24, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 40}
SPECIAL = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 0, "decoder_start_token_id": EOS}


def arguments(**changes: Any) -> argparse.Namespace:
    """What fairseq-train stores, as far as it matters and a little more."""
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "embed_dim": 16,
            "ffn_embed_dim": 24,
            "attention_heads": 2,
            "layers": 2,
            "normalize_before": False,
            "learned_pos": False,
            "layerdrop": 0,
        }.items()
    }
    common = {
        "arch": "transformer_wmt_en_de",
        "task": "translation",
        "source_lang": "de",
        "target_lang": "en",
        "activation_fn": "relu",
        "max_source_positions": 40,
        "max_target_positions": 40,
        "share_all_embeddings": False,
        "share_decoder_input_output_embed": False,
        "adaptive_softmax_cutoff": None,
        "dropout": 0.1,
        "lr": [0.0005],
    }
    return argparse.Namespace(**{**sides, **common, **changes})


def save(file: Path, state: dict[str, torch.Tensor], given: Any, *, new: bool = False, zipped: bool = True) -> None:
    """As fairseq's checkpoint_utils does: old files have args, newer ones cfg."""
    file.parent.mkdir(exist_ok=True)
    settings = {
        "args": None,
        "cfg": {"model": given, "task": {"_name": "translation", "source_lang": "de", "target_lang": "en"}},
    }
    value = {
        **(settings if new else {"args": given}),
        "model": state,
        "optimizer_history": [{"criterion_name": "CrossEntropyCriterion", "num_updates": 7}],
        "extra_state": {"epoch": 3, "metrics": [(0, "loss", "AverageMeter", {"val": 1.5})]},
        "last_optimizer_state": {"state": {}},
    }
    torch.save(value, file, _use_new_zipfile_serialization=zipped)


def fairseq_names(model: Any) -> dict[str, torch.Tensor]:
    """The state dict under fairseq's names, with the buffers that fairseq has."""
    state = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    for name in ("shared.weight", "lm_head.weight", "final_logits_bias"):
        state.pop(name, None)
    for side in ("encoder", "decoder"):
        state[f"{side}.version"] = torch.tensor([3.0])
    return state


def sinusoidal(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """fairseq stores no table of sinusoids, only a dummy."""
    kept = {name: tensor for name, tensor in state.items() if "embed_positions" not in name}
    return {**kept, **{f"{side}.embed_positions._float_tensor": torch.zeros(1) for side in ("encoder", "decoder")}}


def fsmt(seed: int = 0, source: int = 60, target: int = 66, **changes: Any) -> Any:
    fields = {**SIZES, **SPECIAL, "langs": ["de", "en"], "scale_embedding": True, **changes}
    config = transformers.FSMTConfig(src_vocab_size=source, tgt_vocab_size=target, **fields)
    model = transformers.FSMTForConditionalGeneration(config).eval()
    shake(model, seed, scale=1.4, but="embed_positions")
    model.model.decoder.output_projection.weight.data[EOS] *= 3
    return model


def m2m100(seed: int = 0, **changes: Any) -> Any:
    config = transformers.M2M100Config(vocab_size=60, **{**SIZES, **SPECIAL, "activation_function": "gelu", **changes})
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    shake(model, seed, scale=1.6)
    model.get_encoder().embed_tokens.weight.data[PAD] = 0
    model.lm_head.weight.data[EOS] *= 2
    return model


def bart(seed: int = 0, **changes: Any) -> Any:
    config = transformers.BartConfig(vocab_size=60, **{**SIZES, **SPECIAL, **changes})
    model = transformers.BartForConditionalGeneration(config).eval()
    shake(model, seed, scale=1.6)
    model.lm_head.weight.data[EOS] *= 2
    return model


def written(kind: str, file: Path, **changes: Any) -> Any:
    """One of the models, saved as fairseq would."""
    if kind == "two_dictionaries":
        model = fsmt(**changes)
        save(file, sinusoidal(fairseq_names(model)), arguments())
    elif kind == "decoder_tied":
        model = fsmt(seed=1)
        model.model.decoder.embed_tokens.weight.data[EOS] *= 3
        model.model.decoder.output_projection.weight = model.model.decoder.embed_tokens.weight
        save(file, sinusoidal(fairseq_names(model)), arguments(share_decoder_input_output_embed=True))
    elif kind == "pre_norm":
        model = m2m100(seed=1)
        before = {f"{side}_normalize_before": True for side in ("encoder", "decoder")}
        save(
            file, sinusoidal(fairseq_names(model)), arguments(**before, share_all_embeddings=True, activation_fn="gelu")
        )
    elif kind == "hydra":
        model = m2m100(seed=4, encoder_layers=3)
        side = {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 2, "layers": 2, "normalize_before": True}
        given = {"_name": "transformer", "encoder": {**side, "layers": 3}, "decoder": side, "activation_fn": "gelu"}
        given |= {"max_source_positions": 40, "max_target_positions": 40, "share_all_embeddings": True}
        save(file, sinusoidal(fairseq_names(model)), given, new=True)
    else:
        model = bart(seed=6)
        learned = {f"{side}_learned_pos": True for side in ("encoder", "decoder")}
        given = arguments(**learned, layernorm_embedding=True, no_scale_embedding=True, activation_fn="gelu")
        save(file, fairseq_names(model), given, zipped=False)
    return model


@pytest.mark.parametrize("kind", ["two_dictionaries", "decoder_tied", "pre_norm", "hydra", "learned"])
def test_same_numbers_and_ids_as_the_port(kind: str, tmp_path: Path) -> None:
    model = written(kind, tmp_path / "fairseq" / "checkpoint_best.pt")
    checkpoint = import_here(tmp_path / "fairseq", tmp_path / "checkpoint", tokenizer=False)
    sources = random_sources(range(4, 55), [EOS])
    assert_same_numbers(checkpoint, model, sources, banned=[PAD])
    ids, lengths = padded(sources, PAD)
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    plain = {"num_beams": 1, "do_sample": False, "bad_words_ids": [[PAD]], "early_stopping": False}
    rows = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=MADE + 1, length_penalty=1.0, **plain)
    expected = until_end(rows.tolist(), EOS)
    assert_varied(expected, EOS)
    assert identical(greedy(checkpoint, sources), expected) == INPUTS


def test_files_of_the_first_versions(tmp_path: Path) -> None:
    """Query, key and value in one matrix, and numbered LayerNorms."""
    written("two_dictionaries", tmp_path / "new" / "model.pt")
    value = torch.load(tmp_path / "new" / "model.pt", weights_only=False)
    state = dict(value["model"])
    for name in [name for name in state if name.endswith("q_proj.weight")]:
        stem = name.removesuffix("q_proj.weight")
        for kind in ("weight", "bias"):
            parts = [state.pop(f"{stem}{part}_proj.{kind}") for part in "qkv"]
            state[f"{stem}in_proj_{kind}"] = torch.cat(parts)
    numbers = {
        "encoder": ["self_attn_layer_norm", "final_layer_norm"],
        "decoder": ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"],
    }
    for name in [name for name in state if "_layer_norm" in name]:
        side, _, layer, norm, kind = name.split(".")
        state[f"{side}.layers.{layer}.layer_norms.{numbers[side].index(norm)}.{kind}"] = state.pop(name)
    save(tmp_path / "old" / "model.pt", state, value["args"])
    ours = import_here(tmp_path / "old", tmp_path / "a", tokenizer=False)
    expected = import_here(tmp_path / "new", tmp_path / "b", tokenizer=False)
    theirs = dict(expected.model.named_parameters())
    assert all(torch.equal(theirs[name], parameter) for name, parameter in ours.model.named_parameters())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arch": "fconv_wmt_en_de"}, "'fconv_wmt_en_de' of fairseq is not supported"),
        ({"arch": "transformer_lm_gpt"}, "not supported"),
        ({"adaptive_softmax_cutoff": [10]}, "adaptive_softmax_cutoff = \\[10\\]"),
        ({"no_cross_attention": True}, "no_cross_attention = True"),
        ({"no_token_positional_embeddings": True}, "no_token_positional_embeddings"),
        ({"encoder_normalize_before": True}, "encoder_normalize_before = True and decoder_normalize_before = False"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads = 4"),
        ({"activation_fn": "tanh"}, "activation_fn = 'tanh'"),
        ({"encoder_layers": 3}, "encoder.layers.2"),
        ({"encoder_layers": 1}, "encoder.layers.1"),
        ({"share_all_embeddings": True}, "share_all_embeddings is set"),
        ({"encoder_attention_heads": "2", "decoder_attention_heads": "2"}, "fairseq"),
    ],
)
def test_options_that_make_another_model(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    save(tmp_path / "fairseq" / "model.pt", sinusoidal(fairseq_names(fsmt())), arguments(**changes))
    with pytest.raises(CheckpointError, match=words) as caught:
        import_model(str(tmp_path / "fairseq"), None, ImportOptions(tokenizer=False))
    assert "\n" not in str(caught.value)


def test_files_that_are_something_else(tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    for value, words in (
        ({"model": {"a": torch.zeros(1)}}, "neither of fairseq nor of OpenNMT-py, of the annotated"),
        ([1], "neither"),
        ({"args": argparse.Namespace(arch="transformer"), "model": 5}, "no state dict"),
        ({"args": 5, "model": {"a": torch.zeros(1)}}, "does not keep its options as a dictionary"),
        ({"args": np.float64(1.5), "model": {"a": torch.zeros(1)}}, "does not keep its options as a dictionary"),
        ({"args": print, "model": {"a": torch.zeros(1)}}, "may run code"),
    ):
        torch.save(value, file)
        with pytest.raises(CheckpointError, match=words):
            import_model(str(file), None, ImportOptions())
    for name in ("a.pt", "b.pt"):
        torch.save({}, tmp_path / name)
    with pytest.raises(CheckpointError, match="3 .pt or .pth or .safetensors files: name one"):
        import_model(str(tmp_path), None, ImportOptions())
    with pytest.raises(CheckpointError, match="neither args nor cfg"):
        import_model(str(tmp_path / "a.pt"), "fairseq", ImportOptions())


# --- dictionaries ----------------------------------------------------------------------------------------------------


@pytest.fixture
def with_dictionaries(tmp_path: Path) -> Path:
    """A model whose dictionaries list SentencePiece's pieces by another order, padded as fairseq pads."""
    spm = sentencepiece_model()
    tokens = [*sorted(pieces(spm), reverse=True), "madeupword0000"]
    written("two_dictionaries", tmp_path / "fairseq" / "model.pt", source=len(tokens) + 4, target=len(tokens) + 4)
    for language in ("de", "en"):
        lines = "".join(f"{token} {1000 - i}\n" for i, token in enumerate(tokens))
        (tmp_path / "fairseq" / f"dict.{language}.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "fairseq" / "sentencepiece.bpe.model").write_bytes(spm)
    return tmp_path / "fairseq"


def test_texts(with_dictionaries: Path, tmp_path: Path) -> None:
    import sentencepiece

    checkpoint = import_here(with_dictionaries, tmp_path / "checkpoint")
    spm = with_dictionaries / "sentencepiece.bpe.model"
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    order = {
        line.rpartition(" ")[0]: 4 + i
        for i, line in enumerate((with_dictionaries / "dict.de.txt").read_text().splitlines())
    }
    rows = checkpoint.config.source_vocabulary
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for text in ("the cat sees", "le chat 漢"):
        expected = [order.get(piece, 3) for piece in processor.encode(text, out_type=str)]
        assert ours.encode(text) == [*expected, EOS]
    assert ours.decode([*ours.encode("the cat sees"), rows - 1, PAD]) == "the cat sees"
    for file in with_dictionaries.glob("dict.*.txt"):
        file.write_text(file.read_text(encoding="utf-8"), encoding="utf-8-sig")
    marked = import_here(with_dictionaries, tmp_path / "marked")
    assert (marked.directory / "tokenizer").is_dir()
    for file in (checkpoint.directory / "tokenizer").iterdir():
        assert (marked.directory / "tokenizer" / file.name).read_bytes() == file.read_bytes()


def test_dictionaries_that_do_not_fit(with_dictionaries: Path, tmp_path: Path) -> None:
    def refused(words: str, **options: Any) -> None:
        with pytest.raises((CheckpointError, InputError), match=words) as caught:
            import_here(with_dictionaries, tmp_path / "checkpoint", **options)
        assert "\n" not in str(caught.value)

    refused("--target-language fr means nothing", target_language="fr")
    refused("dict.de.txt is missing.*--vocabulary", vocabulary=tmp_path)
    (with_dictionaries / "other.model").write_bytes(b"x")
    import_here(with_dictionaries, tmp_path / "named")
    (with_dictionaries / "sentencepiece.bpe.model").unlink()
    refused("other.model is not a SentencePiece model")
    (with_dictionaries / "other.model").unlink()
    refused("has no SentencePiece models")
    (with_dictionaries / "spm.model").write_bytes(sentencepiece_model())
    dictionary = with_dictionaries / "dict.de.txt"
    lines = dictionary.read_text(encoding="utf-8").splitlines()
    dictionary.write_text("\n".join(lines[1:]) + "\n", encoding="utf-8")
    refused("are not the .* rows of the embedding")
    dictionary.write_text("".join(f"x{i}@@ 5\n" for i in range(len(lines))))
    refused("few are in the source dictionary")
    dictionary.write_text("\n".join([*lines[:-1], lines[0]]) + "\n", encoding="utf-8")
    refused("has a token twice")


def test_many_languages_are_for_ids_only(with_dictionaries: Path, tmp_path: Path) -> None:
    value = torch.load(with_dictionaries / "model.pt", weights_only=False)
    value["args"].task = "translation_multi_simple_epoch"
    torch.save(value, with_dictionaries / "model.pt")
    with pytest.raises(CheckpointError, match="translation_multi_simple_epoch.*--no-tokenizer"):
        import_here(with_dictionaries, tmp_path / "checkpoint")
    assert import_here(with_dictionaries, tmp_path / "checkpoint", tokenizer=False).tokenizer.kind == "none"


@pytest.mark.parametrize("letters", [False, True], ids=["words", "characters"])
@pytest.mark.parametrize("kind", ["two_dictionaries", "hydra", "learned"])
def test_lists_of_tokens(kind: str, letters: bool, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    written(kind, tmp_path / "theirs" / "model.pt")
    check_lists(tmp_path / "theirs", tmp_path, letters)
