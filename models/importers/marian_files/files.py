"""Files of a model of Marian's: weights, decoder.yml and vocabularies."""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from txport.models.importers.ctranslate2.vocabularies import ModelVocabularies
from txport.models.importers.imported import ImportOptions
from txport.models.importers.marian_files.arrays import CONFIG, Weights, read_npz
from txport.models.importers.marian_files.binary import begins_binary, is_binary, read_binary
from txport.models.importers.marian_files.yaml_files import parse_settings, read_text, read_vocabulary_file
from txport.models.importers.settings import Settings
from txport.models.importers.tokenizers.pieces import pieces_of
from txport.models.importers.tokenizers.vocabulary import read_bytes
from txport.runtime.errors import CheckpointError

_DECODER = "decoder.yml"
_EOS, _UNK = "</s>", "<unk>"
# Names of Nematus' vocabularies, which Marian takes for its own if they have the ids 0 and 1.
_OLD_NAMES = {_EOS: (0, "eos"), _UNK: (1, "UNK")}


@dataclass(frozen=True)
class ModelFiles:
    """Files of a model.

    Attributes:
        directory: with all of them.
        weights: the model.
        config: its configuration.
        decoder: decoder.yml; without fields if there is none.
        notes: sentences for the user.
    """

    directory: Path
    weights: Weights
    config: Settings
    decoder: Settings
    notes: list[str]


@dataclass(frozen=True)
class Sides:
    """Vocabularies and special ids.

    Attributes:
        vocabularies: tokens by id.
        swaps: ids of the source and of the target that change places, so that both have one unknown token.
        unk, eos: our ids of both.
        models: SentencePiece models whose ids are the model's own; None if a vocabulary is a list.
    """

    vocabularies: ModelVocabularies
    swaps: tuple[tuple[int, int], tuple[int, int]]
    unk: int
    eos: int
    models: tuple[Path, Path] | None


def is_marian(path: Path) -> bool:
    """Return whether a path is a file of Marian's, a directory with one, or an archive of such a directory."""
    if path.is_dir():
        return any(path.glob("*.npz")) or any(map(is_binary, path.glob("*.bin")))
    if path.suffix == ".npz" or is_binary(path):
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return any(_is_member(archive, name) for name in archive.namelist() if name.count("/") < 2)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError, zlib.error):
        return False


def _is_member(archive: zipfile.ZipFile, name: str) -> bool:
    """Return whether a file of an archive contains weights of Marian's."""
    if not name.endswith(".bin"):
        return name.endswith(".npz")
    with archive.open(name) as stream:
        return begins_binary(stream)


def find_files(path: Path) -> ModelFiles:
    """Find the weights of a model and read its configuration.

    Raises:
        CheckpointError: they are missing, several or damaged.
    """
    directory = file = path
    if path.is_file():
        directory = path.parent
    decoder = _decoder(path, directory)
    if path.is_dir():
        file = _weights(directory, decoder)
    if file.suffix == ".npz":
        weights = read_npz(file)
    else:
        weights = read_binary(file)
    if not weights.config:
        raise CheckpointError(f"{file} has no {CONFIG}, the configuration of the model: give a model that Marian saved")
    notes = []
    script = directory / "preprocess.sh"
    if script.is_file():
        notes.append(f"{script.name} is not run: write texts as it leaves them, except for SentencePiece")
    if weights.quantised:
        notes.append(f"weights of {', '.join(weights.quantised)} are dequantised; activations are not rounded")
    config = parse_settings(weights.config, file)
    if "n" in str(config.get("transformer-preprocess", "")):
        notes.append(
            "keys and values of the decoder's self-attention are normalised, as in training and in CTranslate2; "
            "Marian 1.12 leaves that out when it translates, so its translations may differ"
        )
    return ModelFiles(directory, weights, config, decoder, notes)


def _decoder(path: Path, directory: Path) -> Settings:
    """Return decoder.yml, or the one that Marian saved for a file."""
    names = [_DECODER]
    if path.is_file():
        names.insert(0, f"{path.name}.{_DECODER}")
    else:
        names += sorted(file.name for file in directory.glob(f"*.{_DECODER}"))
    file = next((directory / name for name in names if (directory / name).is_file()), None)
    if file is None:
        return Settings(directory / _DECODER, {})
    return parse_settings(read_text(file), file)


def _listed_files(settings: Settings, name: str) -> list[str]:
    """Return the names of files in a list of decoder.yml, without their directories."""
    value = settings.get(name, [])
    names = value
    if not isinstance(value, list):
        names = [value]
    if any(not isinstance(each, str) for each in names):
        raise CheckpointError(f"{settings.file}: {name} = {value!r:.80} are not names of files")
    return [PurePosixPath(each.replace("\\", "/")).name for each in names]


