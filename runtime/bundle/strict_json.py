"""JSON to dataclasses, strictly: every field present exactly once and of its declared type, unknown fields refused.

The C++ runtime reads a bundle's files by the same rules; `tests/data/manifests` holds what both must accept and refuse.
"""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn, TypeVar

from txport.runtime.bundle.archive import File
from txport.runtime.errors import BundleError, TxportError, nearest

T = TypeVar("T")

_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
}
_LARGEST = 2**63 - 1
# Maximum nesting of arrays and objects, as in C++; the limit of Python's own parser depends on its version.
_DEEPEST = 64
EXPORT_AGAIN = "copy or export the bundle again"


def added(default: Any) -> Any:
    """Return a field that older files lack. Without it they mean the default, which is not written either."""
    return dataclasses.field(default=default, metadata={"added": True})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields: a manifest has hundreds of values of few classes."""
    return typing.get_type_hints(kind)


class _MismatchError(Exception):
    """A value of the wrong type. The message contains its place and the value."""


def parse(data: bytes, file: str, error: type[TxportError] = BundleError) -> dict[str, Any]:
    """Parse a file's bytes, which must be one JSON object in UTF-8.

    Beyond Python's own parser this refuses repeated keys, NaN and infinities, integers beyond 64 bits and unpaired
    surrogates, since parsers of other languages may treat these differently.

    Args:
        data: the file's bytes.
        file: the name to use in messages.
        error: what to raise if the bytes are not such an object.
    """
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text, object_pairs_hook=_no_repeats, parse_constant=_no_constant, parse_float=_finite, parse_int=_int64
        )
        _check_depth(value)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise error(f"{file} is not valid JSON: it is nested too deeply") from None
    except ValueError as fault:  # UnicodeError and JSONDecodeError among them
        raise error(f"{file} is not valid JSON: {fault}") from None
    if not isinstance(value, dict):
        raise error(f"{file} must hold a JSON object, not {_name(value)}")
    return value


def finite(value: Any, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return a value to write as JSON, with null for each number that is not finite; `convert` converts other types."""
    if isinstance(value, dict):
        return {name: finite(each, convert) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each, convert) for each in value]
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None
    if isinstance(value, str | int | None):
        return value
    return convert(value)


def check_version(value: dict[str, Any], newest: int, file: str, what: str, remedy: str) -> None:
    """Refuse a `format_version` that is not 1 to `newest`. Call it first: a newer format may differ in everything else.

    Args:
        value: the parsed file.
        newest: the version that this txport writes.
        file: its name in messages.
        what: kind of file, in messages.
        remedy: what to do with a newer version, besides installing a newer txport.

    Raises:
        BundleError: it has no version or a newer one.
    """
    version = value.get("format_version")
    if type(version) is not int or version < 1:
        raise BundleError(f"{file} has no usable format_version: it is not {what}")
    if version > newest:
        raise BundleError(
            f"{file} has format_version {version}, but this txport reads up to {newest}: "
            f"install a newer txport or {remedy} again with this one"
        )


def read(path: File, remedy: str = EXPORT_AGAIN, error: type[TxportError] = BundleError) -> dict[str, Any]:
    """Parse a file; raise `error` if it is damaged or, with the advice `remedy`, if it is missing."""
    try:
        return parse(path.read_bytes(), str(path), error)
    except OSError as fault:
        raise error(f"{path} is missing or cannot be read: {remedy}") from fault


def load(
    kind: type[T], path: File, version: int, remedy: str = EXPORT_AGAIN, error: type[TxportError] = BundleError
) -> T:
    """Read a file of exactly this `format_version` into a dataclass; otherwise as `read`."""
    value = read(path, remedy, error)
    actual = value.get("format_version")
    if type(actual) is not int or actual != version:
        raise error(f"{path} has format_version {actual!r}, but this txport reads {version}: {remedy}")
    return decode(kind, value, str(path), error)


def decode(
    kind: type[T], value: Any, location: str, error: type[TxportError] = BundleError, *, by_hand: bool = False
) -> T:
    """Turn a parsed JSON value into a dataclass (or into any type that one's field may have).

    Args:
        kind: a dataclass with fields of int, float, str, bool, None, Literal, unions of them, `tuple[T, ...]`,
            `tuple[A, B]`, `dict[str, T]` and further dataclasses.
        value: the result of `parse`. Fields whose metadata contain `added`, which older files lack
            fields, may be missing: they then have their defaults.
        location: start of messages: the file, then the path inside it.
        error: what to raise if a field is missing, unknown or of another type; the message names its path.
        by_hand: whether people write this file; they may leave out fields with a default.
    """
    try:
        result: T = _Decoder(by_hand).decode(kind, value, location)
    except _MismatchError as mismatch:
        raise error(str(mismatch)) from None
    return result


