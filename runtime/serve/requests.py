"""Parsing and checks of LibreTranslate requests: JSON or a form."""

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt
from txport.runtime.errors import nearest
from txport.runtime.serve.errors import Refusal
from txport.runtime.serve.settings import ServiceSettings

# All fields of a request. LibreTranslate's clients send `secret`, which this server ignores.
FIELDS = frozenset("q source target model format api_key alternatives stream alignments secret".split())
# Fields in the URL of a request of feature vectors.
FEATURE_FIELDS = frozenset("model alignments api_key".split())
_TEXT_FIELDS = "source, target, model, format and api_key are text"
# Larger than the number of fields of any valid request.
_MAX_FIELDS = 100
MAX_PARTS = 100
MAX_HEADERS = 1024  # maximum bytes of the headers of a part
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70}))', re.ASCII | re.IGNORECASE)
_NAME = re.compile(rb';\s*name=(?:"([^"\r\n]*)"|([^\s";,]+))', re.IGNORECASE)
# Transfer encodings that leave a part unchanged.
_PLAIN = (b"7bit", b"8bit", b"binary")
# Maximum number of brackets of a JSON body. Each may begin an object, and parsing a million objects takes a quarter of
# a second.
_MAX_BRACKETS = 1 << 16


@dataclass(frozen=True)
class TranslationRequest:
    """A translation request of a client.

    Attributes:
        texts: the texts to translate.
        several: whether the request contains a list of texts; the response then contains a list of translations.
        source, target: codes of languages, "auto" or "".
        model: name of a model; "" for the first one with these languages.
        alternatives: number of further translations of each text.
        stream: whether to send the translation piece by piece, as soon as each is ready.
        alignments: whether to add word alignments.
        key: API key, or "".
    """

    texts: list[str]
    several: bool
    source: str
    target: str
    model: str
    alternatives: int
    stream: bool
    alignments: bool
    key: str

    @property
    def characters(self) -> int:
        """Number of characters of all texts."""
        return sum(map(len, self.texts))


def array_of(body: bytes, content_type: str) -> npt.NDArray[Any]:
    """Return the array of a body of feature vectors. Pickled objects are refused, because they could run code.

    Raises:
        Refusal: 415, the content type is not NumPy's; 400, the body is not an array.
    """
    if content_type.partition(";")[0].strip().lower() != "application/x-npy":
        raise Refusal(415, "the body must be an array of NumPy: send numpy.save's bytes as application/x-npy")
    try:
        array: npt.NDArray[Any] = np.load(io.BytesIO(body), allow_pickle=False)
    except Exception as error:  # zipfile, NumPy and Python's parser raise errors of many classes
        raise Refusal(400, f"the body is not an array of NumPy ({error}): send the bytes of numpy.save") from None
    if not isinstance(array, np.ndarray):
        raise Refusal(400, "the body is an archive of several arrays: send one array by numpy.save")
    return array


