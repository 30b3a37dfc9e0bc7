"""Operators that ONNX Runtime may run in a captured decoder step.

A replayed CUDA graph reads what it read when it was captured. Operators whose CUDA kernels take their arguments by
value are safe (TopK's K is a constant that the host reads at the capture). Others copy sizes or pointers from memory of
the host that is freed or reused after the run: GatherND (before 1.31), Concat, ScatterND, Pad, Slice, Tile, Expand,
Split into unequal parts, MatMul that broadcasts its batch.
A copy between host and device (MemcpyToHost, MemcpyFromHost) cannot be captured at all.
"""

from collections.abc import Iterable

# Shape runs on the host, once. ONNX Runtime makes five for itself: BiasSoftmax, of Add and Softmax (on a GPU; by cuDNN
# for rows of more than 1,024 values), FusedMatMul, of a transposed operand, FastGelu, of the parts of GELU with Tanh,
# QuickGelu, of Sigmoid and Mul, and SimplifiedLayerNormalization, of the parts of RMSNorm.
CAPTURABLE = frozenset(
    "Add ArgMax Attention BiasSoftmax Cast Div Equal Erf Exp FastGelu FusedMatMul Gather GatherElements Gelu Gemm "
    "GreaterOrEqual GroupQueryAttention LayerNormalization LessOrEqual Log MatMul Max Mul MultiHeadAttention Neg Not "
    "Or Pow QuickGelu RMSNormalization ReduceMax ReduceMean ReduceSum Relu Reshape ScatterElements Shape Sigmoid "
    "SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization Softmax Softplus Split Sqrt "
    "Sub Tanh TensorScatter TopK Transpose Unsqueeze Where".split()
)
# What only the CPU's provider makes of them: it fuses Gemm with Relu.
CPU_ONLY = frozenset({"FusedGemm"})


def not_capturable(operators: Iterable[str], *, on_cpu: bool = False) -> list[str]:
    """Operators of a step that are not known to be safe in a captured step, sorted.

    Args:
        operators: of the graph as ONNX Runtime runs it, after its own optimisations.
        on_cpu: the graph was optimised for the CPU, where there is no GPU.
    """
    return sorted(set(operators) - CAPTURABLE - (CPU_ONLY if on_cpu else frozenset()))
