"""Kinds of directories and files. Messages about a wrong path name its kind and the command that takes it."""

import json
from pathlib import Path
from typing import Any, Literal

from txport.runtime.errors import InputError, TxportError
from txport.runtime.files import check_regular

Kind = Literal["bundle", "checkpoint", "model", "ctranslate2", "argos", "run", "onnx", "gguf"]
# Kinds of files by the endings of their names, in lower case.
_ENDINGS: dict[str, Kind] = {".txb": "bundle", ".argosmodel": "argos", ".onnx": "onnx", ".gguf": "gguf"}
# Endings of weights that tx-import reads.
_WEIGHTS = {".pt", ".pth", ".bin", ".safetensors", ".npz"}
# Advice for each kind if another kind is expected. No advice means that the command reads this kind itself.
_FOREIGN: dict[Kind, str] = {
    "bundle": "tx-get makes a bundle of it",
    "checkpoint": "tx-import makes a checkpoint of it",
}
_UNREADABLE: dict[Kind, str] = dict.fromkeys(
    ("bundle", "checkpoint", "model"), "give the model that it was converted from to tx-import"
)
_ADVICE: dict[Kind, tuple[str, dict[Kind, str]]] = {
    "bundle": (
        "a bundle",
        {
            "checkpoint": "give the checkpoint it was exported from",
            "model": "it needs no import, tx-translate runs it",
        },
    ),
    "checkpoint": (
        "a checkpoint of txport already",
        {"bundle": "tx-export makes a bundle of it", "model": "give it to tx-export, which makes a bundle of it"},
    ),
    "model": (
        "a Hugging Face model",
        {
            "bundle": "tx-import makes a checkpoint of it, and tx-export a bundle of that",
            "checkpoint": "tx-import makes a checkpoint of it",
        },
    ),
    "ctranslate2": ("a model in CTranslate2's format", _FOREIGN),
    "argos": ("a package of Argos Translate", _FOREIGN),
    "onnx": ("an ONNX model, which txport does not read", _UNREADABLE),
    "gguf": ("a GGUF model, which txport does not read", _UNREADABLE),
    "run": (
        "the directory of a training run",
        {
            "bundle": "tx-export makes a bundle of the checkpoint beside it",
            "checkpoint": "give the checkpoint beside it, or continue with tx-train --resume",
            "model": "give the checkpoint beside it to tx-export",
        },
    ),
}


def kind_of(path: Path) -> Kind | None:
    """Return the kind of a path, by its name, the names of its files and the fields of its config.json, or None."""
    if path.is_file():
        return _ENDINGS.get(path.suffix.lower())
    if (path / "manifest.json").is_file():
        return "bundle"
    if (path / "recipe.json").is_file() and path.name.endswith(".run"):
        return "run"
    config = _fields(path / "config.json")
    if "format_version" in config:
        return "checkpoint"
    if "model_type" in config or "architectures" in config:
        return "model"
    if (path / "metadata.json").is_file() and (path / "model" / "model.bin").is_file():
        return "argos"
    if (path / "model.bin").is_file():
        return "ctranslate2"
    endings = {file.suffix for file in path.glob("*.*")}
    if endings & _WEIGHTS:
        return None
    return next((_ENDINGS[ending] for ending in (".onnx", ".gguf") if ending in endings), None)


def check_kind(path: Path, expected: Kind, error: type[TxportError] = InputError) -> None:
    """Refuse a path that does not exist, is of a known other kind, or contains files that may block.

    Other faults are found when it is read.

    Raises:
        TxportError: of the type `error`. The message contains the kind and the command that takes it.
    """
    if not path.exists():
        raise error(f"{path} does not exist")
    check_regular(path, error)
    kind = kind_of(path)
    if kind is None or kind == expected:
        return
    name, advice = _ADVICE[kind]
    if expected in advice:
        raise error(f"{path} is {name}: {advice[expected]}")


def check_checkpoint(path: Path) -> None:
    """Refuse a path that cannot be a checkpoint. Its contents are checked when it is read.

    Raises:
        InputError: with what it is, and which command takes it.
    """
    check_kind(path, "checkpoint")
    if not path.is_dir():
        raise InputError(f"{path} is not a checkpoint directory (tx-train and tx-import make one)")
    if not (path / "config.json").is_file():
        raise InputError(
            f"{path / 'config.json'} is missing or cannot be read: give a whole checkpoint of this version of txport"
        )


def check_model(path: Path) -> None:
    """Refuse a path that is neither a bundle nor a checkpoint, for commands that take both.

    Raises:
        InputError: with what it is, and which command takes it.
    """
    if path.is_file() or (path / "manifest.json").exists() or kind_of(path) == "checkpoint":
        return
    check_kind(path, "bundle")
    if not (path / "config.json").exists():
        raise InputError(f"{path} is neither a bundle (manifest.json) nor a checkpoint (config.json)")


def _fields(file: Path) -> dict[str, Any]:
    """Return the fields of a JSON file; no fields if it cannot be read as an object."""
    if not file.is_file():  # to open a named pipe may take forever
        return {}
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(value, dict):
        return value
    return {}
