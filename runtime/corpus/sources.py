"""Rows of one file of any format."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from txport.runtime.corpus import locations
from txport.runtime.corpus.formats import JSONL, TEXT, Form, damage, form_of, reporting_damage
from txport.runtime.corpus.lines import JsonSource, TextSource
from txport.runtime.corpus.rows import Source
from txport.runtime.errors import InputError
from txport.runtime.libraries import needs

_ROWS = 8_192


@contextmanager
def open_source(
    path: str, form: Form, column: str, keep: Sequence[str] | None, new: Sequence[str] = ()
) -> Iterator[Source]:
    """Yield the rows of a file.

    Args:
        path: path or URL.
        form: of the file.
        column: the one with the text.
        keep: the columns to copy; None for all.
        new: names of the columns to add.

    Raises:
        InputError: it cannot be read, is damaged, or lacks a column.
        MissingLibrary: the library that reads it is not installed.
    """
    try:
        with locations.open_location(path) as file, reporting_damage(file, path, form) as plain:
            if form.format == TEXT:
                yield TextSource(plain, column if keep is None or column in keep else None)
            elif form.format == JSONL:
                yield JsonSource(plain, column, keep, new)
            else:
                yield parquet().ParquetSource(plain, path, column, keep, new)
    except Exception as error:
        if not damage(error):
            raise
        raise InputError(f"{path} is damaged, or ends too early ({error}): take another copy") from error


def read_pairs(path: str, column: str, target_column: str) -> Iterator[list[tuple[object, object]]]:
    """Yield two columns of a file of objects, in windows. Invalid values are a `Fault`, None or of another type."""
    form = form_of(path)
    if form.format == TEXT:
        raise InputError(f"{path} has no columns: give .jsonl or .parquet")
    with open_source(path, form, column, (target_column,)) as source:
        while len(raw := source.take(_ROWS)):
            rows = source.decode(raw, "skip")
            if isinstance(rows.copied, list):
                targets: list[object] = [row.get(target_column) for row in rows.copied]
            else:
                assert rows.copied is not None  # both formats copy the other column
                targets = parquet().texts_of(rows.copied.column(target_column), "skip")
            yield list(zip(rows.texts, targets, strict=True))


def parquet() -> Any:
    """Return the module that reads and writes Parquet.

    Raises:
        MissingLibrary: pyarrow is not installed.
    """
    with needs("corpus", "this is Parquet"):
        from txport.runtime.corpus import parquet
    return parquet
