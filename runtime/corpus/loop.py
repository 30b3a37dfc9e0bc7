"""The loop over a corpus: its files, their parts, and the windows of each part, which are translated together.

A part consists of a fixed number of consecutive rows of one file (65,536 by default); the last one may be shorter.
After an interruption, any process can therefore write the missing parts, with the bytes of an uninterrupted run.
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from txport.runtime.console.words import plural
from txport.runtime.corpus import parts, sources
from txport.runtime.corpus.formats import JSONL, PARQUET, TEXT, Form, form_of, packed
from txport.runtime.corpus.lines import JsonWriter, TextWriter, json_line
from txport.runtime.corpus.locations import Store
from txport.runtime.corpus.parts import OutputPart
from txport.runtime.corpus.rows import TARGET, Fault, Output, Raw, Rows, RowWriter, Source
from txport.runtime.errors import InputError

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger("txport.corpus")
# Rows of a part, and rows that are sorted by length and translated together.
PART_ROWS = 65_536
WINDOW_ROWS = 8_192
# New columns that output in text leaves out. Errors of text are in a separate file.
OMITTED_IN_TEXT = ("error", "truncated", "finished")
LOG_INTERVAL = 30.0  # minimum seconds between two lines of progress


class RowOperation(Protocol):
    """Operation on rows.

    Attributes:
        kinds: kinds of the new columns, by name (see `txport.runtime.corpus.columns`).
        settings: all values that affect the translation of a row.
        tokens: target tokens generated so far.
        counts: rows so far, by their fault.
    """

    kinds: dict[str, Any]
    settings: dict[str, str]
    tokens: int
    counts: Counter[str]

    def outputs(self, windows: Iterator[Rows]) -> Iterator[Output]:
        """Yield the output of each window of a part."""


@dataclass(frozen=True)
class Layout:
    """Formats and sizes of input and output.

    Attributes:
        column: column to translate; for text files the name of its column in other output formats.
        keep: columns to copy; None for all.
        read: format of the input; None to detect it from the name.
        write: format of the output; None for the format of the input.
        compression: compression of the output; None for the compression of the input.
        errors: treatment of invalid rows.
        part_rows, window_rows: rows of a part, and of a window.
    """

    column: str = "text"
    keep: tuple[str, ...] | None = None
    read: str | None = None
    write: str | None = None
    compression: str | None = None
    errors: str = "skip"
    part_rows: int = PART_ROWS
    window_rows: int = WINDOW_ROWS

    @property
    def settings(self) -> dict[str, str]:
        """Return all fields as a part's manifest contains them."""
        if self.keep is None:
            keep = "all"
        else:
            keep = ",".join(self.keep)
        options = {name: str(getattr(self, name)) for name in ("column", "read", "write", "compression", "errors")}
        return {
            **options,
            "keep": keep,
            "part rows": str(self.part_rows),
            "window rows": str(self.window_rows),
        }

    def copied_columns(self) -> Sequence[str]:
        """Return the names of the columns that are copied from lines to Parquet, all as text: lines have no types."""
        if self.keep is None:
            return (self.column,)
        return self.keep

    def output_form(self, form: Form) -> Form:
        """Return the format, compression and name of the parts of an input file."""
        format = self.write or form.format
        if format == PARQUET:
            compression = "none"
        else:
            compression = self.compression or form.compression
        return Form(format, compression, form.name)


@dataclass(frozen=True)
class Share:
    """Parts of one process: those with `(file + part) % of == number`."""

    number: int = 0
    of: int = 1

    def includes(self, file: int, part: int) -> bool:
        """Return whether a part of a file belongs to this share."""
        return (file + part) % self.of == self.number


ALL_PARTS = Share()


@dataclass
class Totals:
    """Counts of a run."""

    written: int = 0
    existing: int = 0
    rows: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.missing: list[str] = []

    def sentence(self) -> str:
        """Return a summary for people."""
        faults = "".join(f", {count:,} {fault}" for fault, count in sorted(self.counts.items()))
        if self.existing:
            existing = f", {self.existing:,} there already"
        else:
            existing = ""
        return (
            f"{plural(self.written, 'part')} made{existing}; {plural(self.rows, 'row')}, {self.tokens:,} tokens{faults}"
        )

    def add(self, part: OutputPart) -> None:
        """Count a part."""
        self.rows += part.rows
        self.tokens += part.tokens
        self.counts.update(part.counts)


