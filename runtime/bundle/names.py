"""Bundles by name: the cache of tx-get. The origin of each bundle is in a file beside it.

A name is OWNER/MODEL, as on the Hugging Face hub, optionally with revision and precision:
OWNER/MODEL@REVISION:PRECISION.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport.runtime.errors import InputError
from txport.runtime.files import write_atomically

_COMMIT = re.compile(r"[0-9a-f]{40}")
PRECISIONS = ("float32", "float16", "int8")
_NAME = re.compile(rf"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?::({'|'.join(PRECISIONS)}))?", re.ASCII)


@dataclass(frozen=True)
class Name:
    """Parts of a name.

    Attributes:
        model: owner/name.
        revision: a branch, tag or commit.
        precision: one of `PRECISIONS`.
    """

    model: str
    revision: str = "main"
    precision: str = "float32"

    @classmethod
    def parse(cls, text: str) -> "Name | None":
        """Split a name into its parts; return None if it is not a name."""
        match = _NAME.fullmatch(text)
        # Parts such as ".." would be directories outside the cache.
        if match is None or any(set(part) <= {"."} for part in re.split("[/@]", text)):
            return None
        model, revision, precision = match.groups()
        return cls(model, revision or cls.revision, precision or cls.precision)

    def __str__(self) -> str:
        if self.revision == Name.revision:
            revision = ""
        else:
            revision = f"@{self.revision}"
        return f"{self.model}{revision}" + ("" if self.precision == Name.precision else f":{self.precision}")

    @property
    def directory(self) -> Path:
        """Place of the bundle in this user's cache."""
        model, revision = (part.replace("/", "--") for part in (self.model, self.revision))
        return cache_directory() / "bundles" / model / revision / self.precision


def cache_directory() -> Path:
    """This user's cache: TXPORT_CACHE; by default txport in XDG_CACHE_HOME, or in ~/.cache."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("TXPORT_CACHE") or os.path.join(caches, "txport"))


def find_bundle(bundle: str | os.PathLike[str]) -> Path:
    """Return the directory of a bundle, by its path or by its name in the cache of tx-get.

    The cache of tx-get takes precedence over a directory OWNER/MODEL in the current directory, which may be untrusted;
    `./OWNER/MODEL` always means the directory.

    Raises:
        InputError: it looks like a name, but the cache has no bundle of that name.
    """
    path = Path(bundle)
    name = Name.parse(os.fspath(bundle))
    if name is not None and name.directory.exists():
        return name.directory
    if name is None or path.exists() or is_local(path):
        return path
    raise InputError(f"{bundle} is not a directory, and tx-get has no bundle of this name: run tx-get {bundle}")


def is_local(path: str | os.PathLike[str]) -> bool:
    """Return whether a path that does not exist was meant as a path, not as a repository OWNER/MODEL.

    It begins with `/`, `~` or a dot, or its folder exists.
    """
    return os.fspath(path).startswith(("/", "~", ".")) or Path(path).parent.is_dir()


def record_origin(bundle: Path, source: str, revision: str, files: Path) -> None:
    """Record the origin of a downloaded bundle.

    Args:
        bundle: the bundle.
        source: a directory, an archive or a repository.
        revision: as requested.
        files: folder of the downloaded files; the hub's cache names it after their commit.
    """
    if _COMMIT.fullmatch(files.name):
        commit = files.name
    else:
        commit = None
    value = {"source": source, "revision": revision, "commit": commit}
    write_atomically(_origin_file(bundle), (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def origin_of(bundle: Path) -> str | None:
    """Repository and commit of a bundle, for people; None if nothing was recorded."""
    try:
        value = _origin(bundle)
        return f"{value['source']} at {value['commit'] or value['revision']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def source_of(bundle: Path) -> str | None:
    """Source of a bundle, as `record_origin` recorded it; None if nothing was recorded."""
    try:
        return str(_origin(bundle)["source"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _origin(bundle: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(_origin_file(bundle).read_bytes())
    return value


def _origin_file(bundle: Path) -> Path:
    return bundle.with_name(f"{bundle.name}.origin.json")
