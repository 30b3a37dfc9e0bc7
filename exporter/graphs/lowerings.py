"""Lowerings: ways to write the decoder's layers in ONNX for different runtimes, with the same methods.

`decoder.Decoder` uses these methods. Runtimes differ in how caches are written, which operators compute attention, and
how a residual and its norm are combined. Shapes: b batch, h heads, k head_dim, d d_model, s source, c cache length.
Queries are already scaled by 1/sqrt(head_dim), which is folded into their weights.
"""

import math
from abc import ABC, abstractmethod

import numpy as np
import onnx_ir as ir
from torch import nn
from txport.exporter.graphs.layers import ShawVectors, attend
from txport.exporter.graphs.norms import write_norm
from txport.exporter.graphs.writer import CONTRIB, FLOAT, INT32, Writer
from txport.models.norms import RMSNorm
from txport.runtime.bundle.interface import MASKED
from txport.runtime.bundle.schema import ModelSizes

# Key and value of all heads, [b, h, s or c, k].
KeyValue = tuple[ir.Value, ir.Value]
# Minimum number of ids in a block for the search of the best id. Smaller blocks do not compensate for extra operators.
MIN_BLOCK = 16


class Lowering(ABC):
    """Method of writing the decoder's layers for one family of runtimes.

    Args:
        writer: writer of the graph.
        sizes: of the model.

    Attributes:
        name: name in file names and in the manifest.
        opset: version of the standard operators.
    """

    name: str
    opset: int

    def __init__(self, writer: Writer, sizes: ModelSizes) -> None:
        self._w = writer
        self._heads = sizes.heads
        self._head_dim = sizes.head_dim
        self._width = sizes.heads * sizes.head_dim

    @abstractmethod
    def self_attention(
        self, qkv: ir.Value, cache: KeyValue, bias: ir.Value | None = None, vectors: ShawVectors | None = None
    ) -> tuple[ir.Value, KeyValue]:
        """Return the context of self-attention, [n, h * k], and the new cache.

        Args:
            qkv: packed projections, [n, 3 * h * k].
            cache: key and value, each [b, h, c, k].
            bias: added to the scores, [b or 1, h, t, c].
            vectors: added to keys and values by distance.
        """

    @abstractmethod
    def distances(self) -> ir.Value:
        """Return the distance from each query to each earlier key, 0 for later keys: int64 [b or 1, t, c]."""

    @abstractmethod
    def cross_attention(self, query: ir.Value, key: ir.Value, value: ir.Value) -> ir.Value:
        """Return the context [n, d] of cross-attention, for query [n, d], key and value [b, h, s, k]."""

    @abstractmethod
    def by_sentence(self, x: ir.Value, width: int) -> ir.Value:
        """Reshape rows of tokens, [n, width], to [b, t, width]."""

    @abstractmethod
    def for_each_token(self, x: ir.Value) -> ir.Value:
        """Repeat x [b, 1, s] for each token of its sentence: [b, t, s]."""

    def add_norm(self, x: ir.Value, residual: ir.Value, norm: nn.Module, name: str) -> tuple[ir.Value, ir.Value]:
        """Return the sum of x and residual, and the normalised sum, each [n, d]."""
        total = self._w.op("Add", x, residual)
        return total, write_norm(self._w, total, norm, name)

    def best(self, logits: ir.Value, vocabulary: int) -> ir.Value:
        """Return the id of the maximum logit, int64 [b], for logits [b, v]; for equal logits the lowest id."""
        return self._w.op("ArgMax", logits, axis=-1, keepdims=0)

    def advance(self, token: ir.Value, eos: int, vocabulary: int) -> tuple[ir.Value, ir.Value]:
        """Return the position after a token, and whether its row is finished, each [b].

        Positions of finished rows have no meaning.

        Args:
            token: int64 [b].
            eos: the id that ends a sentence.
            vocabulary: size of the vocabulary.
        """
        w = self._w
        following = w.op("Add", w.inputs["positions"], 1)
        is_finished = w.op("Or", w.inputs["finished"], w.op("Equal", token, eos))
        return following, w.op("Or", is_finished, w.op("GreaterOrEqual", following, w.inputs["target_limits"]))

    def finish(self, graph: ir.Graph) -> None:  # noqa: B027
        """Change a written step in place by optimisations of this lowering."""


