"""Rows of a corpus: the text of each, or why it has none, and what else is kept of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
