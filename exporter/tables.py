"""Tables for terminals and pipes, without truncated cells at any width."""

from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console, text_columns: Collection[str] = ()
) -> None:
    """Print a table. If it is too wide, lines are broken between words, or within words if necessary.

    Args:
        heads: headings of the columns.
        rows: cells of each row.
        console: output.
        text_columns: headings of columns with text; others contain numbers.
    """
    columns = [[head, *(row[number] for row in rows)] for number, head in enumerate(heads)]
    widths = _widths(columns, console.width - 2 * len(columns))
    padding = 1
    if widths is None:  # one space between columns instead of two
        widths = _widths(columns, console.width - len(columns), within=True)
        padding = 0
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, padding, 0, 0))
    for head, width in zip(heads, widths or [], strict=True):
        table.add_column(
            escape(head), justify="left" if head in text_columns else "right", overflow="fold", width=width
        )
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _widths(columns: Sequence[Sequence[str]], room: int, *, within: bool = False) -> list[int] | None:
    """Return column widths: of whole cells, or of whole words, or less if breaks `within` words are allowed.

    Return None if the table does not fit. Rich would truncate it.
    """
    widths = [max(map(len, cells)) for cells in columns]
    words = [max((len(word) for cell in cells for word in cell.split()), default=0) for cells in columns]
    for minima in (words, [1] * len(columns)) if within else (words,):
        while sum(widths) > room and any(width > bound for width, bound in zip(widths, minima, strict=True)):
            shrinkable = [number for number, bound in enumerate(minima) if widths[number] > bound]
            widths[max(shrinkable, key=lambda number: widths[number])] -= 1
    if sum(widths) <= room or within:
        return widths
    return None