class Scatter(Lowering):
    """Lowering of one token for each row, for TensorRT 8.6 and all other runtimes.

    It has ScatterElements into a fixed cache, plain attention and only standard operators. Subclasses override parts.
    """

    name = "scatter"
    opset = 17

    def self_attention(
        self, qkv: ir.Value, cache: KeyValue, bias: ir.Value | None = None, vectors: ShawVectors | None = None
    ) -> tuple[ir.Value, KeyValue]:
        query, key, value = map(self._split_heads, self._w.split(qkv, 3, axis=1))
        cache = self.write(cache, (key, value))
        positions = self._w.op("Reshape", self._w.inputs["positions"], [-1, 1, 1, 1])
        slots = self._w.op("Reshape", self._w.inputs["cache_positions"], [1, 1, 1, -1])
        mask = self._w.op("LessOrEqual", slots, positions)
        if bias is not None:
            mask = self._w.op("Where", mask, bias, MASKED)
        return self._merge_heads(self.attend(query, *cache, mask, vectors)), cache

    def distances(self) -> ir.Value:
        positions = self._w.op("Reshape", self._w.inputs["positions"], [-1, 1, 1])
        slots = self._w.op("Reshape", self._w.inputs["cache_positions"], [1, 1, -1])
        return self._w.op("Max", self._w.op("Sub", positions, slots), 0)

    def cross_attention(self, query: ir.Value, key: ir.Value, value: ir.Value) -> ir.Value:
        bias = self._w.inputs["cross_bias"]
        return self._merge_heads(self.attend(self._split_heads(query), key, value, bias))

    def by_sentence(self, x: ir.Value, width: int) -> ir.Value:
        return self._w.op("Reshape", x, [-1, 1, width])

    def for_each_token(self, x: ir.Value) -> ir.Value:
        return x

    def write(self, cache: KeyValue, new: KeyValue) -> KeyValue:
        """Return the caches [b, h, c, k] with a new key and value [b, h, 1, k] at the position of each row."""
        # ScatterElements needs one index for each element. Adding zeros repeats the position over heads and head_dim.
        # Expand would need the batch size, and so a Shape operator.
        positions = self._w.op("Reshape", self._w.inputs["positions"], [-1, 1, 1, 1])
        index = self._w.op("Add", positions, np.zeros((1, self._heads, 1, self._head_dim), np.int64))
        key, value = (
            self._w.op("ScatterElements", old, index, part, axis=2) for old, part in zip(cache, new, strict=True)
        )
        return key, value

    def attend(
        self, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value, vectors: ShawVectors | None = None
    ) -> ir.Value:
        """Attend from [b, h, 1, k] to [b, h, n, k]. A bool mask is true for visible keys, a float mask is added."""
        if mask.dtype == FLOAT:
            bias = mask
        else:
            bias = self._w.op("Where", mask, 0.0, MASKED)
        return attend(self._w, query, self._w.op("Transpose", key, perm=[0, 1, 3, 2]), value, bias, vectors)[0]

    def _split_heads(self, x: ir.Value) -> ir.Value:
        return self._w.op("Reshape", x, [-1, self._heads, 1, self._head_dim])

    def _merge_heads(self, x: ir.Value) -> ir.Value:
        return self._w.op("Reshape", x, [-1, self._width])


class TensorScatter(Scatter):
    """Lowering with TensorScatter and Attention of opset 24. Masks are used, as TensorRT ignores `nonpad_kv_seqlen`."""

    name = "tensorscatter"
    opset = 24

    def write(self, cache: KeyValue, new: KeyValue) -> KeyValue:
        positions = self._w.inputs["positions"]
        key, value = (
            self._w.op("TensorScatter", old, part, positions, axis=2) for old, part in zip(cache, new, strict=True)
        )
        return key, value

    def attend(
        self, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value, vectors: ShawVectors | None = None
    ) -> ir.Value:
        if vectors is not None:  # Attention returns no weights in TensorRT
            return super().attend(query, key, value, mask, vectors)
        return self._w.op("Attention", query, key, value, mask, scale=1.0)


