"""Weights file for all graphs of a bundle, which contains equal tensors once.

Tensors are compared by their bytes. So a tied embedding and projection, a layer in three lowerings, and the position
table of encoder and decoder are each stored once. Large tensors start at a page, so that runtimes can map them.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx_ir as ir

PAGE = 4096
LARGE = 64 * 1024  # for larger tensors, padding to a page costs less than 7%
ALIGNMENT = 64
INLINE = 256  # maximum bytes of tensors inside graph files: shape inference needs shapes and constants


def share_weights(models: Iterable[ir.Model], file: Path) -> int:
    """Move the weights of `models` into `file`, and replace them with references (ONNX's external data format).

    Args:
        models: changed in place; to be saved in the directory of `file`.
        file: replaced if it exists.

    Returns:
        size of `file` in bytes.
    """
    stored: dict[bytes, tuple[int, int]] = {}
    keys: dict[ir.TensorProtocol, bytes] = {}  # graphs of a model share tensors, which are computed once
    with file.open("wb") as output:
        for model in models:
            for value in model.graph.initializers.values():
                tensor = value.const_value
                assert tensor is not None, value.name
                if tensor.nbytes < INLINE:
                    continue
                if tensor not in keys:
                    data = np.ascontiguousarray(tensor.numpy()).data.cast("B")  # no copy
                    keys[tensor] = key = hashlib.sha256(data).digest()
                    if key not in stored:
                        alignment = PAGE if len(data) >= LARGE else ALIGNMENT
                        output.write(b"\0" * (-output.tell() % alignment))
                        stored[key] = (output.tell(), len(data))
                        output.write(data)
                offset, length = stored[keys[tensor]]
                shape = ir.Shape(tensor.shape)  # type: ignore[arg-type]
                name = value.name or ""
                value.const_value = ir.ExternalTensor(
                    file.name, offset, length, tensor.dtype, shape=shape, name=name, base_dir=file.parent
                )
        return output.tell()


def remove_unused_weights(graph: ir.Graph) -> None:
    """Remove unused initializers."""
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]
