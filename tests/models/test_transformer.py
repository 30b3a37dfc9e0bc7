"""The reference Transformer against independent oracles: torch.nn.Transformer, the paper, and itself uncached."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from txport.models.attention_maps import attention_maps
from txport.models.config import Config, preset
from txport.models.positions import sinusoids
from txport.models.transformer import SHORT, Attention, Transformer, valid_mask

MakeModel = Callable[..., Transformer]
TOLERANCE = {"atol": 1e-5, "rtol": 0.0}


def random_ids(seed: int, lengths: list[int], vocabulary: int = 40) -> Tensor:
    """int64 `[b, max(lengths)]`, padded with 0; ids from 3 up."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (len(lengths), max(lengths)), generator=generator)
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
    return ids


# --- against torch.nn.Transformer -----------------------------------------------------------------------------------


def copy_attention(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_layer(ours: nn.Module, theirs: nn.Module, residuals: list[str]) -> None:
    for number, residual in enumerate(residuals, 1):
        getattr(theirs, f"norm{number}").load_state_dict(getattr(ours, residual).norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())


@torch.no_grad()
def torch_transformer(model: Transformer) -> nn.Transformer:
    """`torch.nn.Transformer` with the weights of `model`.

    Ours has no final LayerNorm for "post" (as in the paper) and "pre_no_final"; torch adds one unless it is given
    the two stacks.
    """
    config = model.config
    sizes = (config.d_model, config.heads, config.ffn)
    options: dict[str, Any] = {"activation": getattr(F, config.activation), "norm_first": config.norm.startswith("pre")}
    options |= {"batch_first": True, "layer_norm_eps": config.layer_norm_epsilon}
    ends = config.norm in ("pre", "post_final")
    norms = [nn.LayerNorm(config.d_model) if ends else None for _ in range(2)]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(*sizes, **options), config.encoder_layers, norms[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **options), config.decoder_layers, norms[1])
    theirs = nn.Transformer(*sizes[:2], custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    for ours_layer, layer in zip(model.encoder, encoder.layers, strict=True):
        copy_attention(ours_layer.attention, layer.self_attn)
        copy_layer(ours_layer, layer, ["attention_residual", "feed_forward_residual"])
    for ours_layer, layer in zip(model.decoder, decoder.layers, strict=True):
        copy_attention(ours_layer.self_attention, layer.self_attn)
        copy_attention(ours_layer.cross_attention, layer.multihead_attn)
        residuals = ["self_attention_residual", "cross_attention_residual", "feed_forward_residual"]
        copy_layer(ours_layer, layer, residuals)
    if ends:
        encoder.norm.load_state_dict(model.encoder_norm.state_dict())
        decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    return theirs.eval()


def torch_logits(
    model: Transformer, source: Tensor, source_lengths: list[int], target: Tensor, theirs: nn.Transformer | None = None
) -> Tensor:
    """Logits by `torch.nn.Transformer`, made here unless it is given; inputs by the paper (sections 3.4 and 3.5)."""
    scale = math.sqrt(model.config.d_model)

    def embed(weight: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, weight) * scale + paper_positions(ids.shape[1], model.config.d_model)

    padding = torch.tensor([[i >= length for i in range(source.shape[1])] for length in source_lengths])
    future = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), 1)
    states = (theirs or torch_transformer(model))(
        embed(model.source_embedding.tokens.weight, source),
        embed(model.target_embedding.tokens.weight, target),
        tgt_mask=future,
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    return F.linear(states, model.projection.weight, model.projection.bias)


@pytest.mark.parametrize("norm", ["post", "pre", "post_final", "pre_no_final"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("shared", [True, False])
@torch.no_grad()
def test_logits_equal_torch_nn_transformer(make_model: MakeModel, norm: str, activation: str, shared: bool) -> None:
    options = {"share_embeddings": shared, "tie_projection": shared, "projection_bias": not shared}
    model = make_model(norm=norm, activation=activation, encoder_layers=3, **options)
    source_lengths, target_lengths = [7, 1, 12, 4], [5, 9, 1, 3]
    source, target = random_ids(1, source_lengths), random_ids(2, target_lengths)
    ours = model(source, torch.tensor(source_lengths), target)
    theirs = torch_logits(model, source, source_lengths, target)
    for row, length in enumerate(target_lengths):
        torch.testing.assert_close(ours[row, :length], theirs[row, :length], **TOLERANCE)
    assert ours.std() > 0.1, "logits too flat for the comparison to mean anything"


def recorded(theirs: nn.Transformer) -> dict[str, list[Tensor]]:
    """The weights `[b, h, t, s]` of every `nn.MultiheadAttention`, by its name in a layer, as they are computed."""
    weights: dict[str, list[Tensor]] = {}

    def watch(name: str, attention: nn.MultiheadAttention) -> None:
        original = attention.forward

        def forward(*inputs: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
            output, found = original(*inputs, **options | {"need_weights": True, "average_attn_weights": False})
            assert found is not None
            weights.setdefault(name, []).append(found)
            return output, found

        attention.forward = forward  # type: ignore[method-assign]

    for path, module in theirs.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            watch(path.split(".")[0] + "." + path.split(".")[-1], module)
    return weights


@pytest.mark.parametrize("norm", ["post", "pre", "post_final", "pre_no_final"])
def test_attention_maps_equal_torch_nn_multihead_attention(make_model: MakeModel, norm: str) -> None:
    model = make_model(norm=norm, encoder_layers=3)
    source_lengths, target_lengths = [7, 1, 12, 4], [5, 9, 1, 3]
    source, target = random_ids(1, source_lengths), random_ids(2, target_lengths)
    maps = attention_maps(model, source, torch.tensor(source_lengths), target, torch.tensor(target_lengths))
    theirs = torch_transformer(model)
    weights = recorded(theirs)  # with gradients: without them nn.TransformerEncoderLayer would not call its attention
    inputs = F.pad(target[:, :-1], (1, 0), value=model.config.bos_id)
    logits = torch_logits(model, source, source_lengths, inputs, theirs)
    expected = [weights[name] for name in ("encoder.self_attn", "decoder.self_attn", "decoder.multihead_attn")]
    log_probabilities = logits.log_softmax(-1).gather(2, target[..., None])[..., 0]
    assert maps.log_probabilities.max() <= 0 and maps.cross.std() > 0.05
    for row, (s, t) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        for ours, layers, (queries, keys) in zip(
            (maps.encoder, maps.decoder, maps.cross), expected, ((s, s), (t, t), (t, s)), strict=True
        ):
            assert len(ours) == len(layers)
            for layer, found in enumerate(layers):
                part = ours[layer, row]
                torch.testing.assert_close(part[:, :queries, :keys], found[row, :, :queries, :keys], **TOLERANCE)
                torch.testing.assert_close(part[:, :queries].sum(-1), torch.ones(part.shape[0], queries))
                assert not part[:, queries:].any() and not part[:, :, keys:].any()
        assert not maps.decoder[:, row].triu(1).any()
        torch.testing.assert_close(maps.log_probabilities[row, :t], log_probabilities[row, :t], **TOLERANCE)
        assert not maps.log_probabilities[row, t:].any()


@torch.no_grad()
def test_attention_maps_are_those_of_each_sentence_alone(make_model: MakeModel) -> None:
    model = make_model()
    source_lengths, target_lengths = [3, 9], [8, 2]
    source, target = random_ids(3, source_lengths), random_ids(4, target_lengths)
    maps = attention_maps(model, source, torch.tensor(source_lengths), target, torch.tensor(target_lengths))
    for row, (s, t) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        lengths = torch.tensor([s]), torch.tensor([t])
        alone = attention_maps(model, source[row : row + 1, :s], lengths[0], target[row : row + 1, :t], lengths[1])
        torch.testing.assert_close(maps.encoder[:, row, :, :s, :s], alone.encoder[:, 0], **TOLERANCE)
        torch.testing.assert_close(maps.decoder[:, row, :, :t, :t], alone.decoder[:, 0], **TOLERANCE)
        torch.testing.assert_close(maps.cross[:, row, :, :t, :s], alone.cross[:, 0], **TOLERANCE)


@pytest.mark.parametrize("name", ["post", "pre"])
@torch.no_grad()
def test_attention_without_biases_equals_torch(make_model: MakeModel, name: str) -> None:
    attention = make_model(attention_bias=False, norm=name).decoder[0].cross_attention
    assert [key for key, _ in attention.named_parameters() if "bias" in key] == []
    theirs = nn.MultiheadAttention(32, 4, bias=False, batch_first=True)
    theirs.in_proj_weight.copy_(torch.cat([getattr(attention, part).weight for part in ("query", "key", "value")]))
    theirs.out_proj.weight.copy_(attention.output.weight)
    x, memory = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    expected = theirs(x, memory, memory, need_weights=False)[0]
    torch.testing.assert_close(attention(x, attention.key_value(memory)), expected, **TOLERANCE)


@torch.no_grad()
def test_the_same_mlp_is_at_every_position(make_model: MakeModel) -> None:
    """Positions that hold the same get the same, and each gets what it would get alone."""
    network = make_model().encoder[0].feed_forward
    x = torch.randn(3, 9, 32)
    x[:, 4] = x[:, 7]
    together = network(x)
    assert torch.equal(together[:, 4], together[:, 7])
    order = torch.randperm(9)
    torch.testing.assert_close(network(x[:, order]), together[:, order], **TOLERANCE)
    for position in range(9):
        torch.testing.assert_close(network(x[1, position]), together[1, position], **TOLERANCE)


# --- positions ------------------------------------------------------------------------------------------------------


def paper_positions(length: int, d_model: int) -> Tensor:
    """Section 3.5, letter by letter: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) the cosine."""
    table = torch.zeros(length, d_model)
    for position in range(length):
        for i in range(d_model // 2):
            angle = position / 10000 ** (2 * i / d_model)
            table[position, 2 * i], table[position, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


@pytest.mark.parametrize("d_model", [2, 16, 30])
def test_sinusoids_are_the_papers(d_model: int) -> None:
    torch.testing.assert_close(sinusoids(300, d_model), paper_positions(300, d_model), atol=1e-6, rtol=0.0)


def test_sinusoids_are_no_parameter_and_learned_positions_are(make_model: MakeModel) -> None:
    names = {kind: set(make_model(positions=kind).state_dict()) for kind in ("sinusoidal", "learned")}
    assert names["learned"] - names["sinusoidal"] == {"source_embedding.positions", "target_embedding.positions"}


# --- cached step against uncached decode ----------------------------------------------------------------------------

OPTIONS = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["post", "pre", "post_final", "pre_no_final"]),
        "positions": st.sampled_from(["sinusoidal", "learned"]),
        "activation": st.sampled_from(["relu", "gelu", "silu"]),
        "share_embeddings": st.booleans(),
        "tie_projection": st.booleans(),
        "projection_bias": st.booleans(),
        "scale_embedding": st.booleans(),
        "embedding_norm": st.booleans(),
        "attention_bias": st.booleans(),
        "decoder_layers": st.integers(1, 2),
        "encoder_layers": st.just(1),
    }
)
LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(options=OPTIONS, lengths=LENGTHS, seed=st.integers(0, 2**16), spare=st.integers(0, 5), data=st.data())
@torch.no_grad()
def test_cached_step_equals_uncached_decode(
    make_model: MakeModel, options: dict[str, Any], lengths: list[tuple[int, int]], seed: int, spare: int, data: Any
) -> None:
    """Rows advance each at its own pace: in every step a random set of them goes on, the others repeat a token."""
    model = make_model(seed, **options)
    source_lengths, target_lengths = [s for s, _ in lengths], [t for _, t in lengths]
    source, target = random_ids(seed, source_lengths), random_ids(seed + 1, target_lengths)
    source_sizes, rows = torch.tensor(source_lengths), torch.arange(len(lengths))
    memory = model.encode(source, source_sizes)
    expected = model.decode(target, memory, source_sizes)
    cross = model.cross_key_values(memory)
    caches = model.new_caches(len(lengths), max(target_lengths) + spare)
    positions, last = torch.zeros(len(lengths), dtype=torch.long), torch.tensor(target_lengths) - 1
    while True:
        logits = model.decode_step(target[rows, positions], positions, cross, source_sizes, caches)
        torch.testing.assert_close(logits, expected[rows, positions], **TOLERANCE)
        if bool((positions == last).all()):
            break
        advance = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
        advance[int(torch.argmax(last - positions))] = True
        positions = torch.minimum(positions + advance, last)


@torch.no_grad()
def test_a_refilled_row_does_not_see_the_sentence_before(make_model: MakeModel) -> None:
    """A row starts again at position 0 over a cache that still holds the old sentence, while its neighbour goes on."""
    model = make_model(norm="pre")
    source, lengths = random_ids(3, [6, 4]), torch.tensor([6, 4])
    old, long, new = random_ids(4, [5])[0], random_ids(5, [9])[0], random_ids(6, [4])[0]
    memory = model.encode(source, lengths)
    cross, caches = model.cross_key_values(memory), model.new_caches(2, 10)
    for position in range(5):
        step = torch.tensor([position, position])
        model.decode_step(torch.stack([old[position], long[position]]), step, cross, lengths, caches)
    expected = model.decode(new[None], memory[:1], lengths[:1])[0]
    neighbour = model.decode(long[None], memory[1:], lengths[1:])[0]
    for position in range(4):
        tokens = torch.stack([new[position], long[position + 5]])
        logits = model.decode_step(tokens, torch.tensor([position, position + 5]), cross, lengths, caches)
        torch.testing.assert_close(logits[0], expected[position], **TOLERANCE)
        torch.testing.assert_close(logits[1], neighbour[position + 5], **TOLERANCE)


@torch.no_grad()
def test_shapes_of_the_caches_and_cross_keys(make_model: MakeModel) -> None:
    model = make_model(decoder_layers=3)
    caches = model.new_caches(5, 11)
    assert [tuple(t.shape) for pair in caches for t in pair] == [(5, 4, 11, 8)] * 6
    assert not any(bool(t.any()) for pair in caches for t in pair)
    cross = model.cross_key_values(torch.zeros(5, 7, 32))
    assert [tuple(t.shape) for pair in cross for t in pair] == [(5, 4, 7, 8)] * 6


# --- what a position may and may not see ----------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_no_position_sees_a_later_target_token(make_model: MakeModel, norm: str) -> None:
    model = make_model(norm=norm)
    source, lengths = random_ids(1, [6, 6]), torch.tensor([6, 6])
    target = random_ids(2, [8, 8])
    logits = model(source, lengths, target)
    for changed in range(8):
        other = target.clone()
        other[:, changed] = (other[:, changed] + 5) % 40
        difference = (model(source, lengths, other) - logits).abs().amax(dim=(0, 2))
        assert (difference[:changed] <= 1e-6).all(), "an earlier position saw the change"
        assert (difference[changed:] > 1e-4).all(), "a position that should see the change did not"


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_padding_changes_nothing(make_model: MakeModel, norm: str) -> None:
    """A sentence alone equals the same sentence in a ragged batch, whatever ids stand in its padding."""
    model = make_model(norm=norm)
    lengths = [3, 9, 1, 6]
    source, target = random_ids(1, lengths), random_ids(2, [7] * 4)
    junk = torch.where(source == 0, 17, source)
    batch = model(source, torch.tensor(lengths), target)
    torch.testing.assert_close(model(junk, torch.tensor(lengths), target), batch, **TOLERANCE)
    for row, length in enumerate(lengths):
        alone = model(source[row : row + 1, :length], torch.tensor([length]), target[row : row + 1])
        torch.testing.assert_close(alone, batch[row : row + 1], **TOLERANCE)


# --- parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_sharing_and_tying_are_one_parameter(make_model: MakeModel, shared: bool, tied: bool) -> None:
    model = make_model(share_embeddings=shared, tie_projection=tied)
    source, target = model.source_embedding.tokens.weight, model.target_embedding.tokens.weight
    assert (source is target) == shared
    assert (model.projection.weight is target) == tied
    stored = {source.data_ptr(), target.data_ptr(), model.projection.weight.data_ptr()}
    assert len(stored) == 3 - shared - tied


def test_initialisation_is_xavier_for_matrices_and_small_for_embeddings() -> None:
    config = Config(source_vocabulary=4000, target_vocabulary=4000, d_model=64, heads=4, ffn=256, tie_projection=True)
    torch.manual_seed(0)
    model = Transformer(config)
    weight = model.encoder[0].feed_forward.inner.weight.detach()
    bound = math.sqrt(6 / (64 + 256))
    assert 0.98 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert model.source_embedding.tokens.weight.std().item() == pytest.approx(64**-0.5, rel=0.02)
    assert not model.decoder[0].cross_attention.value.bias.any()


@pytest.mark.parametrize(("name", "sizes"), [("annotated", (512, 8, 2048, 6, 6)), ("d2l", (32, 4, 64, 2, 2))])
def test_the_sources_presets_have_their_shapes_and_initialisation(name: str, sizes: tuple[int, ...]) -> None:
    """What their printed programs give: PyTorch's own layers are made and initialised as these say, as an oracle."""
    torch.manual_seed(1)
    config = preset(name, source_vocabulary=900, target_vocabulary=800)
    assert (config.d_model, config.heads, config.ffn, config.encoder_layers, config.decoder_layers) == sizes
    small = dataclasses.replace(config, encoder_layers=1, decoder_layers=1)
    model, linear = Transformer(small), nn.Linear(config.d_model, config.ffn)
    nn.init.xavier_uniform_(linear.weight)
    inner, projection = model.decoder[0].feed_forward.inner, model.projection
    assert inner.weight.std().item() == pytest.approx(linear.weight.std().item(), rel=0.05)
    assert inner.bias.abs().max().item() == pytest.approx(linear.bias.abs().max().item(), rel=0.1)
    assert projection.bias.std().item() == pytest.approx((3 * config.d_model) ** -0.5, rel=0.1)
    embeddings = {"annotated": math.sqrt(2 / (900 + config.d_model)), "d2l": 1.0}
    assert model.source_embedding.tokens.weight.std().item() == pytest.approx(embeddings[name], rel=0.03)
    assert len({id(e) for e in (model.source_embedding.tokens, model.target_embedding.tokens, projection)}) == 3
    attention = [name for name, _ in model.encoder[0].attention.named_parameters() if name.endswith("bias")]
    assert len(attention) == (4 if name == "annotated" else 0)
    assert isinstance(model.encoder_norm, nn.LayerNorm) == (name == "annotated")
    assert model.encoder[0].feed_forward.dropout.p == (0.1 if name == "annotated" else 0.0)
    assert model.encoder[0].attention.dropout == 0.1


def test_dropout_only_in_training(make_model: MakeModel) -> None:
    model = make_model(dropout=0.5)
    source, lengths, target = random_ids(1, [6]), torch.tensor([6]), random_ids(2, [5])
    quiet = model(source, lengths, target)
    assert torch.equal(model(source, lengths, target), quiet)
    model.train()
    assert not torch.equal(model(source, lengths, target), quiet)


@torch.no_grad()
def test_attention_dropout_drops_weights(make_model: MakeModel) -> None:
    """The weight of a single key is 1; dropped it is 0, and kept 1 / (1 - 0.75), for each head and query by itself."""
    attention = make_model(attention_dropout=0.75).encoder[0].attention
    for layer in (attention.value, attention.output):
        layer.weight.zero_(), layer.bias.zero_()
    attention.value.bias.fill_(1.0)
    attention.output.weight.copy_(torch.eye(32))
    x = torch.randn(1, 50, 32)
    single = attention.key_value(x[:, :1])
    assert torch.equal(attention(x, single), torch.ones(1, 50, 32))
    by_head = attention.train()(x, single).view(50, 4, 8)
    assert set(by_head.flatten().tolist()) == {0.0, 4.0}
    assert bool((by_head == by_head[..., :1]).all()), "a weight is dropped as a whole"
    assert 0.1 < (by_head[..., 0] > 0).float().mean() < 0.45


def test_activation_dropout_is_inside_the_feed_forward_layers(make_model: MakeModel) -> None:
    """Unset, it is `dropout`, draw for draw."""
    source, lengths, target = random_ids(1, [6]), torch.tensor([6]), random_ids(2, [5])

    def drawn(**options: Any) -> Tensor:
        model = make_model(**options).train()
        torch.manual_seed(3)
        return model(source, lengths, target)

    unset = drawn(dropout=0.3)
    assert torch.equal(unset, drawn(dropout=0.3, activation_dropout=0.3))
    assert torch.equal(unset, drawn(dropout=0.3, attention_dropout=0.0))
    assert not torch.equal(unset, drawn(dropout=0.3, activation_dropout=0.0))
    network = make_model(dropout=0.3, activation_dropout=0.5).encoder[0].feed_forward.train()
    assert network.dropout.p == 0.5


def test_every_parameter_gets_a_gradient(make_model: MakeModel) -> None:
    model = make_model(positions="learned", embedding_norm=True, projection_bias=True, tie_projection=False)
    logits = model(random_ids(1, [6, 3]), torch.tensor([6, 3]), random_ids(2, [5, 5]))
    F.cross_entropy(logits.flatten(0, 1), random_ids(7, [10])[0]).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # Softmax ignores what is added to all scores alike: a key's bias has, up to rounding, no gradient.
    assert [name for name in without if not name.endswith("key.bias")] == []


# --- attention in training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [5, SHORT, SHORT + 1])
@pytest.mark.parametrize("kind", ["mask", "causal", "bias", "causal_bias"])
def test_attention_in_training_has_the_results_and_gradients_of_pytorchs_kernel(length: int, kind: str) -> None:
    torch.manual_seed(length)
    config = preset("tiny", source_vocabulary=40, target_vocabulary=40, dropout=0.0)
    attention = Attention(config, config.decoder)
    x = torch.randn(3, length, config.d_model, requires_grad=True)
    mask = valid_mask(torch.tensor([length, 1, length - 2]), length) if kind in ("mask", "bias") else None
    bias = torch.randn(1, config.heads, length, length, requires_grad=True) if "bias" in kind else None
    wanted = torch.randn(3, length, config.d_model)

    def gradients(training: bool) -> list[Tensor]:
        attention.train(training)
        result = attention(x, attention.key_value(x), mask, causal="causal" in kind, bias=bias)
        inputs = [x, *attention.parameters(), *([] if bias is None else [bias])]
        return [result, *torch.autograd.grad((result * wanted).sum(), inputs)]

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
