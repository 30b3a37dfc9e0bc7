"""Readers of parallel corpora: generated ones, parallel text files, tables, shards, and the Hugging Face Hub."""

import hashlib
import heapq
import itertools
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from txport.models.normalisation import spaced
from txport.runtime.console.words import plural
from txport.runtime.corpus.locations import check_remote, is_url, list_files
from txport.runtime.corpus.shards import Shards, check_some
from txport.runtime.errors import InputError, MissingLibrary
from txport.runtime.libraries import needs
from txport.runtime.text.lines import open_text, read_lines
from txport.training.guidance.pharaoh import Links, by_pair
from txport.training.options import (
    BuiltinOptions,
    CorpusOptions,
    DatasetsOptions,
    DigitsOptions,
    FeaturesOptions,
    NamesOptions,
    ParallelOptions,
    ShardsOptions,
    TableOptions,
    TokenizerOptions,
)
from txport.training.recipe import RECIPES
from txport.training.spoken import corpus as spoken
from txport.training.spoken import digits, names
from txport.training.spoken.recordings import read_recordings, source_key

_log = logging.getLogger("txport")

# Source line (or a `training.spoken.recordings.Recording`) and target line, both nonempty and without line breaks.
Pair = tuple[str, str]
# Default number of held-out pairs.
MAX_HELD_OUT = 1_000
FileOptions: TypeAlias = ParallelOptions | TableOptions | DatasetsOptions | ShardsOptions | FeaturesOptions
_Generated: TypeAlias = BuiltinOptions | NamesOptions | DigitsOptions


@dataclass(frozen=True)
class ParallelCorpus:
    """Training, validation and test pairs, and alignments of training pairs if the recipe has them."""

    train: Collection[Pair]
    validation: list[Pair]
    test: list[Pair]
    alignments: dict[Pair, Links] = field(default_factory=dict)


