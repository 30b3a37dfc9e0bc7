"""One step of beam search: the hypotheses of a sentence are queries over what all of them have in common.

Cross-attention reads a sentence's keys and values once for all its hypotheses. A cache has a slot for each beam at each
position; what a beam makes stays in its slot for ever, and `self_ancestors` say which slots a hypothesis continues. So
a search that goes on with other hypotheses rearranges those flags and copies no cache. Shapes: b sentences, m beams,
n = b * m rows, h heads, k head_dim, s source, c cache length, v vocabulary.
"""

import numpy as np
import onnx_ir as ir
from txport.exporter.graphs.decoder import Decoder
from txport.exporter.graphs.layers import write_embedding
from txport.exporter.graphs.lowerings import KeyValue, Lowering, attend
from txport.exporter.graphs.tensors import ModelTensors
from txport.exporter.graphs.writer import Writer
from txport.models.transformer import Transformer
from txport.runtime.bundle import interface
from txport.runtime.bundle.interface import MASKED

# Of the standard operators alone, with those of `lowerings.Scatter`.
OPSET = 24


def write_beams(model: Transformer, length: int, tensors: ModelTensors) -> ir.Model:
    """One token more for each hypothesis: its best continuations, and by what their logits are normalised.

    Args:
        model: to take the tensors of.
        length: positions to keep.
        tensors: shared with the other graphs.
    """
    sizes = model.config.sizes
    w = Writer(interface.decoder_beams(sizes, "float32"), OPSET, tensors)
    ids, positions = (w.op("Reshape", w.inputs[name], [-1]) for name in ("token_ids", "positions"))
    read = write_embedding(w, model.target_embedding, length, ids, positions)
    layers = Decoder(w, model, Beams(w, sizes), length)
    logits, caches = layers.write(read, layers.key_values("self"))
    count = np.array([interface.most_top(sizes)], np.int64)
    best, best_ids = w.ops("TopK", 2, logits, count, axis=-1)
    best_ids.dtype = ir.DataType.INT64
    # By the probability of the best one, which is far from 0.
    first = w.op("GatherElements", w.op("Softmax", logits, axis=-1), w.op("Gather", best_ids, [0], axis=1), axis=1)
    normaliser = w.op("Sub", w.op("Gather", best, [0], axis=1), w.op("Log", first))
    return w.model([best_ids, best, normaliser, *(each for cache in caches for each in cache), logits])


class Beams(Lowering):
    """The layers over hypotheses of sentences."""

    def self_attention(self, qkv: ir.Value, cache: KeyValue, bias: ir.Value | None = None) -> tuple[ir.Value, KeyValue]:
        w = self._w
        query, key, value = map(self._by_beam, w.ops("Split", 3, qkv, axis=1, num_outputs=3))
        cache = self._written(cache[0], key), self._written(cache[1], value)
        seen = w.op("Unsqueeze", w.inputs["self_ancestors"], [1])
        mask = w.op("Where", seen, 0.0 if bias is None else bias, MASKED)
        context, _ = attend(w, query, w.op("Transpose", cache[0], perm=[0, 1, 3, 2]), cache[1], mask)
        return self._by_row(context), cache

    def _written(self, cache: ir.Value, new: ir.Value) -> ir.Value:
        """A cache [b, h, c * m, k] with what its beams have made, [b, h, m, k], from the first one's slot on."""
        return self._w.op("TensorScatter", cache, new, self._w.inputs["first_slots"], axis=2)

    def distances(self) -> ir.Value:
        w = self._w
        positions = w.op("Gather", w.inputs["positions"], [0], axis=1)
        return w.op("Unsqueeze", w.op("Max", w.op("Sub", positions, w.inputs["slot_positions"]), 0), [1])

    def cross_attention(self, query: ir.Value, key: ir.Value, value: ir.Value) -> ir.Value:
        keys = self._w.op("Transpose", key, perm=[0, 1, 3, 2])
        return self._by_row(attend(self._w, self._by_beam(query), keys, value, self._w.inputs["cross_bias"])[0])

    def by_sentence(self, x: ir.Value, width: int) -> ir.Value:
        return self._w.op("Gather", x, self._w.inputs["rows"], axis=0)

    def for_each_token(self, x: ir.Value) -> ir.Value:
        zeros = self._w.op("Mul", self._w.op("Unsqueeze", self._w.inputs["rows"], [2]), 0)
        return self._w.op("Add", x, zeros)

    def _by_beam(self, x: ir.Value) -> ir.Value:
        """[n, h * k] -> [b, h, m, k]."""
        x = self._w.op("Gather", x, self._w.inputs["rows"], axis=0)
        split = self._w.op("Reshape", x, [0, 0, self._heads, self._head_dim])
        return self._w.op("Transpose", split, perm=[0, 2, 1, 3])

    def _by_row(self, x: ir.Value) -> ir.Value:
        """[b, h, m, k] -> [n, h * k]."""
        return self._w.op("Reshape", self._w.op("Transpose", x, perm=[0, 2, 1, 3]), [-1, self._width])
