"""Weights of other toolkits, read tensor by tensor: safetensors, or PyTorch files without executing code in them."""

import argparse
import json
import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from txport.models.importers.settings import WEIGHTS, without_weights
from txport.runtime.errors import CheckpointError

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ROWS = 1 << 20  # maximum number of values to compare at once
MAPPED_BYTES = 1 << 26  # bytes that are read through one mapping of a file
# Usual names of the model's state dict in a checkpoint; Lightning's is `state_dict`.
_MEMBERS = ("model_state_dict", "state_dict", "model", "net", "model_state", "network", "weights")
# Lightning's dictionary class for hyperparameters.
_DICTIONARIES = [
    (dict, f"{package}.utilities.data.AttributeDict") for package in ("lightning.fabric", "lightning_fabric")
]
_AVERAGED = "n_averaged"  # a counter in state dicts of torch.optim.swa_utils.AveragedModel
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class _Ignored:
    """Stand-in for values that are not weights. Their classes are neither imported nor executed."""

    def __init__(self, *_: object) -> None:
        """Ignore the arguments."""

    def __setstate__(self, _: object) -> None:
        """Ignore the state."""


def _kind(value: object) -> str:
    """Return a description of a value's type for messages."""
    if isinstance(value, _Ignored):
        return "a value that is not read"
    return type(value).__name__


def _dictionary(*_: object) -> dict[object, object]:
    return {}


def _list(*_: object) -> list[object]:
    return []


# Usual values in checkpoints of training loops that are not weights: NumPy scores, paths, times, collections.
_BESIDE = [
    *(
        (_Ignored, f"numpy.{core}.multiarray.{name}")
        for core in ("_core", "core")
        for name in ("scalar", "_reconstruct")
    ),
    *((_Ignored, f"numpy.{name}") for name in ("dtype", "ndarray")),
    *(
        (_Ignored, f"pathlib{part}.{name}Path")
        for part in ("", "._local")
        for name in ("Posix", "PurePosix", "Windows", "PureWindows")
    ),
    *((_Ignored, f"datetime.{name}") for name in ("datetime", "date", "time", "timedelta", "timezone")),
    *(
        (_Ignored, f"{module}.{name}")
        for module in ("builtins", "__builtin__")
        for name in ("list", "dict", "int", "float")
    ),
    (_Ignored, "types.SimpleNamespace"),
    (_dictionary, "collections.defaultdict"),
    (_list, "collections.deque"),
]


