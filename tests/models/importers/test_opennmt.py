"""OpenNMT-py imports, against what OpenNMT-py's own encoder and decoder have made of sentences."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import import_here, pieces, sentencepiece_model
from recorded_models import Recorded, assert_as_recorded, recorded
from safetensors.torch import save_file
from token_lists import check_lists
from txport.exporter.sample import choose_sample
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.runtime.errors import CheckpointError
from txport.runtime.text.tokenizer import open_tokenizer

UNK, PAD, BOS, EOS = 0, 1, 2, 3
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
MODELS = ["two_vocabularies", "shared", "copies", "copies_untied", "three_heads", "relative", "concatenated"]


def make(
    file: Path,
    vocabularies: tuple[list[str], list[str]] | None = None,
    *,
    name: str = "two_vocabularies",
    split: bool = False,
    **changes: Any,
) -> Recorded:
    """A recorded model, saved as OpenNMT-py's ModelSaver does, in one file or in two.

    With `vocabularies`, its tables are of their lengths, and random; `changes` are of the options alone.
    """
    theirs = recorded(f"opennmt_{name}")
    names = [*SPECIAL, *(f"w{i}" for i in range(52))]
    source, target = vocabularies or (names, names if theirs.config["share_embeddings"] else [*names, "x", "y"])
    state = dict(theirs.weights)
    if vocabularies is not None:
        for key, value in state.items():
            if "emb_luts" in key or key.startswith("generator."):
                state[key] = torch.randn(len(source), *value.shape[1:])
        for key in ("decoder.embeddings.make_embedding.emb_luts.0.weight", "generator.weight"):
            state[key] = state["encoder.embeddings.make_embedding.emb_luts.0.weight"]
    file.parent.mkdir(exist_ok=True)
    weights = {key: tensor for key, tensor in state.items() if not key.startswith("generator.")}
    generator = {key.removeprefix("generator."): tensor for key, tensor in state.items() if key not in weights}
    vocab = {"src": source, "tgt": target, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    options = argparse.Namespace(**{**theirs.config, **changes})
    value: dict[str, Any] = {"vocab": vocab, "opt": options, "optim": {"training_step": 5}}
    if split:
        save_file({key: tensor.clone() for key, tensor in state.items()}, file.with_suffix(".safetensors"))
    else:
        value |= {"model": weights, "generator": generator}
    torch.save(value, file)
    return theirs


@pytest.mark.parametrize("name", MODELS)
def test_same_numbers_and_ids_as_opennmt(name: str, tmp_path: Path) -> None:
    theirs = make(tmp_path / "onmt" / "model_step_10.pt", name=name, split=name == "shared")
    checkpoint = import_here(tmp_path / "onmt" / "model_step_10.pt", tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.config.norm == "pre" and checkpoint.tokenizer.source_suffix == ()
    shared = [theirs.config[side] for side in ("share_embeddings", "share_decoder_embeddings")]
    assert [checkpoint.config.share_embeddings, checkpoint.config.tie_projection] == shared
    assert checkpoint.config.copy_heads == ({"copies": ((1, 0),), "copies_untied": ((0, 0),)}.get(name, ()))
    logits = assert_as_recorded(checkpoint, theirs)
    # What a copying model must never say, padding, has a probability of 0.
    never = theirs.logits.isneginf()
    assert (logits[never] < -15000).all() and never.any() == ("copies" in name)


def test_random_sources_for_verification_are_never_empty(tmp_path: Path) -> None:
    """Source texts have no eos here, so a sentence of no tokens would be nothing at all."""
    make(tmp_path / "onmt" / "model.pt")
    checkpoint = import_here(tmp_path / "onmt", tmp_path / "checkpoint", tokenizer=False)
    sample = choose_sample(checkpoint, 300, 20, 20)
    assert {len(source) for source in sample.sources} >= set(range(1, 15))
    assert all(1 <= len(source) <= 20 and EOS not in source for source in sample.sources)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decoder_type": "rnn"}, "decoder_type = 'rnn' is not supported"),
        ({"self_attn_type": "average"}, "self_attn_type = 'average'"),
        ({"max_relative_positions": 20}, "position_encoding = True"),
        ({"max_relative_positions": -1}, "max_relative_positions = -1"),
        ({"position_encoding": False}, "position_encoding = False"),
        ({"copy_attn": True}, "lacks generator.linear.weight"),
        ({"num_experts": 4}, "num_experts = 4"),
        ({"parallel_residual": True}, "parallel_residual = True"),
        ({"layer_norm": "rms"}, "layer_norm = 'rms'"),
        ({"model_task": "lm"}, "model_task = 'lm'"),
        ({"heads": 3}, "divisible"),
        ({"enc_layers": 1}, "encoder.transformer.1"),
    ],
)
def test_options_that_make_another_model(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    make(tmp_path / "onmt" / "model.pt")
    value = torch.load(tmp_path / "onmt" / "model.pt", weights_only=False)
    vars(value["opt"]).update(changes)
    torch.save(value, tmp_path / "onmt" / "model.pt")
    with pytest.raises(CheckpointError, match=words) as caught:
        import_model(str(tmp_path / "onmt"), None, ImportOptions(tokenizer=False))
    assert "\n" not in str(caught.value)


def test_a_model_that_copies_has_one_vocabulary(tmp_path: Path) -> None:
    make(tmp_path / "onmt" / "model.pt", name="copies")
    value = torch.load(tmp_path / "onmt" / "model.pt", weights_only=False)
    value["vocab"]["tgt"] = [*SPECIAL, *(f"t{i}" for i in range(52))]
    torch.save(value, tmp_path / "onmt" / "model.pt")
    with pytest.raises(CheckpointError, match=r"copies \(copy_attn = True\) from a source vocabulary that is not"):
        import_model(str(tmp_path / "onmt"), None, ImportOptions(tokenizer=False))


def test_gated_networks_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "onmt" / "model.pt", pos_ffn_activation_fn="silu")
    with pytest.raises(CheckpointError, match="pos_ffn_activation_fn = 'silu' is not supported"):
        import_model(str(tmp_path / "onmt"), None, ImportOptions(tokenizer=False))


@pytest.mark.parametrize(
    ("vocab", "words"),
    [
        ({"src": object, "tgt": []}, "OpenNMT-py 2 or older"),
        (None, "OpenNMT-py 2 or older"),
        ({"src": SPECIAL, "tgt": SPECIAL[:-1]}, "</s> is not in the target vocabulary"),
        ({"src": SPECIAL, "tgt": SPECIAL}, "56 rows, but the vocabulary has 4 tokens"),
        ({"src": SPECIAL, "tgt": SPECIAL[::-1]}, "not at the id of the source"),
        ({"src": SPECIAL, "tgt": SPECIAL, "src_feats": [["a"]]}, "source features"),
        ({"src": SPECIAL, "tgt": SPECIAL, "decoder_start_token": "<x>"}, "<x> is not in the target"),
    ],
)
def test_vocabularies_that_do_not_fit(tmp_path: Path, vocab: Any, words: str) -> None:
    make(tmp_path / "onmt" / "model.pt")
    value = torch.load(tmp_path / "onmt" / "model.pt", weights_only=False)
    if vocab and vocab["src"] is object:
        vocab = {"src": {"fields": []}, "tgt": []}
    torch.save({**value, "vocab": vocab}, tmp_path / "onmt" / "model.pt")
    with pytest.raises(CheckpointError, match=words):
        import_model(str(tmp_path / "onmt"), None, ImportOptions(tokenizer=False))


def test_weights_that_are_not_beside_it(tmp_path: Path) -> None:
    make(tmp_path / "onmt" / "model.pt", split=True)
    (tmp_path / "onmt" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not beside it"):
        import_model(str(tmp_path / "onmt" / "model.pt"), None, ImportOptions(tokenizer=False))


@pytest.mark.parametrize("named", [False, True])
def test_texts(tmp_path: Path, named: bool) -> None:
    import sentencepiece

    spm = sentencepiece_model()
    tokens = [*SPECIAL, *sorted(pieces(spm)), "averyunlikelytoken0"]
    stated = {"src_subword_model": "somewhere/joint.spm", "tgt_subword_model": "joint.spm"} if named else {}
    make(tmp_path / "onmt" / "model.pt", (tokens, tokens), name="shared", **stated)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / ("joint.spm" if named else "shared.model")).write_bytes(spm)
    checkpoint = import_here(tmp_path / "onmt", tmp_path / "checkpoint", vocabulary=tmp_path / "models")
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm)
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for text in ("the cat sees", "le chat 漢"):
        expected = [tokens.index(p) if p in tokens else UNK for p in processor.encode(text, out_type=str)]
        assert ours.encode(text) == expected
    assert ours.decode([BOS, *ours.encode("the cat"), len(tokens) - 1, EOS, PAD]) == "the cat"


@pytest.mark.parametrize("letters", [False, True], ids=["words", "characters"])
def test_lists_of_tokens(letters: bool, tmp_path: Path) -> None:
    make(tmp_path / "theirs" / "model.pt")
    check_lists(tmp_path / "theirs", tmp_path, letters)
