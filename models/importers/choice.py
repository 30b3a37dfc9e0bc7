"""Selection of the importer for a source, and download of hub models."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from txport.models.hub.source import check_repository, fetch, only_archive
from txport.models.importers import IMPORTERS
from txport.models.importers.adapters import CONFIG, describe_adapter
from txport.models.importers.ctranslate2.argos import is_argos
from txport.models.importers.ctranslate2.model_file import NAME, is_model_file
from txport.models.importers.eole.importer import is_eole
from txport.models.importers.imported import Imported, ImportOptions
from txport.models.importers.m2m100 import m2m100_kind
from txport.models.importers.marian_files.files import is_marian
from txport.models.importers.settings import MODEL_TYPES, model_kind, one_file, read_json
from txport.models.importers.textbooks import annotated, d2l
from txport.models.importers.textbooks.annotated import ENDINGS
from txport.models.importers.textbooks.torch_transformer import DESCRIPTION
from txport.models.importers.tokenizers.word_lists import has_lists, read_word_lists, word_tokenizer
from txport.models.importers.weights import read_pickle, read_safetensors, state_dict_of
from txport.runtime.bundle.kinds import check_kind
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.files import check_regular

# Kinds whose directory contains a tokenizer.
_WITH_TOKENIZER = (*MODEL_TYPES.values(), "small100")
# Kinds whose importers read word lists themselves.
_WITH_LISTS = ("annotated", "d2l", "ctranslate2", "argos", "marian-files")


def import_model(source: str, kind: str | None, options: ImportOptions) -> Imported:
    """Read a model of the given or detected kind, without writing anything.

    Args:
        source: a directory, a file, or the id of a model on the Hugging Face hub.
        kind: a key of `IMPORTERS`, or None to detect it.
        options: see `ImportOptions`.

    Raises:
        CheckpointError: the source is incomplete, damaged, of an unknown kind or not supported.
        InputError: the source does not exist, or an option does not fit.
        MissingLibrary: huggingface_hub is needed but not installed.
    """
    path = only_archive(_local(source, options.pickles))
    for directory in (options.vocabulary, options.adapter):
        if directory is not None:
            check_regular(directory)
    if kind is not None and kind not in IMPORTERS:
        raise InputError(f"--from {kind} is unknown; there are {', '.join(IMPORTERS)}")
    kind = kind or _detect_format(path)
    options = replace(options, encoder=options.encoder or _name(source))
    if options.heads is not None and kind not in ("annotated", "d2l"):
        raise InputError(f"--heads {options.heads} is for annotated and d2l: {source}, of {kind}, specifies it itself")
    if options.adapter is not None and kind not in MODEL_TYPES.values() and kind != "small100":
        raise InputError(f"--adapter {options.adapter} is for models of Hugging Face's: {source} is of {kind}")
    if options.vocabulary is not None and kind in _WITH_TOKENIZER and not has_lists(options.vocabulary):
        raise InputError(
            f"--vocabulary {options.vocabulary} has no effect: it contains no lists of tokens (shared.txt, or "
            f"source.txt and target.txt), and models of {kind} have their tokenizer beside them; leave it out"
        )
    if options.tokenizer and kind not in _WITH_LISTS and has_lists(options.vocabulary):
        return _with_lists(importer_of(kind)(path, replace(options, tokenizer=False, vocabulary=None)), options)
    return importer_of(kind)(path, options)


def importer_of(kind: str) -> Callable[[Path, ImportOptions], Imported]:
    """Return the importer of a format, a key of `IMPORTERS`."""
    module, _, function = IMPORTERS[kind].partition(":")
    importer: Callable[[Path, ImportOptions], Imported] = getattr(import_module(f"{__package__}.{module}"), function)
    return importer


def _with_lists(imported: Imported, options: ImportOptions) -> Imported:
    """Return the model with a tokenizer from the word lists in --vocabulary. Its special ids and affixes stay."""
    assert options.vocabulary is not None
    config = imported.config
    lists = read_word_lists(options.vocabulary, (config.source_vocabulary, config.target_vocabulary))
    prefix = imported.tokenizer.description.target_prefix
    language = None if prefix else options.target_language  # a prefix already fixes the target language
    parts = word_tokenizer(lists, replace(options, vocabulary=None, target_language=language), config.eos_id)
    suffix = parts.description.source_suffix or (config.eos_id,)
    described = replace(parts.description, source_suffix=suffix, target_prefix=prefix)
    end, unk = lists.token("eos_id"), lists.token("unk_id")
    if end not in (None, config.eos_id):
        raise CheckpointError(
            f"{lists.files[1]} has the end of a text in line {end + 1}, but the model's has the id {config.eos_id}: "
            "write tokens in the order of their ids, from 0 on"
        )
    if unk is None or unk != lists.token("unk_id", "source"):
        raise CheckpointError(
            f"{lists.files[0]} and {lists.files[1]} must have <unk> in the same line: give whole lists"
        )
    return replace(imported, config=replace(config, unk_id=unk), tokenizer=replace(parts, description=described))


def _local(source: str, pickles: bool) -> Path:
    path = Path(source)
    if path.exists():
        check_kind(path, "model", CheckpointError)
        return path
    check_repository(source)
    return fetch(source, pickles=pickles)


def _name(source: str) -> str:
    """Return the id of a source on the hub, or the name of its directory or file."""
    return Path(source).resolve().name if Path(source).exists() else source


def _detect_format(path: Path) -> str:
    config = path / "config.json"
    if is_model_file(path / NAME if path.is_dir() else path):
        return "ctranslate2"
    if is_argos(path):
        return "argos"
    if is_eole(path):
        return "eole"
    if path.is_dir() and config.is_file():
        return _from_config(config)
    if path.is_dir() and (path / CONFIG).is_file():
        raise CheckpointError(describe_adapter(path))
    if path.is_dir() and (path / DESCRIPTION).is_file():
        return "torch"
    if is_marian(path):
        return "marian-files"
    if path.is_file() or any(list(path.glob(f"*.{ending}")) for ending in ENDINGS):
        return _from_file(one_file(path, ("checkpoint_best.pt", "model.pt"), ENDINGS))
    raise CheckpointError(f"{path}: its kind was not recognised: set it with --from ({', '.join(IMPORTERS)})")


def _from_file(file: Path) -> str:
    if file.suffix == ".safetensors":
        value = read_safetensors(file)
    else:
        value = read_pickle(file)
    keys: set[object] = set(value) if isinstance(value, dict) else set()
    if {"vocab", "opt"} <= keys:
        return "opennmt"
    if "model" in keys and {"args", "cfg"} & keys:
        return "fairseq"
    with suppress(CheckpointError):  # reported below, or by the importer
        if file.suffix != ".safetensors":
            keys = set(state_dict_of(value, file))
    for kind, mark in (("annotated", annotated.MARK), ("d2l", d2l.MARK)):
        if any(str(key).endswith(mark) for key in keys):
            return kind
    raise CheckpointError(
        f"{file} is neither of fairseq nor of OpenNMT-py, of the annotated Transformer nor of d2l; a state dict around "
        f"torch.nn.Transformer needs {DESCRIPTION} beside it (see models/README.md), and its directory is then the "
        "source"
    )


def _from_config(config: Path) -> str:
    kind = model_kind(config)
    if kind == "m2m100":
        return m2m100_kind(config.parent, read_json(config))
    return kind