@dataclass(frozen=True)
class Stored:
    """Tensor in a file.

    Attributes:
        shape: its shape.
        dtype: its dtype; None if it is not a weight (an integer counter, for example).
        read: returns its rows from the first to before the second argument; the whole tensor if it has no dimensions.
        storage: storage location, equal for two tensors that share memory.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    read: Callable[[int, int], Tensor]
    storage: object

    def whole(self) -> Tensor:
        """Return the whole tensor."""
        return self.read(0, self.shape[0] if self.shape else 1)


def equal(first: Stored, second: Stored) -> bool:
    """Return whether two tensors have equal values, by comparing one part at a time."""
    if first.storage == second.storage:
        return True
    if first.shape != second.shape:
        return False
    if second.shape:
        rows = max(1, _ROWS // max(1, second.shape[-1]))
    else:
        rows = 1
    starts = range(0, first.shape[0] if first.shape else 1, rows)
    return all(torch.equal(first.read(i, i + rows), second.read(i, i + rows)) for i in starts)


def read_directory(directory: Path) -> dict[str, Stored]:
    """Return the tensors of a Hugging Face directory: one file, or shards with an index.

    Raises:
        CheckpointError: weights are missing, a shard is missing, or a file is damaged or contains code.
    """
    for name, read in zip(WEIGHTS, (read_safetensors, read_state_dict), strict=True):
        index = directory / f"{name}.index.json"
        if (directory / name).is_file():
            return read(directory / name)
        if index.is_file():
            tensors: dict[str, Stored] = {}
            for shard in _shards(index):
                tensors |= read(shard)
            return tensors
    raise without_weights(directory)


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of weights ({error!r}); copy it again") from None
    for name in names:
        if not isinstance(name, str) or "/" in name or not (index.parent / name).is_file():
            raise CheckpointError(f"{index.parent / str(name)} is missing, although {index.name} names it; copy it too")
    return [index.parent / name for name in names]


def read_tensors(file: Path) -> dict[str, Stored]:
    """Return the tensors of a file: safetensors by its ending, otherwise a state dict."""
    if file.suffix == ".safetensors":
        return read_safetensors(file)
    return read_state_dict(file)


def read_safetensors(file: Path) -> dict[str, Stored]:
    """Return the tensors of a safetensors file. It is read, not mapped, since mapped pages count as memory.

    Raises:
        CheckpointError: it is not a complete safetensors file.
    """
    try:
        archive: Any = safe_open(file, framework="pt")  # checks header and size
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
        return {name: _stored_in_file(file, 8 + size, header[name]) for name in archive.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is not a whole safetensors file ({error}); copy it again") from None


def _stored_in_file(file: Path, start_of_data: int, entry: dict[str, Any]) -> Stored:
    shape = tuple(entry["shape"])
    dtype = _DTYPES.get(entry["dtype"])
    start_of_tensor, end = entry["data_offsets"]
    if shape and shape[0]:
        row = (end - start_of_tensor) // shape[0]
    else:
        row = end - start_of_tensor

    def read(start: int, stop: int) -> Tensor:
        assert dtype is not None
        rows = max(0, min(stop, shape[0] if shape else 1) - start)
        data = bytearray(rows * row)
        with file.open("rb") as stream:
            stream.seek(start_of_data + start_of_tensor + start * row)
            stream.readinto(data)
        if data:
            tensor = torch.frombuffer(data, dtype=dtype)
        else:
            tensor = torch.empty(0, dtype=dtype)
        if shape:
            return tensor.reshape(rows, *shape[1:])
        return tensor.reshape(())

    return Stored(shape, dtype, read, (file, start_of_tensor, end))


def read_state_dict(file: Path) -> dict[str, Stored]:
    """Return the tensors of a file with a state dict.

    Files in PyTorch's zip format are mapped again while they are read, so they are never completely in memory.

    Raises:
        CheckpointError: the file contains other values or code, or is damaged.
    """
    tensors = tensors_of(read_pickle(file), file)
    if not zipfile.is_zipfile(file):
        return tensors
    mapped = _MappedTensors(file, tensors)
    return {name: replace(stored, read=partial(mapped.read, name)) for name, stored in tensors.items()}


class _MappedTensors:
    """Tensors of a file in PyTorch's zip format. A new mapping replaces one of which `MAPPED_BYTES` were read.

    Args:
        file: the file.
        tensors: its mapped tensors.
    """

    def __init__(self, file: Path, tensors: dict[str, Stored]) -> None:
        self._file = file
        self._tensors = tensors
        self._bytes = 0

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Return a copy of rows of a tensor."""
        if self._bytes > MAPPED_BYTES:
            self._tensors = tensors_of(read_pickle(self._file), self._file)
            self._bytes = 0
        rows = self._tensors[name].read(start, stop).clone()
        self._bytes += rows.nbytes
        return rows


def tensors_of(value: object, file: Path) -> dict[str, Stored]:
    """Return the tensors of a loaded state dict, or of a checkpoint with one; see `state_dict_of`."""
    return {name: _stored_in_memory(tensor) for name, tensor in state_dict_of(value, file).items()}


