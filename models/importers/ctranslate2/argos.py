"""Packages of Argos Translate and LibreTranslate (.argosmodel): a CTranslate2 model with SentencePiece and metadata.

A package is a zip archive of one directory: metadata.json with the languages, sentencepiece.model, and `model` with the
model. Sentence splitters beside them (stanza, minisbd) are not used.
"""

import json
from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile, ZipFile, is_zipfile

from txport.models.importers.ctranslate2.importer import import_ctranslate2
from txport.models.importers.ctranslate2.model_file import NAME
from txport.models.importers.imported import Imported, ImportOptions, TokenizerParts, import_archive
from txport.models.importers.settings import Settings, one_file, read_json
from txport.models.importers.tokenizers.vocabulary import vocabulary_bytes
from txport.runtime.bundle.schema import Generation
from txport.runtime.bundle.tokenizer_schema import Languages
from txport.runtime.errors import CheckpointError, InputError

METADATA = "metadata.json"
_ENDING = ".argosmodel"
_MODEL = "model"
_SENTENCEPIECE = "sentencepiece.model"
# Argos Translate's arguments for CTranslate2 (argostranslate/translate.py), whose beams end when enough are finished.
_SETTINGS = Generation(beam=4, length_penalty=0.2, early_stopping=True, replace_unknowns=True)


def is_argos(path: Path) -> bool:
    """Return whether a path is a package, or the directory of an installed one."""
    if path.is_dir():
        installed = (path / METADATA).is_file() and (path / _MODEL).is_dir()
        return installed or any(path.glob(f"*{_ENDING}"))
    if path.suffix == _ENDING:
        return True
    try:
        with ZipFile(path) as archive:
            return any(name.count("/") == 1 and name.endswith(f"/{METADATA}") for name in archive.namelist())
    except (OSError, BadZipFile, ValueError, NotImplementedError):
        return False


def import_argos(path: Path, options: ImportOptions) -> Imported:
    """Read a package, or the directory of an installed one.

    Raises:
        CheckpointError: something is missing, damaged, hostile or not supported.
        InputError: a chosen language is not that of the package.
    """
    if path.is_dir() and (path / METADATA).is_file():
        return _import(path, path, options)
    if path.is_dir():
        path = one_file(path, (), (_ENDING[1:],))
    if not is_zipfile(path):
        raise CheckpointError(f"{path} is not a package of Argos Translate, which is a zip archive: download it again")
    return import_archive(path, lambda directory: _import(_root(path, directory), path, options))


def _root(package: Path, directory: Path) -> Path:
    """Return the directory of metadata.json."""
    folders = [
        file.parent for file in (directory / METADATA, *sorted(directory.glob(f"*/{METADATA}"))) if file.is_file()
    ]
    if len(folders) != 1:
        raise CheckpointError(
            f"{package} has {len(folders) or 'no'} {METADATA} files, not one: download the package again"
        )
    return folders[0]


def _import(directory: Path, package: Path, options: ImportOptions) -> Imported:
    settings = Settings(directory / METADATA, read_json(directory / METADATA))
    kind = settings.get("type", "translate")
    if kind != "translate":
        raise CheckpointError(
            f"{package} is a package of the type {kind!r:.80}: only packages that translate are supported"
        )
    if not (directory / _MODEL / NAME).is_file():
        raise CheckpointError(f"{package} has no {_MODEL}/{NAME}: download the package again")
    codes = tuple(settings.get(name, kind=str) for name in ("from_code", "to_code"))
    _check_languages(codes, options, package)
    if options.tokenizer and options.vocabulary is None:
        _check_tokenizer(directory, package)
    place = options.vocabulary or (directory if options.tokenizer else None)
    inner = replace(options, vocabulary=place, source_language=None, target_language=None)
    imported = import_ctranslate2(directory / _MODEL, inner)
    if not options.tokenizer:
        return replace(imported, kind="argos", generation=replace(_SETTINGS, replace_unknowns=None))
    tokenizer = _with_languages(imported, codes)
    prefix = settings.get("target_prefix", "", str)
    if prefix:
        tokenizer = _with_prefix(tokenizer, prefix, settings)
    notes = [*imported.notes, f"a package for {codes[0]} to {codes[1]}, with the settings of Argos Translate's search"]
    return replace(imported, kind="argos", tokenizer=tokenizer, notes=notes, generation=_SETTINGS)


def _check_languages(codes: tuple[str, ...], options: ImportOptions, package: Path) -> None:
    """Refuse other languages than those of the package."""
    for side, code, requested in zip(
        ("source", "target"), codes, (options.source_language, options.target_language), strict=True
    ):
        if not code or requested not in (None, code):
            raise InputError(
                f"--{side}-language {requested} is not the {side} language of {package}, {code!r:.80}: leave it out"
            )


def _check_tokenizer(directory: Path, package: Path) -> None:
    if (directory / _SENTENCEPIECE).is_file():
        return
    if (directory / "bpe.model").is_file():
        raise CheckpointError(
            f"{package} has a tokenizer of subword-nmt and Moses (bpe.model), which is not supported: give "
            "--no-tokenizer, and ids"
        )
    raise CheckpointError(f"{package} has no {_SENTENCEPIECE}: download the package again, or give --no-tokenizer")


def _with_languages(imported: Imported, codes: tuple[str, ...]) -> TokenizerParts:
    """Return the tokenizer with the names of its two languages."""
    unk = imported.config.unk_id  # a language needs an id, but this model has no tokens for languages
    languages = Languages({codes[0]: unk}, {codes[1]: unk}, codes[0], codes[1], False)
    return replace(imported.tokenizer, description=replace(imported.tokenizer.description, languages=languages))


def _with_prefix(tokenizer: TokenizerParts, prefix: str, settings: Settings) -> TokenizerParts:
    """Return the tokenizer for answers that begin with a token without text."""
    name = "target.vocabulary.json"
    pieces: list[str | None] = json.loads(tokenizer.files[name])["pieces"]
    if prefix not in pieces:
        raise CheckpointError(
            f"{settings.file}: target_prefix = {prefix!r:.80} is not a token of the model: copy it again"
        )
    token = pieces.index(prefix)
    pieces[token] = None
    files = {**tokenizer.files, name: vocabulary_bytes(pieces)}
    return replace(tokenizer, files=files).beginning_with((token,))
