"""Graph of a decoder step with caches.

All graphs of the decoder have the same layers, over activations `[n, d]` with a row for each token, and differ in the
lowering. Tensors are rearranged: Q, K and V become one matrix, 1/sqrt(head_dim) is folded into the query's part, affine
norms are folded into the layers after them (`txport.exporter.graphs.norms`), and positions are truncated to the
exported length.
Shapes: b batch, h heads, k head_dim, d d_model, s source, t target, c cache length, v vocabulary.
"""

from collections.abc import Iterator, Sequence

import onnx_ir as ir
from torch import nn
from txport.exporter.graphs.copying import CrossAttention, write_mixture
from txport.exporter.graphs.layers import (
    Rotation,
    causal_vectors,
    write_embedding,
    write_feed_forward,
    write_relative_positions,
)
from txport.exporter.graphs.lowerings import KeyValue, Lowering
from txport.exporter.graphs.norms import foldable, remaining, write_norm
from txport.exporter.graphs.tensors import ModelTensors, query_scale
from txport.exporter.graphs.writer import Writer
from txport.models.config import Config
from txport.models.norms import SharedNorm
from txport.models.transformer import DecoderLayer, Transformer
from txport.runtime.bundle import interface


def write_step(model: Transformer, lowering: type[Lowering], length: int, tensors: ModelTensors) -> ir.Model:
    """Return the graph of a greedy step: one token for each row, and whether the row is finished.

    Args:
        model: provides the tensors.
        lowering: class of the lowering.
        length: number of exported positions.
        tensors: shared with other graphs.
    """
    sizes = model.config.sizes
    w = Writer(interface.decoder_step(sizes, "float32"), lowering.opset, tensors)
    positions = w.inputs["positions"]
    read = write_embedding(w, model.target_embedding, length, w.inputs["token_ids"], positions)
    layers = Decoder(w, model, lowering(w, sizes), length)
    logits, caches = layers.write(read, positions, layers.key_values("self"))
    state = write_state(w, layers.lowering, model.config, logits)
    step_model = w.model([*state, *(each for cache in caches for each in cache), logits])
    layers.lowering.finish(step_model.graph)
    return step_model


