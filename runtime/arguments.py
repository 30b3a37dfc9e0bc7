"""Checks of arguments of `Translator`. Each raises `InputError`, with a message that begins with `what`."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from txport.runtime.errors import InputError

T = TypeVar("T")


def check_text(text: object, what: str) -> None:
    """Refuse values that are not text, or not valid Unicode."""
    if not isinstance(text, str):
        raise InputError(f"{what} is of type {type(text).__name__}: give text (str)")
    try:
        text.encode()  # fails for unpaired surrogates, which tokenizers refuse later and less clearly
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} is not valid text ({error.reason} at {error.start}): decode the bytes again"
        ) from None


def check_pairs(sources: Sequence[object], targets: Sequence[object]) -> None:
    """Refuse lists of different lengths."""
    if len(sources) != len(targets):
        raise InputError(f"there are {len(sources)} sentences and {len(targets)} translations: give one for each")


def as_list(items: Iterable[T], what: str = "sentences") -> list[T]:
    """Return the items, which are called `what` in messages, as a list; one text is not a list of texts."""
    if isinstance(items, (str, bytes)):
        raise InputError("sentences come as a list: put the one sentence in a list")
    try:
        return list(items)
    except TypeError:
        raise InputError(f"{what} come as a list, and this is of type {type(items).__name__}") from None


def check_ids(ids: Iterable[int], vocabulary: int, what: str) -> list[int]:
    """Return the ids as a list. Each must be in the vocabulary."""
    try:
        tokens = [operator.index(token) for token in ids]  # accepts NumPy's integers, refuses floats and text
    except TypeError as error:
        raise InputError(f"{what} is not a list of ids, which are whole numbers ({error})") from None
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise InputError(f"{what} has the id {token}, which is not between 0 and {vocabulary - 1}")
    return tokens


def check_sentence(ids: Iterable[int], vocabulary: int, maximum: int, pad: int, what: str) -> list[int]:
    """Check the ids of a whole sentence as `check_ids` does: at least one that is not padding, at most `maximum`."""
    tokens = check_ids(ids, vocabulary, what)
    if all(token == pad for token in tokens):
        raise InputError(f"{what} has no ids except padding: give at least one")
    if len(tokens) > maximum:
        raise InputError(
            f"{what} has {len(tokens)} tokens, more than the {maximum} that this bundle supports: shorten it"
        )
    return tokens


def check_reads(features: bool, feature_size: int | None) -> None:
    """Refuse text and ids for models of feature vectors, and vectors for other models.

    Args:
        features: whether the input is vectors.
        feature_size: vector size of the model; None if it reads text or ids.
    """
    if features and feature_size is None:
        raise InputError("this bundle reads text or ids, not feature vectors: use translate or translate_ids")
    if feature_size is not None and not features:
        raise InputError("this bundle reads feature vectors, not text or ids: use translate_features")


def check_reads_text(model: object, feature_size: int | None) -> None:
    """Refuse a model of feature vectors for a command that reads text. `model` is its path, for the message."""
    if feature_size is not None:
        raise InputError(
            f"{model} reads feature vectors, and this command reads text: use translate_features in Python, C or C++, "
            "or POST /features of tx-serve"
        )


def check_vectors(vectors: Any, size: int, maximum: int, what: str) -> npt.NDArray[np.float32]:
    """Return vectors as float32 `[n, size]`, with n from 1 to `maximum`. All numbers must be finite."""
    try:
        array = np.asarray(vectors)
    except Exception as error:  # rows of unequal lengths; tensors on a GPU, with a gradient or in bfloat16
        raise InputError(f"{what} is not an array of real numbers, [vectors, {size}]: {error}") from None
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what} is an array of {array.dtype}: give real numbers, [vectors, {size}]")
    if array.ndim != 2 or array.shape[1] != size:
        raise InputError(f"{what} has the shape {list(array.shape)}: this bundle reads [vectors, {size}]")
    if not 1 <= len(array) <= maximum:
        raise InputError(f"{what} has {len(array)} vectors: give 1 to {maximum}, as many as this bundle takes")
    result = float32(array)
    if (row := first_not_finite(result)) is not None:
        raise InputError(f"{what} has NaN or infinity in vector {row}, counted from 0: give finite numbers")
    return result


def float32(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return real numbers as a contiguous array of float32. Numbers beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)


def first_not_finite(vectors: npt.NDArray[np.float32]) -> int | None:
    """Return the row of the first vector with NaN or infinity; None if all are finite."""
    rows = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(rows):
        return int(rows[0])
    return None


def check_lengths(max_length: int | None, min_length: int, prefix_length: int, maximum: int) -> None:
    """Refuse lengths of more than `maximum` tokens, and prefixes of `prefix_length` that leave no room."""
    if max_length is not None and not 1 <= max_length <= maximum:
        raise InputError(f"the maximum length {max_length} is not between 1 and {maximum}, the maximum of this model")
    maximum = max_length or maximum
    if not 0 <= min_length <= maximum:
        raise InputError(f"the minimum length {min_length} is not between 0 and {maximum}, the maximum length")
    if prefix_length >= maximum:
        raise InputError(f"a prefix of {prefix_length} tokens leaves no room for more: the maximum length is {maximum}")
