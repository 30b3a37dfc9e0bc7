"""eole imports against eole itself: logits, greedy ids and beams, for every option that our model has."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from eole_models import PAD, SPECIAL, beams, logits, predict, tokens, widened, write_model
from foreign_models import MADE, assert_varied, greedy, import_here, padded, random_sources, translators
from txport.exporter.export import ExportOptions, export_bundle

GRID: dict[str, dict[str, Any]] = {
    "defaults": {},
    "shared": {
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "add_qkvbias": True,
        "parts": 3,
        "eos_bias": 2.0,
    },
    "tied_projection": {"share_decoder_embeddings": True, "add_ffnbias": True, "eos_bias": 2.0},
    "shared_embeddings": {"share_embeddings": True, "names": (tokens(), tokens())},
    "two_vocabularies": {"names": (tokens(), [*SPECIAL, "y", *tokens(60)[4:]]), "generator_bias": False},
    "sinusoids_concatenated": {"embeddings": {"position_encoding_type": "SinusoidalConcat"}, "norm_eps": 1e-3},
    "learned": {"embeddings": {"position_encoding_type": "Learned", "n_positions": 40}, "eos_bias": 4.0},
    "learned_shifted_and_scaled": {
        "embeddings": {
            **{"position_encoding_type": "Learned", "n_positions": 40, "position_shift": 2, "normalize": True},
        },
        "layer_norm": "standardFP32",
    },
    "rotary": {
        "embeddings": {"position_encoding_type": "Rotary"},
        "rope_config": {"rotary_theta": 10000},
        "scale": 1.0,
        "layer_norm": "rms",
        "heads_kv": 4,
    },
    "rotary_halves": {
        "embeddings": {"position_encoding_type": "Rotary", "normalize": True},
        "rope_config": {"rotary_interleave": False, "rotary_dim": 8},
        "mlp_activation_fn": "gated-silu",
        "layer_norm": "gemma-rms",
        "scale": 0.8,
        "add_qkvbias": True,
    },
    "relative": {
        "embeddings": {"position_encoding_type": "Relative", "n_positions": 20},
        "relative_positions_buckets": 8,
        "attn_scaling": 1.0,
        "layer_norm": "rms",
        "mlp_activation_fn": "gated-gelu-tanh",
    },
    "gelu": {"mlp_activation_fn": "gelu", "add_ffnbias": True, "decoder": {"layers": 3, "transformer_ff": 40}},
    "gelu_tanh": {"mlp_activation_fn": "gelu-tanh", "add_qkvbias": True, "add_key_bias": False},
    "silu": {"mlp_activation_fn": "silu", "encoder": {"layers": 1, "add_qkvbias": True}, "decoder": {"heads": 2}},
    "quick_gelu": {"mlp_activation_fn": "quick_gelu", "add_ffnbias": True, "add_final_linear_bias": True},
    "gated_gelu": {"mlp_activation_fn": "gated-gelu", "add_ffnbias": True, "start": "</s>"},
    "head_dim": {"head_dim": 12, "attn_scaling": 20.0, "encoder": {"transformer_ff": 64}},
    "biases_of_one_side": {"add_qkvbias": True, "add_final_linear_bias": False, "decoder": {"add_ffnbias": True}},
}


WHOLE_GRID = bool(os.environ.get("TXPORT_WHOLE_GRID"))
# Those whose ids and beams are compared in every engine.
SEARCHED = ["shared", "rotary_halves"]


class Pair:
    """A model as eole has it, and as imported."""

    def __init__(self, directory: Path, options: dict[str, Any]) -> None:
        self.directory = directory / "theirs"
        self.model = write_model(self.directory, **options)
        source, self.target = options.get("names") or (tokens(), tokens())
        self.checkpoint = import_here(self.directory, directory / "ours", tokenizer=False)
        self.ids = random_sources(range(len(SPECIAL), 56), [])
        self.tokens = [[source[each] for each in row] for row in self.ids]

    def named(self, ids: list[int]) -> list[str]:
        return [self.target[each] for each in ids if each != self.checkpoint.config.eos_id]


@pytest.mark.parametrize("name", GRID)
def test_same_logits_and_greedy_ids_as_eole(name: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, GRID[name])
    config = pair.checkpoint.config
    made = greedy(pair.checkpoint, pair.ids)
    assert_varied(made, config.eos_id)
    ids, lengths = padded(pair.ids, config.pad_id)
    inputs, _ = padded([[config.bos_id, *row[:-1]] for row in made], config.pad_id)
    model = copy.deepcopy(pair.checkpoint.model).double()
    with torch.inference_mode():
        ours = model.decode(inputs, model.encode(ids, lengths), lengths)
    expected = logits(widened(pair.model), pair.ids, inputs, tokens().index(PAD))
    valid = torch.arange(inputs.shape[1]) < torch.tensor([len(row) for row in made])[:, None]
    valid &= (inputs != config.pad_id).cumprod(1).bool()
    assert expected.std() > 0.1, "a model that says nothing proves nothing"
    assert (ours - expected)[valid].abs().max() < 1e-4
    if "relative_positions_buckets" in GRID[name]:  # eole's own search fails on a CPU, see write_model
        assert made == [beams(pair.model, row, config.bos_id, config.eos_id, config.pad_id, 1)[0] for row in pair.ids]
        return
    first = [texts[0] for texts in predict(pair.directory, pair.tokens, beam_size=1, n_best=1)]
    assert [pair.named(row) for row in made] == first


@pytest.mark.parametrize("name", GRID if WHOLE_GRID else SEARCHED)
def test_same_ids_and_beams_as_eole_in_every_engine(name: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, GRID[name])
    config = pair.checkpoint.config
    options = ExportOptions(verify=False, max_source=20, max_target=MADE)
    export_bundle(pair.checkpoint.directory, tmp_path / "bundle", options)
    first = [texts[0] for texts in predict(pair.directory, pair.tokens, beam_size=1, n_best=1)]
    expected = [beams(pair.model, row, config.bos_id, config.eos_id, config.pad_id) for row in pair.ids]
    for engine, translator in translators(tmp_path / "bundle"):
        made = translator.translate_ids(pair.ids, max_length=MADE)
        assert [pair.named(each.ids) for each in made] == first, engine
        made = translator.translate_ids(
            pair.ids, beam=4, n_best=4, length_penalty=0.0, early_stopping=True, max_length=MADE
        )
        found = [[each.ids for each in row.hypotheses] for row in made]
        # Candidates that float32 cannot tell apart may leave a beam in one engine and stay in another.
        different = [row for row, (ours, theirs) in enumerate(zip(found, expected, strict=True)) if ours != theirs]
        assert len(different) <= 1, (engine, different)
