"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), written to be read.

Shapes: b batch, s source tokens, t target tokens, c cache length, d d_model, h heads, k head_dim, v target vocabulary.
Lengths count tokens that are not padding; padding is only at the end of a row.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from txport.models.config import Config
from txport.models.copying import CopyMechanism, Seen
from txport.models.norms import NoNorm, new_norm

KeyValue = tuple[Tensor, Tensor]  # each [b, h, s or c, k]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def sinusoids(length: int, d_model: int) -> Tensor:
    """Positions of Vaswani et al. (2017), section 3.5: float32 `[length, d_model]`, sine and cosine interleaved."""
    table = torch.zeros(length, d_model, dtype=torch.float64)
    if table.is_meta:  # only sizes are wanted: PyTorch would spend a second on imports for the rest
        return table.float()
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)
    return table.float()


def valid_mask(lengths: Tensor, size: int) -> Tensor:
    """bool `[b, 1, 1, size]`, true where a token is not padding; broadcasts over heads and queries."""
    return (torch.arange(size, device=lengths.device)[None] < lengths[:, None])[:, None, None]


@dataclass(frozen=True)
class AttentionMaps:
    """Attention of a model, and the probabilities that it gives to a translation.

    Row i of a decoder's map is of the step that makes target token i; it reads bos, then the target tokens before i,
    which are the columns of `decoder`. A token's row sums to 1. The future, and every row and column of padding, is 0.

    Attributes:
        encoder: float `[layers, b, h, s, s]`, self-attention of the source.
        decoder: float `[layers, b, h, t, t]`, self-attention of the target.
        cross: float `[layers, b, h, t, s]`, of the target to the source.
        log_probabilities: float `[b, t]`, natural logarithms of the target tokens' probabilities; 0 for padding.
    """

    encoder: Tensor
    decoder: Tensor
    cross: Tensor
    log_probabilities: Tensor


