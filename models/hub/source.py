"""Model files from a directory, an archive, or a repository of the Hugging Face hub."""

import errno
import re
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from warnings import catch_warnings, filterwarnings

from txport.runtime.bundle.manifest import NAME, Manifest
from txport.runtime.bundle.names import is_local
from txport.runtime.errors import InputError, TxportError
from txport.runtime.files import file_errors, scratch_directory
from txport.runtime.libraries import needs

# Form of repository ids.
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# This file distinguishes SMaLL-100 from M2M100; their other files have the same form. It is not executed.
SMALL100_MARK = "tokenization_small100.py"
# Limit of the unpacked size of an archive: the larger of MIN_UNPACKED bytes and MAX_RATIO times its size.
MIN_UNPACKED = 64 << 20
MAX_RATIO = 16
# Allowance for headers and padding of compressed .tar files, in bytes.
MAX_HEADERS = 8 << 20
# Errors of names that are too long, or both a file and a directory.
_IMPOSSIBLE = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
# Files that importers need. For bundles, the manifest lists them.
_MODEL_FILES = (
    *("*.json", "*.safetensors", "*.bin", "*.spm", "*.model", "*.txt", "*.argosmodel", "*.npz", "*.yml"),
    SMALL100_MARK,
)
# Endings of weight files. They are not unpacked, although some are zip files.
_WEIGHTS = (".npz", ".bin", ".pt", ".pth", ".safetensors")
# Names of weight files that may have the formats of CTranslate2 and Marian, which are not pickles.
_PLAIN = ("model.bin", "*intgemm*.bin", "*alphas*.bin")
# Both formats begin with a small version number of 4 or 8 bytes. Pickles and PyTorch's zip files never do.
_VERSIONS = tuple(version.to_bytes(4, "little") for version in range(1, 100))


@contextmanager
def open_source(source: str, revision: str, *, offline: bool, pickles: bool = False) -> Iterator[Path]:
    """Yield the directory with the files of a source, or the source itself if it is a file of weights.

    Args:
        source: a directory, a .zip or .tar file, a file of weights, or the id of a repository (owner/name).
        revision: branch, tag or commit of a repository.
        offline: use only cached files; no network access.
        pickles: accept repositories whose weights exist only as PyTorch files, which are pickles.

    Raises:
        InputError: the source does not exist or cannot be fetched, or the archive is damaged or has unsafe paths.
        ResourceError: the disk is full.
        MissingLibrary: huggingface_hub is needed but not installed.
    """
    path = Path(source)
    if path.is_dir() or (path.is_file() and path.suffix.lower() in _WEIGHTS):
        yield path
    elif path.is_file():
        with scratch_directory() as directory:
            with file_errors(directory, ours=False):
                unpack(path, directory)
            yield only_directory(directory)
    else:
        yield fetch(source, revision, offline=offline, pickles=pickles)


def check_repository(source: str) -> None:
    """Refuse a source that does not exist and cannot be a repository of the hub, before the hub is asked.

    Raises:
        InputError: it looks like a path, or it is not of the form owner/name.
    """
    if source.startswith((".", "/")):
        raise InputError(f"{source} does not exist")
    if not HUB_ID.fullmatch(source):
        raise InputError(f"{source} is neither a file nor a directory nor the id of a model on the hub (owner/name)")
    if is_local(source):
        raise InputError(
            f"{source} does not exist, but the directory {Path(source).parent} does: correct the path, or run the "
            "command in another directory if this is a model on the hub"
        )


