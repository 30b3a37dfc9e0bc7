"""The model's config: presets, strict JSON, and each field that can be wrong."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from txport.models.config import PRESETS, Config, preset
from txport.models.description import read_config
from txport.models.transformer import Transformer
from txport.runtime.errors import CheckpointError, InputError


def written(directory: Path, value: object) -> Config:
    """A config as `read_config` reads it from config.json."""
    (directory / "config.json").write_text(json.dumps({"format_version": 1, "config": value}))
    return read_config(directory)


NEUTRAL: list[tuple[str, Any]] = [
    *((field, None) for field in ("activation_dropout", "head_dim", "decoder_heads", "decoder_ffn")),
    *((field, None) for field in ("feature_size", "frame_rate", "max_source_positions", "external_encoder")),
    *((field, []) for field in ("alignment_heads", "copy_heads")),
]
WRONG_VALUES = [
    ("head_dim", 0),
    ("decoder_heads", 0),
    ("decoder_ffn", 2**25),
    ("position_tables", "shared"),
    ("feed_forward", "glu"),
    ("source_vocabulary", 0),
    ("target_vocabulary", -8),
    ("d_model", 0),
    ("d_model", 63),
    ("d_model", 2**40),
    ("heads", 0),
    ("heads", 5),
    ("ffn", 0),
    ("encoder_layers", 0),
    ("decoder_layers", 0),
    ("encoder_layers", 1025),
    ("decoder_layers", 1025),
    ("max_positions", (1 << 17) + 1),
    ("max_source_positions", (1 << 17) + 1),
    ("norm", "rms"),
    ("positions", "spiral"),
    ("max_positions", 0),
    ("activation", "swish"),
    ("dropout", 1.0),
    ("dropout", -0.1),
    ("dropout", math.nan),
    ("attention_dropout", 1.0),
    ("activation_dropout", -0.1),
    ("initialisation", "zeros"),
    ("layer_norm_epsilon", 0.0),
    ("layer_norm_epsilon", math.nan),
    ("layer_norm_epsilon", math.inf),
    ("share_embeddings", True),
    ("pad_id", -1),
    ("unk_id", 1000),
    ("bos_id", 48),
    ("eos_id", 56),
]

# Checkpoints from before there were these fields do not have them.
ADDED = (
    "attention_dropout", "activation_dropout", "attention_bias", "initialisation", "alignment_heads", "copy_heads",
    "norm_kind", "head_dim", "decoder_heads", "decoder_ffn", "position_buckets", "position_distance", "position_tables",
    "feed_forward", "feed_forward_bias", "source", "feature_size", "frame_rate", "max_source_positions",
    "external_encoder",
)  # fmt: skip


def small(**fields: Any) -> Config:
    return preset("tiny", **{"source_vocabulary": 56, "target_vocabulary": 48, "share_embeddings": False, **fields})


@pytest.mark.parametrize(("field", "value"), WRONG_VALUES)
def test_a_wrong_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        small(**{field: value})


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(tmp_path: Path, name: str) -> None:
    config = preset(name, dropout=0.25)
    assert written(tmp_path, config.to_json()) == config


def test_every_field_survives_json(tmp_path: Path) -> None:
    config = Config(
        source_vocabulary=64,
        target_vocabulary=64,
        d_model=48,
        heads=3,
        head_dim=24,
        ffn=96,
        decoder_heads=4,
        decoder_ffn=40,
        encoder_layers=1,
        decoder_layers=4,
        norm="pre",
        norm_kind="power",
        positions="learned",
        max_positions=99,
        position_buckets=16,
        position_distance=50,
        position_tables="layer",
        activation="silu",
        feed_forward="gated",
        feed_forward_bias=False,
        share_embeddings=False,
        tie_projection=False,
        projection_bias=True,
        scale_embedding=False,
        embedding_norm=True,
        dropout=0.0,
        attention_dropout=0.2,
        activation_dropout=0.3,
        attention_bias=False,
        initialisation="d2l",
        alignment_heads=((3, 2), (0, 1)),
        source="features",
        feature_size=80,
        frame_rate=62.5,
        max_source_positions=77,
        layer_norm_epsilon=1e-6,
        pad_id=4,
        unk_id=5,
        bos_id=6,
        eos_id=7,
    )
    copying = dataclasses.replace(config, copy_heads=((2, 1),), source="ids", feature_size=None, frame_rate=None)
    states = dataclasses.replace(config, encoder_layers=0, external_encoder="openai/whisper-tiny")
    defaults = Config()
    for field in dataclasses.fields(Config):
        values = {getattr(each, field.name) for each in (config, copying, states)}
        assert values != {getattr(defaults, field.name)}, f"{field.name} is not exercised here"
    for each in (config, copying, states):
        assert written(tmp_path, each.to_json()) == each


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Config)])
def test_a_missing_or_mistyped_field_is_refused_by_name(tmp_path: Path, field: str) -> None:
    value = dataclasses.asdict(small(activation_dropout=0.1))
    for wrong in (None, [], {"x": 1}, "3" if not isinstance(value[field], str) else 3):
        if (field, wrong) in NEUTRAL:
            continue
        with pytest.raises(CheckpointError, match=field):
            written(tmp_path, {**value, field: wrong})
    del value[field]
    if field in ADDED:
        assert field not in Config().to_json(), "files without it stay as they were"
        assert getattr(written(tmp_path, value), field) == getattr(Config(), field)
        return
    with pytest.raises(CheckpointError, match=f"lacks the field '{field}'"):
        written(tmp_path, value)


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        ([[2, 0]], r"\[\[2, 0\]\] is outside the model's 2 decoder layers of 4 heads, counted from 0"),
        ([[0, 3], [0, 4]], r"\[\[0, 4\]\] is outside"),
        ([[-1, 0]], r"\[\[-1, 0\]\] is outside"),
        ([[1, 1], [0, 1], [1, 1]], r"\[\[1, 1\]\] is there twice"),
    ],
)
def test_heads_that_do_not_exist(tmp_path: Path, heads: list[list[int]], words: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config.json: model config: alignment_heads = {words}"):
        written(tmp_path, {**small().to_json(), "alignment_heads": heads})


def test_a_boolean_is_no_number_and_a_number_no_boolean(tmp_path: Path) -> None:
    for field, wrong in (("encoder_layers", True), ("share_embeddings", 0), ("dropout", False)):
        with pytest.raises(CheckpointError, match=field):
            written(tmp_path, {**small().to_json(), field: wrong})


@pytest.mark.parametrize(
    ("field", "value"), [(f, v) for f, v in WRONG_VALUES if isinstance(v, str) or math.isfinite(v)]
)
def test_a_wrong_value_in_json_names_the_file(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json.*{field}"):
        written(tmp_path, {**small().to_json(), field: value})


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="rotary_base"):
        written(tmp_path, {**small().to_json(), "rotary_base": 10000})


@pytest.mark.parametrize("value", [None, [], "base", 3])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match="config must be an object"):
        written(tmp_path, value)


def test_an_unknown_preset_or_field_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="deep_shallow"):
        preset("huge")
    with pytest.raises(InputError, match=r"unknown field 'layers': did you mean encoder_layers"):
        preset("base", layers=6)


@pytest.mark.parametrize(("name", "millions"), [("base", 65), ("big", 213)])
def test_presets_have_the_size_of_the_paper(name: str, millions: int) -> None:
    """Vaswani et al. (2017), Table 3: 65 and 213 million parameters with a vocabulary of about 37,000."""
    with torch.device("meta"):
        model = Transformer(preset(name, source_vocabulary=37000, target_vocabulary=37000))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.04)
