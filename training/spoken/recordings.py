"""Feature vectors as sources of a corpus, and their files: .npz archives and Parquet."""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from txport.runtime.arguments import first_not_finite, float32
from txport.runtime.errors import InputError
from txport.runtime.features import Vectors, read_features
from txport.runtime.libraries import needs


class Recording(str):
    """Name of a source with its vectors, float32 `[vectors, size]`. It replaces the source text of a pair."""

    __slots__ = ("vectors",)
    vectors: Vectors

    def __new__(cls, name: str, vectors: Vectors) -> "Recording":
        recording = super().__new__(cls, name)
        recording.vectors = vectors
        return recording


def read_recordings(file: Path, feature_column: str, text_column: str) -> list[tuple[str, str]]:
    """Read pairs of recordings and texts. Pairs with an empty text are left out.

    Args:
        file: `.npz` as `txport.runtime.features` has it, or `.parquet`.
        feature_column: column of Parquet with the vectors, a list of lists of numbers.
        text_column: column of Parquet with the texts.

    Raises:
        InputError: the file cannot be read, has no texts, or has invalid vectors.
        MissingLibrary: pyarrow is needed but not installed.
    """
    if file.suffix == ".parquet":
        arrays, texts = _parquet(file, feature_column, text_column)
    else:
        read = read_features(file)
        arrays, texts = read.arrays, read.texts
        if not texts:
            raise InputError(f"{file} has no array 'texts': give the text of each source")
    numbered = enumerate(zip(arrays, texts, strict=True))
    pairs = [(Recording(f"{file.name}, recording {number}", array), text) for number, (array, text) in numbered if text]
    if not pairs:
        raise InputError(f"{file} holds no source with a text: at least one is needed")
    return list[tuple[str, str]](pairs)


def check_vectors(model: Mapping[str, Any], splits: Iterable[Collection[tuple[str, str]]]) -> None:
    """Refuse a corpus of another kind than a recipe's model reads, or with vectors of another size.

    Args:
        model: section `[model]` of the recipe.
        splits: training, validation and test pairs.

    Raises:
        InputError: a split does not fit; the message names its first recording of another size.
    """
    size = model.get("feature_size")
    for pairs in splits:
        first = next(iter(pairs), None)
        if first is not None and isinstance(first[0], Recording) != (size is not None):
            corpus, reads = ("text", "vectors") if size is not None else ("feature vectors", "text")
            raise InputError(
                f"the corpus has {corpus}, but the model reads {reads}: give a corpus or a model of the other kind"
            )
        for source, _ in pairs if size is not None else ():
            if isinstance(source, Recording) and source.vectors.shape[1] != size:
                raise InputError(
                    f"{source} has vectors of {source.vectors.shape[1]} numbers, but model.feature_size is {size}"
                )


def source_key(source: str) -> str | bytes:
    """Return what two equal sources have in common: the text, or a hash of the vectors of a recording."""
    if isinstance(source, Recording):
        return hashlib.sha256(source.vectors.tobytes()).digest()
    return source


def texts_of(pairs: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
    """Return text pairs for training a tokenizer. If sources are recordings, the target replaces them."""
    if not isinstance(next(iter(pairs), ("", ""))[0], Recording):
        return pairs
    return [(target, target) for _, target in pairs]


def _parquet(file: Path, feature_column: str, text_column: str) -> tuple[list[Vectors], list[str]]:
    with needs("corpus"):
        import pyarrow
        import pyarrow.parquet
    try:
        table = pyarrow.parquet.read_table(file, columns=[feature_column, text_column])
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    if table.num_columns < 2:
        raise InputError(f"{file} lacks the column {feature_column!r} or {text_column!r}: name them in the recipe")
    _check_type(table.schema.field(feature_column).type, f"{file}, {feature_column}")
    arrays = [
        _vectors(row, f"{file}, row {number}, {feature_column}") for number, row in enumerate(table[feature_column])
    ]
    texts = table[text_column].to_pylist()
    for number, text in enumerate(texts):
        if not isinstance(text, str | None):
            raise InputError(f"{file}, row {number}, {text_column} is of type {type(text).__name__}: give text")
    return arrays, [" ".join((text or "").split()) for text in texts]


def _check_type(kind: Any, description: str) -> None:
    """Refuse types of Arrow except lists of lists of real numbers."""
    from pyarrow import types

    inner = kind
    for _ in range(2):
        if not (types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner)):
            raise InputError(f"{description} has values of {kind}: give lists of lists of numbers")
        inner = inner.value_type
    if not (types.is_floating(inner) or types.is_integer(inner)):
        raise InputError(f"{description} has values of {kind}: give lists of lists of numbers")


def _vectors(row: Any, description: str) -> Vectors:
    """Return the vectors of a value of Arrow. They are copied as arrays, since Python's floats need more memory."""
    import pyarrow.compute

    lists = row.values
    sizes = set() if lists is None else set(pyarrow.compute.list_value_length(lists).to_pylist())
    if len(sizes) == 1 and sizes.isdisjoint((None, 0)):
        array = float32(lists.flatten().to_numpy(zero_copy_only=False)).reshape(len(lists), -1)
        if first_not_finite(array) is None:
            return array
    raise InputError(f"{description} is not a list of vectors of one size with finite numbers")
