"""Locations of corpora: local paths, and URLs of any store of fsspec (s3://, gs://, hdfs://, https:// ...).

A local file appears by one rename. Not all stores have a rename: a file is written locally and uploaded under its name.
It counts only after its manifest has been uploaded too (`txport.runtime.corpus.parts`). Object stores show complete
uploads only. In other stores (SFTP, SMB), a file without a manifest may be incomplete.
"""

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from txport.runtime.errors import InputError, TxportError
from txport.runtime.files import io_failure, make_directory, new_file, scratch_directory
from txport.runtime.libraries import needs

_CHUNK = 1 << 20
# Protocols of stores that need keys, and of the hub. None reads files of this machine or addresses of its network.
REMOTE = ("s3", "gs", "gcs", "az", "abfs", "abfss", "hdfs", "hf")


def is_url(path: str) -> bool:
    """Return whether a path is a URL of a store."""
    return "://" in path


def check_remote(url: str) -> None:
    """Refuse a URL that refers to this machine or network, since recipes may be untrusted.

    Raises:
        InputError: its protocol is not in `REMOTE`.
    """
    if url.partition("://")[0] not in REMOTE:
        raise InputError(f"{url} is not of one of the stores {', '.join(REMOTE)}, which recipes may name")


def list_files(paths: Sequence[str]) -> list[str]:
    """Expand directories and patterns to input files, sorted by name.

    Names in directories that begin with "." or "_" are skipped, as other tools do.

    Raises:
        InputError: there are no files, or they cannot be listed.
    """
    files = [file for path in paths for file in (_urls(path) if is_url(path) else _files(path))]
    if not files:
        raise InputError(f"{' '.join(paths)} names no file")
    return files


def _files(path: str) -> list[str]:
    if os.path.isdir(path):
        return _below(path)
    if os.path.exists(path):
        return [path]
    if not glob.has_magic(path):
        return _missing(path)
    names = sorted(glob.glob(path, recursive=True))
    if "**" in path:  # such a pattern matches files in subdirectories itself
        return [name for name in names if not os.path.isdir(name)]
    directories = [name for name in names if os.path.isdir(name) and _is_hidden(os.path.basename(name))]
    return [file for name in names if name not in directories for file in _files(name)]


def _below(directory: str) -> list[str]:
    """Return the files below a directory, sorted by path."""
    files: list[str] = []
    with _report_io_failures(directory):
        for name in sorted(os.listdir(directory)):
            if name[0] in "._":
                continue
            path = os.path.join(directory, name)
            if os.path.isdir(path):
                files += _below(path)
            elif os.path.isfile(path):
                files.append(path)
            else:
                raise InputError(f"{path} is not a file: remove it, or name the files to read")
    return files


def _urls(path: str) -> list[str]:
    with _report_io_failures(path):
        system, inner = _system(path)
        if not (glob.has_magic(inner) or system.exists(inner)):
            return _missing(path)
        names: list[str] = []
        for name in sorted(system.glob(inner)) if glob.has_magic(inner) else [inner]:
            if not system.isdir(name):
                names.append(name)
            elif "**" not in inner and not (name != inner and _is_hidden(name.rsplit("/", 1)[-1])):
                names += (file for file in sorted(system.find(name)) if not _is_hidden(file[len(name) :]))
        if names == [inner]:
            return [path]
        return [system.unstrip_protocol(name) for name in names]


def _is_hidden(path: str) -> bool:
    """Return whether a name in a path begins with "." or "_"."""
    return any(name[:1] in (".", "_") for name in path.strip("/").split("/"))


def _missing(path: str) -> list[str]:
    raise InputError(f"{path} does not exist")


@contextmanager
def open_location(path: str) -> Iterator[BinaryIO]:
    """Yield a file opened for reading.

    Raises:
        InputError: it cannot be read.
        MissingLibrary: fsspec, or its library for this store, is not installed.
    """
    with _report_io_failures(path):
        if is_url(path):
            system, inner = _system(path)
            file = system.open(inner, "rb")
        else:
            file = open(path, "rb")
    with file:
        yield cast(BinaryIO, file)


class Hashed:
    """Output file that computes SHA-256 and size of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0
        self.closed = False  # Arrow reads it

    def write(self, data: Any) -> int:
        """Write all bytes."""
        size = memoryview(data).nbytes
        self._digest.update(data)
        self._file.write(data)
        self.size += size
        return size

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size

    def flush(self) -> None:
        """Do nothing: the file flushes itself."""

    @property
    def sha256(self) -> str:
        """64 hexadecimal digits."""
        return self._digest.hexdigest()


class Store:
    """Output directory of a corpus, on this machine or in a store."""

    def __init__(self, base: str, folders: Sequence[str] = ()) -> None:
        self.base = base.rstrip("/") or "/"
        self._system: Any
        self._system, self._inner = _system(base) if is_url(base) else (None, "")
        for folder in ("", *folders):
            if self._system is None:
                make_directory(Path(self.base, folder))
            else:
                with _report_io_failures(base):
                    self._system.makedirs(self._full_path(folder), exist_ok=True)

    def names(self, folder: str) -> list[str]:
        """Return names of the files in a folder, sorted, without hidden ones, which are unfinished."""
        if self._system is None:
            names = os.listdir(Path(self.base, folder))
        else:
            with _report_io_failures(self.base):
                self._system.invalidate_cache()
                names = [name.rsplit("/", 1)[-1] for name in self._system.ls(self._full_path(folder), detail=False)]
        return sorted(name for name in names if name and not name.startswith("."))

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        with suppress(FileNotFoundError):
            if self._system is None:
                return Path(self.base, name).read_bytes()
            return cast(bytes, self._system.cat_file(self._full_path(name)))
        return None

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        with suppress(FileNotFoundError):
            if self._system is None:
                return Path(self.base, name).stat().st_size
            self._system.invalidate_cache()
            return cast(int, self._system.size(self._full_path(name)))
        return None

    def sha256(self, name: str) -> str | None:
        """Return the hash of a file; None if it does not exist."""
        digest = hashlib.sha256()
        try:
            with open_location(self.path(name)) as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        except InputError:
            return None
        return digest.hexdigest()

    def path(self, name: str) -> str:
        """Path or URL of a file."""
        return f"{self.base}/{name}"

    @contextmanager
    def write(self, name: str) -> Iterator[Hashed]:
        """Yield a file to write. It appears, complete, at the end of the block, unless the block raises."""
        if self._system is None:
            with new_file(Path(self.base, name)) as file:
                yield Hashed(file)
            return
        with scratch_directory() as folder:
            local = folder / "part"
            with local.open("wb") as file:
                yield Hashed(file)
            with _report_io_failures(self.path(name)):
                self._system.put_file(str(local), self._full_path(name))

    def _full_path(self, name: str) -> str:
        if name:
            return f"{self._inner}/{name}"
        return self._inner


def _system(url: str) -> tuple[Any, str]:
    if "::" in url:  # fsspec would open one store inside another
        raise InputError(f"{url} chains several URLs: give the one of the file")
    with needs("corpus", f"{url} is a URL"):
        import fsspec
    try:
        system, inner = fsspec.core.url_to_fs(url)
    except ImportError as error:  # s3fs, gcsfs ...
        raise InputError(f"{url} cannot be opened: {error}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{url} cannot be opened: {error}") from error
    return system, inner.rstrip("/")


@contextmanager
def _report_io_failures(path: str) -> Iterator[None]:
    try:
        yield
    except TxportError:
        raise
    except OSError as error:
        raise io_failure(error, f"{path} cannot be read or written: {error.strerror or error}") from error
