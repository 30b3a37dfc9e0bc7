"""model.bin, the file of weights that CTranslate2's converters write: versions 1 to 6.

A version; from version 2 on, the name of a specification and its revision; then variables, each with a name, a shape,
a type and its values; from version 3 on, aliases: second names of variables. Numbers are little-endian. Quantised
weights have a scale per row, or one for all, in a variable of their own; they are read as float32, value / scale.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor
from txport.models.importers.weights import Stored
from txport.runtime.errors import CheckpointError

NAME = "model.bin"
NEWEST = 6
# By their codes.
_TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
# Before version 4, a file had only the size of a value.
_OLD_TYPES = {4: torch.float32, 2: torch.int16, 1: torch.int8}
_QUANTISED = (torch.int8, torch.int16)
# The scale of int16 weights that have none in their file (`global_int16_scale` of CTranslate2).
_GLOBAL_SCALE = 1000.0
# No Transformer has as many variables, or such long names or tensors of such rank.
_MAX_VARIABLES = 100_000
_MAX_NAME = 1_000
_MAX_RANK = 3
_LENGTH = struct.Struct("<H")
_NUMBER = struct.Struct("<I")


@dataclass(frozen=True)
class ModelFile:
    """The contents of model.bin; weights stay in the file until they are read.

    Attributes:
        file: where it is.
        version: of the format.
        specification: the name of the kind of model.
        revision: of the specification.
        tensors: weights and texts by name; quantised ones as float32.
        attributes: single numbers by name.
        types: the type of each tensor's values in the file.
    """

    file: Path
    version: int
    specification: str
    revision: int
    tensors: dict[str, Stored] = field(default_factory=dict)
    attributes: dict[str, int | float] = field(default_factory=dict)
    types: dict[str, torch.dtype] = field(default_factory=dict)


@dataclass(frozen=True)
class Variable:
    """A variable in the file: its type, shape and place."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    def rows(self, start: int, stop: int) -> Tensor:
        """Return the rows from `start` to before `stop`, in the file's type; all of it if it has no dimension."""
        count = max(0, min(stop, self.shape[0] if self.shape else 1) - start)
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        data = bytearray(count * row)
        with self.file.open("rb") as stream:
            stream.seek(self.offset + start * row)
            if stream.readinto(data) != len(data):
                raise CheckpointError(f"{self.file} was changed while it was read: import it again")
        values = torch.frombuffer(data, dtype=self.dtype) if data else torch.empty(0, dtype=self.dtype)
        return values.reshape((count, *self.shape[1:]) if self.shape else ())


