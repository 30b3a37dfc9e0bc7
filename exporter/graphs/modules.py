"""The graphs of a bundle as modules to trace: the encoder, and one decoder step over caches.

The optional ones, which read a finished translation as a whole, are in `txport.exporter.graphs.attention`.

Built from `txport.models.Transformer`, sharing its tensors where possible. Rearranged once, before tracing: Q, K and V
become one matrix, 1/sqrt(head_dim) is folded into the query's part, norms that are affine are folded into the layers
that read them (`txport.exporter.graphs.norms`), and positions are cut to the exported length.
Shapes: b batch, h heads, k head_dim, d d_model, s source, c cache length, v vocabulary.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from txport.exporter.graphs.copying import CopyGraph, Looked
from txport.exporter.graphs.lowerings import Lowering, StepInputs, attend
from txport.exporter.graphs.norms import foldable, folded_into, graph_norm, remaining
from txport.models.norms import SharedNorm
from txport.models.transformer import (
    Attention,
    DecoderLayer,
    Embedding,
    EncoderLayer,
    FeedForward,
    KeyValue,
    Transformer,
)
from txport.runtime.bundle.interface import MASKED

OPSET = 18  # of the graphs that have no lowerings


def _packed(*linears: nn.Linear, norm: SharedNorm | None = None, scale_first: float = 1.0) -> nn.Linear:
    """One linear layer that computes several of the same input; the first one's output is multiplied.

    All of them have biases, or none. What they read is not normalised yet if there is a `norm`.
    """
    scales = [scale_first] + [1.0] * (len(linears) - 1)
    with torch.no_grad():
        parts = [folded_into(linear, norm) for linear in linears]
        biases = [bias * scale for (_, bias), scale in zip(parts, scales, strict=True) if bias is not None]
        packed = nn.Linear(linears[0].in_features, sum(linear.out_features for linear in linears), bias=bool(biases))
        packed.weight.copy_(torch.cat([weight * scale for (weight, _), scale in zip(parts, scales, strict=True)]))
        if biases:
            packed.bias.copy_(torch.cat(biases))
    return packed


def query_scale(attention: Attention) -> float:
    """What queries are multiplied by, 1/sqrt(head_dim), is folded into their projection."""
    return float((attention.query.out_features // attention.heads) ** -0.5)


def split_heads(packed: Tensor, parts: int, heads: int) -> list[Tensor]:
    """Packed projections `[b, s, parts * d]` -> `parts` tensors `[b, h, s, k]`."""
    batch, length, width = packed.shape
    shape = batch, length, heads, width // (parts * heads)
    return [part.reshape(shape).transpose(1, 2) for part in packed.chunk(parts, dim=2)]


class EmbeddingGraph(nn.Module):
    """Token embedding plus position and an optional norm, without dropout, positions cut to `length`."""

    def __init__(self, embedding: Embedding, length: int, opset: int = OPSET) -> None:
        super().__init__()
        self.tokens = embedding.tokens
        self.scale = embedding.scale
        self.norm = graph_norm(embedding.norm, opset)
        self.register_buffer("positions", embedding.positions.detach()[:length].clone())

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids int64 `[...]` at positions int64 `[...]` -> `[..., d]`."""
        x = F.embedding(ids, self.tokens.weight)
        if self.scale != 1.0:
            x = x * self.scale
        return self.norm(x + F.embedding(positions, self.positions))  # type: ignore[no-any-return, arg-type]


class FeedForwardGraph(nn.Module):
    """The feed-forward network, without dropout."""

    def __init__(self, feed_forward: FeedForward, norm: SharedNorm | None) -> None:
        super().__init__()
        self.inner = feed_forward.inner if norm is None else _packed(feed_forward.inner, norm=norm)
        self.outer = feed_forward.outer
        self._activation = feed_forward.activation

    def forward(self, x: Tensor) -> Tensor:
        """`[..., d]` -> `[..., d]`."""
        return self.outer(self._activation(self.inner(x)))  # type: ignore[no-any-return]


