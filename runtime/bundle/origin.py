"""The origin of a bundle of tx-get, in a file beside it: a branch names another commit tomorrow."""

import json
import re
from pathlib import Path

from txport.runtime.files import write_atomically

_COMMIT = re.compile(r"[0-9a-f]{40}")


def record_origin(bundle: Path, source: str, revision: str, files: Path) -> None:
    """Record what was fetched.

    Args:
        bundle: the bundle that was made of it.
        source: a directory, an archive or a repository.
        revision: that was asked for.
        files: where the files were; the hub's cache has them in a folder that is named after their commit.
    """
    commit = files.name if _COMMIT.fullmatch(files.name) else None
    value = {"source": source, "revision": revision, "commit": commit}
    write_atomically(_file(bundle), (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def origin_of(bundle: Path) -> str | None:
    """Repository and commit of a bundle, for people; None if nothing was recorded."""
    try:
        value = json.loads(_file(bundle).read_bytes())
        return f"{value['source']} at {value['commit'] or value['revision']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _file(bundle: Path) -> Path:
    return bundle.with_name(f"{bundle.name}.origin.json")
