"""Translation of batches of Apache Arrow: what Ray Data, Spark and others call in the processes that they start.

These engines share work, restart processes and scale; this is the function that they run.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txport.runtime.bundle.names import find_bundle
from txport.runtime.corpus.rows import Rows
from txport.runtime.corpus.sources import parquet
from txport.runtime.corpus.translation import Translate
from txport.runtime.errors import InputError
from txport.runtime.libraries import needs
from txport.runtime.options import Options
from txport.runtime.translator import Translator

if TYPE_CHECKING:
    import pyarrow


class BatchTranslator:
    """Adds the columns of a translation to tables, one row for each row.

    What cannot be translated has null as its translation, and in the column `error` the reason.

    Args:
        bundle: a directory that each machine has, or the name by which tx-get keeps a bundle.
        column: the column to translate.
        target: name of the translation's column.
        ids: whether to add a column of target ids.
        errors: "skip", or "replace" to put U+FFFD where bytes are not UTF-8.
        engine: arguments of `Translator`. By default there is one thread: these engines count on a core a process.
        options: fields of `Options`.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        column: str = "text",
        target: str = "translation",
        *,
        ids: bool = False,
        errors: str = "skip",
        engine: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._arrow = parquet()
        self._column = column
        self._errors = errors
        translator = Translator(bundle, **{"threads": 1, **(engine or {})})
        self._task = Translate(find_bundle(bundle), lambda: translator, Options(**options), target, ids)

    def __call__(self, table: "pyarrow.Table") -> "pyarrow.Table":
        """Return the table with the new columns.

        Raises:
            InputError: it has no such column, or has one of the new ones already, or the column holds no text.
        """
        for name in (self._column, *self._task.kinds):
            if (name in table.column_names) != (name == self._column):
                raise InputError(f"the batch has {'no' if name == self._column else 'already a'} column {name!r}")
        column = table.column(self._column)
        self._arrow.check_text_column(column.type, f"column {self._column!r}")
        rows = Rows(self._arrow.texts_of(column, self._errors), table)
        (output,) = self._task.outputs(iter([rows]))
        return self._arrow.table_of(output, self._task.kinds, ())


def translate_dataset(
    dataset: Any,
    bundle: str | os.PathLike[str],
    *,
    actors: int | tuple[int, int] = 1,
    cpus: int = 1,
    gpus: int = 0,
    block_rows: int = 8_192,
    engine: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """Return a Ray data set with the columns of a translation, by actors that each hold a bundle.

    Args:
        dataset: a `ray.data.Dataset`.
        bundle: as for `BatchTranslator`.
        actors: how many; two numbers for what Ray may scale between, on as many machines as it has.
        cpus, gpus: of each actor. One with a GPU runs there.
        block_rows: rows that an actor takes at once and sorts by length; that is what is done again if it is killed.
        engine: arguments of `Translator`.
        arguments: of `BatchTranslator`.

    Raises:
        MissingLibrary: ray is not installed.
    """
    with needs("ray"):
        from ray.data import ActorPoolStrategy
    least, most = (actors, actors) if isinstance(actors, int) else actors
    chosen = {"threads": cpus, "device": "cuda" if gpus else "cpu", **(engine or {})}
    return dataset.repartition(target_num_rows_per_block=block_rows).map_batches(
        BatchTranslator,
        fn_constructor_kwargs={"bundle": str(bundle), "engine": chosen, **arguments},
        batch_format="pyarrow",
        batch_size=None,  # whole blocks
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        num_cpus=cpus,
        num_gpus=gpus,
    )
