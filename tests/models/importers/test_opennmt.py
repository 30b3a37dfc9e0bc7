"""OpenNMT-py imports, against OpenNMT-py's own encoder and decoder.

Of the package only the model's modules are imported: the rest of it wants libraries that these tests have no use for.
"""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import (
    INPUTS,
    MADE,
    assert_varied,
    greedy,
    identical,
    import_here,
    opennmt,
    padded,
    pieces,
    random_sources,
    sentencepiece_model,
    shake,
    until_end,
)
from safetensors.torch import save_file
from torch import Tensor, nn
from txport.exporter.sample import choose_sample
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.runtime.errors import CheckpointError
from txport.runtime.text.tokenizer import open_tokenizer

UNK, PAD, BOS, EOS = 0, 1, 2, 3
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
OPTIONS = {
    "model_type": "text",
    "model_task": "seq2seq",
    "encoder_type": "transformer",
    "decoder_type": "transformer",
    "enc_layers": 2,
    "dec_layers": 2,
    "enc_hid_size": 16,
    "dec_hid_size": 16,
    "heads": 2,
    "transformer_ff": 24,
    "dropout": [0.1],
    "attention_dropout": [0.1],
    "position_encoding": True,
    "position_encoding_type": "SinusoidalInterleaved",
    "max_relative_positions": 0,
    "relative_positions_buckets": 0,
    "self_attn_type": "scaled-dot",
    "pos_ffn_activation_fn": "relu",
    "add_qkvbias": False,
    "add_ffnbias": True,
    "norm_eps": 1e-6,
    "layer_norm": "standard",
    "copy_attn": False,
    "generator_function": "softmax",
    "share_embeddings": False,
    "share_decoder_embeddings": False,
}
GRID: dict[str, dict[str, Any]] = {
    "two_vocabularies": {},
    "shared": {"share_embeddings": True, "share_decoder_embeddings": True, "add_qkvbias": True},
    "copies": {"share_embeddings": True, "share_decoder_embeddings": True, "copy_attn": True},
    "copies_untied": {"share_embeddings": True, "copy_attn": True, "heads": 4, "dec_layers": 1},
    "three_heads": {
        "heads": 3,
        "enc_hid_size": 30,
        "dec_hid_size": 30,
        "pos_ffn_activation_fn": "gelu",
        "dec_layers": 1,
    },
    "concatenated": {
        "position_encoding_type": "SinusoidalConcat",
        "add_ffnbias": False,
        "norm_eps": 1e-3,
        "eos_bias": 2.5,
    },
}


