"""The three ways to write one decoder step in ONNX, behind one set of methods.

`modules.DecoderStep` is the one source; what differs between runtimes is how a cache is written, how attention is
spelled and how a residual meets its LayerNorm. Shapes: b batch, h heads, k head_dim, d d_model, s source, c cache.
Queries arrive already scaled by 1/sqrt(head_dim): the factor is folded into their weights.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from txport.runtime.bundle.interface import MASKED

CONTRIB = "com.microsoft"
# Ids of a block that is searched for the best one: fewer would not pay for the operators around it.
LEAST_BLOCK = 16


@dataclass(frozen=True)
class StepInputs:
    """Inputs that all layers of one step share."""

    positions: Tensor  # int64 [b]
    cache_positions: Tensor  # int64 [c], 0..c-1: an input, so that no Range operator is needed
    cross_bias: Tensor  # float [b, 1, 1, s]


class Lowering(ABC):
    """How a step is spelled for one family of runtimes; what is not overridden is written in standard operators.

    Attributes:
        name: as in file names and the manifest.
        opset: version of the standard operators.
        needs: which runtimes read it, in words.
    """

    name: str
    opset: int
    needs: str

    @abstractmethod
    def self_attention(
        self, qkv: Tensor, heads: int, key_cache: Tensor, value_cache: Tensor, step: StepInputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Packed projections [b, 3d] and caches [b, h, c, k] -> context [b, d] and the written caches."""

    @abstractmethod
    def cross_attention(self, query: Tensor, heads: int, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """query [b, d], key and value [b, h, s, k] -> context [b, d]."""

    def add_norm(self, x: Tensor, residual: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """x, residual [b, d] -> (their sum, its LayerNorm), each [b, d]."""
        total = x + residual
        return total, norm(total)

    def best(self, logits: Tensor) -> Tensor:
        """logits [b, v] -> int64 [b], the id of the largest; of equal ones, the lowest."""
        return torch.argmax(logits, dim=-1)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(-1, heads, 1, x.shape[1] // heads)


def _merge_heads(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[1] * x.shape[3])


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """MatMul, Add, Softmax, MatMul: at opset 18 scaled_dot_product_attention would become fifteen nodes."""
    return _matmul(torch.softmax(_matmul(query, key.transpose(-1, -2)) + bias, dim=-1), value)


def _matmul(x: Tensor, y: Tensor) -> Tensor:
    """x [b, h, m, k], y [b, h, k, n] -> [b, h, m, n]: torch would reason about its dynamic sizes for seconds."""
    return torch.onnx.ops.symbolic("MatMul", (x, y), dtype=x.dtype, shape=(*x.shape[:-1], y.shape[-1]))


class Scatter(Lowering):
    """ScatterElements into a fixed cache and plain attention; opset 18, as TensorRT 8.6 and every runtime reads."""

    name, opset, needs = "scatter", 18, "opset 18: ONNX Runtime, TensorRT 8.6 and later"

    def self_attention(
        self, qkv: Tensor, heads: int, key_cache: Tensor, value_cache: Tensor, step: StepInputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (_split_heads(part, heads) for part in qkv.chunk(3, dim=1))
        # ScatterElements wants an index for each element written. Adding zeros spreads the position over heads and
        # head_dim; Expand would need the batch size, and with it a Shape operator.
        spread = torch.zeros(1, heads, 1, key.shape[3], dtype=torch.int64)
        index = step.positions.reshape(-1, 1, 1, 1) + spread
        key_cache = key_cache.scatter(2, index, key)
        value_cache = value_cache.scatter(2, index, value)
        visible = step.cache_positions.reshape(1, 1, 1, -1) <= step.positions.reshape(-1, 1, 1, 1)
        bias = torch.where(visible, 0.0, MASKED)
        return _merge_heads(attend(query, key_cache, value_cache, bias)), key_cache, value_cache

    def cross_attention(self, query: Tensor, heads: int, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return _merge_heads(attend(_split_heads(query, heads), key, value, bias))


class TensorScatter(Lowering):
    """TensorScatter and Attention of opset 24, with explicit masks: TensorRT silently drops `nonpad_kv_seqlen`."""

    name, opset, needs = "tensorscatter", 24, "opset 24: ONNX Runtime 1.24 and later, TensorRT 10.15 and later"

    def self_attention(
        self, qkv: Tensor, heads: int, key_cache: Tensor, value_cache: Tensor, step: StepInputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (_split_heads(part, heads) for part in qkv.chunk(3, dim=1))
        key_cache = self._write(key_cache, key, step.positions)
        value_cache = self._write(value_cache, value, step.positions)
        visible = step.cache_positions.reshape(1, 1, 1, -1) <= step.positions.reshape(-1, 1, 1, 1)
        context = F.scaled_dot_product_attention(query, key_cache, value_cache, attn_mask=visible, scale=1.0)
        return _merge_heads(context), key_cache, value_cache

    def cross_attention(self, query: Tensor, heads: int, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        query = _split_heads(query, heads)
        return _merge_heads(F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0))

    @staticmethod
    def _write(cache: Tensor, new: Tensor, positions: Tensor) -> Tensor:
        return torch.onnx.ops.symbolic(
            "TensorScatter", (cache, new, positions), {"axis": 2}, dtype=cache.dtype, shape=cache.shape, version=24
        )


class Ort(Scatter):
    """ONNX Runtime's fused operators: it reads only the part of a cache that a row has reached.

    Its GroupQueryAttention takes heads of a multiple of 8 only; others keep `Scatter`'s self-attention.
    """

    name, opset, needs = "ort", 18, "ONNX Runtime's own operators: ONNX Runtime only"

    def self_attention(
        self, qkv: Tensor, heads: int, key_cache: Tensor, value_cache: Tensor, step: StepInputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        if key_cache.shape[3] % 8:
            return super().self_attention(qkv, heads, key_cache, value_cache, step)
        # seqlens_k is, in its documentation's words, "total sequence lengths minus 1" of each row: the position.
        lengths = step.positions.to(torch.int32)
        total = torch.onnx.ops.symbolic("Shape", (step.cache_positions,), dtype=torch.int64, shape=(1,))
        context, key_cache, value_cache = torch.onnx.ops.symbolic_multi_out(
            f"{CONTRIB}::GroupQueryAttention",
            (qkv[:, None], None, None, key_cache, value_cache, lengths, total.to(torch.int32)),
            {"num_heads": heads, "kv_num_heads": heads, "scale": 1.0},
            dtypes=(qkv.dtype, key_cache.dtype, value_cache.dtype),
            shapes=((qkv.shape[0], 1, qkv.shape[1] // 3), key_cache.shape, value_cache.shape),
            version=1,
        )
        return context.reshape(-1, qkv.shape[1] // 3), key_cache, value_cache

    def cross_attention(self, query: Tensor, heads: int, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        query = query[:, None]
        context = torch.onnx.ops.symbolic(
            f"{CONTRIB}::MultiHeadAttention",
            (query, key, value, None, None, bias),
            {"num_heads": heads, "scale": 1.0},
            dtype=query.dtype,
            shape=query.shape,
            version=1,
        )
        return context.reshape(-1, query.shape[2])

    def add_norm(self, x: Tensor, residual: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        normalised, _, _, total = torch.onnx.ops.symbolic_multi_out(
            f"{CONTRIB}::SkipLayerNormalization",
            (x, residual, norm.weight, norm.bias),
            {"epsilon": norm.eps},
            dtypes=(x.dtype, torch.float32, torch.float32, x.dtype),
            shapes=(x.shape, (x.shape[0], 1), (x.shape[0], 1), x.shape),
            version=1,
        )
        return total, normalised

    def best(self, logits: Tensor) -> Tensor:
        """In two steps, the best block of ids and then the best of the block.

        ONNX Runtime's ArgMax compares one number at a time, its ReduceMax a vector.
        """
        vocabulary = logits.shape[1]
        width = _block(vocabulary)
        if width < LEAST_BLOCK:
            return super().best(logits)
        blocks = logits.reshape(-1, vocabulary // width, width)
        block = torch.argmax(torch.amax(blocks, dim=-1), dim=-1)
        chosen = torch.onnx.ops.symbolic(
            "GatherND", (blocks, block[:, None]), {"batch_dims": 1}, dtype=logits.dtype, shape=(block.shape[0], width)
        )
        return block * width + torch.argmax(chosen, dim=-1)


def _block(vocabulary: int) -> int:
    """The largest divisor of the vocabulary's size up to its square root; 1 for a prime one."""
    return max(width for width in range(1, math.isqrt(vocabulary) + 1) if vocabulary % width == 0)


LOWERINGS: dict[str, Lowering] = {lowering.name: lowering for lowering in (Ort(), Scatter(), TensorScatter())}