def is_model_file(file: Path) -> bool:
    """Return whether a file begins as model.bin does, of a version that exists or may exist one day.

    The first name is that of the specification, or in version 1 that of a variable, such as transformer/encoder/...
    """
    try:
        with file.open("rb") as stream:
            (version,) = _NUMBER.unpack(stream.read(_NUMBER.size))
            variables = 1
            if version == 1:
                (variables,) = _NUMBER.unpack(stream.read(_NUMBER.size))
            (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
            name = stream.read(min(length, _MAX_NAME))
    except (OSError, struct.error):
        return False
    if len(name) != length or not name.endswith(b"\0"):
        return False
    if version == 1:
        return 0 < variables <= _MAX_VARIABLES and (b"encoder" in name or b"decoder" in name)
    return 1 < version < 100 and (length == 1 or name[:-1].isalnum())


class FieldReader:
    """Reads fields one after the other, and names the one that the file ends in.

    Args:
        file: where it is, for messages.
        stream: the file.
        size: its size in bytes.
    """

    def __init__(self, file: Path, stream: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size
        self.position = 0
        self._opened = stream

    def take(self, size: int, what: str) -> bytes:
        """Return the next bytes."""
        self._check(size, what)
        self.position += size
        return self._opened.read(size)

    def skip(self, size: int, what: str) -> int:
        """Pass over bytes; return where they begin."""
        self._check(size, what)
        start = self.position
        self.position += size
        self._opened.seek(self.position)
        return start

    def number(self, size: int, what: str) -> int:
        """Return an unsigned integer."""
        return int.from_bytes(self.take(size, what), "little")

    def text(self, what: str) -> str:
        """Return a string, whose length includes a zero byte at its end."""
        length = self.number(2, f"the length of {what}")
        value = self.take(length, what)
        if not 1 <= length <= _MAX_NAME or value[-1] != 0 or 0 in value[:-1]:
            raise self.fault(f"{what} is not a string")
        try:
            return value[:-1].decode()
        except UnicodeDecodeError:
            raise self.fault(f"{what} is not UTF-8") from None

    def fault(self, what: str) -> CheckpointError:
        """Return the error for a damaged file."""
        return CheckpointError(f"{self.file} is damaged: {what}, before byte {self.position}; copy it again")

    def _check(self, size: int, what: str) -> None:
        if self.position + size > self.size:
            raise CheckpointError(f"{self.file} is incomplete: it ends within {what}; copy it again")


def read_model_file(file: Path, other_models: Mapping[str, str]) -> ModelFile:
    """Read the structure of model.bin, and check its sizes.

    Args:
        file: the file.
        other_models: what other specifications than a Transformer's are, by name, for messages.

    Raises:
        CheckpointError: it is missing, damaged, of another version, or of another kind of model.
    """
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            return _read(FieldReader(file, stream, size), other_models)
    except OSError as error:
        raise CheckpointError(f"{file} is missing or cannot be read ({error.strerror}): copy it too") from None


def _read(reader: FieldReader, other_models: Mapping[str, str]) -> ModelFile:
    version = reader.number(4, "the version of the format")
    if version > NEWEST:
        raise CheckpointError(f"{reader.file} has version {version} of CTranslate2's format; there are up to {NEWEST}")
    if version < 1:
        raise CheckpointError(f"{reader.file} is not a model of CTranslate2: give the directory of one")
    name, revision = "", 1
    if version > 1:
        name = reader.text("the name of the specification")
        revision = reader.number(4, "the revision of the specification")
    if name in other_models:
        raise CheckpointError(
            f"{reader.file} is {other_models[name]} ({name}): only encoder-decoder Transformers of CTranslate2 are "
            "supported"
        )
    model = ModelFile(reader.file, version, name, revision)
    variables = _variables(reader, version)
    aliases: dict[str, str] = {}
    if version > 2:
        aliases = _aliases(reader, variables)
    if reader.position != reader.size:
        raise reader.fault(f"it has {reader.size - reader.position} bytes after its last field")
    _fill(model, variables, aliases)
    return model


def _variables(reader: FieldReader, version: int) -> dict[str, Variable]:
    variables: dict[str, Variable] = {}
    count = reader.number(4, "the number of variables")
    if count > _MAX_VARIABLES:
        raise reader.fault(f"it claims to have {count} variables")
    for index in range(count):
        name = reader.text(f"the name of variable {index}")
        if name in variables:
            raise reader.fault(f"it has the variable {name} twice")
        rank = reader.number(1, f"the rank of {name}")
        if rank > _MAX_RANK:
            raise reader.fault(f"{name} has {rank} dimensions")
        shape = tuple(reader.number(4, f"the shape of {name}") for _ in range(rank))
        code = reader.number(1, f"the type of {name}")
        dtype = _type(reader, name, code, version)
        size = reader.number(4, f"the size of {name}")
        if version < 4:
            size *= code
        if size != math.prod(shape) * dtype.itemsize:
            raise reader.fault(f"{name} of shape {shape} and type {str(dtype)[6:]} has {size} bytes")
        variables[name] = Variable(reader.file, dtype, shape, reader.skip(size, f"the values of {name}"))
    return variables


def _type(reader: FieldReader, name: str, code: int, version: int) -> torch.dtype:
    if version >= 4 and code < len(_TYPES):
        return _TYPES[code]
    if version < 4 and code in _OLD_TYPES:
        return _OLD_TYPES[code]
    raise reader.fault(f"{name} has the unknown type {code}")


def _aliases(reader: FieldReader, variables: Mapping[str, Variable]) -> dict[str, str]:
    """Return the variable of each alias."""
    aliases: dict[str, str] = {}
    count = reader.number(4, "the number of aliases")
    if count > _MAX_VARIABLES:
        raise reader.fault(f"it claims to have {count} aliases")
    for index in range(count):
        alias = reader.text(f"alias {index}")
        name = reader.text(f"the variable of the alias {alias}")
        name = aliases.get(name, name)
        if name not in variables:
            raise reader.fault(f"{alias} is an alias of {name}, which it does not have")
        if alias in variables or alias in aliases:
            raise reader.fault(f"it has the variable {alias} twice")
        aliases[alias] = name
    return aliases


def _fill(model: ModelFile, variables: Mapping[str, Variable], aliases: Mapping[str, str]) -> None:
    """Sort variables and aliases into tensors and attributes."""
    scales = {f"{name}_scale" for name, variable in variables.items() if variable.dtype in _QUANTISED}
    for name, origin in ({name: name for name in variables} | dict(aliases)).items():
        variable = variables[origin]
        if origin in scales:
            continue
        if not variable.shape:
            model.attributes[name] = _attribute(model.file, name, variable)
            continue
        scale = variables.get(f"{origin}_scale")
        model.tensors[name] = _stored(model.file, origin, variable, scale)
        model.types[name] = variable.dtype


def _attribute(file: Path, name: str, variable: Variable) -> int | float:
    value = variable.rows(0, 1).item()
    if not math.isfinite(value):
        raise CheckpointError(f"{file}: {name} must be a finite number, not {value}")
    return value


def _stored(file: Path, name: str, variable: Variable, scale: Variable | None) -> Stored:
    storage = (file, variable.offset)
    if variable.dtype.is_floating_point:
        return Stored(variable.shape, variable.dtype, variable.rows, storage)
    if scale is None and not (variable.dtype == torch.int16 and name.endswith("weight")):
        return Stored(variable.shape, None, variable.rows, storage)  # a text, or what no importer reads
    rows = variable.shape[0]
    if scale is not None and scale.shape not in ((), (1,), (rows,)):
        raise CheckpointError(
            f"{file}: {name}_scale has shape {scale.shape}, but {name} has {rows} rows: copy it again"
        )

    def read(start: int, stop: int) -> Tensor:
        values = variable.rows(start, stop).float()
        if scale is None:
            return values / _GLOBAL_SCALE
        if len(scale.shape) == 1 and scale.shape[0] == rows > 1:
            factors = scale.rows(start, stop).float().reshape(-1, *(1,) * (values.dim() - 1))
        else:
            factors = scale.rows(0, 1).float().reshape(())
        return values / factors

    return Stored(variable.shape, torch.float32, read, storage)