class Theirs(nn.Module):
    """Encoder, decoder and generator as OpenNMT-py's model builder puts them together."""

    def __init__(self, source: int, target: int, given: dict[str, Any]) -> None:
        super().__init__()
        embeddings = opennmt("modules.embeddings").Embeddings
        positions = {"position_encoding": True, "position_encoding_type": given["position_encoding_type"]}
        sizes = given["enc_hid_size"], given["heads"], given["transformer_ff"], 0.0, 0.0
        common = {
            "max_relative_positions": 0,
            "relative_positions_buckets": 0,
            "pos_ffn_activation_fn": given["pos_ffn_activation_fn"],
            "add_qkvbias": given["add_qkvbias"],
            "add_ffnbias": given["add_ffnbias"],
            "norm_eps": given["norm_eps"],
        }
        width = given["enc_hid_size"]
        self.encoder = opennmt("encoders.transformer").TransformerEncoder(
            given["enc_layers"], *sizes, embeddings(width, source, PAD, **positions), **common
        )
        self.decoder = opennmt("decoders.transformer").TransformerDecoder(
            given["dec_layers"],
            given["dec_hid_size"],
            given["heads"],
            given["transformer_ff"],
            given["copy_attn"],
            "scaled-dot",
            0.0,
            0.0,
            embeddings(width, target, PAD, **positions),
            aan_useffn=False,
            full_context_alignment=False,
            alignment_layer=-1,
            alignment_heads=0,
            **common,
        )
        self.copies = given["copy_attn"]
        if self.copies:
            self.generator = opennmt("modules.copy_generator").CopyGenerator(width, target, PAD)
        else:
            self.generator = nn.Linear(width, target)
        if given["share_embeddings"]:
            self.decoder.embeddings.word_lut.weight = self.encoder.embeddings.word_lut.weight
        if given["share_decoder_embeddings"]:
            projection = self.generator.linear if self.copies else self.generator
            projection.weight = self.decoder.embeddings.word_lut.weight

    @torch.inference_mode()
    def logits(self, ids: Tensor, lengths: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        memory, _, _ = self.encoder(ids[..., None], lengths)
        self.decoder.init_state(ids[..., None], memory, None)
        states, attentions = self.decoder(targets[..., None], memory, src_len=lengths, step=None)
        if self.copies:
            return memory, self._mixture(states, attentions["copy"], ids)
        return memory, self.generator(states)

    def _mixture(self, states: Tensor, attention: Tensor, ids: Tensor) -> Tensor:
        """Its generator's probabilities, those of the source's words added to the same words of the vocabulary."""
        batch, steps, width = states.shape
        vocabulary = self.generator.linear.out_features
        # Time comes before rows, and the source's words are those of the vocabulary.
        words = nn.functional.one_hot(ids, vocabulary).float()
        both = self.generator(
            states.transpose(0, 1).reshape(-1, width), attention.transpose(0, 1).reshape(steps * batch, -1), words
        )
        said, copied = both.split(vocabulary, dim=1)
        # What it copies has rows before time.
        said = said.reshape(steps, batch, vocabulary).transpose(0, 1)
        return (said + copied.reshape(batch, steps, vocabulary)).log()


def make(
    file: Path, vocabularies: tuple[list[str], list[str]] | None = None, *, split: bool = False, **changes: Any
) -> Theirs:
    """A model with random weights, saved as OpenNMT-py's ModelSaver does, in one file or in two."""
    given = {**OPTIONS, **changes}
    eos_bias = given.pop("eos_bias", 4.0)
    names = [*SPECIAL, *(f"w{i}" for i in range(52))]
    source, target = vocabularies or (names, names if given["share_embeddings"] else [*names, "x", "y"])
    model = Theirs(len(source), len(target), given).eval()
    shake(model, seed=5, scale=1.5)
    (model.generator.linear if given["copy_attn"] else model.generator).bias.data[EOS] = eos_bias
    file.parent.mkdir(exist_ok=True)
    state = model.state_dict()
    weights = {name: tensor for name, tensor in state.items() if not name.startswith("generator.")}
    generator = {name.removeprefix("generator."): tensor for name, tensor in state.items() if name not in weights}
    vocab = {"src": source, "tgt": target, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    value: dict[str, Any] = {"vocab": vocab, "opt": argparse.Namespace(**given), "optim": {"training_step": 5}}
    if split:
        save_file({name: tensor.clone() for name, tensor in state.items()}, file.with_suffix(".safetensors"))
    else:
        value |= {"model": weights, "generator": generator}
    torch.save(value, file)
    return model


@pytest.mark.parametrize("name", GRID)
def test_same_numbers_and_ids_as_opennmt(name: str, tmp_path: Path) -> None:
    model = make(tmp_path / "onmt" / "model_step_10.pt", split=name == "shared", **GRID[name])
    checkpoint = import_here(tmp_path / "onmt" / "model_step_10.pt", tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.config.norm == "pre" and checkpoint.tokenizer.source_suffix == ()
    shared = [GRID[name].get(side, False) for side in ("share_embeddings", "share_decoder_embeddings")]
    assert [checkpoint.config.share_embeddings, checkpoint.config.tie_projection] == shared
    assert checkpoint.config.copy_heads == ({"copies": ((1, 0),), "copies_untied": ((0, 0),)}.get(name, ()))
    sources = random_sources(range(4, 56), [])
    ids, lengths = padded(sources, PAD)
    targets = torch.randint(4, 56, (24, 9), generator=torch.Generator().manual_seed(2))
    expected_memory, expected = model.logits(ids[:24], lengths[:24], targets)
    with torch.inference_mode():
        memory = checkpoint.model.encode(ids[:24], lengths[:24])
        logits = checkpoint.model.decode(targets, memory, lengths[:24], source_ids=ids[:24])
    valid = torch.arange(ids.shape[1])[None] < lengths[:24, None]
    assert (memory - expected_memory)[valid].abs().max() < 1e-4
    # What a copying model must never say, padding, has a probability of 0.
    assert (logits - expected)[expected.isfinite()].abs().max() < 1e-4 and logits.std() > 0.1
    assert (logits[expected.isneginf()] < -15000).all() and expected.isneginf().any() == ("copies" in name)
    made = torch.full((len(ids), 1), BOS)
    for _ in range(MADE):
        made = torch.cat([made, model.logits(ids, lengths, made)[1][:, -1].argmax(-1, keepdim=True)], dim=1)
    rows = until_end(made.tolist(), EOS)
    assert_varied(rows, EOS)
    assert identical(greedy(checkpoint, sources), rows) == INPUTS


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
        ({"max_relative_positions": 20}, "max_relative_positions = 20"),
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
    make(tmp_path / "onmt" / "model.pt", copy_attn=True)
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
    make(tmp_path / "onmt" / "model.pt", (tokens, tokens), share_embeddings=True, **stated)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / ("joint.spm" if named else "shared.model")).write_bytes(spm)
    checkpoint = import_here(tmp_path / "onmt", tmp_path / "checkpoint", vocabulary=tmp_path / "models")
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm)
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    for text in ("the cat sees", "le chat 漢"):
        expected = [tokens.index(p) if p in tokens else UNK for p in processor.encode(text, out_type=str)]
        assert ours.encode(text) == expected
    assert ours.decode([BOS, *ours.encode("the cat"), len(tokens) - 1, EOS, PAD]) == "the cat"