class EncoderGraphLayer(nn.Module):
    """One encoder layer over packed projections."""

    def __init__(self, layer: EncoderLayer, pre_norm: bool) -> None:
        super().__init__()
        attention = layer.attention
        norms = layer.attention_residual.norm, layer.feed_forward_residual.norm
        before, between = (foldable(norm) if pre_norm else None for norm in norms)
        self.heads = attention.heads
        self.pre_norm = pre_norm
        self.qkv = _packed(
            attention.query, attention.key, attention.value, norm=before, scale_first=query_scale(attention)
        )
        self.output = attention.output
        self.feed_forward = FeedForwardGraph(layer.feed_forward, between)
        self.attention_norm, self.feed_forward_norm = (remaining(norm, OPSET, folded=pre_norm) for norm in norms)

    def attention(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """x `[b, s, d]`, bias `[b, 1, 1, s]` -> `[b, s, d]` and the weights `[b, h, s, s]`."""
        query, key, value = split_heads(self.qkv(x), 3, self.heads)
        context, weights = attend(query, key, value, bias)
        return self.output(context.transpose(1, 2).reshape(x.shape)), weights

    def forward(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """`[b, s, d]` -> `[b, s, d]` and the weights `[b, h, s, s]`."""
        y, weights = self.attention(self.attention_norm(x) if self.pre_norm else x, bias)
        x = x + y
        if self.pre_norm:
            return x + self.feed_forward(self.feed_forward_norm(x)), weights
        x = self.attention_norm(x)
        return self.feed_forward_norm(x + self.feed_forward(x)), weights


class EncoderGraph(nn.Module):
    """ids and lengths -> what every decoder step reads of the source: cross keys, cross values and the mask."""

    def __init__(self, model: Transformer, max_source: int) -> None:
        super().__init__()
        config = model.config
        self.heads = config.heads
        self.embedding = EmbeddingGraph(model.source_embedding, max_source)
        self.layers = nn.ModuleList(
            EncoderGraphLayer(layer, config.norm == "pre")  # type: ignore[arg-type]
            for layer in model.encoder
        )
        self.norm = graph_norm(model.encoder_norm, OPSET)
        attentions = [layer.cross_attention for layer in model.decoder]
        folded = foldable(model.encoder_norm)
        # The cross keys and values of all layers are projections of the same memory.
        self.cross_key_value = nn.ModuleList(_packed(x.key, x.value, norm=folded) for x in attentions)  # type: ignore[union-attr, arg-type]
        self._folded, self._copies = folded is not None, config.copies

    def forward(
        self, input_ids: Tensor, source_lengths: Tensor
    ) -> tuple[list[KeyValue], Tensor] | tuple[list[KeyValue], Tensor, Tensor]:
        """int64 `[b, s]` and `[b]` -> for each decoder layer (key, value) `[b, h, s, k]`; bias `[b, 1, 1, s]`.

        A model that copies needs the ids again, `[b, 1, s, 1]`.
        """
        x, bias, _ = self.encode(input_ids, source_lengths)
        memory = x if self._folded else self.norm(x)
        cross = []
        for project in self.cross_key_value:
            key, value = split_heads(project(memory), 2, self.heads)
            cross.append((key, value))
        return (cross, bias, input_ids[:, None, :, None]) if self._copies else (cross, bias)

    def encode(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """int64 `[b, s]` and `[b]` -> states `[b, s, d]`, bias `[b, 1, 1, s]`, each layer's weights `[b, h, s, s]`.

        The states become the memory by the last norm.
        """
        positions = torch.arange(input_ids.shape[1])
        bias = torch.where(positions[None] < source_lengths[:, None], 0.0, MASKED)[:, None, None]
        x = self.embedding(input_ids, positions)
        weights = []
        for layer in self.layers:
            x, found = layer(x, bias)
            weights.append(found)
        return x, bias, weights


class StepLayer(nn.Module):
    """The weights of one decoder layer as a step needs them; cross keys and values belong to the encoder."""

    def __init__(self, layer: DecoderLayer, opset: int, folded: bool) -> None:
        super().__init__()
        own, cross = layer.self_attention, layer.cross_attention
        residuals = layer.self_attention_residual, layer.cross_attention_residual, layer.feed_forward_residual
        norms = [residual.norm for residual in residuals]
        inputs = [foldable(norm) if folded else None for norm in norms]
        self.self_qkv = _packed(own.query, own.key, own.value, norm=inputs[0], scale_first=query_scale(own))
        self.self_output = own.output
        self.cross_query = _packed(cross.query, norm=inputs[1], scale_first=query_scale(cross))
        self.cross_output = cross.output
        self.feed_forward = FeedForwardGraph(layer.feed_forward, inputs[2])
        self.self_norm, self.cross_norm, self.feed_forward_norm = (
            remaining(norm, opset, folded=folded) for norm in norms
        )


class DecoderStep(nn.Module):
    """One greedy token for each row, with the end of sentences decided inside the graph.

    All activations are `[b, d]`: with one token for each row, heads are split by Reshape alone.

    Args:
        model: to take the tensors of.
        lowering: how to write it.
        max_target: positions to keep.
        fold: whether affine norms disappear in what reads them; otherwise they stay, to measure what that saves.
    """

    def __init__(self, model: Transformer, lowering: Lowering, max_target: int, *, fold: bool = True) -> None:
        super().__init__()
        config, opset = model.config, lowering.opset
        self.config = config
        self.lowering = lowering
        self.heads, self.pad_id, self.eos_id = config.heads, config.pad_id, config.eos_id
        self.embedding = EmbeddingGraph(model.target_embedding, max_target, opset)
        self.pre_norm = config.norm == "pre"
        self.layers = nn.ModuleList(
            StepLayer(layer, opset, fold and self.pre_norm)  # type: ignore[arg-type]
            for layer in model.decoder
        )
        # What copies reads the same state as the projection does.
        last = foldable(model.decoder_norm) if fold and not config.tie_projection and not config.copies else None
        self.norm = remaining(model.decoder_norm, opset, folded=last is not None)
        self.projection = model.projection if last is None else _packed(model.projection, norm=last)
        self.copying = None if model.copying is None else CopyGraph(model.copying, config.heads)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        finished: Tensor,
        target_limits: Tensor,
        cache_positions: Tensor,
        cross_bias: Tensor,
        cross: list[KeyValue],
        caches: list[KeyValue],
        cross_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, list[KeyValue], Tensor]:
        """See the contract in `txport.runtime.bundle.interface` for names, shapes and meaning."""
        inputs = StepInputs(positions, cache_positions, cross_bias, cross_ids)
        logits, written = self._logits(self.embedding(token_ids, positions), inputs, cross, caches)
        token = torch.where(finished, self.pad_id, self.lowering.best(logits))
        # Every output that a runtime binds over its input depends, by way of `token`, on all that reads the input.
        ended = torch.logical_or(torch.logical_or(finished, token == self.eos_id), positions + 1 >= target_limits)
        return token, torch.where(ended, positions, positions + 1), ended, written, logits

    def _logits(
        self, read: Tensor, inputs: StepInputs, cross: list[KeyValue], caches: list[KeyValue]
    ) -> tuple[Tensor, list[KeyValue]]:
        """Embeddings `[b, d]` -> `[b, v]` and the written caches; for a model that copies, logarithms."""
        looked: dict[int, Looked] = {}
        x, written = self._layers(read, inputs, cross, caches, looked)
        logits = self.projection(x)
        if self.copying is not None:
            logits = self.copying(logits, x, read, looked, inputs.cross_bias, inputs.cross_ids, self.lowering)
        return logits, written

    def _layers(
        self,
        x: Tensor,
        inputs: StepInputs,
        cross: list[KeyValue],
        caches: list[KeyValue],
        looked: dict[int, Looked],
    ) -> tuple[Tensor, list[KeyValue]]:
        """x `[b, d]` -> `[b, d]` and the written caches; `looked` gets what each layer looked for in the source.

        Pre-norm is written as post-norm is, a sublayer and then an addition with a norm, by pairing each addition
        with the norm of the sublayer that follows; so both can use one fused operator.
        """
        written: list[KeyValue] = []
        layers = cast(list[StepLayer], list(self.layers))
        norms = [norm for layer in layers for norm in (layer.self_norm, layer.cross_norm, layer.feed_forward_norm)]
        if self.pre_norm:
            norms = [*norms[1:], self.norm]
        residual, y = x, (layers[0].self_norm(x) if self.pre_norm else x)
        remaining = iter(norms)
        for index, (layer, key_value, cache) in enumerate(zip(layers, cross, caches, strict=True)):
            context, cache = self.lowering.self_attention(layer.self_qkv(y), self.heads, cache, inputs)
            written.append(cache)
            residual, y = self._add_norm(layer.self_output(context), residual, next(remaining))
            query = layer.cross_query(y)
            context = self.lowering.cross_attention(query, self.heads, *key_value, inputs.cross_bias)
            context = layer.cross_output(context)
            looked[index] = Looked(query, key_value, context)
            residual, y = self._add_norm(context, residual, next(remaining))
            residual, y = self._add_norm(layer.feed_forward(y), residual, next(remaining))
        # Pre-norm has applied its final norm by then, with the last addition.
        return (y if self.pre_norm else self.norm(y)), written

    def _add_norm(self, x: Tensor, residual: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """What the next sublayer adds to, and what it reads."""
        total, normalised = self.lowering.add_norm(x, residual, norm)
        return (total if self.pre_norm else normalised), normalised
