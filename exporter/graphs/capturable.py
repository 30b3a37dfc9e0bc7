"""List of operators that ONNX Runtime can safely run in a captured decoder step.

A replayed CUDA graph reads the same memory as during capture. Operators are safe if their CUDA kernels take arguments
by value (TopK's K is a constant that the host reads during capture). Other operators copy sizes or pointers from host
memory that is freed or reused after the run: GatherND (before 1.31), Concat, ScatterND, Pad, Slice, Tile, Expand, Split
into unequal parts, and MatMul with a broadcast batch. Copies between host and device (MemcpyToHost, MemcpyFromHost)
cannot be captured at all.
"""

from collections.abc import Iterable

# Shape runs on the host, only once. ONNX Runtime creates five operators by fusion: BiasSoftmax from Add and Softmax (on
# GPUs, with cuDNN for rows of more than 1,024 values), FusedMatMul from a transposed operand, FastGelu from the parts
# of GELU with Tanh, QuickGelu from Sigmoid and Mul, and SimplifiedLayerNormalization from the parts of RMSNorm.
CAPTURABLE = frozenset(
    "Add ArgMax Attention BiasSoftmax Cast Div Equal Erf Exp FastGelu FusedMatMul Gather GatherElements Gelu Gemm "
    "GreaterOrEqual GroupQueryAttention LayerNormalization LessOrEqual Log MatMul Max Mul MultiHeadAttention Neg Not "
    "Or Pow QuickGelu RMSNormalization ReduceMax ReduceMean ReduceSum Relu Reshape ScatterElements Shape Sigmoid "
    "SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization Softmax Softplus Split Sqrt "
    "Sub Tanh TensorScatter TopK Transpose Unsqueeze Where".split()
)
# Fused only by the CPU provider: Gemm with Relu.
CPU_ONLY = frozenset({"FusedGemm"})


def not_capturable(operators: Iterable[str], *, on_cpu: bool = False) -> list[str]:
    """Return operators of a step that are not known to be safe in a captured step, sorted.

    Args:
        operators: operators of the graph after ONNX Runtime's optimisations.
        on_cpu: whether the graph was optimised for the CPU, on a machine without a GPU.
    """
    return sorted(set(operators) - CAPTURABLE - (CPU_ONLY if on_cpu else frozenset()))
