"""Rows of a corpus: the text or fault of each, the copied columns, and the protocols to read and write them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from txport.runtime.arguments import check_text
from txport.runtime.errors import InputError

if TYPE_CHECKING:
    import pyarrow

# Longer rows are not sentences, and would waste memory.
MAX_BYTES = 1 << 20
# Treatment of rows that cannot be translated, as for lines in `txport.runtime.text.lines`.
ON_ERROR = ("skip", "strict", "replace")
# Default name of the column of translations.
TARGET = "translation"


class Fault(str):
    """Reason why a row has no text."""


@dataclass(frozen=True)
class Rows:
    """Some rows, in order.

    Attributes:
        texts: texts to translate, or faults.
        copied: the columns to copy: for JSONL one object per row, for Parquet a table; None for no columns.
    """

    texts: "list[str | Fault]"
    copied: "list[dict[str, Any]] | pyarrow.Table | None"


@dataclass(frozen=True)
class Output:
    """Rows to write: the copied columns, and the new ones with one value per row."""

    copied: "list[dict[str, Any]] | pyarrow.Table | None"
    columns: dict[str, list[Any]]


# The result of `Source.take`, whose type is private to the source. It has a length.
Raw = Any


class Source(Protocol):
    """Rows of a file, read once from the beginning."""

    @property
    def empty_table(self) -> "pyarrow.Table | None":
        """Return a table of the copied columns without rows; None for lines."""

    @property
    def ended(self) -> bool:
        """Return whether there are no more rows."""

    def take(self, maximum: int) -> Raw:
        """Return up to `maximum` rows, fewer if they are large, and no rows at the end of the file."""

    def skip(self, count: int) -> int:
        """Skip up to this number of rows, and return the number of skipped rows."""

    def identity(self, raw: Raw) -> Iterator[bytes | memoryview]:
        """Yield bytes that identify these rows, for hashes."""

    def decode(self, raw: Raw, errors: str) -> Rows:
        """Decode these rows; `errors` is one of `ON_ERROR`."""


class RowWriter(Protocol):
    """A file of rows."""

    def write(self, output: Output) -> None:
        """Write rows."""

    def close(self) -> None:
        """Complete the file."""


def text_of(value: object, errors: str) -> str | Fault:
    """Return the text of a value, which may be UTF-8 bytes or text.

    Args:
        value: of the row.
        errors: "replace" inserts U+FFFD for bytes that are not UTF-8.
    """
    if value is None:
        return Fault("the row is null")
    if not isinstance(value, (str, bytes)):
        return Fault(f"the row is of type {type(value).__name__}, not text")
    if len(value) > MAX_BYTES:
        return Fault(f"the row has more than {MAX_BYTES:,} bytes")
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8", "replace" if errors == "replace" else "strict")
        except UnicodeDecodeError as error:
            return Fault(f"the row is not UTF-8 (byte {error.start + 1} is 0x{value[error.start]:02x})")
    try:
        check_text(value, "the row")
    except InputError as error:
        return Fault(str(error))
    return value
