"""The options that fairseq and OpenNMT-py keep with a model: a namespace, or a dictionary, perhaps of dictionaries."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txport.runtime.errors import CheckpointError

_REQUIRED = object()


class Settings:
    """Options by name; those inside a group have the group's name before theirs (encoder.layers is encoder_layers).

    Args:
        file: for messages.
        value: the namespace or the dictionary.

    Raises:
        CheckpointError: it is neither.
    """

    def __init__(self, file: Path, value: object) -> None:
        self._file = file
        self._values: dict[str, Any] = {}
        fields = vars(value) if isinstance(value, argparse.Namespace) else value
        if not isinstance(fields, Mapping):
            raise CheckpointError(f"{file} keeps its options as {type(value).__name__}, which is not known here")
        for name, item in fields.items():
            if isinstance(item, Mapping):
                self._values.update({f"{name}_{inner}": deep for inner, deep in item.items()})
            else:
                self._values[str(name)] = item

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """An option.

        Raises:
            CheckpointError: it is missing and has no default.
        """
        if name not in self._values and default is _REQUIRED:
            raise CheckpointError(f"{self._file} does not say {name}, which such a model needs")
        return self._values.get(name, default)

    def same(self, first: str, second: str, default: Any = None) -> Any:
        """An option that our model has once for both sides.

        Raises:
            CheckpointError: the sides differ.
        """
        values = [self.get(name, *([] if default is None else [default])) for name in (first, second)]
        if values[0] != values[1]:
            raise CheckpointError(
                f"{self._file}: {first} = {values[0]!r} and {second} = {values[1]!r} differ, "
                "which txport's model cannot have: it has one value for both sides"
            )
        return values[0]

    def activation(self, name: str, names: Mapping[str, str]) -> str:
        """Our name of an activation; ReLU if none is said.

        Raises:
            CheckpointError: we have not got it.
        """
        value = self.get(name, "relu")
        if value not in names:
            raise CheckpointError(f"{self._file}: {name} = {value!r} is not supported; there are {', '.join(names)}")
        return names[value]

    def refuse(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """See that options which our model has not got have one of the values that make no difference.

        Raises:
            CheckpointError: one has another value.
        """
        for name, harmless in neutral.items():
            value = self.get(name, harmless[0])
            if value not in harmless:
                raise CheckpointError(
                    f"{self._file}: {name} = {value!r} is not supported; only {harmless[0]!r} makes the same model"
                )


def one_file(path: Path, preferred: tuple[str, ...]) -> Path:
    """The checkpoint file that is meant: the path itself, or the one in a directory.

    Raises:
        CheckpointError: there is none, or there are several and none has a preferred name.
    """
    if not path.is_dir():
        return path
    files = [path / name for name in preferred if (path / name).is_file()] or sorted(path.glob("*.pt"))
    if not files:
        raise CheckpointError(f"{path} holds no .pt file: name the checkpoint file")
    if len(files) > 1 and files[0].name not in preferred:
        raise CheckpointError(f"{path} holds {len(files)} .pt files: name one of them, say {files[-1]}")
    return files[0]
