"""Translation of the rows of a corpus: new columns, and reports of rows that cannot be translated."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

from txport.runtime.bundle.archive import files_of, hash_of
from txport.runtime.bundle.manifest import NAME, Manifest
from txport.runtime.corpus.columns import columns_of, values
from txport.runtime.corpus.rows import TARGET, Fault, Output, Rows
from txport.runtime.errors import InputError
from txport.runtime.libraries import silence
from txport.runtime.options import DEFAULTS, Options
from txport.runtime.results import Translation
from txport.runtime.translator import Translator
from txport.runtime.version import VERSION


class Translate:
    """Task that translates a corpus, one row for each row.

    Args:
        bundle: the bundle.
        open: opens it, when the first row has been read.
        options: of the translation. With `strict`, a row that is too long is an error.
        target: name of the translation's column.
        ids: whether to add a column of target ids.
    """

    def __init__(
        self,
        bundle: Path,
        open: Callable[[], Translator],
        options: Options = DEFAULTS,
        target: str = TARGET,
        ids: bool = False,
    ) -> None:
        if options.attention:
            raise InputError(
                "the option attention is not available as a column: use alignments, or tx-translate --json"
            )
        self._open, self._options = open, replace(options, strict=False)
        self._strict = options.strict
        self._columns = columns_of(options, target, ids)
        if "error" in self._columns:
            raise InputError("error is the column of errors: name the translation otherwise")
        self.kinds = {**{name: column.kind for name, column in self._columns.items()}, "error": "text"}
        set_options = {name: value for name, value in asdict(options).items() if value != getattr(DEFAULTS, name)}
        self.settings = {**bundle_settings(bundle), "target": target, "ids": str(ids)}
        self.settings |= {name: str(value) for name, value in set_options.items()}
        self.tokens = 0
        self.counts: Counter[str] = Counter()

    @cached_property
    def translator(self) -> Translator:
        """Open bundle."""
        return self._open()

    def outputs(self, windows: Iterator[Rows]) -> Iterator[Output]:
        """Yield the output of each window of a part. Random samples depend on the position of a row in the part."""
        for rows, results in translated(self.translator, windows, self._options):
            errors = list(map(self._error, rows.texts, results))
            translations = [None if error else result for error, result in zip(errors, results, strict=True)]
            self.tokens += sum(len(result.ids) for result in translations if result is not None)
            self.counts["errors"] += sum(error is not None for error in errors)
            yield Output(rows.copied, {**values(self._columns, translations), "error": errors})

    def _error(self, text: str | Fault, result: Translation) -> str | None:
        if isinstance(text, Fault):
            return str(text)
        if self._strict and result.truncated:
            return f"the row has more than the {self.translator.engine.limits.source} tokens that this model supports"
        return None


def bundle_settings(bundle: Path) -> dict[str, str]:
    """Return facts about the bundle and this version of txport, for the manifest of a part."""
    if not (bundle / NAME).exists() and not bundle.is_file():
        Manifest.load(bundle)  # which explains what is wrong
    return {"bundle": hash_of(files_of(bundle) / NAME), "txport": VERSION}


def translated(
    translator: Translator, windows: Iterator[Rows], options: Options
) -> Iterator[tuple[Rows, Sequence[Translation]]]:
    """Yield windows with the translations of their texts; the translation of a fault is empty."""
    last: list[Rows] = []

    def texts() -> Iterator[list[str]]:
        for rows in windows:
            last[:] = [rows]
            yield ["" if isinstance(text, Fault) else text for text in rows.texts]

    # Truncation is recorded in a column; a warning for each row could be millions of lines.
    with silence("txport"):
        for results in translator.translate_windows(texts(), options, what="row"):
            yield last[0], results
