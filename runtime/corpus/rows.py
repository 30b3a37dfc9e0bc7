"""Rows of a corpus: the text of each or its fault, the kept columns, and the protocols to read and write them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from txport.runtime.arguments import check_text
from txport.runtime.errors import InputError

if TYPE_CHECKING:
    import pyarrow

# A longer row is not a sentence, and would waste memory.
MAX_BYTES = 1 << 20
# What may become of a row that cannot be translated, as of lines in `txport.runtime.text.lines`.
ON_ERROR = ("skip", "strict", "replace")


class Fault(str):
    """Reason why a row has no text."""


@dataclass(frozen=True)
class Rows:
    """Some rows, in order.

    Attributes:
        texts: what is to be translated.
        kept: the other columns to write: of JSONL an object a row, of Parquet a table; None for none.
    """

    texts: "list[str | Fault]"
    kept: "list[dict[str, Any]] | pyarrow.Table | None"


@dataclass(frozen=True)
class Output:
    """Rows to write: the columns that are kept, and new ones, one value a row each."""

    kept: "list[dict[str, Any]] | pyarrow.Table | None"
    columns: dict[str, list[Any]]


# The result of `Source.take`, whose form is private to the source. It has a length.
Raw = Any


class Source(Protocol):
    """Rows of a file, which are read once from the beginning."""

    @property
    def nothing(self) -> "pyarrow.Table | None":
        """The kept columns of no rows."""

    @property
    def ended(self) -> bool:
        """True if no row follows."""

    def take(self, most: int) -> Raw:
        """Return up to this number of rows, fewer if they are large; none at the end of the file."""

    def skip(self, count: int) -> int:
        """Leave out up to this number of rows, and return how many there were."""

    def identity(self, raw: Raw) -> Iterator[bytes | memoryview]:
        """Yield bytes that identify these rows."""

    def decode(self, raw: Raw, errors: str) -> Rows:
        """Return these rows; `errors` as in `ON_ERROR`."""


class Writer(Protocol):
    """A file of rows."""

    def write(self, output: Output) -> None:
        """Write rows."""

    def close(self) -> None:
        """Write the end of the file."""


def text_of(value: object, errors: str) -> str | Fault:
    """Return the text of a value: UTF-8, or text already.

    Args:
        value: of the row.
        errors: "replace" puts U+FFFD where bytes are not UTF-8.
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
