"""Settings of other toolkits by field name: config.json, or options inside a checkpoint."""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txport.models.config import Config
from txport.runtime.bundle.kinds import check_kind
from txport.runtime.errors import CheckpointError, InputError

# Files of weights in Hugging Face's format, in the order of preference.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# Importer for each model_type.
MODEL_TYPES = {
    "marian": "marian",
    "m2m_100": "m2m100",
    **dict.fromkeys(("seamless_m4t", "seamless_m4t_v2"), "seamless"),
    **dict.fromkeys(("bart", "mbart", "blenderbot", "plbart", "mvp"), "bart"),
    "pegasus": "pegasus",
    **dict.fromkeys(("t5", "mt5", "umt5"), "t5"),
    "vision-encoder-decoder": "vision",
    "whisper": "whisper",
}
# Common architectures that are not supported, and the reason for the message.
_REFUSED = {
    "switch_transformers": "a mixture of experts",
    "longt5": "LongT5's local and transient global attention",
    "t5gemma": "T5Gemma's merged attention and rotary positions",
    "t5gemma2": "T5Gemma's merged attention and rotary positions",
    "pegasus_x": "Pegasus-X's block-local attention",
    "blenderbot-small": "a decoder whose embeddings are normalised before positions are added",
    "nllb-moe": "a mixture of experts",
    "led": "Longformer's local attention",
    "bigbird_pegasus": "BigBird's sparse attention",
    "prophetnet": "ProphetNet's n-gram attention",
    "encoder-decoder": "an encoder and a decoder of different families",
}

_REQUIRED = object()


