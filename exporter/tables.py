"""Tables for a terminal or a pipe, of which nothing is cut, however narrow it is."""

from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console, left: Collection[str] = ()
) -> None:
    """One table. Where it is too wide, lines are broken between words, and within them if nothing else helps.

    Args:
        heads: of the columns.
        rows: their cells.
        console: where to.
        left: the heads of columns of text; the others are numbers.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, head in enumerate(heads):
        words = [word for text in (head, *(row[number] for row in rows)) for word in text.split()]
        least = min(max(map(len, words), default=1), console.width)
        table.add_column(head, justify="left" if head in left else "right", overflow="fold", min_width=least)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