def write_state(w: Writer, lowering: Lowering, config: Config, logits: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the chosen token, the position after it, and whether its row is finished, each `[b]`, for logits `[b, v]`.

    Args:
        w: writer of the graph.
        lowering: chooses the token.
        config: of the model.
        logits: `[b, v]`.
    """
    positions = w.inputs["positions"]
    token = w.op("Where", w.inputs["finished"], config.pad_id, lowering.best(logits, config.target_vocabulary))
    # Runtimes bind outputs over inputs. So each such output depends, through `token`, on all readers of its input.
    following, is_finished = lowering.advance(token, config.eos_id, config.target_vocabulary)
    return token, w.op("Where", is_finished, positions, following), is_finished


class Decoder:
    """Writer of the decoder's layers and projection.

    Args:
        w: writer of the graph.
        model: provides the tensors.
        lowering: writes the operators.
        length: number of exported positions.
    """

    def __init__(self, w: Writer, model: Transformer, lowering: Lowering, length: int) -> None:
        self.lowering = lowering
        self._w = w
        self._model = model
        self._length = length
        self._sizes = model.config.sizes
        self._pre_norm = model.config.pre_norm

    def key_values(self, kind: str) -> list[KeyValue]:
        """Return the graph inputs "self" or "cross", a key and a value for each layer."""
        names = ([f"{kind}_key_{layer}", f"{kind}_value_{layer}"] for layer in range(self._sizes.decoder_layers))
        return [(self._w.inputs[key], self._w.inputs[value]) for key, value in names]

    def write(self, read: ir.Value, positions: ir.Value, caches: Sequence[KeyValue]) -> tuple[ir.Value, list[KeyValue]]:
        """Return logits `[n, v]` and the new caches, for embeddings `[n, d]` at positions `[n]`."""
        w = self._w
        model = self._model
        x, new_caches, attentions = self._layers(read, positions, caches)
        if self._folds_last:
            norm = foldable(model.decoder_norm)
        else:
            norm = None
        logits = w.linear(x, w.tensors.linear(model.projection, norm=norm), "projection")
        if model.copying is not None:
            logits = write_mixture(w, self.lowering, model.copying, self._sizes, logits, x, read, attentions)
        return logits, new_caches

    @property
    def _folds_last(self) -> bool:
        """True if the projection includes the last norm. Copying needs the normalised state."""
        config = self._model.config
        return self._pre_norm and not config.tie_projection and not config.copies

    def _layers(
        self, x: ir.Value, positions: ir.Value, caches: Sequence[KeyValue]
    ) -> tuple[ir.Value, list[KeyValue], dict[int, CrossAttention]]:
        """Return x `[n, d]` after all layers, the new caches, and the cross-attention of each layer.

        Pre-norm is written like post-norm, as sublayers followed by an addition with a norm: each addition is paired
        with the norm of the next sublayer. So both can use the same fused operator.
        """
        w = self._w
        lowering = self.lowering
        layers: list[DecoderLayer] = list(self._model.decoder)  # type: ignore[arg-type]
        norms = iter(self._norms(layers))
        residual = y = x
        if self._pre_norm:
            y = write_norm(w, x, *next(norms))
        config = self._model.config
        rotation = Rotation(w, config, config.decoder, self._length, positions)
        caches_after = []
        attentions = {}
        parts = zip(layers, self.key_values("cross"), caches, self._biases(), strict=True)
        for index, (layer, cross, cache, bias) in enumerate(parts):
            attention = layer.self_attention
            folded = self._folded(layer)
            with w.module(f"layers.{index}"):
                packed = w.tensors.linear(
                    attention.query, attention.key, attention.value, norm=folded[0], scale=query_scale(attention)
                )
                qkv = rotation.turned(w.linear(y, packed, "self_qkv"), [-1])
                vectors = causal_vectors(w, attention.positions, lowering.distances)
                context, cache = lowering.self_attention(qkv, cache, bias, vectors)
                caches_after.append(cache)
                y = w.linear(context, w.tensors.linear(attention.output), "self_output")
                residual, y = self._add_norm(y, residual, *next(norms))
                cross_attention = layer.cross_attention
                packed = w.tensors.linear(cross_attention.query, norm=folded[1], scale=query_scale(cross_attention))
                query = w.linear(y, packed, "cross_query")
                context = lowering.cross_attention(query, *cross)
                context = w.linear(context, w.tensors.linear(cross_attention.output), "cross_output")
                attentions[index] = CrossAttention(query, cross[0], context)
                residual, y = self._add_norm(context, residual, *next(norms))
                y = write_feed_forward(w, y, layer.feed_forward, folded[2], config.activation, w.linear)
                residual, y = self._add_norm(y, residual, *next(norms))
        # With pre-norm, the last addition has already applied the final norm.
        return y if self._pre_norm else write_norm(w, y, *next(norms)), caches_after, attentions

    def _biases(self) -> Sequence[ir.Value | None]:
        """Return the bias of each layer's scores for relative positions, `[b or 1, h, t, m]`, or None."""
        relative = self._model.decoder_positions
        if relative is None:
            return [None] * self._sizes.decoder_layers
        return write_relative_positions(self._w, relative, self._length, self.lowering.distances)

    def _norms(self, layers: Sequence[DecoderLayer]) -> Iterator[tuple[nn.Module, str]]:
        """Yield every norm that is not folded, in order, with its name."""
        for index, layer in enumerate(layers):
            for norm, kind in zip(_norms(layer), ("self", "cross", "feed_forward"), strict=True):
                yield remaining(norm) if self._pre_norm else norm, f"layers.{index}.{kind}_norm"
        last = self._model.decoder_norm
        yield remaining(last) if self._folds_last else last, "norm"

    def _folded(self, layer: DecoderLayer) -> list[SharedNorm | None]:
        """Return the norms of a layer that are folded into the linear layers after them; None for others."""
        return [foldable(norm) if self._pre_norm else None for norm in _norms(layer)]

    def _add_norm(self, x: ir.Value, residual: ir.Value, norm: nn.Module, name: str) -> tuple[ir.Value, ir.Value]:
        """Return the residual for the next sublayer, and its normalised input."""
        total, normalised = self.lowering.add_norm(x, residual, norm, name)
        return (total if self._pre_norm else normalised), normalised


def _norms(layer: DecoderLayer) -> list[nn.Module]:
    residuals = layer.self_attention_residual, layer.cross_attention_residual, layer.feed_forward_residual
    return [residual.norm for residual in residuals]
