r"""Corpora of lines: text, and JSONL with one object per line. Only "\n" ends a line."""

import base64
import codecs
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from txport.runtime.bundle.strict_json import finite
from txport.runtime.corpus.rows import MAX_BYTES, Fault, Output, Rows, text_of
from txport.runtime.text.lines import as_line

_CHUNK = 1 << 20
# Maximum bytes of a window, since lines may be long.
_WINDOW_BYTES = 1 << 23


class Lines:
    """Lines of a file, the base of a `Source`. Lines longer than `MAX_BYTES` are truncated."""

    empty_table = None

    def __init__(self, file: BinaryIO) -> None:
        self._chunks = self._split(file)
        self._lines: list[bytes] = []
        self._position = 0

    @staticmethod
    def _split(file: BinaryIO) -> Iterator[list[bytes]]:
        """Yield complete lines, without a byte order mark at the beginning."""
        rest = [b""]
        size = 0
        mark = codecs.BOM_UTF8
        while chunk := file.read(_CHUNK):
            chunk = chunk.removeprefix(mark)
            mark = b""
            start, *more = chunk.split(b"\n")
            if size <= MAX_BYTES:
                rest.append(start)
            size += len(start)
            if more:
                yield [b"".join(rest)[: MAX_BYTES + 1], *more[:-1]]
                rest = [more[-1]]
                size = len(more[-1])
        if last := b"".join(rest)[: MAX_BYTES + 1]:
            yield [last]

    @property
    def ended(self) -> bool:
        while self._position == len(self._lines):
            if (lines := next(self._chunks, None)) is None:
                return True
            self._lines = lines
            self._position = 0
        return False

    def take(self, maximum: int) -> list[bytes]:
        lines: list[bytes] = []
        size = 0
        while len(lines) < maximum and size < _WINDOW_BYTES and not self.ended:
            next_lines = self._lines[self._position : self._position + maximum - len(lines)]
            self._position += len(next_lines)
            lines += next_lines
            size += sum(map(len, next_lines))
        return lines

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and not self.ended:
            step = min(count - skipped, len(self._lines) - self._position)
            self._position += step
            skipped += step
        return skipped

    def identity(self, raw: Sequence[bytes]) -> Iterator[bytes]:
        return (line + b"\n" for line in raw)


class TextSource(Lines):
    """Source of a text file, with one row per line.

    Args:
        file: the lines.
        keep: name of the column to which the text is copied; None to omit it.
    """

    def __init__(self, file: BinaryIO, keep: str | None) -> None:
        super().__init__(file)
        self._keep = keep

    def decode(self, raw: Sequence[bytes], errors: str) -> Rows:
        texts = [text_of(line, errors) for line in raw]
        if self._keep is None:
            return Rows(texts, None)
        return Rows(texts, [{self._keep: None if isinstance(text, Fault) else text} for text in texts])


class JsonSource(Lines):
    """Source of a file with one object per line.

    Args:
        file: the lines.
        column: the member to translate.
        keep: the members to copy; None for all.
        new: names of the columns to add.
    """

    def __init__(self, file: BinaryIO, column: str, keep: Sequence[str] | None, new: Sequence[str]) -> None:
        super().__init__(file)
        self._column = column
        self._keep = keep
        self._new = new

    def decode(self, raw: Sequence[bytes], errors: str) -> Rows:
        rows = [self._row(line, errors) for line in raw]
        return Rows([text for text, _ in rows], [copied for _, copied in rows])

    def _row(self, line: bytes, errors: str) -> tuple[str | Fault, dict[str, Any]]:
        text = text_of(line, errors)
        if isinstance(text, Fault):
            return text, {}
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            return Fault(f"the row is not JSON ({str(error).partition(':')[0]})"), {}
        if not isinstance(row, dict):
            return Fault("the row is not a JSON object"), {}
        if self._keep is None:
            copied = dict(row)
        else:
            copied = {name: row[name] for name in self._keep if name in row}
        if repeated := [name for name in self._new if copied.pop(name, None) is not None]:
            return Fault(f"the row has {repeated[0]!r} already, which is to be written"), copied
        if self._column not in row:
            return Fault(f"the row has no {self._column!r}"), copied
        return text_of(row[self._column], errors), copied


class TextWriter:
    """`RowWriter` of one column, with one line per row; a row without a value is an empty line."""

    def __init__(self, file: Any, columns: Sequence[str]) -> None:
        self._file = file
        self._columns = columns

    def write(self, output: Output) -> None:
        self._file.write(b"".join(as_line(text or "") for text in output.columns[self._columns[0]]))

    def close(self) -> None:
        """Nothing is left to do."""


class JsonWriter:
    """`RowWriter` of one object per row: the copied columns, then the new ones."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, output: Output) -> None:
        names = list(output.columns)
        values = zip(*output.columns.values(), strict=True)
        copied = output.copied
        if copied is None or isinstance(copied, list):
            before: Sequence[dict[str, Any]] = copied or [{}] * len(next(iter(output.columns.values()), ()))
        else:
            from txport.runtime.corpus.arrow import json_rows  # pyarrow is there, as `copied` is a table

            before = json_rows(copied)
        rows = ({**first, **dict(zip(names, row, strict=True))} for first, row in zip(before, values, strict=True))
        self._file.write(b"".join(map(json_line, rows)))

    def close(self) -> None:
        """Nothing is left to do."""


def json_line(row: dict[str, Any]) -> bytes:
    """Return an object as a line of JSON: null for numbers that are not finite, text or base64 for bytes."""
    try:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_as_json)
    except ValueError:
        line = json.dumps(finite(row, _as_json), ensure_ascii=False, allow_nan=False)
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:  # an unpaired surrogate, which JSON can represent and UTF-8 cannot
        return json.dumps(json.loads(line)).encode() + b"\n"


def _as_json(value: object) -> object:
    """Convert a value that JSON lacks: bytes become text if they are UTF-8, otherwise an object with their base64."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}
