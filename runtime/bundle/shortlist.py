"""Shortlists: candidate target tokens for each source token, for large vocabularies.

A sentence may use the most frequent tokens, which are in every list, and the translations of its source tokens
(Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation", section 3.2; L'Hostis et al.
2016, "Vocabulary Selection Strategies for Neural Machine Translation"). All numbers of the file are int32, little
endian: a header (`_HEADER`), the tokens of every list, the start of each source token's candidates, and the candidates.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.archive import File, Files, files_of
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import FileEntry
from txport.runtime.errors import BundleError
from txport.runtime.files import write_atomically

Int64 = npt.NDArray[np.int64]

_MAGIC = int.from_bytes(b"TXSL", "little")
_VERSION = 1
# After magic number and version: source vocabulary, target vocabulary, tokens of every list, number of candidates.
_HEADER = 6


@dataclass(frozen=True)
class Shortlist:
    """Candidate target tokens of each source token.

    Attributes:
        always: int64, ascending: ids that every list has, eos among them.
        starts: int64 `[source vocabulary + 1]`: start of each source id's tokens in `candidates`.
        candidates: int64, ascending for each source id.
        target_vocabulary: size of the target vocabulary.
    """

    always: Int64
    starts: Int64
    candidates: Int64
    target_vocabulary: int

    def words(self, source_ids: Sequence[int], extra: Sequence[int] = ()) -> Int64:
        """Return the candidates for a sentence of these source ids, and `extra`: int64, ascending."""
        translations = [self.candidates[self.starts[word] : self.starts[word + 1]] for word in set(source_ids)]
        return np.unique(np.concatenate([self.always, *translations, np.asarray(extra, np.int64)]))

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""
        counts = len(self.starts) - 1, self.target_vocabulary, len(self.always), len(self.candidates)
        header = np.array([_MAGIC, _VERSION, *counts], np.int64)
        return np.concatenate([header, self.always, self.starts, self.candidates]).astype("<i4").tobytes()

    @classmethod
    def load(cls, path: File, source_vocabulary: int, target_vocabulary: int, eos: int) -> "Shortlist":
        """Read a file, and check it.

        Args:
            path: the file.
            source_vocabulary, target_vocabulary, eos: of the bundle.

        Raises:
            BundleError: it cannot be read, is damaged, or is for another model.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error.strerror}") from error
        try:
            return cls._parse(data, source_vocabulary, target_vocabulary, eos)
        except ValueError as error:
            raise BundleError(f"{path} {error}: make it again with tx-shortlist") from None

    @classmethod
    def _parse(cls, data: bytes, source_vocabulary: int, target_vocabulary: int, eos: int) -> "Shortlist":
        """Parse the bytes of a file; raises ValueError with the reason."""
        # `frombuffer` refuses other lengths with an unclear message. The length is compared with the header below.
        numbers = np.frombuffer(data[: len(data) // 4 * 4], "<i4").astype(np.int64)
        if len(numbers) < _HEADER or numbers[0] != _MAGIC:
            raise ValueError("is not a shortlist")
        version, sources, targets, always, count = numbers[1:_HEADER].tolist()
        if version != _VERSION:
            raise ValueError(f"is of version {version}, and this txport reads version {_VERSION}")
        if (sources, targets) != (source_vocabulary, target_vocabulary):
            raise ValueError(
                f"is for vocabularies of {sources} and {targets} ids, but the model has {source_vocabulary} and "
                f"{target_vocabulary}"
            )
        if always > targets:
            raise ValueError(f"has {always} words in every list, more than the vocabulary of {targets}")
        if min(always, count) < 0 or len(data) != 4 * (_HEADER + always + sources + 1 + count):
            raise ValueError(f"has {len(data)} bytes, which differs from its header")
        words, starts, candidates = np.split(numbers[_HEADER:], [always, always + sources + 1])
        if starts[0] != 0 or starts[-1] != count or (np.diff(starts) < 0).any():
            raise ValueError("has word ranges that are not consecutive")
        _check(words, np.zeros(0, np.int64), targets)
        _check(candidates, starts, targets)
        if eos not in words:
            raise ValueError(f"lacks the end of sequence, {eos}, among the words of every list")
        return cls(words, starts, candidates, targets)


def open_shortlist(bundle: Files, manifest: Manifest) -> Shortlist | None:
    """Return the shortlist of a bundle, if it has one.

    Raises:
        BundleError: its file cannot be used.
    """
    if manifest.shortlist is None:
        return None
    model = manifest.model
    path = files_of(bundle) / manifest.shortlist
    return Shortlist.load(path, model.source_vocabulary, model.target_vocabulary, manifest.tokens.eos)


def put_shortlist(shortlist: Shortlist, bundle: Path, manifest: Manifest) -> Path:
    """Add a shortlist to a bundle or replace it. The bundle is valid at any time.

    Returns:
        the file.
    """
    data = shortlist.to_bytes()
    digest = hashlib.sha256(data).hexdigest()
    name = f"shortlist-{digest[:12]}.bin"
    write_atomically(bundle / name, data)
    files = {key: entry for key, entry in manifest.files.items() if key != manifest.shortlist}
    files[name] = FileEntry(len(data), digest)
    replace(manifest, shortlist=name, files=dict(sorted(files.items()))).write(bundle)
    if manifest.shortlist not in (None, name):
        (bundle / manifest.shortlist).unlink(missing_ok=True)
    return bundle / name


def _check(words: Int64, starts: Int64, vocabulary: int) -> None:
    """Refuse ids outside the vocabulary, and candidates of a source id that are not in ascending order."""
    if len(words) and not 0 <= words.min() <= words.max() < vocabulary:
        outside: Any = words[(words < 0) | (words >= vocabulary)][0]
        raise ValueError(f"has the word {outside}, outside the vocabulary of {vocabulary}")
    falls = np.flatnonzero(np.diff(words) <= 0) + 1
    if not np.isin(falls, starts).all():
        raise ValueError("has words that are not in ascending order")