def unpack(archive: Path, directory: Path) -> None:
    """Unpack a .zip or .tar file.

    Raises:
        InputError: the archive is damaged, has unsafe contents, or would be much larger when unpacked.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                _check_names(archive, file.namelist())
                check_zip(archive, file)
                file.extractall(directory)
        else:
            with _Tar.open(archive) as tar:
                _check_size(archive, (member.size for member in tar))
                members = tar.getmembers()
                _check_names(archive, [member.name for member in members])
                if odd := next((each.name for each in members if not (each.isfile() or each.isdir())), None):
                    raise InputError(f"{archive} has {odd}, which is neither a file nor a directory: pack it again")
                tar.extractall(directory, members)
    except TxportError:
        raise
    except Exception as error:  # zlib, lzma, zipfile and tarfile all raise exceptions of their own
        if isinstance(error, OSError) and error.errno in _IMPOSSIBLE:
            place = str(error.filename).removeprefix(f"{directory}/")
            raise InputError(
                f"{archive} has {place:.80}, which cannot be a file ({error.strerror}): pack it again"
            ) from None
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, RuntimeError) and "encrypted" in str(error):
            raise InputError(f"{archive} is encrypted: unpack it, and give the directory") from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(":")
        raise InputError(f"{archive} is neither a .zip nor a .tar file, or is damaged ({reason})") from None


def check_zip(archive: Path, file: zipfile.ZipFile) -> None:
    """Refuse a .zip file with links or duplicate names, or whose unpacked size is much larger.

    Raises:
        InputError: for any of these reasons.
    """
    _check_members(archive, file.infolist())
    _check_size(archive, (member.file_size for member in file.infolist()))


def _check_size(archive: Path, sizes: Iterable[int]) -> None:
    """Refuse an archive whose files are much larger than it: weights cannot be compressed much."""
    maximum = _max_unpacked(archive)
    total = 0
    for size in sizes:
        total += size
        if total > maximum:
            raise _too_large(archive, maximum)


def _max_unpacked(archive: Path) -> int:
    return max(MIN_UNPACKED, MAX_RATIO * archive.stat().st_size)


def _too_large(archive: Path, maximum: int) -> InputError:
    return InputError(f"{archive} would unpack to more than {maximum:,} bytes: unpack it yourself if you trust it")


class _Tar(tarfile.TarFile):
    """Tar file with a limit on decompressed bytes, since the size and number of headers is not limited otherwise."""

    @classmethod
    def taropen(cls, name: Any, mode: Any = "r", fileobj: Any = None, **options: Any) -> Any:
        """Open a tar file. For compressed files, `fileobj` is the decompressed stream, which is limited."""
        if fileobj is not None:
            fileobj = _Limited(fileobj, Path(name))
        return super().taropen(name, mode, fileobj, **options)


class _Limited:
    """Decompressed stream of an archive that refuses to read past the limit.

    Args:
        file: decompressed stream.
        archive: path of the archive, for messages and its size.
    """

    def __init__(self, file: BinaryIO, archive: Path) -> None:
        self._archive = archive
        self._file = file
        self._max_size = _max_unpacked(archive)
        self.seek = file.seek
        self.tell = file.tell
        self.close = file.close

    def read(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            InputError: the limit is exceeded.
        """
        if self._file.tell() + size > self._max_size + MAX_HEADERS:
            raise _too_large(self._archive, self._max_size)
        return self._file.read(size)


