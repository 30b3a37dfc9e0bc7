"""API keys: from a file or the environment, compared in constant time."""

import hmac
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from txport.runtime.errors import InputError
from txport.runtime.serve.errors import Refusal

VARIABLE = "TXPORT_API_KEYS"
# Minimum number of characters of a key. Shorter keys can be guessed.
SHORTEST = 16


class Keys:
    """The API keys of a server. Each request must have one of them, unless there are none.

    Args:
        keys: the keys, each of at least `SHORTEST` characters.
        file: the file that contains them; None if they come from the environment only.
    """

    def __init__(self, keys: Iterable[str] = (), file: Path | None = None) -> None:
        self._digests = [_digest(key) for key in keys]
        self._file = file

    @classmethod
    def read(cls, file: Path | None) -> "Keys":
        """Read the keys of a file (one per line) and of the environment variable (separated by spaces).

        Raises:
            InputError: the file cannot be read or has no key, or a key is short.
        """
        keys = os.environ.get(VARIABLE, "").split()
        if file is not None:
            try:
                lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"the API keys of {file} cannot be read: {error}") from None
            listed = [line for line in lines if line and not line.startswith("#")]
            if not listed:
                raise InputError(f"{file} has no API key: write one a line")
            keys += listed
        if any(len(key) < SHORTEST for key in keys):
            raise InputError(f"an API key is shorter than {SHORTEST} characters: take a longer one, at random")
        return cls(keys, file)

    def reload(self) -> None:
        """Read the file again, so that keys can be exchanged. If that fails, the keys do not change.

        Raises:
            InputError: as for `read`, or no key is left.
        """
        reloaded = Keys.read(self._file)
        # An emptied file must not open the server to everybody.
        if self and not reloaded:
            raise InputError("no API key is left: the keys do not change")
        self._digests = reloaded._digests

    @property
    def readable(self) -> bool:
        """True if other users of this machine can read the file."""
        return self._file is not None and bool(self._file.stat().st_mode & 0o044)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, key: str) -> None:
        """Refuse a request without a key (401) or with a wrong one (403). All keys are compared, in constant time."""
        if not self:
            return
        if not key:
            raise Refusal(401, "an API key is needed: give it as api_key, or in the header Authorization as Bearer KEY")
        digest_of_key = _digest(key)
        # A sum and not `any`, which would stop at the first match and reveal its position by the time it takes.
        if sum(hmac.compare_digest(digest_of_key, digest) for digest in self._digests) == 0:
            raise Refusal(403, "the API key is not one of this server's")


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
