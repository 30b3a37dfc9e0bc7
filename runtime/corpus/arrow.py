"""Columns of Apache Arrow, read without Python's types, which lack nanoseconds and years beyond 9999."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow
from pyarrow import types


def content(array: "pyarrow.Array") -> Iterator[bytes | memoryview]:
    """Yield the bytes of an array's values. Equal values give equal bytes, whatever their layout in memory."""
    array = _simplify(array)
    kind = array.type
    yield f"{kind} {len(array)} {array.null_count}".encode()
    if array.null_count:
        yield np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes()
        array = array.drop_null()
    if types.is_null(kind):
        return
    if types.is_struct(kind):
        for member in array.flatten():
            yield from content(member)
    elif types.is_large_list(kind) or types.is_list(kind):
        yield np.diff(array.offsets.to_numpy()).astype("<i8").tobytes()
        yield from content(array.flatten())
    elif types.is_fixed_size_list(kind):
        yield from content(array.flatten())
    elif types.is_large_binary(kind):
        offsets = np.frombuffer(array.buffers()[1], "<i8")[array.offset : array.offset + len(array) + 1]
        yield np.diff(offsets).tobytes()
        if len(array) and offsets[0] != offsets[-1]:
            yield memoryview(array.buffers()[2])[offsets[0] : offsets[-1]]
    elif types.is_boolean(kind):
        yield np.packbits(array.to_numpy(zero_copy_only=False)).tobytes()
    elif len(array):
        width = kind.bit_width // 8
        yield memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]


def _simplify(array: "pyarrow.Array") -> "pyarrow.Array":
    """Return the array as one of the types that `content` supports."""
    kind = array.type
    if isinstance(array, pyarrow.ExtensionArray):
        return _simplify(array.storage)
    if types.is_dictionary(kind):
        return _simplify(array.dictionary_decode())
    if types.is_map(kind):
        return array.cast(pyarrow.list_(pyarrow.struct([("key", kind.key_type), ("value", kind.item_type)])))
    texts = types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_binary_view
    if any(is_kind(kind) for is_kind in texts):
        return array.cast(pyarrow.large_binary())
    return array


def json_rows(table: "pyarrow.Table") -> list[dict[str, Any]]:
    """Return the rows of a table as JSON values, except bytes and numbers that are not finite.

    Times are ISO 8601 text (of columns with a zone in UTC), durations numbers of the column's unit, decimals text.
    """
    columns = {name: _as_json(table.column(name)) for name in table.column_names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)] or [{}] * len(table)


def _as_json(column: "pyarrow.ChunkedArray") -> list[Any]:
    """Return the values of a column."""
    kind = column.type
    if types.is_timestamp(kind):
        column = column.cast(pyarrow.timestamp(kind.unit))  # without the time zone, which this machine may lack
    target = _json_type(kind)
    values: list[Any] = (column if target == kind else column.cast(target)).to_pylist()
    return values


def _json_type(kind: Any) -> Any:
    """Return the Arrow type to which a column is cast before it becomes JSON."""
    if types.is_temporal(kind):
        if types.is_duration(kind):
            return pyarrow.int64()
        if types.is_interval(kind):
            return kind
        return pyarrow.string()
    if types.is_decimal(kind):
        return pyarrow.string()
    if types.is_dictionary(kind):
        return _json_type(kind.value_type)
    if types.is_struct(kind):
        return pyarrow.struct([(field.name, _json_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(_json_type(kind.key_type), _json_type(kind.item_type))
    if types.is_list(kind):
        return pyarrow.list_(_json_type(kind.value_type))
    if types.is_large_list(kind):
        return pyarrow.large_list(_json_type(kind.value_type))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(_json_type(kind.value_type), kind.list_size)
    return kind
