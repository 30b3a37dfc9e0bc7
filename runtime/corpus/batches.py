"""Translation of batches of Apache Arrow, for the worker processes of Ray Data, Spark and others.

These frameworks distribute work, restart processes and scale. This module contains the function that they run.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txport.runtime.bundle.names import find_bundle
from txport.runtime.corpus.rows import TARGET, Rows
from txport.runtime.corpus.sources import parquet
from txport.runtime.corpus.translation import Translate
from txport.runtime.errors import InputError
from txport.runtime.libraries import needs
from txport.runtime.options import Options
from txport.runtime.translator import Translator

if TYPE_CHECKING:
    import pyarrow


class BatchTranslator:
    """Callable that adds the columns of a translation to a table. The rows themselves stay unchanged.

    For a row without a translation, the translation is null, and the column `error` contains the reason.

    Args:
        bundle: a directory on each machine, or the name of a bundle of tx-get.
        column: the column to translate.
        target: name of the translation's column.
        ids: whether to add a column of target ids.
        errors: "skip", or "replace" to insert U+FFFD for bytes that are not UTF-8.
        engine: keyword arguments of `Translator` that choose and configure the engine, such as `{"threads": 2}`.
            The default is one thread, since these frameworks run one process per core.
        options: fields of `Options`.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        column: str = "text",
        target: str = TARGET,
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
            InputError: the table lacks the column, already has one of the new columns, or the column contains no text.
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
    """Return a Ray data set with the columns of a translation. Each actor opens the bundle.

    Args:
        dataset: a `ray.data.Dataset`.
        bundle: as for `BatchTranslator`.
        actors: number of actors, or the minimum and maximum between which Ray scales, on any number of machines.
        cpus, gpus: of each actor. An actor with a GPU translates on it.
        block_rows: rows that an actor takes at once and sorts by length. If it is killed, they are repeated.
        engine: keyword arguments of `Translator`, as for `BatchTranslator`. The default is `cpus` threads.
        arguments: other arguments of `BatchTranslator`.

    Raises:
        MissingLibrary: ray is not installed.
    """
    with needs("ray"):
        from ray.data import ActorPoolStrategy
    min_actors, max_actors = (actors, actors) if isinstance(actors, int) else actors
    engine_options = {"threads": cpus, "device": "cuda" if gpus else "cpu", **(engine or {})}
    return dataset.repartition(target_num_rows_per_block=block_rows).map_batches(
        BatchTranslator,
        fn_constructor_kwargs={"bundle": str(bundle), "engine": engine_options, **arguments},
        batch_format="pyarrow",
        batch_size=None,  # complete blocks
        compute=ActorPoolStrategy(min_size=min_actors, max_size=max_actors),
        num_cpus=cpus,
        num_gpus=gpus,
    )
