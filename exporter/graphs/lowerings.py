"""The three ways to write one decoder step in ONNX, behind one set of methods.

`modules.DecoderStep` is the one source; runtimes differ in how a cache is written, which operators compute attention,
and how a residual and its norm are combined. Shapes: b batch, h heads, k head_dim, d d_model, s source, c cache.
Queries arrive already scaled by 1/sqrt(head_dim): the factor is folded into their weights.
"""

import math
from dataclasses import dataclass

import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from txport.exporter.graphs.biases import fold_biases
from txport.exporter.graphs.norms import RootMeanSquare
from txport.models.transformer import KeyValue
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
    cross_ids: Tensor | None = None  # int64 [b, 1, s, 1], of a model that copies


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(-1, heads, 1, x.shape[1] // heads)


def _merge_heads(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[1] * x.shape[3])


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Context [b, h, m, k] and weights [b, h, m, n], by plain operators.

    MatMul, Add, Softmax, MatMul: at opset 18 scaled_dot_product_attention would become fifteen nodes.
    """
    weights = torch.softmax(_matmul(query, key.transpose(-1, -2)) + bias, dim=-1)
    return _matmul(weights, value), weights


def _matmul(x: Tensor, y: Tensor) -> Tensor:
    """x [b, h, m, k], y [b, h, k, n] -> [b, h, m, n]: torch would reason about its dynamic sizes for seconds."""
    return torch.onnx.ops.symbolic("MatMul", (x, y), dtype=x.dtype, shape=(*x.shape[:-1], y.shape[-1]))


def _to_int32(x: Tensor) -> Tensor:
    """As `x.to(torch.int32)`, which PyTorch's exporter would have to decompose: see `trace._with_less_work`."""
    return torch.onnx.ops.symbolic("Cast", (x,), {"to": ir.DataType.INT32.value}, dtype=torch.int32, shape=x.shape)


class Lowering:
    """How a step is written for one family of runtimes; this one is `scatter`, for TensorRT 8.6 and every other.

    It has ScatterElements into a fixed cache, plain attention and only standard operators; others override some.

    Attributes:
        name: as in file names and the manifest.
        opset: version of the standard operators.
    """

    name, opset = "scatter", 18

    def self_attention(self, qkv: Tensor, heads: int, cache: KeyValue, step: StepInputs) -> tuple[Tensor, KeyValue]:
        """Packed projections [b, 3d] and a cache, each [b, h, c, k] -> context [b, d] and the written cache."""
        query, key, value = (_split_heads(part, heads) for part in qkv.chunk(3, dim=1))
        cache = self.write(cache, (key, value), step.positions)
        visible = step.cache_positions.reshape(1, 1, 1, -1) <= step.positions.reshape(-1, 1, 1, 1)
        return _merge_heads(self.attend(query, *cache, visible)), cache

    def cross_attention(self, query: Tensor, heads: int, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """query [b, d], key and value [b, h, s, k], bias [b, 1, 1, s] -> context [b, d]."""
        return _merge_heads(self.attend(_split_heads(query, heads), key, value, bias))

    def write(self, cache: KeyValue, new: KeyValue, positions: Tensor) -> KeyValue:
        """A cache, each [b, h, c, k], with the new key and value, each [b, h, 1, k], at positions [b]."""
        # ScatterElements wants an index for each element written. Adding zeros spreads the position over heads and
        # head_dim; Expand would need the batch size, and with it a Shape operator.
        _, heads, _, head_dim = new[0].shape
        spread = torch.zeros(1, heads, 1, head_dim, dtype=torch.int64)
        index = positions.reshape(-1, 1, 1, 1) + spread
        return cache[0].scatter(2, index, new[0]), cache[1].scatter(2, index, new[1])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Attention of [b, h, 1, k] over [b, h, n, k]; a bool mask is true where seen, a float mask is added."""
        return attend(query, key, value, torch.where(mask, 0.0, MASKED) if mask.dtype == torch.bool else mask)[0]

    def apart(self, x: Tensor) -> Tensor:
        """A tensor with a row for each token, [b * t, n] -> [b, t, n]; a step has one token."""
        return x.reshape(-1, 1, x.shape[1])

    def for_each_token(self, x: Tensor, tokens: Tensor) -> Tensor:
        """x [b, 1, s] for each of tokens [b, t, n] -> [b, t, s]."""
        return x

    def add_norm(self, x: Tensor, residual: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """x, residual [b, d] -> (their sum, that normalised), each [b, d]."""
        total = x + residual
        return total, norm(total)

    def best(self, logits: Tensor) -> Tensor:
        """logits [b, v] -> int64 [b], the id of the largest; of equal ones, the lowest."""
        return torch.argmax(logits, dim=-1)

    def finish(self, graph: ir.Graph) -> None:
        """Change a traced step in place where operators of this lowering allow it."""


class TensorScatter(Lowering):
    """TensorScatter and Attention of opset 24, with explicit masks: TensorRT silently drops `nonpad_kv_seqlen`."""

    name, opset = "tensorscatter", 24

    def write(self, cache: KeyValue, new: KeyValue, positions: Tensor) -> KeyValue:
        key, value = (
            torch.onnx.ops.symbolic(
                "TensorScatter", (old, part, positions), {"axis": 2}, dtype=old.dtype, shape=old.shape, version=24
            )
            for old, part in zip(cache, new, strict=True)
        )
        return key, value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)


class Ort(Lowering):
    """ONNX Runtime's fused operators, for CPUs: it reads only the part of a cache that a row has reached.

    Its GroupQueryAttention takes heads of a multiple of 8 only; others keep the standard self-attention.
    """

    name, opset = "ort", 18

    def self_attention(self, qkv: Tensor, heads: int, cache: KeyValue, step: StepInputs) -> tuple[Tensor, KeyValue]:
        key, value = cache
        if key.shape[3] % 8:
            return super().self_attention(qkv, heads, cache, step)
        # seqlens_k is, in its documentation's words, "total sequence lengths minus 1" of each row: the position.
        lengths = _to_int32(step.positions)
        total = torch.onnx.ops.symbolic("Shape", (step.cache_positions,), dtype=torch.int64, shape=(1,))
        context, *written = torch.onnx.ops.symbolic_multi_out(
            f"{CONTRIB}::GroupQueryAttention",
            (qkv[:, None], None, None, key, value, lengths, _to_int32(total)),
            {"num_heads": heads, "kv_num_heads": heads, "scale": 1.0},
            dtypes=(qkv.dtype, key.dtype, value.dtype),
            shapes=((qkv.shape[0], 1, qkv.shape[1] // 3), key.shape, value.shape),
            version=1,
        )
        return context.reshape(-1, qkv.shape[1] // 3), (written[0], written[1])

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

    def add_norm(self, x: Tensor, residual: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
        parameters: tuple[Tensor, ...]
        if isinstance(norm, nn.LayerNorm):
            name, parameters = "SkipLayerNormalization", (norm.weight, norm.bias)
        elif isinstance(norm, RootMeanSquare):
            name, parameters = "SkipSimplifiedLayerNormalization", (norm.weight,)
        else:
            return super().add_norm(x, residual, norm)
        normalised, _, _, total = torch.onnx.ops.symbolic_multi_out(
            f"{CONTRIB}::{name}",
            (x, residual, *parameters),
            {"epsilon": norm.eps},
            dtypes=(x.dtype, torch.float32, torch.float32, x.dtype),
            shapes=(x.shape, (x.shape[0], 1), (x.shape[0], 1), x.shape),
            version=1,
        )
        return total, normalised

    def best(self, logits: Tensor) -> Tensor:
        """In two steps, the best block of ids and then the best of the block.

        ONNX Runtime's ArgMax compares one number at a time, its ReduceMax a vector. The block is taken by
        GatherElements: GatherND copies its offsets from the host's stack, which a captured step would read again when
        they are long gone (ONNX Runtime before 1.31, microsoft/onnxruntime#32120).
        """
        vocabulary = logits.shape[1]
        width = _block(vocabulary)
        if width < LEAST_BLOCK:
            return super().best(logits)
        blocks = logits.reshape(-1, vocabulary // width, width)
        block = torch.argmax(torch.amax(blocks, dim=-1), dim=-1)
        index = block.reshape(-1, 1, 1) + torch.zeros(1, 1, width, dtype=torch.int64)
        return block * width + torch.argmax(blocks.gather(1, index).reshape(-1, width), dim=-1)


class OrtCuda(Ort):
    """The same with fewer kernels, for the CUDA provider: at batch 1 each costs a microsecond or two, however small.

    MultiHeadAttention transposes its one query and its context, which is nothing but a Reshape; and its ArgMax takes no
    longer than the first of two steps. Only float16 is written so: GroupQueryAttention has no float32 kernel there.
    """

    cross_attention = Lowering.cross_attention
    best = Lowering.best

    def finish(self, graph: ir.Graph) -> None:
        fold_biases(graph)


def _block(vocabulary: int) -> int:
    """The largest divisor of the vocabulary's size up to its square root; 1 for a prime one."""
    return max(width for width in range(1, math.isqrt(vocabulary) + 1) if vocabulary % width == 0)


LOWERINGS: dict[str, Lowering] = {lowering.name: lowering for lowering in (Ort(), Lowering(), TensorScatter())}
# What float16 writes otherwise, since GPUs run it.
HALF_LOWERINGS = LOWERINGS | {OrtCuda.name: OrtCuda()}
