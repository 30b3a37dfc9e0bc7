"""eole imports without eole: recorded models, damaged files, and fields that make another model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import changed_json, import_here, pieces, sentencepiece_model, write_json
from recorded_models import Recorded, assert_as_recorded, recorded
from safetensors.torch import load_file, save_file
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.runtime.errors import CheckpointError
from txport.runtime.text.tokenizer import open_tokenizer

SPECIAL = ["<blank>", "<unk>", "<s>", "</s>"]
WEIGHTS = "model.00.safetensors"


def make(directory: Path, name: str = "shared", tokens: list[str] | None = None) -> Recorded:
    """A recorded model, saved as eole does, without its tables of sinusoids."""
    theirs = recorded(f"eole_{name}")
    directory.mkdir()
    names = tokens or [*SPECIAL, *(f"w{index}" for index in range(52))]
    state = {key: tensor for key, tensor in theirs.weights.items() if not key.endswith("pe.pe")}
    for key in ("src_emb.embeddings.weight", "tgt_emb.embeddings.weight", "generator.weight"):
        state[key] = state[key][: len(names)].clone()
    state["generator.bias"] = state["generator.bias"][: len(names)].clone()
    save_file(state, directory / WEIGHTS)
    write_json(directory / "config.json", theirs.config)
    write_json(directory / "vocab.json", {"src": names, "tgt": names, "decoder_start_token": "<s>"})
    return theirs


def refusal(directory: Path) -> str:
    """The sentence that refuses a directory."""
    with pytest.raises(CheckpointError) as caught:
        import_model(str(directory), None, ImportOptions(tokenizer=False))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["shared", "rotary_halves"])
def test_same_numbers_and_ids_as_eole(name: str, tmp_path: Path) -> None:
    theirs = make(tmp_path / "eole", name)
    checkpoint = import_here(tmp_path / "eole", tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.config.norm == "pre" and checkpoint.tokenizer.source_suffix == ()
    assert checkpoint.config.tie_projection == (name == "shared")
    assert_as_recorded(checkpoint, theirs, within=1e-4)


def test_pieces_of_sentencepiece_are_the_texts(tmp_path: Path) -> None:
    model = sentencepiece_model()
    make(tmp_path / "eole", tokens=[*SPECIAL, *pieces(model)[:52]])
    (tmp_path / "eole" / "shared.model").write_bytes(model)
    checkpoint = import_here(tmp_path / "eole", tmp_path / "checkpoint")
    tokenizer = open_tokenizer(tmp_path / "checkpoint", checkpoint.tokenizer, checkpoint.config.vocabularies)
    ids = tokenizer.encode("the cat sees")
    assert ids and checkpoint.config.eos_id not in ids and tokenizer.decode(ids) == "the cat sees"


@pytest.mark.parametrize("step", ["bpe", "onmt_tokenize"])
def test_other_tokenizers_are_named(step: str, tmp_path: Path) -> None:
    make(tmp_path / "eole")
    changed_json(tmp_path / "eole" / "config.json", transforms=["filtertoolong", step])
    with pytest.raises(CheckpointError, match=f"texts are split by {step}, which is not supported"):
        import_here(tmp_path / "eole", tmp_path / "checkpoint")
    assert import_here(tmp_path / "eole", tmp_path / "checkpoint", tokenizer=False).tokenizer.kind == "none"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "transformer_lm"}, "a language model without an encoder"),
        ({"architecture": "whisper"}, "a Whisper model"),
        ({"architecture": "rnn"}, "a recurrent model"),
        ({"architecture": "mamba"}, "architecture = 'mamba' is not supported"),
        ({"architecture": "custom", "encoder": {"encoder_type": "cnn"}}, "encoder_type = 'cnn'"),
        ({"architecture": "custom", "decoder": None}, "has no decoder"),
        ({"parallel_residual": True}, "parallel_residual = True"),
        ({"encoder": {"ffn_layernorm": True}}, "ffn_layernorm = True"),
        ({"encoder": {"encoder_layer_style": "postnorm"}}, "encoder_layer_style = 'postnorm'"),
        ({"num_experts": 4}, "num_experts = 4"),
        ({"heads_kv": 2}, "heads_kv = 2"),
        ({"decoder": {"layer_norm": "x"}}, "layer_norm = 'x' is not supported"),
        ({"decoder": {"layer_norm": "rms"}}, "layer_norm is 'standard' in the encoder and 'rms' in the decoder"),
        ({"sliding_window": 8}, "sliding_window = 8"),
        ({"decoder": {"query_norm": True}}, "query_norm = True"),
        ({"embeddings": {"position_encoding_type": "Alibi"}}, "position_encoding_type = Alibi"),
        ({"embeddings": {"position_encoding_type": "Relative", "n_positions": 8}}, "relative_positions_embeddings"),
        ({"embeddings": {"position_encoding_type": "Learned"}}, "n_positions"),
        ({"embeddings": {"embedding_type": "roberta"}}, "embedding_type = 'roberta'"),
        ({"layer_types": ["linear_attention"]}, "layer_types"),
        ({"encoder": {"soft_cap": 3.0}}, "soft_cap is a field of a version of eole that is not supported"),
        ({"mlp_activation_fn": "fused-gated-silu"}, "mlp_activation_fn = 'fused-gated-silu'"),
        ({"heads": "8"}, "heads must be int"),
        ({"layers": 10**6}, "encoder_layers = 1000000 must be at least 1 and at most 1024"),
        ({"layers": 1000}, "lacks encoder.transformer_layers.2"),
        ({"norm_eps": "small"}, "norm_eps|layer_norm_epsilon|not supported between"),
        ({"encoder": []}, "encoder must be dict"),
        ({"attn_scaling": -1}, "attn_scaling must be a number greater than 0"),
        ({"transformer_ff": 24}, "has shape"),
        ({"add_ffnbias": True}, "lacks encoder.transformer_layers.0.mlp.gate_up_proj.bias"),
        ({"layer_norm": "rms"}, "will not leave out|layer_norm.bias"),
    ],
)
def test_fields_that_make_another_model(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    make(tmp_path / "eole")
    file = tmp_path / "eole" / "config.json"
    model = json.loads(file.read_bytes())["model"]
    for name, value in changes.items():
        nested = isinstance(value, dict) and name in ("encoder", "decoder", "embeddings")
        model[name] = {**model[name], **value} if nested else value
        for side in ("encoder", "decoder"):
            if not nested and isinstance(model.get(side), dict):
                model[side].pop(name, None)
    changed_json(file, model=model)
    with pytest.raises(CheckpointError, match=words) as caught:
        import_model(str(tmp_path / "eole"), None, ImportOptions(tokenizer=False))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"src": None}, "lacks src"),
        ({"src": 5}, "src must be list"),
        ({"tgt": [*SPECIAL, 7]}, "tgt has a token that is not text: 7"),
        ({"tgt": [*SPECIAL, "a", "a"]}, "tgt has a token twice"),
        ({"tgt": SPECIAL[::-1]}, "must have the same id in src and tgt"),
        ({"src": SPECIAL, "tgt": SPECIAL}, "56 rows, but vocab.json has 4 tokens"),
        ({"decoder_start_token": "<x>"}, "'<x>' is not in tgt"),
        ({"specials": {"eos_token": ["</s>"]}}, "eos_token must be str"),
        ({"specials": 1}, "specials must be dict"),
    ],
)
def test_vocabularies_that_do_not_fit(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    make(tmp_path / "eole")
    changed_json(tmp_path / "eole" / "vocab.json", **fields)
    assert words in refusal(tmp_path / "eole")


def test_files_that_are_missing_or_damaged(tmp_path: Path) -> None:
    make(tmp_path / "eole")
    directory = tmp_path / "eole"
    weights = (directory / WEIGHTS).read_bytes()
    for size in (0, 7, 8, 100, len(weights) - 1):
        (directory / WEIGHTS).write_bytes(weights[:size])
        assert WEIGHTS in refusal(directory)
    (directory / WEIGHTS).rename(directory / "model.01.safetensors")
    assert "lacks model.00.safetensors" in refusal(directory)
    (directory / WEIGHTS).write_bytes(weights)
    (directory / "model.01.safetensors").write_bytes(weights)
    assert "another part of the weights also contains" in refusal(directory)
    (directory / "model.01.safetensors").unlink()
    for name in ("vocab.json", "config.json"):
        text = (directory / name).read_bytes()
        (directory / name).write_bytes(text[:-5])
        assert f"{name} is not JSON" in refusal(directory)
        (directory / name).unlink()
        assert f"{name} is missing" in refusal(directory)
        (directory / name).write_bytes(text)
    import_model(str(directory), None, ImportOptions(tokenizer=False))


def test_quantised_weights_and_other_tensors_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "eole")
    file = tmp_path / "eole" / WEIGHTS
    state = load_file(file)
    save_file({**state, "encoder.layer_norm.qweight": torch.ones(2)}, file)
    assert "quantised weights" in refusal(tmp_path / "eole")
    save_file({**state, "estimator.weight": torch.ones(2)}, file)
    assert "estimator.weight" in refusal(tmp_path / "eole")
    save_file({**state, "generator.weight": state["generator.weight"] + 1}, file)
    assert "differ, but config.json has share_decoder_embeddings = true" in refusal(tmp_path / "eole")
    save_file(state, file)
    changed_json(
        tmp_path / "eole" / "config.json", training={"quant_type": "bnb_NF4", "quant_layers": ["linear_query"]}
    )
    assert "quant_type = 'bnb_NF4'" in refusal(tmp_path / "eole")
