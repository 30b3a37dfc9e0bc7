"""Files of feature vectors: .npz archives with one array of all vectors, the length of each source, and its text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from txport.runtime.arguments import first_not_finite, float32
from txport.runtime.errors import InputError
from txport.runtime.files import new_file

Vectors = npt.NDArray[np.float32]

# Bytes, and times its own size, that a compressed file may unpack to.
MIN_UNPACKED = 64 << 20
MAX_RATIO = 100
LAYOUT = "'features' [vectors, size], 'lengths' [sources] and perhaps 'texts' [sources]"


@dataclass(frozen=True)
class FeatureFile:
    """Sources of a file, float32 `[vectors, size]` each, and their texts; empty if the file has no texts."""

    arrays: list[Vectors]
    texts: list[str]


def read_features(file: Path, size: int | None = None) -> FeatureFile:
    """Read an .npz archive of vectors. Pickled objects are refused, because they could run code.

    Args:
        file: archive with the arrays of `LAYOUT`: numbers of any real type, texts as an array of strings.
        size: required size of a vector; None for any.

    Raises:
        InputError: the file cannot be read, unpacks to much more than its size, lacks an array, or has arrays of
            inconsistent shapes or types.
    """
    try:
        with np.load(file, allow_pickle=False) as archive:
            max_bytes = max(MIN_UNPACKED, MAX_RATIO * file.stat().st_size)
            if sum(member.file_size for member in archive.zip.infolist()) > max_bytes:
                raise InputError(f"{file} would unpack to more than {max_bytes:,} bytes: save it with numpy.savez")
            arrays_by_name = {
                name: np.asarray(archive[name]) for name in archive.files if name in ("features", "lengths", "texts")
            }
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # zipfile, zlib, NumPy and Python's parser raise errors of many classes
        raise InputError(f"{file} is not an .npz archive of {LAYOUT} ({error})") from None
    if fault := _fault(arrays_by_name, size):
        raise InputError(f"{file} {fault}: give {LAYOUT}")
    vectors = float32(arrays_by_name["features"])
    ends = np.cumsum(arrays_by_name["lengths"])
    arrays = [
        vectors[end - length : end]
        for end, length in zip(ends.tolist(), arrays_by_name["lengths"].tolist(), strict=True)
    ]
    return FeatureFile(arrays, [" ".join(str(text).split()) for text in arrays_by_name.get("texts", ())])


def write_features(file: Path, arrays: Sequence[Vectors], texts: Sequence[str] = ()) -> None:
    """Write an archive for `read_features`. The file appears when it is complete."""
    members = {"features": np.concatenate(list(arrays)), "lengths": np.array([len(each) for each in arrays])}
    if texts:
        members["texts"] = np.array(list(texts))
    with new_file(file) as output:
        np.savez(output, **members)  # type: ignore[arg-type]


def _fault(arrays_by_name: dict[str, npt.NDArray[Any]], size: int | None) -> str:
    """Return the fault of the arrays of a file, or an empty string."""
    for name in ("features", "lengths"):
        if name not in arrays_by_name:
            return f"has no array {name!r}"
    features = arrays_by_name["features"]
    lengths = arrays_by_name["lengths"]
    texts = arrays_by_name.get("texts")
    if features.ndim != 2 or not features.shape[1] or features.dtype.kind not in "fiu":
        return f"has 'features' of {features.dtype} and the shape {list(features.shape)}"
    if size is not None and features.shape[1] != size:
        return f"has vectors of {features.shape[1]} numbers, but the model reads {size}"
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not len(lengths) or int(lengths.min()) < 1:
        return "has 'lengths' that are not a list of positive whole numbers"
    total = sum(lengths.tolist())  # NumPy's sum wraps around
    if total != len(features):
        return f"has {len(features)} vectors, but lengths of {total}"
    if (row := first_not_finite(float32(features))) is not None:
        return f"has NaN or infinity in vector {row}, counted from 0"
    if texts is not None and (texts.ndim != 1 or texts.dtype.kind != "U" or len(texts) != len(lengths)):
        return f"has 'texts' that are not one string for each of {len(lengths)} sources"
    for number, text in enumerate(texts if texts is not None else ()):
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            return f"has a text that is not valid Unicode, {number} counted from 0"
    return ""
