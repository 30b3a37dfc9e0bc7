"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), in plain PyTorch, for readers.

Shapes: b batch, s source tokens or vectors, t target tokens, c cache length, d d_model, f feature_size, h heads,
k head_dim, v target vocabulary. Lengths count tokens that are not padding; padding is only at the end of a row.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from txport.models.config import Config, Side
from txport.models.copying import CopyMechanism, with_copying
from txport.models.embeddings import InputLayer, source_layer, target_layer
from txport.models.initialisation import initialise
from txport.models.norms import NoNorm, new_norm
from txport.models.positions import RelativePositions, ShawPositions, rotated

KeyValue = tuple[Tensor, Tensor]  # each [b, h, s or c, k]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}

# Maximum number of keys for which plain matrix products replace PyTorch's fused attention in training on CPUs. The
# fused kernel handles each head of each row separately, which is slower for short sequences.
SHORT = 32


def valid_mask(lengths: Tensor, size: int) -> Tensor:
    """Return a mask, bool `[b, 1, 1, size]`: true for tokens, false for padding. Broadcasts over heads and queries."""
    return (torch.arange(size, device=lengths.device)[None] < lengths[:, None])[:, None, None]


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2). Keys and values have a separate method, so that they can be cached."""

    def __init__(
        self, config: Config, side: Side, *, rotary: bool = False, shaw: bool = False, keys: int | None = None
    ) -> None:
        super().__init__()
        self.heads = side.heads
        self.rotary = rotary  # rotate queries and keys by their positions, by default 0, 1, 2, ...
        self.positions = ShawPositions(config, side) if shaw else None
        self.dropout = config.attention_dropout
        width = side.heads * side.head_dim
        self.query = nn.Linear(config.d_model, width, bias=config.attention_bias)
        keys = keys or config.d_model  # width of the states that are projected to keys and values
        self.key = nn.Linear(keys, width, bias=config.attention_bias)
        self.value = nn.Linear(keys, width, bias=config.attention_bias)
        self.output = nn.Linear(width, config.d_model, bias=config.attention_bias)

    def split_heads(self, x: Tensor) -> Tensor:
        """Reshape `[b, t, h * k]` to `[b, h, t, k]`."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def queries(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return queries `[b, h, t, k]` for states `[b, t, d]`. `positions` `[b]` are allowed only if t is 1."""
        queries = self.split_heads(self.query(x))
        if self.rotary:
            queries = rotated(queries, positions)
        return queries

    def key_value(self, x: Tensor, positions: Tensor | None = None) -> KeyValue:
        """Return keys and values `[b, h, s, k]` of states `[b, s, d]`. `positions` `[b]` are allowed only if s is 1."""
        keys = self.split_heads(self.key(x))
        if self.rotary:
            keys = rotated(keys, positions)
        return keys, self.split_heads(self.value(x))

    def forward(
        self,
        x: Tensor,
        key_value: KeyValue,
        mask: Tensor | None = None,
        causal: bool = False,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Attend from queries to keys, and return `[b, t, d]`.

        Args:
            x: states that are projected to queries, `[b, t, d]`.
            key_value: keys and values, each `[b, h, s, k]`.
            mask: bool, broadcastable to `[b, h, t, s]`, true for visible keys.
            causal: whether each query sees only keys up to its own position. Cannot be combined with `mask`.
            bias: float, broadcastable to `[b, h, t, s]`, added to the scores.
            positions: positions of the queries, int64 `[b]`; only if t is 1. Default: 0, 1, 2, ...
        """
        key, value = key_value
        is_short = self.training and key.shape[2] <= SHORT and key.device.type == "cpu"
        if is_short or self.positions is not None:
            weights = self.weights(x, key_value, mask, causal, bias, positions)
            weights = F.dropout(weights, self.dropout, self.training).to(value.dtype)
            context = weights @ value
            if self.positions is not None:
                context = context + self.positions.context(weights, _distances(x, key, positions))
            return self.output(context.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]
        query = self.queries(x, positions)
        if bias is not None:
            if causal:
                mask = _causal_mask(query, key)
            # PyTorch's kernel accepts a bias only as a float mask, and not together with `is_causal`.
            mask = _masked(bias.to(query.dtype), mask)
            causal = False
        dropout = self.dropout if self.training else 0.0  # of attention weights
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return self.output(context.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def weights(
        self,
        x: Tensor,
        key_value: KeyValue,
        mask: Tensor | None = None,
        causal: bool = False,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the weights of `forward` before dropout, `[b, h, t, s]`, in float32 or more; rows sum to 1."""
        query = self.queries(x, positions)
        key = key_value[0]
        scores = query @ key.transpose(-1, -2)
        if self.positions is not None:
            scores = scores + self.positions.scores(query, _distances(x, key, positions))
        scores = scores / math.sqrt(query.shape[-1])
        if bias is not None:
            scores = scores + bias
        if causal:
            mask = _causal_mask(query, key)
        # A softmax in bfloat16 would lose small weights.
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return torch.softmax(_masked(scores, mask), dim=-1)


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the scores with -inf for masked keys."""
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf)


def _causal_mask(query: Tensor, key: Tensor) -> Tensor:
    """Return a mask, bool `[t, s]`: true for keys up to the position of the query."""
    return torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()


def _distances(x: Tensor, key: Tensor, positions: Tensor | None) -> Tensor:
    """Return distances (key - query), int64 `[b or 1, t, s]`, for `x`, `key` and `positions` of `Attention.forward`."""
    queries = torch.arange(x.shape[1], device=x.device)[None] if positions is None else positions[:, None]
    return torch.arange(key.shape[2], device=x.device) - queries[:, :, None]


def self_attention(config: Config, side: Side) -> Attention:
    """Return self-attention with the model's positions."""
    return Attention(config, side, rotary=config.positions == "rotary", shaw=config.positions == "shaw")


class FeedForward(nn.Module):
    """Position-wise feed-forward network (section 3.3), or a gated one (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, config: Config, side: Side) -> None:
        super().__init__()
        bias = config.feed_forward_bias
        self.gate = nn.Linear(config.d_model, side.ffn, bias) if config.feed_forward == "gated" else None
        self.inner = nn.Linear(config.d_model, side.ffn, bias)
        self.outer = nn.Linear(side.ffn, config.d_model, bias)
        self.activation = ACTIVATIONS[config.activation]
        rate = config.activation_dropout
        self.dropout = nn.Dropout(config.dropout if rate is None else rate)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[..., d]` to `[..., d]`."""
        inner = self.inner(x)
        if self.gate is None:
            inner = self.activation(inner)
        else:
            inner = self.activation(self.gate(x)) * inner
        return self.outer(self.dropout(inner))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Residual connection with dropout and a norm after the sublayer (section 5.4) or before it (Xiong et al. 2020)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = new_norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.pre = config.pre_norm

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x + sublayer(x) with dropout and norm, `[..., d]`."""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))  # type: ignore[no-any-return]
        return self.norm(x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Encoder layer: self-attention and feed-forward."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = self_attention(config, config.encoder)
        self.attention_residual = Residual(config)
        self.feed_forward = FeedForward(config, config.encoder)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, mask: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the states of the next layer, `[b, s, d]`.

        Args:
            x: `[b, s, d]`.
            mask: bool `[b, 1, 1, s]`, false for padding.
            bias: float `[1, h, s, s]`, added to attention scores.
        """
        x = self.attention_residual(x, lambda y: self.attention(y, self.attention.key_value(y), mask, bias=bias))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Decoder layer: causal self-attention, cross-attention and feed-forward."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attention = self_attention(config, config.decoder)
        self.self_attention_residual = Residual(config)
        self.cross_attention = Attention(config, config.decoder, keys=config.memory_size)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config, config.decoder)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, cross: KeyValue, source_mask: Tensor, bias: Tensor | None = None) -> Tensor:
        """Run the layer on whole targets: x `[b, t, d]`, `bias` of self-attention `[1, h, t, t]` -> `[b, t, d]`."""
        attend = self.self_attention
        x = self.self_attention_residual(x, lambda y: attend(y, attend.key_value(y), causal=True, bias=bias))
        return self._after_self_attention(x, cross, source_mask)

    def step(
        self,
        x: Tensor,
        cross: KeyValue,
        source_mask: Tensor,
        cache: KeyValue,
        positions: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Run the layer on one token for each row: x `[b, 1, d]` -> `[b, 1, d]`.

        Keys and values are written into `cache` `[b, h, c, k]` at `positions` `[b]`. `bias`, `[b, h, 1, n]` for a
        maximum position of n - 1, is added to the scores of self-attention.
        """

        def attend(y: Tensor) -> Tensor:
            rows = torch.arange(len(positions), device=positions.device)
            for stored, new in zip(cache, self.self_attention.key_value(y, positions), strict=True):
                stored[rows, :, positions] = new[:, :, 0]
            # Caches are allocated for the maximum length. Only positions that at least one row has reached are read.
            length = int(positions.max()) + 1
            mask = valid_mask(positions + 1, length)
            past = (cache[0][:, :, :length], cache[1][:, :, :length])
            return self.self_attention(y, past, mask, bias=bias, positions=positions)  # type: ignore[no-any-return]

        x = self.self_attention_residual(x, attend)
        return self._after_self_attention(x, cross, source_mask)

    def _after_self_attention(self, x: Tensor, cross: KeyValue, source_mask: Tensor) -> Tensor:
        x = self.cross_attention_residual(x, lambda y: self.cross_attention(y, cross, source_mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Encoder-decoder Transformer. All shapes and options are set by `config`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = source_layer(config)
        self.target_embedding = target_layer(config, self.source_embedding)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        relative = config.positions == "relative"
        of_encoder = relative and not config.reads_states
        self.encoder_positions = RelativePositions(config, config.encoder, causal=False) if of_encoder else None
        self.decoder_positions = RelativePositions(config, config.decoder, causal=True) if relative else None

        def final_norm() -> nn.Module:
            # Pre-norm stacks need a final norm. nn.Transformer adds one to post-norm stacks also.
            return new_norm(config) if config.final_norm else NoNorm()

        self.encoder_norm = NoNorm() if config.reads_states else final_norm()
        self.decoder_norm = final_norm()
        self.projection = nn.Linear(config.d_model, config.target_vocabulary, bias=config.projection_bias)
        if config.tie_projection:
            self.projection.weight = self.target_embedding.tokens.weight
        self.copying = CopyMechanism(config) if config.copies else None
        initialise(self, config)

    def lengthen(self, length: int) -> None:
        """Extend sinusoids to at least `length` positions. Relative and rotary positions need no extension."""
        for embedding in self.inputs:
            embedding.lengthen(length)

    @property
    def inputs(self) -> list[InputLayer]:
        """Input layers of encoder and decoder. A model that reads encoder states has only that of the decoder."""
        layers = (self.source_embedding, self.target_embedding)
        return [layer for layer in layers if layer is not None]

    def encode(self, source: Tensor, source_lengths: Tensor) -> Tensor:
        """Encode padded sources, and return the encoder states ("memory") `[b, s, d]`.

        Args:
            source: int64 `[b, s]` ids, or float `[b, s, f]` vectors of a model that reads features.
            source_lengths: int64 `[b]`, lengths without padding.
        """
        if self.source_embedding is None:
            return source
        mask = valid_mask(source_lengths, source.shape[1])
        positions = torch.arange(source.shape[1], device=source.device)
        x = self.source_embedding(source, positions)
        for layer, bias in zip(self.encoder, self._biases("encoder", positions[None], positions), strict=True):
            x = layer(x, mask, bias)
        return self.encoder_norm(x)  # type: ignore[no-any-return]

    @with_copying
    def decode(
        self, target_ids: Tensor, memory: Tensor, source_lengths: Tensor, source_ids: Tensor | None = None
    ) -> Tensor:
        """Decode whole targets with teacher forcing, and return logits `[b, t, v]`. Logits at i depend on ids 0..i.

        Padding of targets needs no mask: it is at the end, so no earlier position attends to it.

        Args:
            target_ids: int64 `[b, t]`, starting with bos.
            memory: from `encode`.
            source_lengths: int64 `[b]`.
            source_ids: int64 `[b, s]`, only for models with a copy mechanism.
        """
        return self.projection(self.decoder_states(target_ids, memory, source_lengths))  # type: ignore[no-any-return]

    def decoder_states(self, target_ids: Tensor, memory: Tensor, source_lengths: Tensor) -> Tensor:
        """Return the states `[b, t, d]` that `decode` projects to logits."""
        mask = valid_mask(source_lengths, memory.shape[1])
        positions = torch.arange(target_ids.shape[1], device=target_ids.device)
        x = self.target_embedding(target_ids, positions)
        biases = self._biases("decoder", positions[None], positions)
        for layer, cross, bias in zip(self.decoder, self.cross_key_values(memory), biases, strict=True):
            x = layer(x, cross, mask, bias)
        return self.decoder_norm(x)  # type: ignore[no-any-return]

    def forward(self, source: Tensor, source_lengths: Tensor, target_ids: Tensor) -> Tensor:
        """Encode and decode with teacher forcing: logits `[b, t, v]`."""
        memory = self.encode(source, source_lengths)
        return self.decode(target_ids, memory, source_lengths, source)

    def _biases(self, side: str, queries: Tensor, keys: Tensor) -> Sequence[Tensor | None]:
        """Return a bias `[n, h, t, s]` or None for each layer, for query positions `[n, t]` and key positions `[s]`."""
        relative = getattr(self, f"{side}_positions")
        if relative is None:
            return [None] * getattr(self.config, side).layers
        biases: list[Tensor] = relative(keys[None, None] - queries[:, :, None])
        return biases

    def cross_key_values(self, memory: Tensor) -> list[KeyValue]:
        """Return cross-attention keys and values of each decoder layer, `[b, h, s, k]`, once for a sentence."""
        return [layer.cross_attention.key_value(memory) for layer in self.decoder]  # type: ignore[operator, union-attr]

    def new_caches(self, batch: int, length: int) -> list[KeyValue]:
        """Return self-attention caches filled with 0 for each decoder layer, `[b, h, length, k]`."""
        weight = self.projection.weight
        shape = (batch, self.config.decoder.heads, length, self.config.decoder.head_dim)
        return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in self.decoder]

    @with_copying
    def decode_step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cross: list[KeyValue],
        source_lengths: Tensor,
        caches: list[KeyValue],
        source_ids: Tensor | None = None,
    ) -> Tensor:
        """Decode one token for each row, at a separate position for each row.

        Args:
            token_ids: int64 `[b]`, the token at `positions`.
            positions: int64 `[b]`, less than the length of the caches.
            cross: from `cross_key_values`.
            source_lengths: int64 `[b]`.
            caches: from `new_caches`; written in place.
            source_ids: int64 `[b, s]`, only for models with a copy mechanism.

        Returns:
            logits `[b, v]` of the token at `positions + 1`.
        """
        mask = valid_mask(source_lengths, cross[0][0].shape[2])
        x = self.target_embedding(token_ids[:, None], positions[:, None])
        used_positions = torch.arange(int(positions.max()) + 1, device=positions.device)
        biases = self._biases("decoder", positions[:, None], used_positions)
        for layer, key_value, cache, bias in zip(self.decoder, cross, caches, biases, strict=True):
            x = layer.step(x, key_value, mask, cache, positions, bias)  # type: ignore[operator]
        return self.projection(self.decoder_norm(x))[:, 0]  # type: ignore[no-any-return]
