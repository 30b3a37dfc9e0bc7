"""Decoder graph for whole translations: attention weights, and scores of given translations.

It processes all positions in parallel and shares the weights of the step. The step itself is not used for this, since
its fused operators do not output attention weights. Shapes: b batch, h heads, k head_dim, d d_model, s source, t
target, v vocabulary.
"""

import onnx_ir as ir
from txport.exporter.graphs.copying import log_softmax_parts
from txport.exporter.graphs.decoder import Decoder
from txport.exporter.graphs.encoder import OPSET, stack_maps
from txport.exporter.graphs.layers import ShawVectors, attend, write_embedding, write_positions
from txport.exporter.graphs.lowerings import KeyValue, Lowering
from txport.exporter.graphs.tensors import ModelTensors
from txport.exporter.graphs.writer import Writer
from txport.models.transformer import Transformer
from txport.runtime.bundle import interface
from txport.runtime.bundle.interface import MASKED
from txport.runtime.bundle.schema import ModelSizes


def write_decoder(model: Transformer, length: int, tensors: ModelTensors) -> ir.Model:
    """Return the graph of teacher forcing: scores and attention for encoded sources and translations of up to `length`.

    Activations are `[b * t, d]`, with a row for each token: every layer is that of the step, with its stored weights.
    """
    sizes = model.config.sizes
    w = Writer(interface.decoder(sizes, "float32"), OPSET, tensors)
    ids = w.inputs["target_ids"]
    lengths = w.inputs["target_lengths"]
    positions = write_positions(w, ids, "target")
    row = w.op("Unsqueeze", positions, [0])
    # The input of each position is the token before it, first bos.
    read = w.op("Slice", w.op("Pad", ids, [0, 1, 0, 0], model.config.bos_id), [0], [-1], [1])
    causal = w.op("Where", w.op("LessOrEqual", row, w.op("Unsqueeze", positions, [1])), 0.0, MASKED)
    x = write_embedding(w, model.target_embedding, length, read, row)
    lowering = Parallel(w, sizes, positions, w.op("Unsqueeze", causal, [0, 1]))
    layers = Decoder(w, model, lowering, length)
    of_tokens = w.op("Reshape", w.op("Expand", row, w.op("Shape", ids)), [-1])
    logits, _ = layers.write(w.op("Reshape", x, [-1, sizes.d_model]), of_tokens, layers.key_values("cross"))
    shifted, log_sum = log_softmax_parts(w, logits)
    target_logits = w.op("GatherElements", shifted, w.op("Reshape", ids, [-1, 1]), axis=1)
    scores = w.op("Reshape", w.op("Sub", target_logits, log_sum), w.op("Shape", ids))
    tokens = w.op("Less", row, w.op("Unsqueeze", lengths, [1]))
    maps = [stack_maps(w, weights, tokens) for weights in (lowering.cross_weights, lowering.self_weights)]
    return w.model([w.op("Where", tokens, scores, 0.0), *maps])


class Parallel(Lowering):
    """Lowering of all positions of all rows at once, for given tokens. The caches are the tokens' own keys and values.

    Args:
        writer: writer of the graph.
        sizes: of the model.
        positions: int64 `[t]`.
        causal: float `[1, 1, t, t]`, added to scores.

    Attributes:
        self_weights, cross_weights: attention weights of the layers so far, `[b, h, t, t]` and `[b, h, t, s]`.
    """

    def __init__(self, writer: Writer, sizes: ModelSizes, positions: ir.Value, causal: ir.Value) -> None:
        super().__init__(writer, sizes)
        self.self_weights: list[ir.Value] = []
        self.cross_weights: list[ir.Value] = []
        self._positions = positions
        self._causal = causal
        self._length = writer.op("Shape", writer.inputs["target_ids"], start=1, end=2)

    def self_attention(
        self, qkv: ir.Value, cache: KeyValue, bias: ir.Value | None = None, vectors: ShawVectors | None = None
    ) -> tuple[ir.Value, KeyValue]:
        """Return the context [b * t, d] for packed projections [b * t, 3d], and the unchanged cache."""
        w = self._w
        if self._head_dim % 8:
            query, key, value = map(self._split_heads, w.split(qkv, 3, axis=1))
        else:
            # Use one packed matrix, as stored in int8 for ONNX Runtime's fused attention.
            packed = w.op("Transpose", self._by_sentence(qkv, 3, self._heads, self._head_dim), perm=[2, 0, 3, 1, 4])
            query, key, value = (w.op("Gather", packed, part, axis=0) for part in range(3))
        if bias is None:
            mask = self._causal
        else:
            mask = w.op("Add", bias, self._causal)
        context, weights = attend(w, query, w.op("Transpose", key, perm=[0, 1, 3, 2]), value, mask, vectors)
        self.self_weights.append(weights)
        return self._merge_heads(context), cache

    def distances(self) -> ir.Value:
        w = self._w
        positions = self._positions
        before = w.op("Sub", w.op("Unsqueeze", positions, [0, 2]), w.op("Unsqueeze", positions, [0, 1]))
        return w.op("Max", before, 0)

    def cross_attention(self, query: ir.Value, key: ir.Value, value: ir.Value) -> ir.Value:
        """Return the context [b * t, d], for query [b * t, d], key and value [b, h, s, k]."""
        keys = self._w.op("Transpose", key, perm=[0, 1, 3, 2])
        context, weights = attend(self._w, self._split_heads(query), keys, value, self._w.inputs["cross_bias"])
        self.cross_weights.append(weights)
        return self._merge_heads(context)

    def by_sentence(self, x: ir.Value, width: int) -> ir.Value:
        return self._by_sentence(x, width)

    def for_each_token(self, x: ir.Value) -> ir.Value:
        return self._w.op("Expand", x, self._w.op("Concat", [1], self._length, [1], axis=0))

    def _by_sentence(self, x: ir.Value, *sizes: int) -> ir.Value:
        """Reshape [b * t, n] to [b, t, *sizes]."""
        return self._w.op("Reshape", x, self._w.op("Concat", [-1], self._length, list(sizes), axis=0))

    def _split_heads(self, x: ir.Value) -> ir.Value:
        """Reshape [b * t, d] to [b, h, t, k]."""
        return self._w.op("Transpose", self._by_sentence(x, self._heads, self._head_dim), perm=[0, 2, 1, 3])

    def _merge_heads(self, context: ir.Value) -> ir.Value:
        """Reshape [b, h, t, k] to [b * t, d]."""
        return self._w.op("Reshape", self._w.op("Transpose", context, perm=[0, 2, 1, 3]), [-1, self._width])
