"""New columns of a corpus: fields of a translation by name."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from txport.runtime.options import Options
from txport.runtime.results import Translation


class Column(NamedTuple):
    """Kind of a column (see `txport.runtime.corpus.parquet`), and its value for a translation."""

    kind: Any
    value: Callable[[Translation], Any]


def columns_of(options: Options, target: str, ids: bool = False) -> dict[str, Column]:
    """Return the columns of a call, by name.

    Args:
        options: of the call.
        target: name of the translation's column.
        ids: whether to add a column of target ids.
    """
    columns = {target: Column("text", lambda result: result.text), **_of_answer(options, ids)}
    columns["truncated"] = Column("flag", lambda result: result.truncated)
    columns["finished"] = Column("flag", lambda result: result.finished)
    if options.n_best > 1 or options.alternatives:
        parts = {"text": Column("text", lambda result: result.text), **_of_answer(options, ids)}

        def hypotheses(result: Translation) -> list[dict[str, Any]]:
            return [{name: part.value(each) for name, part in parts.items()} for each in result.hypotheses or (result,)]

        columns["hypotheses"] = Column({name: part.kind for name, part in parts.items()}, hypotheses)
    return columns


def _of_answer(options: Options, ids: bool) -> dict[str, Column]:
    """Columns of each hypothesis; scores with six decimals, as in tx-translate."""
    columns: dict[str, Column] = {}
    if ids:
        columns["ids"] = Column("ids", lambda result: result.ids)
    if (options.beam or 1) > 1 or options.generation == "model":
        columns["score"] = Column("number", lambda result: None if result.score is None else _round(result.score))
    if options.scores:
        columns["scores"] = Column("numbers", lambda result: list(map(_round, result.scores or ())))
    if options.alignments:
        columns["alignment"] = Column("text", lambda result: result.alignment.pharaoh if result.alignment else "")
    return columns


def values(columns: dict[str, Column], results: Sequence[Translation | None]) -> dict[str, list[Any]]:
    """Return the values of all columns; null for rows without a translation."""
    return {
        name: [None if result is None else column.value(result) for result in results]
        for name, column in columns.items()
    }


def _round(number: float) -> float:
    return round(number, 6) + 0.0  # not -0.0