def _weights(directory: Path, decoder: Settings) -> Path:
    names = _listed_files(decoder, "models")
    if len(names) > 1:
        raise CheckpointError(
            f"{decoder.file} names {len(names)} models, an ensemble: give one of the files, {names[0]}"
        )
    if names and (directory / names[0]).is_file():
        return directory / names[0]
    files = [
        file for file in sorted(directory.glob("*.npz")) if not file.name.endswith((".optimizer.npz", ".orig.npz"))
    ] or [file for file in sorted(directory.glob("*.bin")) if is_binary(file)]
    if len(files) != 1:
        raise CheckpointError(f"{directory} has {len(files) or 'no'} files of weights (.npz, .bin): name one of them")
    return files[0]


def read_sides(files: ModelFiles, rows: tuple[int, int], options: ImportOptions) -> Sides:
    """Read vocabularies.

    Args:
        files: of the model.
        rows: of the source and the target embedding.
        options: `vocabulary` names another directory; without a tokenizer, vocabularies may be missing.

    Raises:
        CheckpointError: a vocabulary is missing or damaged, or lacks a special token.
    """
    vocabulary_files = _vocabularies(files, options)
    if vocabulary_files is None:
        tokens = [[_EOS, _UNK, *[""] * (count - 2)] for count in rows]
        vocabulary_files = (files.weights.file,) * 2
    else:
        tokens = [_tokens(file, count) for file, count in zip(vocabulary_files, rows, strict=True)]
    eos = [_special(side, _EOS, file) for side, file in zip(tokens, vocabulary_files, strict=True)]
    unk = [_special(side, _UNK, file) for side, file in zip(tokens, vocabulary_files, strict=True)]
    unk_id = min(unk)
    swaps = ((unk_id, unk[0]), (unk_id, unk[1]))
    swapped = {swaps[1][0]: swaps[1][1], swaps[1][1]: swaps[1][0]}
    vocabularies = ModelVocabularies(
        source=tokens[0], target=tokens[1], files=vocabulary_files, unk=(unk[0], unk[1]), eos=eos[1], start=eos[1],
        prefix=(), suffix=(eos[0],), padding=None, epsilon=None,
    )  # fmt: skip
    models = None
    if all(file.suffix == ".spm" for file in vocabulary_files):
        models = vocabulary_files
    return Sides(vocabularies, swaps, unk_id, swapped.get(eos[1], eos[1]), models)


def _vocabularies(files: ModelFiles, options: ImportOptions) -> tuple[Path, Path] | None:
    """Return the vocabularies of both sides; None if there are none and none is needed."""
    place = options.vocabulary or files.directory
    names = _listed_files(files.decoder, "vocabs")
    if len(names) == 1:
        names *= 2
    if not names:
        names = _guess_vocabularies(place)
    if not names and not options.tokenizer:
        return None
    if len(names) != 2:
        raise CheckpointError(
            f"{place} has {len(names) or 'no'} vocabularies named in {_DECODER}: list one for the source and one for "
            "the target as vocabs there, or give --no-tokenizer"
        )
    for name in names:
        if not (place / name).is_file():
            raise CheckpointError(
                f"{place / name} is missing: copy the vocabulary too, or name its directory with --vocabulary"
            )
    return place / names[0], place / names[1]


def _guess_vocabularies(place: Path) -> list[str]:
    """Return the names of vocabularies without decoder.yml: pairs by their usual names, or one for both sides."""
    for ending in ("spm", "yml", "json"):
        for pair in (("source", "target"), ("src", "trg"), ("vocab.src", "vocab.trg")):
            if all((place / f"{name}.{ending}").is_file() for name in pair) and ending != "spm":
                return [f"{name}.{ending}" for name in pair]
    files = sorted({*place.glob("*vocab*.yml"), *place.glob("vocab*.spm"), *place.glob("*vocab.json")})
    if len(files) == 1:
        return [files[0].name] * 2
    return []


def _tokens(file: Path, rows: int) -> list[str]:
    if file.suffix == ".fsv":
        raise CheckpointError(f"{file} is a factored vocabulary, which is not supported")
    if file.suffix != ".spm":
        return read_vocabulary_file(file, rows)
    pieces = pieces_of(read_bytes(file), file)
    if len(pieces) > rows:
        raise CheckpointError(f"{file} has {len(pieces)} pieces, but its embedding has {rows} rows")
    return [*pieces, *[""] * (rows - len(pieces))]


def _special(tokens: list[str], name: str, file: Path) -> int:
    """Return the id of </s> or <unk>, as Marian finds it, and give it this name."""
    index, old = _OLD_NAMES[name]
    if file.suffix not in (".spm", ".txt") and index < len(tokens) and tokens[index] in ("", old):
        tokens[index] = name
        return index
    if name not in tokens:
        raise CheckpointError(f"{file} lacks {name}, which a vocabulary of Marian's needs: copy it again")
    return tokens.index(name)