class Settings:
    """Fields by name.

    Args:
        file: file name for messages.
        fields: values by name.
    """

    def __init__(self, file: Path, fields: Mapping[str, Any]) -> None:
        self.file = file
        self.fields = fields

    def get(self, name: str, default: Any = _REQUIRED, kind: type | None = None) -> Any:
        """Return a field.

        Args:
            name: name of the field.
            default: value of a missing field; without it the field is required.
            kind: required type; None for any.

        Raises:
            CheckpointError: the field is missing and has no default, or has the wrong type.
        """
        if name not in self.fields and default is _REQUIRED:
            raise CheckpointError(f"{self.file} lacks {name}, which such a model needs")
        value = self.fields.get(name, default)
        if kind is not None and type(value) is not kind:  # not isinstance: JSON's true is an int in Python
            raise CheckpointError(f"{self.file}: {name} must be {kind.__name__}, not {value!r:.80}")
        if kind is float and not math.isfinite(value):
            raise CheckpointError(f"{self.file}: {name} must be a finite number, not {value!r}")
        return value

    def optional(self, name: str, kind: type) -> Any:
        """Return a field of this type, or None if it is missing or null.

        Raises:
            CheckpointError: it has the wrong type.
        """
        if self.fields.get(name) is None:
            return None
        return self.get(name, kind=kind)

    def same(self, first: str, second: str, default: Any = _REQUIRED, kind: type | None = None) -> Any:
        """Return a field that must be equal for encoder and decoder. Arguments and errors are those of `get`.

        Raises:
            CheckpointError: the two values differ.
        """
        values = [self.get(name, default, kind) for name in (first, second)]
        if values[0] != values[1]:
            raise CheckpointError(
                f"{self.file}: {first} = {values[0]!r} and {second} = {values[1]!r} differ, "
                "but txport's model has one value for both sides"
            )
        return values[0]

    def activation(self, name: str, names: Mapping[str, str], default: Any = _REQUIRED) -> str:
        """Return our name of an activation, from a table of the other toolkit's names.

        Raises:
            CheckpointError: the field is missing and has no default, or our model does not support the activation.
        """
        value = self.get(name, default)
        if value not in list(names):
            raise CheckpointError(f"{self.file}: {name} = {value!r} is not supported; there are {', '.join(names)}")
        return names[value]

    def refuse(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Check that unsupported options are missing or have a neutral value.

        Raises:
            CheckpointError: an option has another value.
        """
        for name, harmless in neutral.items():
            value = self.fields.get(name, harmless[0])
            if value not in harmless:
                raise CheckpointError(
                    f"{self.file}: {name} = {value!r} is not supported; only {harmless[0]!r} makes the same model"
                )

    def config(self, **fields: Any) -> Config:
        """Return our config with these fields.

        Raises:
            CheckpointError: our model does not support a value.
        """
        try:
            return Config(**fields)
        except (InputError, TypeError) as error:
            raise CheckpointError(f"{self.file}: {error}") from None


def flat_settings(file: Path, value: object) -> Settings:
    """Return options of fairseq or OpenNMT-py with flat names: encoder.layers becomes encoder_layers.

    Args:
        file: file name for messages.
        value: namespace or dictionary; values may be dictionaries.

    Raises:
        CheckpointError: it is neither.
    """
    fields = vars(value) if isinstance(value, argparse.Namespace) else value
    if not isinstance(fields, Mapping):
        raise CheckpointError(
            f"{file} does not keep its options as a dictionary or a namespace: give the file that the toolkit saved"
        )
    flat: dict[str, Any] = {}
    for name, item in fields.items():
        flat |= {f"{name}_{inner}": deep for inner, deep in item.items()} if isinstance(item, Mapping) else {name: item}
    return Settings(file, flat)


def read_json(
    file: Path, *, optional: bool = False, advice: str = "or give the directory that holds it", kind: type = dict
) -> Any:
    """Read a JSON file with an object, or with another `kind`; an empty object if it is missing and `optional`.

    Raises:
        CheckpointError: the file is missing (the message contains `advice`), or is not JSON.
    """
    if optional and not file.is_file():
        return {}
    try:
        value = json.loads(file.read_bytes())
    except OSError:
        raise CheckpointError(f"{file} is missing or cannot be read: copy it too, {advice}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON ({error}): copy it again") from None
    if not isinstance(value, kind):
        expected = kind.__name__.replace("dict", "object")
        raise CheckpointError(f"{file} must hold a JSON {expected}, not {type(value).__name__}")
    return value


def model_kind(config: Path) -> str:
    """Return the kind of a model in Hugging Face's format, by the model_type of its config.json.

    Raises:
        CheckpointError: the file is damaged, or the model is not supported.
    """
    kind = read_json(config).get("model_type")
    if isinstance(kind, str) and kind in MODEL_TYPES:
        return MODEL_TYPES[kind]
    check_kind(config.parent, "model", CheckpointError)
    if isinstance(kind, str) and kind in _REFUSED:
        raise CheckpointError(f"{config}: model_type {kind!r} is not supported: it has {_REFUSED[kind]}")
    supported = ", ".join(MODEL_TYPES)
    raise CheckpointError(
        f"{config}: model_type {kind!r} is not supported; there are {supported}, and --from for others"
    )


def without_weights(directory: Path) -> CheckpointError:
    """Return the error for a directory without the files that `WEIGHTS` names."""
    names = ", ".join(WEIGHTS)
    return CheckpointError(
        f"{directory} holds no weights ({names}, or shards of one with its index): download them too"
    )


def tokenizer_settings(directory: Path) -> Settings:
    """Return the fields of tokenizer_config.json; empty if the directory has no such file.

    Raises:
        CheckpointError: it is not a JSON object.
    """
    file = directory / "tokenizer_config.json"
    return Settings(file, read_json(file, optional=True))


def one_file(path: Path, preferred: tuple[str, ...], endings: tuple[str, ...] = ("pt",)) -> Path:
    """Return the checkpoint file: the path itself, or the file in a directory that has one of the endings.

    Raises:
        CheckpointError: there is none, or there are several and none has a preferred name.
    """
    if not path.is_dir():
        return path
    files = [path / name for name in preferred if (path / name).is_file()]
    files = files or [file for ending in endings for file in sorted(path.glob(f"*.{ending}"))]
    kinds = " or ".join(f".{ending}" for ending in endings)
    if not files:
        raise CheckpointError(f"{path} holds no {kinds} file: name the checkpoint file")
    if len(files) > 1 and files[0].name not in preferred:
        raise CheckpointError(f"{path} holds {len(files)} {kinds} files: name one of them, such as {files[-1]}")
    return files[0]