def encode(value: Any) -> Any:
    """Return the JSON value of a dataclass, the reverse of `decode`. `added` fields with their default are omitted."""
    if dataclasses.is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {
            field.name: encode(item)
            for field, item in pairs
            if not (field.metadata.get("added", False) and item == field.default)
        }
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


@dataclasses.dataclass(frozen=True)
class _Decoder:
    by_hand: bool

    def decode(self, kind: Any, value: Any, location: str) -> Any:
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind, value, location)
        origin = typing.get_origin(kind)
        arguments = typing.get_args(kind)
        if origin is typing.Literal:
            return _literal(arguments, value, location)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, value, location)
        if origin is tuple:
            return self._tuple(arguments, value, location)
        if origin is dict:
            _expect(dict, value, location)
            return {key: self.decode(arguments[1], item, f"{location}[{key!r}]") for key, item in value.items()}
        if kind is float and type(value) is int:
            return float(value)
        _expect(kind, value, location)
        return value

    def _dataclass(self, kind: Any, value: Any, location: str) -> Any:
        _expect(dict, value, location)
        hints = _hints(kind)
        fields = {field.name: field for field in dataclasses.fields(kind)}
        for name, field in fields.items():
            may_lack = self.by_hand or field.metadata.get("added", False)
            optional = may_lack and field.default is not dataclasses.MISSING
            if name not in value and not optional:
                raise _MismatchError(
                    f"{location} lacks the field {name!r}: the file is incomplete or was edited by hand"
                )
        for name in value:
            if name not in fields:
                unknown = "this version of txport does not support it"
                if self.by_hand:
                    advice = nearest(name, fields, "it may have")
                else:
                    advice = unknown
                raise _MismatchError(f"{location} has the unknown field {name!r}: {advice}")
        present = [name for name in fields if name in value]
        return kind(**{name: self.decode(hints[name], value[name], _join(location, name)) for name in present})

    def _union(self, arguments: tuple[Any, ...], value: Any, location: str) -> Any:
        if value is None and type(None) in arguments:
            return None
        alternatives = [kind for kind in arguments if kind is not type(None)]
        if len(alternatives) == 1:
            return self.decode(alternatives[0], value, location)
        # The JSON type selects among several alternatives; literals are all strings or all integers.
        types = {type(typing.get_args(kind)[0]) if typing.get_args(kind) else kind: kind for kind in alternatives}
        if type(value) not in types:
            raise _MismatchError(
                f"{location} must be {' or '.join(_NAMES[kind] for kind in types)}, not {_name(value)}"
            )
        return self.decode(types[type(value)], value, location)

    def _tuple(self, arguments: tuple[Any, ...], value: Any, location: str) -> Any:
        _expect(list, value, location)
        if arguments[-1] is Ellipsis:
            kinds = [arguments[0]] * len(value)
        elif len(value) != len(arguments):
            raise _MismatchError(f"{location} must be an array of {len(arguments)}, not of {len(value)}")
        else:
            kinds = list(arguments)
        items = enumerate(zip(kinds, value, strict=True))
        return tuple(self.decode(kind, item, f"{location}[{i}]") for i, (kind, item) in items)


def _join(location: str, name: str) -> str:
    if location.endswith(".json"):
        return f"{location}: {name}"
    return f"{location}.{name}"


def _literal(allowed: tuple[Any, ...], value: Any, location: str) -> Any:
    if not any(type(value) is type(item) and value == item for item in allowed):
        raise _MismatchError(f"{location} is {value!r:.80}, not one of {', '.join(map(str, allowed))}")
    return value


def _expect(kind: type, value: Any, location: str) -> None:
    if type(value) is not kind:  # not isinstance, since a bool is an int for it
        raise _MismatchError(f"{location} must be {_NAMES[kind]}, not {_name(value)}")


def _name(value: Any) -> str:
    if value is None:
        return "null"
    return _NAMES.get(type(value), type(value).__name__)


def _check_depth(value: Any) -> None:
    """Raise `ValueError` if arrays and objects are nested too deeply."""
    level: list[Any] = [[value]]
    for _ in range(_DEEPEST + 1):
        items = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
        level = [item for item in items if isinstance(item, dict | list)]
    if level:
        raise ValueError("it is nested too deeply")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the field {key!r} occurs twice in one object")
        result[key] = value
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def _int64(text: str) -> int:
    if len(text) <= 20:
        value = int(text)
    else:
        value = _LARGEST + 1
    if not -_LARGEST - 1 <= value <= _LARGEST:
        raise ValueError(f"{text[:40]} does not fit 64 bits")
    return value