def load(options: CorpusOptions, data: Path, tokenizer: TokenizerOptions | None = None) -> ParallelCorpus:
    """Read the corpus of a recipe.

    Args:
        options: the recipe's `[corpus]`.
        data: base directory of relative file names.
        tokenizer: the recipe's `[tokenizer]`. Targets are normalised (spaces, lower case) like the output of a model
            with this tokenizer.

    Raises:
        InputError: a file is missing, is not UTF-8, has a different number of lines than the other side, or has no
            usable pair.
        MissingLibrary: the corpus is a Hugging Face data set, and `datasets` is not installed.
    """
    if isinstance(options, BuiltinOptions | NamesOptions | DigitsOptions):
        corpus = builtin(options)
        return _normalise_splits(corpus.train, corpus.validation, corpus.test, tokenizer)
    train = _read_split(options, data, options.train)
    count = options.held_out or max(1, min(MAX_HELD_OUT, len(train) // 20))
    splits: list[list[Pair]] = []
    left_out = 0
    for salt, name in (("validation", options.validation), ("test", options.test)):
        if name is not None:
            splits.append(list(_read_split(options, data, name)))
        else:  # without a file: selected from the training pairs, by sentence
            before = len(train)
            train, held_out = hold_out(train, count, salt)
            splits.append(held_out)
            left_out += before - len(train) - len(held_out)
    if left_out:
        _log.info(
            "%s left out of all splits: a held-out pair has the same source, and its split has %d already",
            plural(left_out, "pair"), count,
        )  # fmt: skip
    return _normalise_splits(train, splits[0], splits[1], tokenizer, _alignments(options, data))


def check_files(options: CorpusOptions, data: Path) -> None:
    """Check that the files of a corpus exist and are not empty, and that parallel files have the same number of lines.

    It is much faster than `load`, which checks everything else. Arguments and errors are those of `load`.
    """
    if isinstance(options, BuiltinOptions | NamesOptions | DigitsOptions | DatasetsOptions):
        return
    for name in filter(None, (options.train, options.validation, options.test)):
        if isinstance(options, ShardsOptions):
            list_files([name if is_url(name) else str(data / name)])
        elif isinstance(options, FeaturesOptions):
            _existing(data / name)
        elif isinstance(options, TableOptions):
            _lines_of(_table(name, data))
        else:
            languages = options.source_language, options.target_language
            source, target = (_existing(data / f"{name}.{language}") for language in languages)
            _check_lengths(source, _lines_of(source), target, _lines_of(target))


def _lines_of(file: Path) -> int:
    """Return the number of lines of a file.

    Raises:
        InputError: it is empty, or cannot be read.
    """
    count = 0
    end = b"\n"
    with open_text(file) as descriptor:
        while chunk := os.read(descriptor, 1 << 20):
            count = count + chunk.count(b"\n")
            end = chunk[-1:]
    count += end != b"\n"
    if not count:
        raise InputError(f"{file} is empty: at least one line with text is needed")
    return count


def _check_lengths(source: Path, sources: int, target: Path, targets: int) -> None:
    if sources != targets:
        raise InputError(
            f"{source} has {plural(sources, 'line')} and {target} has {targets:,}: parallel files need the same number"
        )


def _normalise_splits(
    train: Collection[Pair],
    validation: list[Pair],
    test: list[Pair],
    tokenizer: TokenizerOptions | None,
    alignments: dict[Pair, Links] | None = None,
) -> ParallelCorpus:
    if isinstance(train, Shards) and tokenizer is not None and tokenizer.space_punctuation:
        train = train.with_targets(lambda target: spaced(target, lower_case=tokenizer.lower_case))
    elif not isinstance(train, Shards):
        train = _normalise_targets(list(train), tokenizer)
    return ParallelCorpus(
        train, _normalise_targets(validation, tokenizer), _normalise_targets(test, tokenizer), alignments or {}
    )


def _normalise_targets(pairs: list[Pair], tokenizer: TokenizerOptions | None) -> list[Pair]:
    """Return pairs with targets normalised like the output of a model with this tokenizer."""
    if tokenizer is None or not tokenizer.space_punctuation:
        return pairs
    return [(source, spaced(target, lower_case=tokenizer.lower_case)) for source, target in pairs]


def _read_split(options: FileOptions, data: Path, name: str) -> Collection[Pair]:
    if isinstance(options, ShardsOptions):
        if options.unique_sources:
            raise InputError("corpus.unique_sources would keep all sources of the shards in memory: leave it out")
        if is_url(name):
            check_remote(name)
        files = list_files([name if is_url(name) else str(data / name)])
        pairs_of = Shards(files, (options.source_column, options.target_column), options.first)
        check_some(pairs_of, f"the shards {name}")
        return pairs_of
    pairs = _read_whole(options, data, name)
    if options.unique_sources:
        pairs = list({source_key(source): (source, target) for source, target in reversed(pairs)}.values())[::-1]
    return pairs[: options.first]


def _read_whole(
    options: ParallelOptions | TableOptions | DatasetsOptions | FeaturesOptions, data: Path, name: str
) -> list[Pair]:
    if isinstance(options, ParallelOptions):
        languages = options.source_language, options.target_language
        source, target = (_existing(data / f"{name}.{language}") for language in languages)
        return read_parallel(source, target)
    if isinstance(options, FeaturesOptions):
        return read_recordings(_existing(data / name), options.feature_column, options.text_column)
    if isinstance(options, TableOptions):
        return read_table(_table(name, data), options.source_column, options.target_column, options.header)
    return read_dataset(options, name)


def _alignments(options: FileOptions, data: Path) -> dict[Pair, Links]:
    """Return alignments by training pair. So they stay valid when pairs move to another split."""
    if isinstance(options, ParallelOptions) and options.alignments is not None:
        endings = options.source_language, options.target_language, options.alignments
        files = [_existing(data / f"{options.train}.{ending}") for ending in endings]
        sources, targets, alignments = map(read_lines, files)
        if len(sources) != len(alignments):
            raise InputError(
                f"{files[0]} has {plural(len(sources), 'line')} and {files[2]} has {len(alignments):,}: "
                "each pair of lines needs an alignment, an empty line where nothing is known"
            )
        lines = (f"{files[2]}, line {number}" for number in range(1, len(alignments) + 1))
        return by_pair(zip(sources, targets, strict=True), alignments, lines)
    if isinstance(options, TableOptions) and options.alignment_column is not None:
        file = _table(options.train, data)
        columns = options.source_column, options.target_column, options.alignment_column
        rows = list(_rows(file, columns, options.header))
        lines = (f"{file}, line {number}" for number, _ in rows)
        return by_pair(((cells[0], cells[1]) for _, cells in rows), [cells[2] for _, cells in rows], lines)
    return {}


def _table(name: str, data: Path) -> Path:
    shipped = RECIPES / name
    if shipped.exists() and not (data / name).exists():
        return shipped
    return _existing(data / name)


def _existing(file: Path) -> Path:
    if not file.exists():
        raise InputError(f"{file} does not exist: name the directory of the corpus files with --data or $TXPORT_DATA")
    return file


def load_test(options: CorpusOptions, data: Path, tokenizer: TokenizerOptions | None = None) -> list[Pair]:
    """Return only the test pairs of a recipe's corpus. Arguments and errors are those of `load`."""
    if isinstance(options, BuiltinOptions | NamesOptions | DigitsOptions):
        return _normalise_targets(_generated(options, "test"), tokenizer)
    if options.test is not None:
        return _normalise_targets(list(_read_split(options, data, options.test)), tokenizer)
    return load(options, data, tokenizer).test


def builtin(options: _Generated) -> ParallelCorpus:
    """Return a generated corpus of `txport.training.spoken`. Its splits share no sentences, names or speakers."""
    return ParallelCorpus(_generated(options, "train"), _generated(options, "validation"), _generated(options, "test"))


def _generated(options: _Generated, split: spoken.Split) -> list[Pair]:
    if isinstance(options, NamesOptions):
        return names.pairs(options.seed, split, getattr(options, split))
    if isinstance(options, DigitsOptions):
        return digits.pairs(options.seed, split, getattr(options, split))
    return list(itertools.islice(spoken.sentences(options.seed, split), getattr(options, split)))


def read_parallel(source: Path, target: Path) -> list[Pair]:
    r"""Read two UTF-8 files, whose lines n are translations of each other. Lines end with "\n" or "\r\n".

    Pairs with an empty side are left out.

    Raises:
        InputError: a file is missing or not UTF-8, numbers of lines differ, or no pair is left.
    """
    sources = read_lines(source)
    targets = read_lines(target)
    _check_lengths(source, len(sources), target, len(targets))
    return _pairs(zip(sources, targets, strict=True), f"{source} and {target} hold")


def read_table(file: Path, source_column: int = 1, target_column: int = 2, header: bool = False) -> list[Pair]:
    """Read a UTF-8 file of tab-separated columns, counted from 1, without quoting.

    Pairs with an empty side are left out, and so is the first line if `header` is set.

    Raises:
        InputError: the file is missing or not UTF-8, a line has too few columns, or no pair is left.
    """
    rows = _rows(file, (source_column, target_column), header)
    return _pairs(((cells[0], cells[1]) for _, cells in rows), f"{file} holds")


def _rows(file: Path, columns: Sequence[int], header: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each nonempty line, and the contents of some of its columns."""
    last = max(columns)
    for number, line in enumerate(read_lines(file), 1):
        if header and number == 1:
            continue
        cells = line.split("\t")
        if line and len(cells) < last:
            raise InputError(
                f"{file}, line {number} has {plural(len(cells), 'tab-separated column')}, but column {last} is needed: "
                "repair the line or choose other columns"
            )
        if line:
            yield number, [cells[column - 1] for column in columns]


def read_dataset(options: DatasetsOptions, split: str) -> list[Pair]:
    """Read one split of a data set from the Hugging Face Hub, or from a local directory that `datasets` supports.

    Raises:
        InputError: the data set, the split or a field does not exist, or no pair is left.
        MissingLibrary: `datasets` is not installed, or runs scripts of data sets.
    """
    with needs("datasets"):
        import datasets
    if int(datasets.__version__.partition(".")[0]) < 4:
        raise MissingLibrary(
            f"datasets {datasets.__version__} may run code of a data set: pip install 'txport[datasets]' for version 4"
        )
    try:
        rows = datasets.load_dataset(options.name, options.configuration, split=split)
    except (OSError, ValueError) as error:
        raise InputError(f"data set {options.name}, split {split}, cannot be loaded: {error}") from error
    fields = options.source_field, options.target_field
    pairs = ((_field(row, fields[0], options.name), _field(row, fields[1], options.name)) for row in rows)
    return _pairs(pairs, f"data set {options.name}, split {split}, holds")


def _field(row: Any, path: str, name: str) -> str:
    """Return a field of a row, by a path such as "translation.en"."""
    value = row
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            available = "nothing"
            if isinstance(value, dict):
                available = ", ".join(value)
            raise InputError(f"data set {name} has no field {path!r}; available: {available}")
        value = value[key]
    # A line break inside a field must not become a line break in files of sentences.
    return " ".join(str(value).split())


def _pairs(rows: Iterator[Pair], description: str) -> list[Pair]:
    pairs = [(source, target) for source, target in rows if source.strip() and target.strip()]
    if not pairs:
        raise InputError(f"{description} no pair of sentences: at least one line with text on both sides is needed")
    return pairs


def hold_out(pairs: Collection[Pair], count: int, salt: str) -> tuple[Collection[Pair], list[Pair]]:
    """Split pairs into a training part and exactly `count` held-out pairs, with no source sentence in both.

    The sources with the smallest hashes are held out, so most of the test set stays the same when data is added. If the
    last of these sources has more pairs than `count` allows, the others are left out. `Shards` are read twice, and stay
    on disk.

    Raises:
        InputError: there are fewer than 2 * `count` pairs, or all pairs have a held-out source, so no training pair is
            left.
            held-out source.
    """
    if len(pairs) < 2 * count:
        raise InputError(f"{len(pairs)} pairs are too few to hold out {count}: give separate files or hold out fewer")
    by_source: dict[str, list[Pair]] = {source: [] for source in _smallest(pairs, count, salt)}
    for pair in pairs:
        if pair[0] in by_source:
            by_source[pair[0]].append(pair)
    held_out: list[Pair] = []
    sources: set[str] = set()
    removed = 0
    for source, pairs_of_source in by_source.items():
        if len(held_out) < count:
            held_out += pairs_of_source
            sources.add(source)
            removed += len(pairs_of_source)
    if removed == len(pairs):
        raise InputError(f"{len(pairs)} pairs cannot be split: too many share a source; give separate files")
    if isinstance(pairs, Shards):
        return pairs.without(frozenset(sources), removed), held_out[:count]
    return [pair for pair in pairs if pair[0] not in sources], held_out[:count]


def _smallest(pairs: Collection[Pair], count: int, salt: str) -> list[str]:
    """Return the `count` distinct sources with the smallest hashes, in order. Needs memory only for these."""
    digests: dict[str, bytes] = {}
    threshold = b"\xff" * 33  # larger than all digests
    for source, _ in pairs:
        digest = hashlib.sha256(f"{salt}\n{source}".encode()).digest()
        if digest < threshold and source not in digests:
            digests[source] = digest
            if len(digests) >= 2 * count:
                digests = dict(heapq.nsmallest(count, digests.items(), key=lambda item: item[1]))
                threshold = max(digests.values())
    return [source for source, _ in heapq.nsmallest(count, digests.items(), key=lambda item: item[1])]
