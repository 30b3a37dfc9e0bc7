"""Marian's .bin files, which marian-conv writes: the arrays of an .npz file, whose matrices may be rounded for intgemm.

A version and the number of arrays; for each one the lengths of its name, shape and values, and its type; all names; all
shapes; padding; all values. Rounded matrices are stored transposed, except embeddings. A factor follows their values:
value = integer / factor.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

import torch
from torch import Tensor
from txport.models.importers.ctranslate2.model_file import FieldReader, Variable
from txport.models.importers.marian_files.arrays import CONFIG, Weights, check_config, config_text, weights_of
from txport.models.importers.weights import Stored
from txport.runtime.errors import CheckpointError

_VERSION = 1
_ENCRYPTED = 2
# Contains the names of all arrays.
_START = 1 << 17
_MAX_ARRAYS = 100_000
_MAX_NAME = 1_000
_MAX_RANK = 4
_TYPES = {
    **{0x402: torch.float16, 0x404: torch.float32, 0x408: torch.float64},
    **{0x101: torch.int8, 0x102: torch.int16, 0x104: torch.int32, 0x108: torch.int64},
    **{0x201: torch.uint8, 0x202: torch.uint16, 0x204: torch.uint32, 0x208: torch.uint64},
}
# The second code of each type is that of browsermt's Marian.
_INTGEMM = {
    **{0x10001: ("intgemm8", torch.int8), 0x04101: ("intgemm8", torch.int8)},
    **{0x10002: ("intgemm16", torch.int16), 0x04102: ("intgemm16", torch.int16)},
}
# Types whose order of values is that of a processor's registers.
_PACKED = {
    **{0x00802: "packed16", 0x01801: "packed8avx2", 0x02801: "packed8avx512"},
    **{0x18001: "intgemm8ssse3", 0x11001: "intgemm8avx2", 0x12001: "intgemm8avx512", 0x13001: "intgemm8avx512vnni"},
    **{0x14002: "intgemm16sse2", 0x11002: "intgemm16avx2", 0x12002: "intgemm16avx512"},
}


@dataclass(frozen=True)
class _Header:
    """Sizes and the type of an array."""

    name_length: int
    type: int
    rank: int
    size: int


def is_binary(file: Path) -> bool:
    """Return whether a file is one of marian-conv's."""
    try:
        with file.open("rb") as stream:
            return begins_binary(stream)
    except OSError:
        return False


def begins_binary(stream: IO[bytes]) -> bool:
    """Return whether an open file begins as those of marian-conv do."""
    start = stream.read(_START)
    return start[:8] == _VERSION.to_bytes(8, "little") and CONFIG.encode() in start


def read_binary(file: Path) -> Weights:
    """Read the names and shapes of a .bin file, and its configuration.

    Raises:
        CheckpointError: it is damaged, hostile, or prepared for the registers of a processor.
    """
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            return _read(FieldReader(file, stream, size))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror}): copy it again") from None


def _read(reader: FieldReader) -> Weights:
    version = reader.number(8, "the version of the format")
    if version == _ENCRYPTED:
        raise CheckpointError(f"{reader.file} is encrypted: give the .npz file that it was made from")
    if version != _VERSION:
        raise CheckpointError(f"{reader.file} has version {version} of Marian's binary format; only {_VERSION} exists")
    count = reader.number(8, "the number of arrays")
    if count > _MAX_ARRAYS:
        raise reader.fault(f"it claims to have {count} arrays")
    headers = [_header(reader, index) for index in range(count)]
    names = [_name(reader, header, index) for index, header in enumerate(headers)]
    if len({*names}) != count:
        raise reader.fault("it has a name twice")
    shapes = [
        tuple(reader.number(4, f"the shape of {name}") for _ in range(header.rank))
        for name, header in zip(names, headers, strict=True)
    ]
    reader.skip(reader.number(8, "the length of the padding"), "the padding")
    load = lru_cache(maxsize=1)(_dequantise)  # parts of a weight are read one after another
    tensors: dict[str, Stored] = {}
    config = ""
    for name, header, shape in zip(names, headers, shapes, strict=True):
        variable = _variable(reader, name, header, shape)
        if name == CONFIG:
            check_config(reader.file, shape)
            config = config_text(reader.file, variable.rows(0, shape[0]).numpy().tobytes())
        else:
            tensors[name] = _stored_variable(variable, name, header, load)
    if reader.position != reader.size:
        raise reader.fault(f"it has {reader.size - reader.position} bytes after its last field")
    kinds = {_INTGEMM[header.type][0] for header in headers if header.type in _INTGEMM}
    return Weights(reader.file, weights_of(tensors), config, tuple(sorted(kinds)))


def _header(reader: FieldReader, index: int) -> _Header:
    what = f"the header of array {index}"
    header = _Header(*(reader.number(8, what) for _ in range(4)))
    if not 2 <= header.name_length <= _MAX_NAME or not 1 <= header.rank <= _MAX_RANK:
        raise reader.fault(
            f"array {index} has a name of {header.name_length} bytes and a shape of {header.rank} dimensions"
        )
    return header


def _name(reader: FieldReader, header: _Header, index: int) -> str:
    what = f"the name of array {index}"
    value = reader.take(header.name_length, what)
    if value.find(b"\0") != len(value) - 1 or not value[:-1].isascii():
        raise reader.fault(f"{what} is not a text")
    return value[:-1].decode()


def _variable(reader: FieldReader, name: str, header: _Header, shape: tuple[int, ...]) -> Variable:
    """Return the type, shape and place of an array, whose values are passed over."""
    if header.type in _PACKED:
        raise CheckpointError(
            f"{reader.file}: {name} is of type {_PACKED[header.type]}, which is ordered for one kind of processor: "
            "give the .npz file that it was made from, or convert that with --gemm-type intgemm8"
        )
    dtype = _TYPES.get(header.type, _INTGEMM.get(header.type, ("", None))[1])
    if dtype is None:
        raise reader.fault(f"{name} has the unknown type {header.type:#x}")
    min_bytes = math.prod(shape) * dtype.itemsize
    if header.type in _INTGEMM:
        min_bytes += torch.float32.itemsize
    if header.size < min_bytes:
        raise reader.fault(f"{name} of shape {shape} has {header.size:,} bytes, but needs {min_bytes:,}")
    return Variable(reader.file, dtype, shape, reader.skip(header.size, f"the values of {name}"))


def _stored_variable(
    variable: Variable, name: str, header: _Header, load: Callable[[Variable, bool], Tensor]
) -> Stored:
    storage = (variable.file, variable.offset)
    if header.type not in _INTGEMM:
        dtype = variable.dtype if variable.dtype.is_floating_point else None
        return Stored(variable.shape, dtype, variable.rows, storage)
    is_transposed = "Wemb" not in name
    return Stored(variable.shape, torch.float32, lambda i, j: load(variable, is_transposed)[i:j], storage)


def _dequantise(variable: Variable, is_transposed: bool) -> Tensor:
    """Return a rounded matrix as float32."""
    shape = variable.shape
    end = variable.offset + math.prod(shape) * variable.dtype.itemsize
    factor = Variable(variable.file, torch.float32, (), end).rows(0, 1).item()
    if not factor > 0:
        raise CheckpointError(f"{variable.file} has the factor {factor} before byte {end + 4}: copy it again")
    if not is_transposed:
        return variable.rows(0, shape[0]).float() / factor
    stored = Variable(variable.file, variable.dtype, (shape[-1], *shape[:-1]), variable.offset)
    return stored.rows(0, shape[-1]).float().movedim(0, -1) / factor