def state_dict_of(value: object, file: Path) -> dict[str, Tensor]:
    """Return a state dict, or that of a checkpoint with other members (optimizer, epoch, hyperparameters).

    The prefixes of DistributedDataParallel and AveragedModel (`module.`) and torch.compile (`_orig_mod.`) are removed.

    Raises:
        CheckpointError: there is none, or there are several.
    """
    if not isinstance(value, Mapping) or not value:
        raise CheckpointError(f"{file} holds no state dict but {_kind(value)}: save model.state_dict()")
    if _is_state_dict(value):
        state_dict = value
    else:
        state_dict = _member(value, file)
    names = {name: plain_name(name) for name in state_dict if name != _AVERAGED}
    while all(name.startswith("module.") for name in names.values()):
        names = {name: short.removeprefix("module.") for name, short in names.items()}
    return {names[name]: state_dict[name] for name in names}


def plain_name(name: str) -> str:
    """Return a name without the parts that torch.compile, FSDP and activation checkpointing add."""
    for part in _WRAPPERS:
        name = name.replace(part, "")
    return name


def _is_state_dict(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items())
    )


def _member(value: Mapping[Any, Any], file: Path) -> Mapping[str, Tensor]:
    """Return the state dict among the members of a checkpoint."""
    members = {str(name): member for name, member in value.items() if _is_state_dict(member)}
    known_names = [name for name in _MEMBERS if name in members]
    if len(members) == 1 or len(known_names) == 1:
        state_dict: Mapping[str, Tensor] = members[known_names[0] if known_names else next(iter(members))]
        return state_dict
    if members:
        raise CheckpointError(
            f"{file} holds several state dicts ({', '.join(members)}): save the one of the model alone"
        )
    inner = [member for member in value.values() if isinstance(member, Mapping) and _holds_state_dict(member)]
    if len(inner) == 1:
        return _member(inner[0], file)
    name = next(name for name, tensor in value.items() if not isinstance(name, str) or not isinstance(tensor, Tensor))
    raise CheckpointError(
        f"{file} has {str(name)[:60]!r} among its weights, which is not a tensor, and no state dict inside"
    )


def _holds_state_dict(value: Mapping[Any, Any], depth: int = 4) -> bool:
    """Return whether a usual member is a state dict or contains one, up to a depth."""
    members = [value[name] for name in _MEMBERS if name in value]
    if any(map(_is_state_dict, members)):
        return True
    return depth > 1 and any(isinstance(member, Mapping) and _holds_state_dict(member, depth - 1) for member in members)


def _stored_in_memory(tensor: Tensor) -> Stored:
    def read(start: int, stop: int) -> Tensor:
        if tensor.dim():
            return tensor[start:stop]
        return tensor

    storage = (tensor.data_ptr(), tensor.stride(), tensor.storage_offset())
    if tensor.is_floating_point():
        dtype = tensor.dtype
    else:
        dtype = None
    return Stored(tuple(tensor.shape), dtype, read, storage)


def read_pickle(file: Path, stand_ins: Iterable[tuple[type, str]] = ()) -> Any:
    """Load a PyTorch file with PyTorch's restricted unpickler: plain values, tensors and namespaces, no code.

    NumPy values, paths, times and other collections may be present; they are ignored. Tensors in PyTorch's zip format
    stay on disk until they are used.

    Args:
        file: the file.
        stand_ins: replacement classes, each with the full name of the class that it replaces.

    Raises:
        CheckpointError: the file contains other values, or cannot be read.
    """
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: give the file that was saved, or the directory that holds it")
    with (
        _report_pickle_errors(file),
        torch.serialization.safe_globals([argparse.Namespace, *_DICTIONARIES, *_BESIDE, *stand_ins]),
    ):
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))


@contextmanager
def _report_pickle_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except pickle.UnpicklingError as error:
        lines = str(error).splitlines()
        reason = next((line for line in lines if "GLOBAL" in line or "Unsupported" in line), lines[0])
        reason = reason.split("Please")[0].strip(" .")
        raise CheckpointError(
            f"{file} was not read, since it holds more than weights ({reason}), which may run code: "
            "save only the state dict, or convert it to safetensors where you trust it"
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]
        if isinstance(error, KeyError):  # the first byte, which no pickle begins with
            reason = "other contents"
        raise CheckpointError(f"{file} is damaged or not a PyTorch file ({reason}); copy it again") from None
