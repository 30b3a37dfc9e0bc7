"""Relative positions against Hugging Face's own T5, rotary ones against its RoFormer, and models that have them."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from txport.models.config import Config, preset
from txport.models.positions import RelativePositions, rotated
from txport.models.transformer import Attention, Transformer
from txport.runtime.errors import InputError

SIZES = {"source_vocabulary": 64, "target_vocabulary": 64}


def relative(causal: bool, buckets: int = 32, distance: int = 128, tables: str = "stack") -> RelativePositions:
    config = Config(
        positions="relative", position_buckets=buckets, position_distance=distance, position_tables=tables, heads=4
    )
    positions = RelativePositions(config, config.encoder, causal=causal)
    torch.nn.init.normal_(positions.weight)
    return positions


@given(causal=st.booleans(), half=st.integers(2, 40), beyond=st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_buckets_are_hugging_faces(causal: bool, half: int, beyond: int) -> None:
    """Every distance up to 4,000, for any number of buckets and any farthest distance."""
    t5 = pytest.importorskip(
        "transformers.models.t5.modeling_t5", reason="needs transformers: pip install 'txport[dev]'"
    )
    distances = torch.arange(-4000, 4001)
    expected = t5.T5Attention._relative_position_bucket(distances, not causal, 2 * half, half + beyond)
    assert torch.equal(relative(causal, 2 * half, half + beyond).buckets(distances), expected)


@pytest.mark.parametrize("tables", ["stack", "layer"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_table_has_every_bias(causal: bool, tables: str) -> None:
    positions, length = relative(causal, 8, 20, tables), 40
    table = positions.table(length).unflatten(1, (-1, 4))
    place = torch.arange(length)
    distances = place[None, None] - place[None, :, None]
    rows = -distances.clamp(max=0) if causal else distances + length - 1
    for layer, bias in enumerate(positions(distances)):
        expected = table[rows, min(layer, table.shape[1] - 1)].permute(0, 3, 1, 2)
        assert torch.equal(bias, expected)


@given(pairs=st.integers(1, 40), length=st.integers(1, 700))
@settings(max_examples=30, deadline=None)
def test_rotation_is_roformers(pairs: int, length: int) -> None:
    roformer = pytest.importorskip(
        "transformers.models.roformer.modeling_roformer", reason="needs transformers: pip install 'txport[dev]'"
    )
    table = roformer.RoFormerSinusoidalPositionalEmbedding(length, 2 * pairs).create_weight()
    queries, keys = torch.randn(2, 2, 3, length, 2 * pairs)
    expected = roformer.RoFormerSelfAttention.apply_rotary_position_embeddings(table[None, None], queries, keys)
    for x, theirs in zip((queries, keys), expected, strict=True):
        torch.testing.assert_close(rotated(x), theirs, atol=1e-5, rtol=1e-5)
        last = rotated(x[:, :, -1:], torch.full((2,), length - 1))
        torch.testing.assert_close(last, theirs[:, :, -1:], atol=1e-5, rtol=1e-5)


@given(shift=st.integers(0, 400), heads=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_rotary_scores_depend_on_distances_alone(shift: int, heads: int) -> None:
    config = Config(positions="rotary", d_model=24, heads=heads, head_dim=8)
    attention, x = Attention(config, config.encoder, rotary=True), torch.randn(1, 5, 24)

    def scores(first: int) -> torch.Tensor:
        places = torch.arange(first, first + 5)
        rows = x.transpose(0, 1)
        queries, (keys, _) = attention.queries(rows, places), attention.key_value(rows, places)
        return torch.einsum("thik,shik->hts", queries, keys)

    torch.testing.assert_close(scores(shift), scores(0), atol=1e-4, rtol=1e-4)
    unturned = torch.einsum("thik,shik->hts", attention.split_heads(attention.query(x.transpose(0, 1))),
                            attention.split_heads(attention.key(x.transpose(0, 1))))  # fmt: skip
    assert not torch.allclose(scores(0), unturned, atol=1e-3)


KINDS: dict[str, dict[str, Any]] = {
    **{tables: {"position_tables": tables} for tables in ("stack", "layer")},
    "rotary": {"positions": "rotary"},
    "shaw": {"positions": "shaw", "position_distance": 3},
}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_teacher_forcing_in_rows_of_their_own(kind: str) -> None:
    torch.manual_seed(0)
    model = Transformer(preset("t5_small", d_model=32, heads=2, decoder_heads=3, head_dim=12, ffn=40, decoder_ffn=24,
                               encoder_layers=2, decoder_layers=3, **KINDS[kind], **SIZES)).eval()  # fmt: skip
    source, lengths, target = torch.randint(4, 64, (3, 7)), torch.tensor([7, 4, 1]), torch.randint(4, 64, (3, 9))
    with torch.inference_mode():
        expected = model(source, lengths, target)
        cross, caches = model.cross_key_values(model.encode(source, lengths)), model.new_caches(3, 12)
        for step in range(9):
            positions = torch.tensor([step, max(0, step - 3), max(0, step - 5)])
            found = model.decode_step(target[range(3), positions], positions, cross, lengths, caches)
            torch.testing.assert_close(found, expected[range(3), positions], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", ["relative", "rotary", "shaw"])
def test_such_a_model_learns(positions: str) -> None:
    """Each parameter has a gradient, tables and gates too, in training with dropout, also after a search."""
    torch.manual_seed(0)
    small = {"d_model": 32, "heads": 2, "head_dim": 12, "ffn": 40, "feed_forward": "gated", "activation": "gelu_tanh"}
    model = Transformer(
        preset("t5_small", **small, **SIZES, positions=positions, encoder_layers=1, decoder_layers=1)
    ).train()
    with torch.inference_mode():
        model(torch.randint(4, 64, (2, 9)), torch.tensor([9, 5]), torch.randint(4, 64, (2, 8)))
    model(torch.randint(4, 64, (2, 9)), torch.tensor([9, 5]), torch.randint(4, 64, (2, 8))).square().sum().backward()
    assert all(bool(parameter.grad.any()) for parameter in model.parameters() if parameter.grad is not None)
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"position_buckets": 7}, "position_buckets = 7 must be even and at least 4"),
        ({"position_buckets": 2}, "position_buckets = 2 must be even and at least 4"),
        ({"position_buckets": 64, "position_distance": 32}, "position_distance = 32 must be 33 or more"),
    ],
)
def test_tables_that_no_distance_fits(fields: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Config(positions="relative", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"head_dim": 5}, {"d_model": 20, "heads": 4}, {"d_model": 24, "decoder_heads": 8}])
def test_rotary_positions_turn_pairs(fields: dict[str, int]) -> None:
    with pytest.raises(InputError, match="head_dim = [35] must be even for rotary positions"):
        Config(positions="rotary", **{"heads": 4, **fields})
