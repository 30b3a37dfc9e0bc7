"""The biases of products whose results go into a norm: ONNX Runtime's fused norms add them in the same pass.

On a GPU the bias of a Gemm is a copy of its own before the product, for one row, or a kernel, for several.
"""

import onnx_ir as ir

# The fused norms, and where they take a bias.
_BIAS = {"SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}


def fold_biases(graph: ir.Graph) -> None:
    """Move the bias of each Gemm that only a fused norm reads into the norm, in place."""
    for norm in graph:
        at, x = _BIAS.get(norm.op_type), norm.inputs[0] if norm.inputs else None
        product = x.producer() if at is not None and x is not None else None
        if at is None or product is None or product.op_type != "Gemm" or len(product.inputs) < 3:
            continue
        if len(list(product.outputs[0].uses())) == 1 and not product.outputs[0].is_graph_output():
            bias = product.inputs[2]
            product.resize_inputs(2)
            norm.resize_inputs(at + 1)
            norm.replace_input_with(at, bias)
