"""Graph of a beam search step, and its lowering."""

import numpy as np
import onnx_ir as ir
from txport.exporter.graphs.decoder import Decoder
from txport.exporter.graphs.layers import ShawVectors, attend, write_embedding
from txport.exporter.graphs.lowerings import KeyValue, Lowering
from txport.exporter.graphs.tensors import ModelTensors
from txport.exporter.graphs.writer import Writer
from txport.models.transformer import Transformer
from txport.runtime.bundle import interface
from txport.runtime.bundle.interface import MASKED


def write_beams(model: Transformer, length: int, tensors: ModelTensors) -> ir.Model:
    """Return the graph of a beam search step: the best continuations of each hypothesis, and the normaliser of logits.

    Args:
        model: provides the tensors.
        length: number of exported positions.
        tensors: shared with other graphs.
    """
    sizes = model.config.sizes
    w = Writer(interface.decoder_beams(sizes, "float32"), Beams.opset, tensors)
    ids, positions = (w.op("Reshape", w.inputs[name], [-1]) for name in ("token_ids", "positions"))
    read = write_embedding(w, model.target_embedding, length, ids, positions)
    layers = Decoder(w, model, Beams(w, sizes), length)
    logits, caches = layers.write(read, positions, layers.key_values("self"))
    count = np.array([interface.candidate_count(sizes)], np.int64)
    best, best_ids = w.ops("TopK", 2, logits, count, axis=-1)
    best_ids.dtype = ir.DataType.INT64
    # The normaliser is computed from the probability of the best token, which is far from 0.
    first = w.op("GatherElements", w.op("Softmax", logits, axis=-1), w.op("Gather", best_ids, [0], axis=1), axis=1)
    normaliser = w.op("Sub", w.op("Gather", best, [0], axis=1), w.op("Log", first))
    return w.model([best_ids, best, normaliser, *(each for cache in caches for each in cache), logits])


class Beams(Lowering):
    """Lowering of one token for each hypothesis of a sentence: m beams are queries over shared keys and values.

    Cross-attention reads the keys and values of a sentence once. A cache has a slot for each beam at each position.
    Keys and values stay in their slots, and `self_ancestors` marks the slots of each hypothesis. When the search
    reorders hypotheses, these flags move, not the cache. Only standard operators are used. Opsets before 24 would write
    the cache one element at a time.
    """

    name = "standard"
    opset = 24

    def self_attention(
        self, qkv: ir.Value, cache: KeyValue, bias: ir.Value | None = None, vectors: ShawVectors | None = None
    ) -> tuple[ir.Value, KeyValue]:
        w = self._w
        query, key, value = w.split(self._by_beam(qkv, 3 * self._heads), 3, axis=1)
        cache = self._write_cache(cache[0], key), self._write_cache(cache[1], value)
        ancestors = w.op("Unsqueeze", w.inputs["self_ancestors"], [1])
        mask = w.op("Where", ancestors, 0.0 if bias is None else bias, MASKED)
        context, _ = attend(w, query, w.op("Transpose", cache[0], perm=[0, 1, 3, 2]), cache[1], mask, vectors)
        return self._by_row(context), cache

    def _write_cache(self, cache: ir.Value, new: ir.Value) -> ir.Value:
        """Return a cache [b, h, c * m, k] with the new [b, h, m, k] of all beams, from the slot of the first beam."""
        return self._w.op("TensorScatter", cache, new, self._w.inputs["first_slots"], axis=2)

    def distances(self) -> ir.Value:
        w = self._w
        positions = w.op("Gather", w.inputs["positions"], [0], axis=1)
        return w.op("Unsqueeze", w.op("Max", w.op("Sub", positions, w.inputs["slot_positions"]), 0), [1])

    def cross_attention(self, query: ir.Value, key: ir.Value, value: ir.Value) -> ir.Value:
        keys = self._w.op("Transpose", key, perm=[0, 1, 3, 2])
        return self._by_row(
            attend(self._w, self._by_beam(query, self._heads), keys, value, self._w.inputs["cross_bias"])[0]
        )

    def by_sentence(self, x: ir.Value, width: int) -> ir.Value:
        return self._w.op("Gather", x, self._w.inputs["rows"], axis=0)

    def for_each_token(self, x: ir.Value) -> ir.Value:
        zeros = self._w.op("Mul", self._w.op("Unsqueeze", self._w.inputs["rows"], [2]), 0)
        return self._w.op("Add", x, zeros)

    def _by_beam(self, x: ir.Value, heads: int) -> ir.Value:
        """Reshape [n, heads * k] to [b, heads, m, k]."""
        split = self._w.op("Reshape", self.by_sentence(x, heads * self._head_dim), [0, 0, heads, self._head_dim])
        return self._w.op("Transpose", split, perm=[0, 2, 1, 3])

    def _by_row(self, x: ir.Value) -> ir.Value:
        """Reshape [b, h, m, k] to [n, h * k]."""
        return self._w.op("Reshape", self._w.op("Transpose", x, perm=[0, 2, 1, 3]), [-1, self._width])
