"""Corpora of columns: Parquet, by Apache Arrow."""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet
from txport.runtime.corpus.arrow import content
from txport.runtime.corpus.rows import Output, Rows, text_of
from txport.runtime.errors import InputError, nearest

_WINDOW_BYTES = 1 << 23
# Rows that Arrow expands at once, since they may all refer to one large text.
_ROWS = 64
# Types of the new columns, by their kinds in `txport.runtime.corpus.columns`.
_TYPES = {
    "text": pyarrow.string(),
    "flag": pyarrow.bool_(),
    "number": pyarrow.float64(),
    "numbers": pyarrow.list_(pyarrow.float64()),
    "ids": pyarrow.list_(pyarrow.int32()),
}


class ParquetSource:
    """`Source` of a Parquet file.

    Args:
        file: seekable.
        location: its name in messages.
        column: the column to translate.
        keep: the columns to copy; None for all.
        new: names of the columns to add.

    Raises:
        InputError: it is not a Parquet file, lacks these columns, or already has the new ones.
    """

    def __init__(
        self, file: BinaryIO, location: str, column: str, keep: Sequence[str] | None, new: Sequence[str]
    ) -> None:
        try:
            parquet_file = pyarrow.parquet.ParquetFile(file, pre_buffer=False)
        except pyarrow.ArrowException as error:
            raise InputError(f"{location} is not a complete Parquet file: {error}") from error
        names = parquet_file.schema_arrow.names
        self._keep = list(names if keep is None else keep)
        for name in (column, *self._keep):
            if name not in names:
                raise InputError(f"{location} has no column {name!r}: {nearest(name, names)}")
        if repeated := sorted({*self._keep} & {*new}):
            raise InputError(
                f"{location} has a column {repeated[0]!r} already: leave it out by --keep, or name the new one"
            )
        check_text_column(parquet_file.schema_arrow.field(column).type, f"column {column!r} of {location}")
        self._column = column
        self._location = location
        read = [column, *(name for name in self._keep if name != column)]
        self.empty_table = pyarrow.Table.from_batches([], parquet_file.schema_arrow).select(self._keep)
        self._batches = parquet_file.iter_batches(_ROWS, columns=read)
        self._table: pyarrow.Table | None = None

    @property
    def ended(self) -> bool:
        while self._table is None or not self._table.num_rows:
            try:
                batch = next(self._batches, None)
            except (pyarrow.ArrowException, OSError) as error:
                raise InputError(f"{self._location} is damaged ({error}): take another copy") from error
            if batch is None:
                return True
            self._table = pyarrow.Table.from_batches([batch])
        return False

    def take(self, maximum: int) -> "pyarrow.Table":
        if self.ended:
            return pyarrow.table({})
        batches: list[pyarrow.Table] = []
        rows = size = 0
        while rows < maximum and size < _WINDOW_BYTES and not self.ended:
            assert self._table is not None
            batches.append(self._table)
            rows = rows + self._table.num_rows
            size = size + self._table.nbytes
            self._table = None
        table = pyarrow.concat_tables(batches)
        window = table.slice(0, maximum)
        while window.nbytes > _WINDOW_BYTES and window.num_rows > 1:
            window = window.slice(0, window.num_rows // 2)
        self._table = table.slice(window.num_rows)
        return window

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and (rows := self.take(count - skipped).num_rows):
            skipped += rows
        return skipped

    def decode(self, raw: "pyarrow.Table", errors: str) -> Rows:
        return Rows(texts_of(raw.column(self._column), errors), raw.select(self._keep))

    def identity(self, raw: "pyarrow.Table") -> Iterator[bytes | memoryview]:
        for name in raw.column_names:
            yield name.encode()
            for chunk in raw.column(name).chunks:
                yield from content(chunk)


def check_text_column(type: "pyarrow.DataType", what: str) -> None:
    """Refuse a column that does not contain text.

    Raises:
        InputError: its type is neither text nor bytes.
    """
    kinds = pyarrow.types
    if kinds.is_dictionary(type):
        type = type.value_type
    texts = (kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_binary, kinds.is_large_binary)
    if not any(is_kind(type) for is_kind in (*texts, kinds.is_null)):
        raise InputError(f"{what} is of type {type}, not text: choose another one by --column")


def texts_of(column: "pyarrow.ChunkedArray", errors: str) -> list[Any]:
    """Return the text of each row; bytes that are not UTF-8 and nulls are faults."""
    return [text_of(value, errors) for value in _as_bytes(column).to_pylist()]


def _as_bytes(column: "pyarrow.ChunkedArray") -> "pyarrow.ChunkedArray":
    """Return text as bytes, since Arrow has not checked its UTF-8."""
    kinds = pyarrow.types
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if kinds.is_string(column.type) or kinds.is_large_string(column.type) or kinds.is_string_view(column.type):
        return column.cast(pyarrow.large_binary())
    return column


def type_of(kind: Any) -> "pyarrow.DataType":
    """Return the Arrow type of a kind: a named type, or a list of structures of such types."""
    if isinstance(kind, dict):
        return pyarrow.list_(pyarrow.struct([(name, type_of(each)) for name, each in kind.items()]))
    return _TYPES[kind]


def table_of(output: Output, kinds: dict[str, Any], keep: Sequence[str]) -> "pyarrow.Table":
    """Convert rows to a table.

    Args:
        output: the rows.
        kinds: of the new columns.
        keep: the names of the copied columns, which are text unless they come from a table.
    """
    copied = output.copied
    new = {name: pyarrow.array(output.columns[name], type_of(kind)) for name, kind in kinds.items()}
    if copied is None or isinstance(copied, list):
        columns = {
            name: pyarrow.array([_text(row.get(name)) for row in copied or ()], pyarrow.string()) for name in keep
        }
        return pyarrow.table({**columns, **new})
    for name, column in new.items():
        copied = copied.append_column(name, column)
    return copied


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return str(value)


class ParquetWriter:
    """`RowWriter` of one row group for each window.

    Args:
        file: to write.
        kinds, keep: see `table_of`.
        empty_table: see `Source.empty_table`.
    """

    def __init__(self, file: Any, kinds: dict[str, Any], keep: Sequence[str], empty_table: Any) -> None:
        self._file = file
        self._kinds = kinds
        self._keep = keep
        self._empty_table = empty_table
        self._writer: Any = None

    def write(self, output: Output) -> None:
        table = table_of(output, self._kinds, self._keep)
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(self._file, table.schema, compression="zstd")
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is None:  # a file without rows also gets its columns
            self.write(Output(self._empty_table, {name: [] for name in self._kinds}))
        self._writer.close()