class Corpus:
    """Input files and an output directory.

    Args:
        files: paths and URLs, the result of `txport.runtime.corpus.locations.list_files`.
        output: the directory to write.
        layout: their formats and columns.
        task: the operation on their rows.

    Raises:
        InputError: two files have the same name, or a text file would need columns.
    """

    def __init__(self, files: Sequence[str], output: str, layout: Layout, task: RowOperation) -> None:
        self._files = [(file, form_of(file, layout.read)) for file in files]
        self._layout = layout
        self._task = task
        repeated = [name for name, count in Counter(form.name for _, form in self._files).items() if count > 1]
        if repeated:
            raise InputError(
                f"two input files are called {repeated[0]}: rename one, or give it another output directory"
            )
        self._check_effect()
        impossible_columns = [name for name in task.kinds if name not in (*OMITTED_IN_TEXT, next(iter(task.kinds)))]
        if impossible_columns and any(layout.output_form(form).format == TEXT for _, form in self._files):
            raise InputError(f"lines of text have no place for {impossible_columns[0]}: write --to jsonl or parquet")
        self._store = Store(output, (parts.FOLDER, parts.ERRORS))
        self._settings = {**layout.settings, **task.settings}

    def _check_effect(self) -> None:
        """Refuse names of columns if no file has columns, and a compression if all output is Parquet."""
        layout = self._layout
        output_formats = {layout.output_form(form).format for _, form in self._files}
        input_formats = {form.format for _, form in self._files}
        unused = [name for name in layout.keep or () if name != layout.column]
        # If all input or all output is text, no column but the translated one can be copied.
        if {TEXT} in (input_formats, output_formats) and unused:
            raise InputError(f"--keep {unused[0]} has no effect on lines of text, which have no columns: leave it out")
        if input_formats | output_formats == {TEXT} and layout.column != Layout.column:
            raise InputError(f"--column {layout.column} has no effect on lines of text: leave it out")
        name = next(iter(self._task.kinds))
        if output_formats == {TEXT} and name != TARGET:
            raise InputError(f"--target {name} has no effect on lines of text, which have no columns: leave it out")
        if output_formats == {PARQUET} and layout.compression not in (None, "none"):
            raise InputError(f"--compress {layout.compression} has no effect on Parquet, which is compressed itself")

    def run(self, share: Share = ALL_PARTS, *, resume: bool = False, check: bool = False) -> Totals:
        """Write the missing parts of a share.

        Args:
            share: parts of this process.
            resume: keep existing parts that were written from the same rows with the same settings.
            check: write nothing; compare existing parts with their hashes.

        Returns:
            counts of all parts of the share. `missing` lists the parts that are missing or damaged.

        Raises:
            InputError: a part exists and `resume` is not set, or it was written from other rows or with other
                settings; a file cannot be read, or is damaged.
            ResourceError: the disk is full or fails.
        """
        totals = Totals()
        clock = _Clock()
        for number, (path, form) in enumerate(self._files):
            with self._source(path, form) as source:
                part_number = 0
                while part_number == 0 or not source.ended:  # an empty file has one empty part
                    if share.includes(number, part_number):
                        part = _PartLocation(path, self._layout.output_form(form), part_number, source)
                        self._part(part, totals, resume, check)
                        clock.report(totals)
                    else:
                        source.skip(self._layout.part_rows)
                    part_number += 1
        return totals

    def _part(self, location: "_PartLocation", totals: Totals, resume: bool, check: bool) -> None:
        existing = parts.read(self._store, location.output)
        if existing is not None and not (resume or check):
            raise InputError(f"{self._store.path(location.output)} exists: continue with --resume")
        if existing is not None and self._is_complete(existing, check):
            existing.check_settings(self._settings, self._store)
            self._check_rows(location, existing)
            totals.existing += 1
            totals.add(existing)
        elif check:
            location.source.skip(self._layout.part_rows)
            totals.missing.append(location.output)
        else:
            totals.written += 1
            totals.add(self._make(location))

    def _is_complete(self, part: OutputPart, hashes: bool) -> bool:
        """Return whether the file of a part is complete, by its size or its hash."""
        if not hashes:
            return self._store.size(part.output) == part.output_bytes
        return self._store.sha256(part.output) == part.output_sha256

    def _check_rows(self, location: "_PartLocation", existing: OutputPart) -> None:
        reading = _Reading(location, self._layout)
        for _ in reading.windows():  # reading computes the hash, and moves the source to the next part
            pass
        actual = (reading.sha256, reading.rows, location.source.ended)
        if actual != (existing.input_sha256, existing.rows, existing.last):
            raise InputError(
                f"{location.path} has changed since {self._store.path(existing.output)} was made of it: choose another "
                "output directory, or remove the parts of this file"
            )

    def _make(self, location: "_PartLocation") -> OutputPart:
        """Write a part and its manifest, and its errors if the output has no column for them."""
        task = self._task
        form = location.form
        tokens = task.tokens
        counts = task.counts.copy()
        report = _Report()
        reading = _Reading(location, self._layout)
        rows = 0
        with self._store.write(location.output) as file, packed(file, form.compression) as uncompressed:
            writer = self._writer(uncompressed, form.format, location.source.empty_table)
            for output in task.outputs(reading.decoded()):
                rows += report.add(output, location.first(self._layout))
                writer.write(output)
            writer.close()
        report.write(self._store, location.output, form.format)
        part = OutputPart(
            version=parts.VERSION, input=location.path, number=location.number, first=location.first(self._layout),
            rows=reading.rows, last=location.source.ended, input_sha256=reading.sha256, output=location.output,
            output_rows=rows, output_bytes=file.size, output_sha256=file.sha256, tokens=task.tokens - tokens,
            counts=dict(sorted((task.counts - counts).items())), settings=self._settings,
        )  # fmt: skip
        part.write(self._store)
        return part

    @contextmanager
    def _source(self, path: str, form: Form) -> Iterator[Source]:
        """Yield the rows of a file."""
        layout = self._layout
        new = list(self._task.kinds)
        keep: Sequence[str] | None = layout.keep
        if layout.output_form(form).format == PARQUET and form.format == JSONL:
            keep = layout.copied_columns()
        elif form.format == TEXT and layout.output_form(form).format == TEXT:
            keep = ()
        with sources.open_source(path, form, layout.column, keep, new) as source:
            yield source

    def _writer(self, file: Any, format: str, empty_table: "pyarrow.Table | None") -> RowWriter:
        if format == TEXT:
            return TextWriter(file, list(self._task.kinds))
        if format == JSONL:
            return JsonWriter(file)
        copied = self._layout.copied_columns()
        writer: RowWriter = sources.parquet().ParquetWriter(file, self._task.kinds, copied, empty_table)
        return writer


