"""Feature vectors as encoder input: the projection in place of the source embedding, and models without an encoder."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from txport.models.attention_maps import attention_maps
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.config import Config, preset
from txport.models.transformer import Transformer
from txport.runtime.errors import InputError

MakeModel = Callable[..., Transformer]
SIZE = 10  # of a vector
LENGTHS = torch.tensor([7, 3, 1])


def vectors(lengths: Tensor = LENGTHS, size: int = SIZE, seed: int = 0) -> Tensor:
    """Random vectors, whose padding is not zero."""
    return torch.randn(len(lengths), int(lengths.max()), size, generator=torch.Generator().manual_seed(seed))


def features(make_model: MakeModel, **options: Any) -> Transformer:
    return make_model(**{"source": "features", "feature_size": SIZE, **options})


@torch.no_grad()
def torch_encoder(model: Transformer) -> nn.TransformerEncoder:
    """PyTorch's own encoder with the weights of `model`."""
    config = model.config
    layer = nn.TransformerEncoderLayer(
        config.d_model, config.heads, config.ffn, batch_first=True, norm_first=config.norm == "pre", activation=F.relu
    )
    norm = nn.LayerNorm(config.d_model) if config.norm != "post" else None
    encoder = nn.TransformerEncoder(layer, config.encoder_layers, norm, enable_nested_tensor=False).eval()
    for ours, theirs in zip(model.encoder, encoder.layers, strict=True):
        attention = ours.attention
        parts = attention.query, attention.key, attention.value
        theirs.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.self_attn.out_proj.load_state_dict(attention.output.state_dict())
        theirs.norm1.load_state_dict(ours.attention_residual.norm.state_dict())
        theirs.norm2.load_state_dict(ours.feed_forward_residual.norm.state_dict())
        theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
    if norm is not None:
        norm.load_state_dict(model.encoder_norm.state_dict())
    return encoder


@pytest.mark.parametrize(
    "options",
    [{"norm": "post"}, {"norm": "pre"}, {"norm": "pre", "positions": "learned"}, {"embedding_norm": True}],
    ids=["post", "pre", "learned", "embedding_norm"],
)
def test_encoder_equals_pytorch_on_projected_vectors(make_model: MakeModel, options: dict[str, Any]) -> None:
    model = features(make_model, **options)
    layer: Any = model.source_embedding
    x = vectors()
    projected = x @ layer.projection.weight.T + layer.projection.bias
    if model.config.positions == "learned":
        projected = projected + layer.positions[: x.shape[1]]
    else:
        for position in range(x.shape[1]):
            for i in range(0, model.config.d_model, 2):  # Vaswani et al. (2017), section 3.5
                angle = position / 10000 ** (i / model.config.d_model)
                projected[:, position, i] += math.sin(angle)
                projected[:, position, i + 1] += math.cos(angle)
    if model.config.embedding_norm:
        norm = layer.norm
        projected = F.layer_norm(projected, (model.config.d_model,), norm.weight, norm.bias)
    padding = torch.arange(x.shape[1])[None] >= LENGTHS[:, None]
    with torch.no_grad():
        expected = torch_encoder(model)(projected, src_key_padding_mask=padding)
        ours = model.encode(x, LENGTHS)
    assert (ours - expected)[~padding].abs().max() < 1e-5


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative", "rotary"])
@torch.no_grad()
def test_padding_does_not_change_logits(make_model: MakeModel, positions: str) -> None:
    model = features(make_model, positions=positions)
    targets = torch.randint(4, 40, (3, 5), generator=torch.Generator().manual_seed(1))
    x = vectors()
    together = model(x, LENGTHS, targets)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(x[row : row + 1, :length], LENGTHS[row : row + 1], targets[row : row + 1])
        assert torch.allclose(alone[0], together[row], atol=1e-5)


