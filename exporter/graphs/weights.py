"""One file of weights for all graphs of a bundle, in which equal tensors are stored once.

Tensors are compared by their bytes, so a tied embedding and projection, the same layer in three lowerings and the
position table of encoder and decoder are each stored once. Large ones start at a page, so that a runtime can map them.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx_ir as ir

PAGE = 4096
LARGE = 64 * 1024  # from here on a page boundary costs less than 7%
ALIGNMENT = 64
INLINE = 256  # bytes; shapes and constants, which shape inference must see


def share_weights(models: Iterable[ir.Model], file: Path) -> int:
    """Move the weights of `models` into `file`, replacing them by references of ONNX's external data format.

    Args:
        models: changed in place. Saved later in the directory of `file`.
        file: written from scratch.

    Returns:
        bytes of `file`.
    """
    stored: dict[bytes, tuple[int, int]] = {}
    keys: dict[ir.TensorProtocol, bytes] = {}  # graphs of one model share tensors, which are read once
    with file.open("wb") as output:
        for model in models:
            for value in model.graph.initializers.values():
                tensor = value.const_value
                assert tensor is not None, value.name
                if tensor.nbytes < INLINE:
                    continue
                if tensor not in keys:
                    data = np.ascontiguousarray(tensor.numpy()).data.cast("B")  # not a copy
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
    """Remove the initializers that nothing reads."""
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]