@dataclass(frozen=True)
class _PartLocation:
    """Place of a part, whether or not it has been written.

    Attributes:
        path: the input file.
        form: format, compression and name of the output file.
        number: of the part among those of the input file, from 0.
        source: the rows of the input file. The next one is the first row of the part.
    """

    path: str
    form: Form
    number: int
    source: Source

    @property
    def output(self) -> str:
        """Name of the output file."""
        return f"{self.form.name}-{self.number:05d}{self.form.ending}"

    def first(self, layout: Layout) -> int:
        """Return the number of the first row in the input file, from 0."""
        return self.number * layout.part_rows


class _Reading:
    """Rows of one part of a source. Reading hashes and counts them."""

    def __init__(self, location: _PartLocation, layout: Layout) -> None:
        self._location = location
        self._layout = layout
        self._digest = hashlib.sha256()
        self.rows = 0

    def windows(self) -> Iterator[Raw]:
        """Yield windows as the source returns them."""
        while remaining := self._layout.part_rows - self.rows:
            raw = self._location.source.take(min(remaining, self._layout.window_rows))
            if not len(raw):
                return
            self.rows += len(raw)
            for piece in self._location.source.identity(raw):
                self._digest.update(piece)
            yield raw

    def decoded(self) -> Iterator[Rows]:
        """Yield windows as rows.

        Raises:
            InputError: a row cannot be translated, and errors are strict.
        """
        for raw in self.windows():
            rows = self._location.source.decode(raw, self._layout.errors)
            if self._layout.errors == "strict":
                self._refuse_faults(rows)
            yield rows

    def _refuse_faults(self, rows: Rows) -> None:
        before = self._location.first(self._layout) + self.rows - len(rows.texts)
        for row, text in enumerate(rows.texts, before + 1):  # messages count from 1, files of errors from 0
            if isinstance(text, Fault):
                raise InputError(
                    f"{self._location.path}, row {row}: {text}: repair it, or choose --errors skip or replace"
                )

    @property
    def sha256(self) -> str:
        """Hash of the rows so far."""
        return self._digest.hexdigest()


class _Report:
    """Faults of a part's rows, as lines of JSON. Their row numbers are those in the input file, from 0."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._rows = 0

    def add(self, output: Output, first: int) -> int:
        """Record the faults of some rows, and return the number of rows; `first` is the first row of the part."""
        errors = output.columns.get("error", [])
        for row, error in enumerate(errors, first + self._rows):
            if error is not None:
                self._lines.append(json_line({"row": row, "error": error}))
        size = len(next(iter(output.columns.values())))
        self._rows += size
        return size

    def write(self, store: Store, output: str, format: str) -> None:
        """Write the faults of a text file, which has no column for them, into a separate file."""
        if format == TEXT and self._lines:
            with store.write(f"{parts.ERRORS}/{output}.jsonl") as file:
                file.write(b"".join(self._lines))


class _Clock:
    """Log of a run's progress."""

    def __init__(self) -> None:
        self._start = self._last_report = time.monotonic()

    def report(self, totals: Totals) -> None:
        """Log progress after a part, at most once in `LOG_INTERVAL`."""
        if time.monotonic() - self._last_report >= LOG_INTERVAL:
            self._last_report = time.monotonic()
            _log.info("%s, %d s", totals.sentence(), self._last_report - self._start)