@pytest.mark.parametrize("size", [SIZE, 32], ids=["other_width", "width_of_the_model"])
@torch.no_grad()
def test_without_encoder_layers_vectors_are_the_states(make_model: MakeModel, size: int) -> None:
    model = features(make_model, encoder_layers=0, feature_size=size, norm="pre")
    x = vectors(size=size)
    assert model.encode(x, LENGTHS) is x
    (key, value), *_ = model.cross_key_values(x)
    attention: Any = model.decoder[0].cross_attention
    heads, width = model.config.decoder.heads, model.config.decoder.head_dim
    for ours, linear in ((key, attention.key), (value, attention.value)):
        expected = (x @ linear.weight.T + linear.bias).view(3, -1, heads, width).transpose(1, 2)
        assert torch.allclose(ours, expected, atol=1e-6)
    assert not [name for name, _ in model.named_parameters() if name.startswith(("source", "encoder"))]


@torch.no_grad()
def test_steps_equal_teacher_forcing_on_states(make_model: MakeModel) -> None:
    model = features(make_model, encoder_layers=0)
    x = vectors()
    targets = torch.randint(4, 40, (3, 6), generator=torch.Generator().manual_seed(2))
    whole = model(x, LENGTHS, targets)
    cross = model.cross_key_values(model.encode(x, LENGTHS))
    caches = model.new_caches(3, 6)
    for position in range(6):
        logits = model.decode_step(targets[:, position], torch.full((3,), position), cross, LENGTHS, caches)
        assert torch.allclose(logits, whole[:, position], atol=1e-5)


@torch.no_grad()
def test_attention_maps_of_a_model_without_encoder(make_model: MakeModel) -> None:
    model = features(make_model, encoder_layers=0)
    targets = torch.randint(4, 40, (3, 4), generator=torch.Generator().manual_seed(3))
    maps = attention_maps(model, vectors(), LENGTHS, targets, torch.tensor([4, 2, 3]))
    assert maps.encoder.shape == (0, 3, 4, 7, 7)
    assert torch.allclose(maps.cross[:, 0, :, :4].sum(-1), torch.ones(2, 4, 4))
    assert maps.cross[:, 1, :, :2, 3:].abs().max() == 0  # padding of the source


def test_a_checkpoint_keeps_a_model_of_features(make_model: MakeModel, tmp_path: Any) -> None:
    model = features(make_model, max_source_positions=100, positions="learned", frame_rate=50.0)
    save_checkpoint(tmp_path / "model", model, None, [], {})
    loaded = load_checkpoint(tmp_path / "model")
    assert loaded.config == model.config
    x = vectors(torch.tensor([90]))  # beyond max_positions, which is 24
    assert torch.equal(loaded.model.encode(x, torch.tensor([90])), model.encode(x, torch.tensor([90])))


def test_a_checkpoint_of_ids_has_no_fields_of_features() -> None:
    fields = preset("tiny").to_json()
    assert not {"source", "feature_size", "frame_rate", "max_source_positions"} & fields.keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "features"}, "feature_size = None must be set for source = 'features'"),
        ({"feature_size": 8}, "feature_size = 8 needs source = 'features'"),
        ({"source": "features", "feature_size": 0}, "feature_size = 0 must be at least 1"),
        ({"encoder_layers": 0}, "encoder_layers = 0 must be at least 1"),
        ({"frame_rate": 50.0}, "frame_rate = 50.0 needs source = 'features'"),
        (
            {"source": "features", "feature_size": 8, "external_encoder": "a"},
            "external_encoder = 'a' needs source = 'features' and encoder_layers = 0",
        ),
        (
            {"source": "features", "feature_size": 8, "encoder_layers": 0, "external_encoder": " "},
            "external_encoder = ' ' must not be empty",
        ),
        ({"source": "features", "feature_size": 8, "frame_rate": 0.0}, "frame_rate = 0.0 must be greater than 0"),
        ({"source": "features", "feature_size": 8, "copy_heads": ((0, 0),)}, "copy_heads = [[0, 0]] needs source = "),
        ({"source": "vectors"}, "source = 'vectors' must be one of ids, features"),
    ],
)
def test_impossible_configs_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Config(**options)
    assert message in str(error.value)
