"""Checks of verification's inputs that do not need PyTorch: the user's files of sentences, and sizes of the model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.console.words import plural
from txport.runtime.errors import BundleError, InputError
from txport.runtime.features import read_features
from txport.runtime.text.lines import check_file, read_lines

if TYPE_CHECKING:
    from txport.models.config import Config


def check_sizes(bundle: Path, manifest: Manifest, checkpoint: Path, config: "Config") -> None:
    """Check that a checkpoint's model has the sizes in a bundle's manifest.

    Raises:
        BundleError: one differs.
    """
    for name, theirs in vars(config.sizes).items():
        ours = getattr(manifest.model, name)
        if ours != theirs:
            raise BundleError(
                f"{bundle} was not exported from {checkpoint}: its {name} is {ours}, not {theirs}; name the "
                "checkpoint that it came from"
            )


def check_sentence_files(
    text: Path | None, references: Path | None, ids: Path | None, reference_ids: Path | None, features: Path | None
) -> None:
    """Check that files of sentences can be read and fit together, without reading them.

    Raises:
        InputError: a file cannot be read, or a second file that it needs was not given.
    """
    if reference_ids and not ids:
        raise InputError(f"{reference_ids} needs the sentences that it translates: give them with --ids")
    if references and not text:
        raise InputError(f"{references} needs the sentences that it translates: give them with --text")
    if ids and text:
        raise InputError("--ids and --text exclude each other: give the sentences in one form")
    if features and (text or ids):
        raise InputError("--features excludes --text and --ids: a model reads either vectors or text")
    for file in (text, references, ids, reference_ids, features):
        if file is not None:
            check_file(file)


def check_reads(
    directory: Path, config: "Config", tokenizer: TokenizerDescription,
    text: Path | None, references: Path | None, ids: Path | None, reference_ids: Path | None, features: Path | None,
) -> None:  # fmt: skip
    """Check that the model supports this form of sentences: text, ids or vectors.

    Raises:
        InputError: it does not.
    """
    if config.source == "features":
        if unused_file := text or references or ids or reference_ids:
            raise InputError(f"{unused_file} cannot be used: {directory} reads vectors; give them with --features")
    elif features:
        raise InputError(f"{features} cannot be used: {directory} reads text; give it with --text or --ids")
    if tokenizer.kind == "none" and text and not ids:
        raise InputError(f"{text} cannot be used: {directory} has no tokenizer; give source ids with --ids instead")


def check_sentences(
    directory: Path, config: "Config", tokenizer: TokenizerDescription, max_source: int,
    text: Path | None, references: Path | None, ids: Path | None, reference_ids: Path | None, features: Path | None,
) -> None:  # fmt: skip
    """Check the contents of files for a checkpoint. Pipes are not checked, because they can be read only once.

    Raises:
        InputError: the model does not support the form, a file has no sentence or an invalid one, or lengths of files
            differ.
    """
    check_reads(directory, config, tokenizer, text, references, ids, reference_ids, features)
    if not all(file.is_file() for file in (text, references, ids, reference_ids, features) if file is not None):
        return
    if text:
        read_pairs(text, references)
    if ids:
        read_ids(ids, reference_ids, config, max_source)
    if features:
        read_features(features, config.feature_size)


def read_ids(
    file: Path, references: Path | None, config: "Config", max_source: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of each line, for a file of sources and a file of their translations (empty if None).

    Raises:
        InputError: a line contains something else, too many ids or an unknown id; lengths of the files differ; or there
            is no sentence.
    """
    lines = _rows(file, config.source_vocabulary)
    if references is None:
        answers = []
    else:
        answers = _rows(references, config.target_vocabulary)
        _check_lengths(references, len(answers), file, len(lines))
    for number, row in enumerate(lines, 1):
        if len(row) > max_source:
            raise InputError(
                f"line {number} of {file} has {len(row)} ids, more than --max-source {max_source}: shorten it"
            )
    if not any(lines):
        raise InputError(f"{file} holds no sentence; give one sentence a line, as ids with spaces between them")
    return lines, answers


def _rows(file: Path, vocabulary: int) -> list[list[int]]:
    """Return the ids of each line."""
    rows = []
    for number, line in enumerate(read_lines(file), 1):
        try:
            row = [int(word.replace("_", " _")) for word in line.split()]  # int() would accept 1_0 as 10
        except ValueError:
            raise InputError(f"line {number} of {file} contains something other than ids: {line[:60]!r}") from None
        if any(not 0 <= token < vocabulary for token in row):
            raise InputError(f"line {number} of {file} has an id outside the vocabulary of {vocabulary}")
        rows.append(row)
    return rows


def _check_lengths(references: Path, answers: int, file: Path, lines: int) -> None:
    if answers != lines:
        raise InputError(f"{references} has {plural(answers, 'line')}, but {file} has {lines}; give pairs")


def with_text(lines: Sequence[str], references: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return nonempty lines, each with its reference, or with None if there are no references."""
    each: Sequence[str | None] = references or [None] * len(lines)
    return [pair for pair in zip(lines, each, strict=True) if pair[0].strip()]


def read_pairs(text: Path, references: Path | None) -> list[tuple[str, str | None]]:
    """Return nonempty lines of a file, each with its reference, or with None if there are no references.

    Raises:
        InputError: there are none, lengths of the files differ, or a file cannot be read or is not UTF-8.
    """
    lines = read_lines(text)
    translations: list[str] = []
    if references:
        translations = read_lines(references)
        _check_lengths(references, len(translations), text, len(lines))
    pairs = with_text(lines, translations)
    if not pairs:
        raise InputError(f"{text} holds no sentence; give a file of sentences, one a line")
    return pairs
