"""The decoder of a bundle as the chain of kernels computes it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from chain_plan import CLASSES, Array, ChainModel
from txport.runtime.bundle.manifest import WEIGHTS, Manifest

CACHE = 128  # maximum positions that are measured


def model_of_bundle(bundle: Path) -> ChainModel:
    """Read the decoder of a bundle in float16.

    Raises:
        ValueError: the chain cannot compute it; the message is the reason.
    """
    manifest = Manifest.load(bundle)
    if reason := refusal(manifest):
        raise ValueError(reason)
    assert manifest.parameters is not None
    data = np.memmap(bundle / WEIGHTS, np.uint8, "r")
    parameters = {}
    for tensor in manifest.parameters.tensors:
        in_step = tensor.name.startswith(("decoder", "target", "projection"))
        if not in_step or "cross_attention.key" in tensor.name or "cross_attention.value" in tensor.name:
            continue
        kind = np.dtype(tensor.dtype)
        strides = [stride * kind.itemsize for stride in tensor.strides]
        view: Array = np.ndarray(tensor.shape, kind, data, tensor.offset, strides)  # type: ignore[call-overload]
        parameters[tensor.name] = view.astype(np.float32)
    architecture = manifest.parameters.architecture
    return ChainModel(
        parameters=parameters,
        heads=manifest.model.heads,
        norm=architecture.norm,
        norm_kind=architecture.norm_kind,
        activation=architecture.activation,
        embedding_scale=architecture.embedding_scale,
        epsilon=architecture.layer_norm_epsilon,
        pad_id=manifest.tokens.pad,
        eos_id=manifest.tokens.eos,
    )


def refusal(manifest: Manifest) -> str | None:
    """Return what the chain needs and a bundle lacks."""
    if manifest.model.copies:
        return "needs a bundle without a copy mechanism: the chain supports it, but such bundles have no parameters"
    if manifest.precision.type != "float16" or manifest.parameters is None:
        return "needs a bundle in float16 with a table of parameters"
    if manifest.precision.islands:
        return "needs a bundle without float32 islands"
    if manifest.precision.weights == "int8":
        return "needs a bundle without int8 weights"
    return None


def cache_of(bundle: Path) -> int:
    """Return the length of the caches that are measured."""
    return min(CACHE, Manifest.load(bundle).limits.target)


def constants_of(bundle: Path) -> Iterator[dict[str, int | float]]:
    """Yield the sizes of each batch class.

    Raises:
        ValueError: the chain cannot compute this bundle.
    """
    model = model_of_bundle(bundle)
    for rows in CLASSES:
        yield model.constants(rows, cache_of(bundle), half_caches=True)