class Embedding(nn.Module):
    """Token embedding plus position, then an optional norm, then dropout."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.norm = new_norm(config) if config.embedding_norm else NoNorm()
        self.dropout = nn.Dropout(config.dropout)
        self.positions: Tensor
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.empty(config.max_positions, config.d_model))
        else:
            self.register_buffer("positions", sinusoids(config.max_positions, config.d_model), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids int64 `[...]` at positions int64 `[...]` (or broadcastable) -> `[..., d]`."""
        x = self.tokens(ids) * self.scale + self.positions[positions]
        return self.dropout(self.norm(x))  # type: ignore[no-any-return]

    def lengthen(self, length: int) -> None:
        """Have at least `length` positions, which sinusoids give without end; learned ones stay as they are."""
        size, d_model = self.positions.shape
        if size < length and not isinstance(self.positions, nn.Parameter):
            self.positions = sinusoids(length, d_model).to(self.positions)


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2). Keys and values are projected apart, so that they can be cached."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.attention_dropout
        self.query = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.key = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.value = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.output = nn.Linear(config.d_model, config.d_model, bias=config.attention_bias)

    def split_heads(self, x: Tensor) -> Tensor:
        """`[b, t, d]` -> `[b, h, t, k]`."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def key_value(self, x: Tensor) -> KeyValue:
        """Keys and values `[b, h, s, k]` of states `[b, s, d]`."""
        return self.split_heads(self.key(x)), self.split_heads(self.value(x))

    def forward(self, x: Tensor, key_value: KeyValue, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Queries from `x` `[b, t, d]` -> `[b, t, d]`; `mask` bool broadcastable to `[b, h, t, s]`, true where seen."""
        query = self.split_heads(self.query(x))
        key, value = key_value
        dropout = self.dropout if self.training else 0.0  # on the weights
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return self.output(context.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def weights(self, x: Tensor, key_value: KeyValue, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Weights of the values in `forward`: softmax over keys, `[b, h, t, s]`, without dropout; float32 at least."""
        query, key = self.split_heads(self.query(x)), key_value[0]
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -math.inf), dim=-1)


class FeedForward(nn.Module):
    """Position-wise feed-forward network (section 3.3)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.ffn)
        self.outer = nn.Linear(config.ffn, config.d_model)
        self.activation = ACTIVATIONS[config.activation]
        rate = config.activation_dropout
        self.dropout = nn.Dropout(config.dropout if rate is None else rate)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., d]` -> `[..., d]`."""
        return self.outer(self.dropout(self.activation(self.inner(x))))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Norm, dropout and residual after a sublayer (post-norm, section 5.4) or before it (Xiong et al., 2020)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = new_norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """`[..., d]` -> `[..., d]`."""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))  # type: ignore[no-any-return]
        return self.norm(x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x `[b, s, d]`, mask bool `[b, 1, 1, s]` -> `[b, s, d]`."""
        x = self.attention_residual(x, lambda y: self.attention(y, self.attention.key_value(y), mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attention = Attention(config)
        self.self_attention_residual = Residual(config)
        self.cross_attention = Attention(config)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, cross: KeyValue, source_mask: Tensor) -> Tensor:
        """The whole target at once: x `[b, t, d]` -> `[b, t, d]`."""
        attend = self.self_attention
        x = self.self_attention_residual(x, lambda y: attend(y, attend.key_value(y), causal=True))
        return self._after_self_attention(x, cross, source_mask)

    def step(self, x: Tensor, cross: KeyValue, source_mask: Tensor, cache: KeyValue, positions: Tensor) -> Tensor:
        """One token for each row: x `[b, 1, d]`; the cache `[b, h, c, k]` is written in place at `positions` `[b]`."""

        def attend(y: Tensor) -> Tensor:
            rows = torch.arange(len(positions), device=positions.device)
            for stored, new in zip(cache, self.self_attention.key_value(y), strict=True):
                stored[rows, :, positions] = new[:, :, 0]
            # Caches are allocated for the longest row; only the part that any row has reached is worth reading.
            reached = int(positions.max()) + 1
            seen = valid_mask(positions + 1, reached)
            past = (cache[0][:, :, :reached], cache[1][:, :, :reached])
            return self.self_attention(y, past, seen)  # type: ignore[no-any-return]

        x = self.self_attention_residual(x, attend)
        return self._after_self_attention(x, cross, source_mask)

    def _after_self_attention(self, x: Tensor, cross: KeyValue, source_mask: Tensor) -> Tensor:
        x = self.cross_attention_residual(x, lambda y: self.cross_attention(y, cross, source_mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Encoder-decoder Transformer; `config` decides every shape and option."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        source = nn.Embedding(config.source_vocabulary, config.d_model)
        target = source if config.share_embeddings else nn.Embedding(config.target_vocabulary, config.d_model)
        self.source_embedding = Embedding(config, source)
        self.target_embedding = Embedding(config, target)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))

        def final_norm() -> nn.Module:
            # With post-norm each stack ends in a norm already; nn.Transformer of PyTorch has one more all the same.
            return NoNorm() if config.norm == "post" else new_norm(config)

        self.encoder_norm = final_norm()
        self.decoder_norm = final_norm()
        self.projection = nn.Linear(config.d_model, config.target_vocabulary, bias=config.projection_bias)
        if config.tie_projection:
            self.projection.weight = target.weight
        self.copying = CopyMechanism(config) if config.copies else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier initialisation (Glorot and Bengio, 2010) of matrices; embeddings and positions as N(0, 1/d_model).

        The initialisation "annotated" has Xavier's for embeddings too, and "d2l" PyTorch's own for them, N(0, 1);
        biases of both are PyTorch's own, uniform within +-1/sqrt(inputs).
        """
        kind = self.config.initialisation
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
            for module in self.modules():
                if isinstance(module, nn.Linear) and module.bias is not None:
                    reach = 0.0 if kind == "scaled" else module.in_features**-0.5
                    nn.init.uniform_(module.bias, -reach, reach) if reach else nn.init.zeros_(module.bias)
            for embedding in (self.source_embedding, self.target_embedding):
                if kind != "annotated":
                    nn.init.normal_(embedding.tokens.weight, std=self.config.d_model**-0.5 if kind == "scaled" else 1.0)
                if self.config.positions == "learned":
                    nn.init.normal_(embedding.positions, std=self.config.d_model**-0.5)

    def lengthen(self, length: int) -> None:
        """Take sources and targets of at least `length` tokens, where positions are sinusoids."""
        for embedding in (self.source_embedding, self.target_embedding):
            embedding.lengthen(length)

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> Tensor:
        """int64 `[b, s]` padded ids of int64 `[b]` lengths -> memory `[b, s, d]`."""
        mask = valid_mask(source_lengths, source_ids.shape[1])
        x = self.source_embedding(source_ids, torch.arange(source_ids.shape[1], device=source_ids.device))
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x)  # type: ignore[no-any-return]

    def decode(
        self, target_ids: Tensor, memory: Tensor, source_lengths: Tensor, source_ids: Tensor | None = None
    ) -> Tensor:
        """Teacher forcing: int64 `[b, t]` ids that start with bos -> logits `[b, t, v]`; logits at i see ids 0..i.

        No mask of target padding is needed: it is at the end, where no earlier position can see it. A model that copies
        needs `source_ids`, int64 `[b, s]`; its logits are logarithms of probabilities, in float32.
        """
        mask = valid_mask(source_lengths, memory.shape[1])
        x = read = self.target_embedding(target_ids, torch.arange(target_ids.shape[1], device=target_ids.device))
        with self._watching() as seen:
            for layer, cross in zip(self.decoder, self.cross_key_values(memory), strict=True):
                x = layer(x, cross, mask)
        return self._logits(self.decoder_norm(x), read, seen, source_ids)

    def forward(self, source_ids: Tensor, source_lengths: Tensor, target_ids: Tensor) -> Tensor:
        """`encode` and `decode`: logits `[b, t, v]`."""
        memory = self.encode(source_ids, source_lengths)
        return self.decode(target_ids, memory, source_lengths, source_ids)

    def _watching(self) -> AbstractContextManager[Seen]:
        """Collect what copying needs of the layers that run meanwhile."""
        return nullcontext({}) if self.copying is None else self.copying.watching(list(self.decoder))

    def _logits(self, state: Tensor, read: Tensor, seen: Seen, source_ids: Tensor | None) -> Tensor:
        """States and embeddings `[b, t, d]` -> `[b, t, v]`; see `CopyMechanism.forward`."""
        logits: Tensor = self.projection(state)
        if self.copying is None:
            return logits
        if source_ids is None:
            raise ValueError("a model that copies needs source_ids")
        copied: Tensor = self.copying(logits, state, read, list(self.decoder), seen, source_ids)
        return copied

    def cross_key_values(self, memory: Tensor) -> list[KeyValue]:
        """Cross-attention keys and values of each decoder layer, `[b, h, s, k]`: computed once for a sentence."""
        return [layer.cross_attention.key_value(memory) for layer in self.decoder]  # type: ignore[operator, union-attr]

    def new_caches(self, batch: int, length: int) -> list[KeyValue]:
        """Zeroed self-attention caches for each decoder layer, `[b, h, length, k]`."""
        weight = self.projection.weight
        shape = (batch, self.config.heads, length, self.config.head_dim)
        return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in self.decoder]

    def decode_step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cross: list[KeyValue],
        source_lengths: Tensor,
        caches: list[KeyValue],
        source_ids: Tensor | None = None,
    ) -> Tensor:
        """One token for each row, each row at its own position.

        Args:
            token_ids: int64 `[b]`, the token at `positions`.
            positions: int64 `[b]`, below the caches' length.
            cross: from `cross_key_values`.
            source_lengths: int64 `[b]`.
            caches: from `new_caches`; written in place.
            source_ids: int64 `[b, s]`, which only a model that copies needs.

        Returns:
            logits `[b, v]` of the token at `positions + 1`.
        """
        mask = valid_mask(source_lengths, cross[0][0].shape[2])
        x = read = self.target_embedding(token_ids, positions)[:, None]
        with self._watching() as seen:
            for layer, key_value, cache in zip(self.decoder, cross, caches, strict=True):
                x = layer.step(x, key_value, mask, cache, positions)  # type: ignore[operator]
        return self._logits(self.decoder_norm(x), read, seen, source_ids)[:, 0]

    def attention_maps(
        self, source_ids: Tensor, source_lengths: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> AttentionMaps:
        """Teacher forcing of translations, with the weights of every attention; call `eval` first.

        Args:
            source_ids: int64 `[b, s]`, padded.
            source_lengths: int64 `[b]`.
            target_ids: int64 `[b, t]`, translations as a search gives them: without bos, padded.
            target_lengths: int64 `[b]`.
        """
        bos = torch.full_like(target_ids[:, :1], self.config.bos_id)
        attentions = [module for module in self.modules() if isinstance(module, Attention)]
        with recorded_weights(attentions) as weights:
            logits = self(source_ids, source_lengths, torch.cat([bos, target_ids[:, :-1]], dim=1))
        source = valid_mask(source_lengths, source_ids.shape[1]).transpose(2, 3)
        target = valid_mask(target_lengths, target_ids.shape[1]).transpose(2, 3)
        chosen = torch.log_softmax(logits, dim=-1).gather(2, target_ids[..., None])[..., 0]

        def maps(attentions: list[nn.Module], rows: Tensor) -> Tensor:
            return torch.stack([weights[attention] for attention in attentions]).masked_fill(~rows, 0.0)

        return AttentionMaps(
            encoder=maps([layer.attention for layer in self.encoder], source),  # type: ignore[misc]
            decoder=maps([layer.self_attention for layer in self.decoder], target),  # type: ignore[misc]
            cross=maps([layer.cross_attention for layer in self.decoder], target),  # type: ignore[misc]
            log_probabilities=chosen.masked_fill(~target[:, 0, :, 0], 0.0),
        )


@contextmanager
def recorded_weights(attentions: Iterable[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Collects the weights of some `Attention`s when the model runs, with their gradient; the others cost nothing."""
    weights: dict[nn.Module, Tensor] = {}

    def record(attention: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        assert isinstance(attention, Attention)
        weights[attention] = attention.weights(*inputs, **options)

    with ExitStack() as hooks:
        for attention in attentions:
            hooks.callback(attention.register_forward_pre_hook(record, with_kwargs=True).remove)
        yield weights