class Ort(Scatter):
    """Lowering with ONNX Runtime's fused operators for CPUs, which read only the used part of a cache.

    GroupQueryAttention needs head sizes that are multiples of 8 and no vectors. Others use standard self-attention.
    """

    name = "ort"
    fused_bias = True  # whether the fused self-attention supports a bias

    def self_attention(
        self, qkv: ir.Value, cache: KeyValue, bias: ir.Value | None = None, vectors: ShawVectors | None = None
    ) -> tuple[ir.Value, KeyValue]:
        if self._head_dim % 8 or vectors is not None or (bias is not None and not self.fused_bias):
            return super().self_attention(qkv, cache, bias, vectors)
        # The documentation defines seqlens_k as "total sequence lengths minus 1" of each row, which is the position.
        lengths = self._w.op("Cast", self._w.inputs["positions"], to=INT32)
        total = self._w.op("Cast", self._w.op("Shape", self._w.inputs["cache_positions"]), to=INT32)
        context, key, value = self._w.ops(
            "GroupQueryAttention",
            3,
            self._w.op("Unsqueeze", qkv, [1]),
            None,
            None,
            *cache,
            lengths,
            total,
            *(() if bias is None else (None, None, None, bias)),
            domain=CONTRIB,
            num_heads=self._heads,
            kv_num_heads=self._heads,
            scale=1.0,
        )
        return self._w.op("Reshape", context, [-1, self._width]), (key, value)

    def cross_attention(self, query: ir.Value, key: ir.Value, value: ir.Value) -> ir.Value:
        context = self._w.op(
            "MultiHeadAttention",
            self._w.op("Unsqueeze", query, [1]),
            key,
            value,
            None,
            None,
            self._w.inputs["cross_bias"],
            domain=CONTRIB,
            num_heads=self._heads,
            scale=1.0,
        )
        return self._w.op("Reshape", context, [-1, self._width])

    def add_norm(self, x: ir.Value, residual: ir.Value, norm: nn.Module, name: str) -> tuple[ir.Value, ir.Value]:
        if not isinstance(norm, nn.LayerNorm | RMSNorm):
            return super().add_norm(x, residual, norm, name)
        if isinstance(norm, nn.LayerNorm):
            kind = "SkipLayerNormalization"
        else:
            kind = "SkipSimplifiedLayerNormalization"
        with self._w.module(name):
            parameters = [self._w.weight(key, self._w.tensors.parameter(p)) for key, p in norm.named_parameters()]
            outputs = self._w.ops(kind, 4, x, residual, *parameters, domain=CONTRIB, epsilon=norm.eps)
        return outputs[3], outputs[0]

    def best(self, logits: ir.Value, vocabulary: int) -> ir.Value:
        """Find the best id in two steps: the block of ids with the maximum, then the best id in the block.

        ONNX Runtime's ReduceMax is vectorised, its ArgMax is not. The block is selected by GatherElements. GatherND
        copies offsets from the host's stack, which a replayed step would read after they are freed (ONNX Runtime before
        1.31, microsoft/onnxruntime#32120).
        """
        width = _block(vocabulary)
        if width < MIN_BLOCK:
            return super().best(logits, vocabulary)
        w = self._w
        blocks = w.op("Reshape", logits, [-1, vocabulary // width, width])
        block = w.op("ArgMax", w.reduce("ReduceMax", blocks, keepdims=0), axis=-1, keepdims=0)
        index = w.op("Add", w.op("Reshape", block, [-1, 1, 1]), np.zeros((1, 1, width), np.int64))
        position_in_block = w.op("Reshape", w.op("GatherElements", blocks, index, axis=1), [-1, width])
        return w.op("Add", w.op("Mul", block, width), w.op("ArgMax", position_in_block, axis=-1, keepdims=0))


def _block(vocabulary: int) -> int:
    """Return the largest divisor of the vocabulary size up to its square root; 1 for a prime."""
    return max(width for width in range(1, math.isqrt(vocabulary) + 1) if vocabulary % width == 0)


LOWERINGS: dict[str, type[Lowering]] = {lowering.name: lowering for lowering in (Ort, Scatter, TensorScatter)}