def _check_names(archive: Path, names: Sequence[str]) -> None:
    for name in names:
        parts = PurePosixPath(name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in name.partition("/")[0]:
            raise InputError(f"{archive} has {name}, which lies outside of it: it is not to be trusted")


def _check_members(archive: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse a zip archive with a link or with two files of the same name."""
    names: set[str] = set()
    for member in members:
        if stat.S_ISLNK(member.external_attr >> 16):
            raise InputError(f"{archive} has {member.filename}, which is neither a file nor a directory: pack it again")
        if member.filename in names:
            raise InputError(f"{archive} has {member.filename} twice: pack it again")
        names.add(member.filename)


def only_archive(path: Path) -> Path:
    """Return the only .zip file of a directory without weights, or the path itself."""
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix in (*_WEIGHTS, ".argosmodel", ".zip")]
        if len(files) == 1 and files[0].suffix == ".zip":
            return files[0]
    return path


def only_directory(directory: Path) -> Path:
    """Return the only directory of an unpacked archive, if it has just one, or the directory itself."""
    entries = list(directory.iterdir())
    if len(entries) == 1 and entries[0].is_dir():
        return entries[0]
    return directory


def fetch(source: str, revision: str = "main", *, offline: bool = False, pickles: bool = False) -> Path:
    """Download the necessary files of a repository. Arguments and errors are those of `open_source`."""
    with needs("import,export", otherwise="; for finished bundles 'txport[hub]' is enough"):
        import huggingface_hub as hub
        from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE
        from huggingface_hub.errors import LocalEntryNotFoundError
        from huggingface_hub.utils.logging import set_verbosity_error
        from huggingface_hub.utils.tqdm import disable_progress_bars
    set_verbosity_error()  # type: ignore[no-untyped-call]  # its warnings are part of the error below
    if not sys.stderr.isatty():
        disable_progress_bars()
    offline = offline or HF_HUB_OFFLINE
    patterns = ignored = None
    try:
        files = [] if offline else hub.list_repo_files(source, revision=revision)
        if NAME in files:
            with file_errors(Path(HF_HUB_CACHE), ours=False), catch_warnings():
                filterwarnings("ignore", "Not enough free disk space")
                manifest = Path(hub.hf_hub_download(source, NAME, revision=revision))
            patterns = [
                escape(name) for name in (NAME, *Manifest.parse(manifest.read_bytes(), f"{source}/{NAME}").files)
            ]
        else:
            patterns = list(_MODEL_FILES)
            if not any(file.endswith((*_WEIGHTS, ".argosmodel")) for file in files):
                patterns.append("*.zip")
            # Prefer weights without pickle if there are two files.
            ignored = ["*.bin"] if any(file.endswith(".safetensors") for file in files) else None
            if not pickles:
                _refuse_pickles(source, files)
        with file_errors(Path(HF_HUB_CACHE), ours=False), catch_warnings():
            filterwarnings("ignore", "Not enough free disk space")  # a full disk raises an error anyway
            fetched = hub.snapshot_download(
                source, revision=revision, local_files_only=offline, allow_patterns=patterns, ignore_patterns=ignored
            )
        if not pickles and not Path(fetched, NAME).is_file():
            paths = [str(path) for path in Path(fetched).rglob("*.*") if path.is_file()]
            _refuse_pickles(source, paths, _is_plain)
        return Path(fetched)
    except TxportError:
        raise
    except Exception as error:  # network, hub and disk errors come from several libraries
        if offline and isinstance(error, LocalEntryNotFoundError):
            raise InputError(
                f"{source} is not a local file, and is not cached at {revision}, while huggingface_hub is offline"
            ) from None
        raise InputError(f"{source} is not a local file, and {_reason(error, source, revision)}") from None


def _reason(error: Exception, source: str, revision: str) -> str:
    """Return why a repository was not downloaded, and what to do, for a message."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return f"{source} on the hub is gated: accept its terms on its page there, and log in with `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return "the hub has no such repository, or it is private: check the name, or log in with `hf auth login`"
    if isinstance(error, RevisionNotFoundError):
        return f"the repository on the hub has no revision {revision}: name a branch, tag or commit that it has"
    return f"its download from the hub failed: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"


def _is_plain(file: str) -> bool:
    """Return whether a file begins like weights of CTranslate2 or Marian."""
    with open(file, "rb") as stream:
        return stream.read(4) in _VERSIONS


def _has_plain_name(file: str) -> bool:
    return any(map(PurePosixPath(file).match, _PLAIN))


def _refuse_pickles(source: str, files: Sequence[str], is_plain: Callable[[str], bool] = _has_plain_name) -> None:
    """Refuse a repository with weights only as pickles: malicious ones have corrupted memory (CVE-2026-24747)."""
    pickles = any(file.endswith(".bin") and not (_has_plain_name(file) and is_plain(file)) for file in files)
    if pickles and not any(file.endswith(".safetensors") for file in files):
        raise InputError(
            f"{source} has its weights in files of PyTorch only, which are pickles: use --allow-pickle if you trust it"
        )