def fields_of(body: bytes, content_type: str, query: str) -> Mapping[str, Any]:
    """Return the fields of a request: a JSON object, or a form of either encoding with the fields of the URL.

    Raises:
        Refusal: 400, the body is neither.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/json" or kind.endswith("+json"):
            if body.count(b"[") + body.count(b"{") > _MAX_BRACKETS:
                raise Refusal(400, f"the body has more than {_MAX_BRACKETS} brackets: send less at a time")
            fields = json.loads(body.decode("utf-8-sig"))
            if not isinstance(fields, dict):
                raise Refusal(400, "the body is JSON, but not an object: give {...}")
            return fields
        pairs = _pairs(query)
        if kind == "multipart/form-data":
            pairs += parts_of(body, content_type)
        else:
            pairs += _pairs(body.decode())
    except UnicodeError:
        raise Refusal(400, "the body is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Refusal(400, f"the body is not {'JSON' if 'json' in kind else 'a form'} that can be read") from None
    # Forms encode line ends as \r\n.
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def query_of(query: str) -> dict[str, str]:
    """Return the fields of a URL.

    Raises:
        Refusal: 400, there are too many, or they are not UTF-8.
    """
    try:
        return dict(_pairs(query))
    except ValueError:
        raise Refusal(400, f"the URL has more than {_MAX_FIELDS} fields, or is not UTF-8") from None


def _pairs(text: str) -> list[tuple[str, str]]:
    return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)


def parts_of(body: bytes, content_type: str) -> list[tuple[str, str]]:
    """Return the name and text of each part of a form (RFC 7578).

    The body is split in one pass; Python's `email` takes minutes for some bodies.

    Args:
        body: body of the request.
        content_type: the header Content-Type, which contains the boundary.

    Raises:
        ValueError: the body is not a form, has more than `MAX_PARTS` parts or more than `MAX_HEADERS` bytes of headers
            in a part, or a part is encoded or not UTF-8.
    """
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise ValueError("the content type has no boundary")
    boundary = b"\r\n--" + (match[1] or match[2]).encode()
    # The first piece stands before the form. The piece that begins with -- ends it.
    pieces = (b"\r\n" + body).split(boundary, MAX_PARTS + 1)[1:]
    parts: list[tuple[str, str]] = []
    for piece in pieces:
        if piece.startswith(b"--"):
            return parts
        parts.append(_part(piece))
    raise ValueError("the form has no end" if len(pieces) <= MAX_PARTS else "the form has too many parts")


def _part(piece: bytes) -> tuple[str, str]:
    end = piece.find(b"\r\n\r\n", 0, MAX_HEADERS)
    padding, _, headers = piece[: max(end, 0)].partition(b"\r\n")
    if end < 0 or padding.strip(b" \t"):
        raise ValueError("a part has no headers, or too many")
    header_fields: dict[bytes, bytes] = {}
    for line in headers.split(b"\r\n"):
        key, _, value = line.partition(b":")
        header_fields[key.strip().lower()] = value.strip()
    if header_fields.get(b"content-transfer-encoding", b"binary").lower() not in _PLAIN:
        raise ValueError("a part is encoded")
    name = _NAME.search(header_fields.get(b"content-disposition", b""))
    if name is None:
        raise ValueError("a part has no name")
    return (name[1] or name[2] or b"").decode(), piece[end + 4 :].decode()


def translation_request(fields: Mapping[str, Any], settings: ServiceSettings) -> TranslationRequest:
    """Return the request of these fields.

    Raises:
        Refusal: 400 for missing fields or wrong types, 413 for too much text, 422 for unsupported features.
    """
    _check_names(fields, FIELDS)
    q = fields.get("q")
    if not q:
        raise Refusal(400, "q is missing: give a text, or a list of texts")
    several = isinstance(q, list)
    if several:
        texts = q
    else:
        texts = [q]
    if not all(isinstance(text, str) for text in texts):
        raise Refusal(400, "q is neither a text nor a list of texts")
    words = {name: fields.get(name) or "" for name in ("source", "target", "model", "format", "api_key")}
    if not all(isinstance(word, str) for word in words.values()):
        raise Refusal(400, _TEXT_FIELDS)
    parsed = TranslationRequest(
        texts=texts,
        several=several,
        source=words["source"],
        target=words["target"],
        model=words["model"],
        alternatives=_number(fields.get("alternatives"), settings.max_alternatives),
        stream=_flag(fields.get("stream"), "stream"),
        alignments=_flag(fields.get("alignments"), "alignments"),
        key=words["api_key"],
    )
    _check(parsed, words["format"], settings)
    return parsed


def feature_request(fields: Mapping[str, str]) -> tuple[str, bool]:
    """Return the model's name, or "", and whether to add alignments, from the URL of a request of feature vectors.

    Raises:
        Refusal: 400 for an unknown field or value.
    """
    _check_names(fields, FEATURE_FIELDS)
    return fields.get("model", ""), _flag(fields.get("alignments"), "alignments")


def _check_names(fields: Mapping[str, Any], names: frozenset[str]) -> None:
    unknown = next((name for name in fields if name not in names), None)
    if unknown is not None:
        raise Refusal(400, f"there is no field {unknown[:80]!r}: {nearest(unknown, sorted(names))}")


def _check(parsed: TranslationRequest, form: str, settings: ServiceSettings) -> None:
    if len(parsed.texts) > settings.max_texts:
        raise Refusal(413, f"q has {len(parsed.texts)} texts, more than the {settings.max_texts} of a request")
    if parsed.characters > settings.max_characters:
        raise Refusal(
            413, f"q has {parsed.characters} characters, more than the {settings.max_characters} of a request"
        )
    if form not in ("", "text"):
        raise Refusal(422 if form == "html" else 400, "only the format text is translated: strip the tags first")
    if parsed.stream and parsed.several:
        raise Refusal(422, "streaming takes one text: give q as one text")
    if parsed.stream and parsed.alternatives:
        raise Refusal(422, "streaming gives one translation: leave out alternatives")
    if parsed.alignments and parsed.alternatives:
        raise Refusal(422, "alignments are of one translation: leave out alternatives")


def _number(value: Any, maximum: int) -> int:
    try:
        if isinstance(value, (str, int, type(None))):
            number = int(value or 0)
        else:
            number = -1
    except ValueError:
        number = -1
    if number < 0:
        raise Refusal(400, "alternatives must be 0 or more")
    if number > maximum:
        raise Refusal(422, f"alternatives may be {maximum} at most")
    return number


def _flag(value: Any, name: str) -> bool:
    if value in (None, "", False, "false", "0"):
        return False
    if value in (True, "true", "1"):
        return True
    raise Refusal(400, f"{name} is neither true nor false")
