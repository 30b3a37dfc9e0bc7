"""Marian's YAML: settings by name, and vocabularies of tokens and ids. No other YAML is read.

PyYAML is not used: it leaves out entries of vocabularies that Marian's own parser keeps, and follows aliases.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txport.models.importers.settings import Settings, read_json
from txport.models.importers.tokenizers.vocabulary import token_lines
from txport.runtime.errors import CheckpointError

_SETTING = re.compile(r"([\w.:/-]+):(?:\s+(.*))?")
_NUMBER = re.compile(r"[-+]?\d{1,18}")
_DECIMAL = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_ESCAPES = {
    **{"0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b"},
    **{" ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"},
}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)


def read_text(file: Path) -> str:
    """Return a file of UTF-8.

    Raises:
        CheckpointError: it is missing, or something else.
    """
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError:
        raise CheckpointError(f"{file} is missing or cannot be read: copy it too") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{file} is not UTF-8: copy it again") from None


def parse_settings(text: str, file: Path) -> Settings:
    """Return settings: values, and lists of values.

    Raises:
        CheckpointError: a line is neither; anchors, aliases and tags are not read.
    """
    fields: dict[str, Any] = {}
    name = None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "---", "%")):
            continue
        item = re.fullmatch(r"-(?:\s+(.*))?", stripped)
        match = _SETTING.fullmatch(stripped)
        if item and name is not None:
            if not isinstance(fields[name], list):
                fields[name] = []
            fields[name].append(_value(item[1] or "", file, number))
        elif line[0].isspace() and name is not None:
            fields[name] = _value(stripped, file, number) if fields[name] is None and not match else stripped
        elif match:
            name = match[1]
            fields[name] = _value(match[2] or "", file, number)
        else:
            raise _yaml_error(file, number, stripped)
    return Settings(file, fields)


def _value(text: str, file: Path, number: int) -> Any:
    """Return a value, or a list in brackets."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        parts = [part.strip() for part in text[1:-1].split(",") if part.strip()]
        if any(part.startswith("[") for part in parts):  # nor does Marian write lists in lists
            raise _yaml_error(file, number, text)
        return [_value(part, file, number) for part in parts]
    if text[:1] in ("'", '"'):
        return _unquote(text, file, number)
    text = text.partition(" #")[0].strip()
    if text[:1] in ("&", "*", "!", "|", ">", "{", "[", "@", "`"):
        raise _yaml_error(file, number, text)
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return text


def read_vocabulary_file(file: Path, rows: int) -> list[str]:
    """Return the tokens of a vocabulary by id: YAML, JSON, or a text with a token a line.

    Args:
        file: the vocabulary.
        rows: of the embedding; tokens with larger ids are left out as in Marian, and missing ones are empty.

    Raises:
        CheckpointError: it is not such a file, or gives one id to two tokens.
    """
    if file.suffix == ".json":
        pairs = list(read_json(file).items())
    elif file.suffix in (".yml", ".yaml"):
        pairs = list(_pairs(read_text(file), file))
    else:
        pairs = [(line, index) for index, line in enumerate(token_lines(file, each=True))]
    tokens = [""] * rows
    tokens_read: set[str] = set()
    for token, index in pairs:
        if type(index) is not int or index < 0:
            raise CheckpointError(f"{file} gives {token!r:.80} the id {index!r:.80}: copy it again")
        if index >= rows or token in tokens_read:  # as in Marian, the first one counts
            continue
        if tokens[index]:
            raise CheckpointError(
                f"{file} gives the id {index} to {tokens[index]!r:.80} and {token!r:.80}: copy it again"
            )
        tokens[index] = token
        tokens_read.add(token)
    return tokens


def _pairs(text: str, file: Path) -> Iterator[tuple[str, int]]:
    """Yield tokens and ids of lines such as `token: 5`, and of pairs of lines `? token` and `: 5`."""
    key = None
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip() or (line.startswith(("---", "#", "%")) and ":" not in line):
            continue
        if line.startswith("? "):
            key = line[2:]
            continue
        if key is not None and line.startswith(":"):
            token, value = key, line[1:]
            key = None
        else:
            token, _, value = line.rpartition(":")
        if not _NUMBER.fullmatch(value.strip()):
            raise _yaml_error(file, number, line)
        token = token.strip(" ")
        yield (_unquote(token, file, number) if token[:1] in ("'", '"') else token), int(value)


def _unquote(text: str, file: Path, number: int) -> str:
    """Return a text without its quotes and escapes."""
    quote = text[0]
    if len(text) < 2 or text[-1] != quote:
        raise _yaml_error(file, number, text)
    if quote == "'":
        return text[1:-1].replace("''", "'")

    def plain(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 1:
            if code not in _ESCAPES:
                raise _yaml_error(file, number, text)
            return _ESCAPES[code]
        value = int(code[1:], 16)
        if value > 0x10FFFF or 0xD800 <= value < 0xE000:
            raise _yaml_error(file, number, text)
        return chr(value)

    return _ESCAPE.sub(plain, text[1:-1])


def _yaml_error(file: Path, number: int, line: str) -> CheckpointError:
    return CheckpointError(f"{file}: line {number} is not YAML as Marian writes it: {line!r:.80}")
