"""Marian's .npz files: a zip archive with an array per weight, and the configuration of the model as text.

NumPy's format is read without pickles. A weight is read when it is needed.
"""

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from lzma import LZMAError
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor
from txport.models.hub.source import check_zip
from txport.models.importers.weights import Stored
from txport.runtime.errors import CheckpointError, InputError

CONFIG = "special:model.yml"
_TYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_LARGEST_CONFIG = 1 << 20
# Scales of activations for intgemm (browsermt), and a table for the search of likely tokens (marian-conv --add-lsh).
_OF_KERNELS = ("_QuantMultA", "lsh_output_codes", "lsh_output_rotation")


@dataclass(frozen=True)
class Weights:
    """A file of weights.

    Attributes:
        file: it.
        tensors: weights by Marian's names, as Marian stores them.
        config: the configuration inside, as text; empty if there is none.
        quantised: names of the types of integer weights, which are read as float32.
    """

    file: Path
    tensors: dict[str, Stored]
    config: str
    quantised: tuple[str, ...] = ()


def read_npz(file: Path) -> Weights:
    """Read the names and shapes of an .npz file, and its configuration.

    Raises:
        CheckpointError: it is damaged, hostile, or contains pickled arrays.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            check_zip(file, archive)
            load = lru_cache(maxsize=1)(partial(_array, file))  # parts of a weight are read one after another
            tensors = {
                member.filename.removesuffix(".npy"): _stored_array(file, archive, member, load)
                for member in archive.infolist()
            }
        config = tensors.pop(CONFIG, None)
        if config is None:
            return Weights(file, weights_of(tensors), "")
        check_config(file, config.shape)
        return Weights(file, weights_of(tensors), config_text(file, _array(file, f"{CONFIG}.npy").tobytes()))
    except InputError as error:
        raise CheckpointError(str(error)) from None
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error, LZMAError) as error:
        raise CheckpointError(f"{file} is not a whole .npz file ({error}): copy it again") from None


def transposed(stored: Stored) -> Stored:
    """Return a matrix with its dimensions exchanged."""
    shape = stored.shape[::-1]
    return Stored(shape, stored.dtype, lambda i, j: stored.whole().T[i:j], ("transposed", stored.storage))


def vector(stored: Stored) -> Stored:
    """Return the row of a matrix with one row as a vector; anything else is returned unchanged."""
    if len(stored.shape) != 2 or stored.shape[0] != 1:
        return stored
    return Stored(stored.shape[1:], stored.dtype, lambda i, j: stored.whole()[0, i:j], ("vector", stored.storage))


def _stored_array(
    file: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, load: Callable[[str], np.ndarray[Any, Any]]
) -> Stored:
    """Return an array of the archive, whose values are read later."""

    def read(start: int, stop: int) -> Tensor:
        array = load(member.filename)
        if array.ndim:
            array = array[start:stop]
        return torch.from_numpy(array)

    with archive.open(member) as stream:
        shape, dtype = _header(file, member.filename, stream)
        length = stream.tell() + dtype.itemsize * int(np.prod(shape, dtype=object))
    if length != member.file_size:
        raise CheckpointError(
            f"{file}: {member.filename} has {member.file_size:,} bytes, but an array of shape {shape} needs "
            f"{length:,}: copy the file again"
        )
    return Stored(shape, _TYPES.get(dtype.name), read, (file, member.filename))


def _header(file: Path, name: str, stream: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the type of an array."""
    try:
        version = npy.read_magic(stream)
        shape, fortran, dtype = _READERS[version](stream)
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError, TokenError):
        raise CheckpointError(f"{file}: {name} is not an array of NumPy's: copy the file again") from None
    if dtype.hasobject:
        raise CheckpointError(f"{file}: {name} is pickled, and pickles may run code: save arrays of numbers")
    if fortran or any(size < 0 for size in shape):
        raise CheckpointError(f"{file}: {name} has an order of values or a shape that Marian does not write")
    return shape, dtype


def _array(file: Path, name: str) -> np.ndarray[Any, Any]:
    try:
        with zipfile.ZipFile(file) as archive, archive.open(name) as stream:
            array: np.ndarray[Any, Any] = npy.read_array(stream, allow_pickle=False)
            stream.read()  # to its end, where zipfile compares checksums
    except Exception as error:  # of zlib, of lzma, of NumPy: each has its own
        raise CheckpointError(f"{file}: {name} cannot be read ({error}): copy the file again") from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def check_config(file: Path, shape: tuple[int, ...]) -> None:
    """Check the size of the configuration, before it is read.

    Raises:
        CheckpointError: it is not a text.
    """
    if len(shape) != 1 or shape[0] > _LARGEST_CONFIG:
        raise CheckpointError(f"{file}: {CONFIG} has the shape {shape}, which no configuration has")


def config_text(file: Path, data: bytes) -> str:
    """Return the configuration, an array of bytes that ends with a zero.

    Raises:
        CheckpointError: it is not a text.
    """
    try:
        return data.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"{file}: {CONFIG} is not UTF-8: copy it again") from None


def weights_of(tensors: dict[str, Stored]) -> dict[str, Stored]:
    """Return weights without the maxima of activations and the hashes of tokens, which only speed Marian up."""
    return {name: stored for name, stored in tensors.items() if not name.endswith(_OF_KERNELS)}
