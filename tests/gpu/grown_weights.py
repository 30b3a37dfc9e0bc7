"""Random weights that any machine computes from their names, so that a kit needs no copy of them.

    python tests/gpu/grown_weights.py checkpoint DIRECTORY [--preset base] [--vocabulary 32000]
    python tests/gpu/grown_weights.py strip BUNDLE...     # leaves weights.npz in place of onnx/weights.bin
    python tests/gpu/grown_weights.py grow BUNDLE...      # the reverse, on the device

`strip` leaves bundles of other checkpoints unchanged. `grow` checks the manifest's SHA-256. Numbers are the raw bits of
PCG64, which NumPy promises to keep.
"""

import argparse
import hashlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.manifest import NAME, WEIGHTS, Manifest
from txport.runtime.errors import CheckFailed, TxportError
from txport.runtime.files import write_atomically

CHANGES = "weights.npz"  # bytes of weights.bin that no parameter explains
_MAX_CHANGES = 0.2  # of a file, above which the weights are another checkpoint's
_SMALL = 0.05  # standard deviation of vectors

Bytes = npt.NDArray[np.uint8]


def random_tensor(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32] | None:
    """Return values of a parameter by its name in the state dict: vectors near 0 or 1, matrices as Xavier's.

    None for tensors that are not random, such as sinusoidal positions.
    """
    if name.endswith("positions"):
        return None
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    raw = np.random.PCG64(seed).random_raw(math.prod(shape))
    uniform = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2**-24) - np.float32(0.5)
    if len(shape) == 1:
        deviation = _SMALL
        mean = 1.0 if "norm.weight" in name else 0.0
    else:
        # Strong branches, as those of `random_checkpoint`.
        strong = 3.0 if ".output." in name or ".outer." in name else 1.0
        deviation = shape[-1] ** -0.5 if "tokens" in name else strong * math.sqrt(2 / sum(shape))
        mean = 0.0
    return (uniform * np.float32(deviation * math.sqrt(12)) + np.float32(mean)).reshape(shape)


def write_checkpoint(directory: Path, preset: str, vocabulary: int) -> None:
    """Write a checkpoint of a preset whose weights are `random_tensor`."""
    import torch
    from txport.benchmarks.studies.random_checkpoint import random_checkpoint
    from txport.models.checkpoint import load_checkpoint, save_checkpoint
    from txport.runtime.files import scratch_directory

    with scratch_directory() as scratch:
        random_checkpoint(scratch / "checkpoint", preset, vocabulary=vocabulary, positions=256)
        model = load_checkpoint(scratch / "checkpoint").model
    with torch.no_grad():
        # A tied tensor has the name of the target embedding in the manifest: that is filled last.
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for name, parameter in sorted(parameters.items(), key=lambda each: each[0].startswith("target_embedding")):
            values = random_tensor(name, tuple(parameter.shape))
            if values is not None:
                parameter.copy_(torch.from_numpy(values))
    save_checkpoint(directory, model, None, [], {"weights": "grown", "preset": preset})


def grown(manifest: Manifest) -> Bytes:
    """Return the bytes of weights.bin as far as its parameters explain them; others are 0."""
    data = np.zeros(manifest.files[WEIGHTS].bytes, np.uint8)
    scale = np.float32(manifest.model.head_dim**-0.5)
    for tensor in manifest.parameters.tensors if manifest.parameters is not None else ():
        values = random_tensor(tensor.name, tensor.shape) if tensor.dtype != "int8" else None
        if values is None:
            continue
        if ".query." in tensor.name:
            values = values * scale
        dtype = np.dtype(tensor.dtype)
        whole = data[tensor.offset : len(data) - (len(data) - tensor.offset) % dtype.itemsize].view(dtype)
        strides = [stride * dtype.itemsize for stride in tensor.strides]
        np.lib.stride_tricks.as_strided(whole, tensor.shape, strides)[...] = values
    return data


def _ranges(different: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the blocks of 64 bytes that contain a difference, joined."""
    blocks = np.flatnonzero(np.pad(different, (0, -len(different) % 64)).reshape(-1, 64).any(axis=1))
    for part in np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1):
        if len(part):
            yield int(part[0]) * 64, min(len(different), (int(part[-1]) + 1) * 64)


def strip(bundle: Path) -> bool:
    """Replace weights.bin by what does not follow from names; return whether there was such a bundle."""
    manifest = Manifest.load(bundle)
    data = grown(manifest)
    stored = np.fromfile(bundle / WEIGHTS, np.uint8)
    different = data != stored
    if different.mean() > _MAX_CHANGES:
        return False
    changes = {str(start): stored[start:end] for start, end in _ranges(different)}
    np.savez_compressed(bundle / CHANGES, **changes)  # type: ignore[arg-type]
    (bundle / WEIGHTS).unlink()
    return True


def grow(bundle: Path) -> bool:
    """Write weights.bin again; return whether the bundle was stripped.

    Raises:
        CheckFailed: this machine computes other weights.
    """
    if not (bundle / CHANGES).exists():
        return False
    manifest = Manifest.parse((bundle / NAME).read_bytes())  # `load` would miss the weights
    data = grown(manifest)
    with np.load(bundle / CHANGES) as changes:
        for start in changes.files:
            data[int(start) : int(start) + len(changes[start])] = changes[start]
    if hashlib.sha256(data.data).hexdigest() != manifest.files[WEIGHTS].sha256:
        raise CheckFailed(f"{bundle / WEIGHTS} grew otherwise than on the machine that packed it: pack it with weights")
    write_atomically(bundle / WEIGHTS, data.tobytes())
    (bundle / CHANGES).unlink()
    return True


def main(arguments: Any = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("checkpoint", "strip", "grow"))
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--vocabulary", type=int, default=32000)
    options = parser.parse_args(arguments)
    try:
        for directory in options.directories:
            if options.command == "checkpoint":
                write_checkpoint(directory, options.preset, options.vocabulary)
            elif {"strip": strip, "grow": grow}[options.command](directory):
                print(f"{options.command}: {directory}")
    except TxportError as error:
        print(f"grown_weights.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
