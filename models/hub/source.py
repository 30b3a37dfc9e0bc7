"""Files of a model: a directory, an archive, or a repository of the Hugging Face hub."""

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
from txport.runtime.errors import InputError, TxportError
from txport.runtime.files import file_errors, scratch_directory
from txport.runtime.libraries import needs

# The id of a repository.
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Its presence marks a model as SMaLL-100, whose other files equal M2M100's. It is not executed.
SMALL100_MARK = "tokenization_small100.py"
# bytes, and times its own size, that an archive may unpack to
MIN_UNPACKED = 64 << 20
MAX_RATIO = 16
# bytes of headers and padding that a compressed .tar file may have besides
MAX_HEADERS = 8 << 20
# Files that importers read; those of bundles are named by their manifest.
_MODEL_FILES = (
    *("*.json", "*.safetensors", "*.bin", "*.spm", "*.model", "*.txt", "*.argosmodel", "*.npz", "*.yml"),
    SMALL100_MARK,
)
# Endings of files of weights, some of which are zip files.
_WEIGHTS = (".npz", ".bin", ".pt", ".pth", ".safetensors")
# Names of weights that may be in the formats of CTranslate2 and Marian, which are not pickles.
_PLAIN = ("model.bin", "*intgemm*.bin", "*alphas*.bin")
# Both begin with a version of four or eight bytes; no pickle, and no zip file of PyTorch's, begins so.
_VERSIONS = tuple(version.to_bytes(4, "little") for version in range(1, 100))


@contextmanager
def open_source(source: str, revision: str, *, offline: bool, pickles: bool = False) -> Iterator[Path]:
    """Give the directory that holds the files of a source, or the source itself if it is a file of weights.

    Args:
        source: a directory, a .zip or .tar file, a file of weights, or the id of a repository (owner/name).
        revision: branch, tag or commit of a repository.
        offline: take what an earlier call has fetched; nothing is asked of the network.
        pickles: take weights of a repository that has them only in files of PyTorch, which are pickles.

    Raises:
        InputError: there is no such source, it cannot be fetched, or an archive is damaged or would write elsewhere.
        ResourceError: the disk is full.
        MissingLibrary: huggingface_hub is needed and not installed.
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


def unpack(archive: Path, directory: Path) -> None:
    """Unpack a .zip or .tar file.

    Raises:
        InputError: it is damaged, hostile, or much larger than its file.
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
    except Exception as error:  # of zlib, lzma, of what is encrypted or packed otherwise: each has its own
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, RuntimeError) and "encrypted" in str(error):
            raise InputError(f"{archive} is encrypted: unpack it, and give the directory") from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(":")
        raise InputError(f"{archive} is neither a .zip nor a .tar file, or is damaged ({reason})") from None


def check_zip(archive: Path, file: zipfile.ZipFile) -> None:
    """Refuse a .zip file with links or two files of one name, and one that is much larger unpacked.

    Raises:
        InputError: it is so.
    """
    _check_members(archive, file.infolist())
    _check_size(archive, (member.file_size for member in file.infolist()))


def _check_size(archive: Path, sizes: Iterable[int]) -> None:
    """Refuse an archive whose files are much larger than it: weights hardly shrink."""
    most = _most(archive)
    total = 0
    for size in sizes:
        total += size
        if total > most:
            raise _too_large(archive, most)


def _most(archive: Path) -> int:
    return max(MIN_UNPACKED, MAX_RATIO * archive.stat().st_size)


def _too_large(archive: Path, most: int) -> InputError:
    return InputError(f"{archive} would unpack to more than {most:,} bytes: unpack it yourself if you trust it")


class _Tar(tarfile.TarFile):
    """A tar file of which a limited number of bytes is decompressed, since headers may have any size and number."""

    @classmethod
    def taropen(cls, name: Any, mode: Any = "r", fileobj: Any = None, **options: Any) -> Any:
        """Open a tar file; a compressed one comes as a file object, which is limited."""
        if fileobj is not None:
            fileobj = _Limited(fileobj, Path(name))
        return super().taropen(name, mode, fileobj, **options)


class _Limited:
    """A decompressed archive that is not read beyond the largest unpacked size plus headers.

    Args:
        file: the decompressed archive.
        archive: the compressed one.
    """

    def __init__(self, file: BinaryIO, archive: Path) -> None:
        self._archive = archive
        self._file = file
        self._most = _most(archive)
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            InputError: they end beyond the limit.
        """
        if self._file.tell() + size > self._most + MAX_HEADERS:
            raise _too_large(self._archive, self._most)
        return self._file.read(size)


def _check_names(archive: Path, names: Sequence[str]) -> None:
    for name in names:
        parts = PurePosixPath(name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in name.partition("/")[0]:
            raise InputError(f"{archive} has {name}, which lies outside of it: it is not to be trusted")


def _check_members(archive: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse a zip archive in which a name is a link, or means two files."""
    seen: set[str] = set()
    for member in members:
        if stat.S_ISLNK(member.external_attr >> 16):
            raise InputError(f"{archive} has {member.filename}, which is neither a file nor a directory: pack it again")
        if member.filename in seen:
            raise InputError(f"{archive} has {member.filename} twice: pack it again")
        seen.add(member.filename)


def only_directory(directory: Path) -> Path:
    """Return the one directory in an unpacked archive, or what it was unpacked into."""
    entries = list(directory.iterdir())
    if len(entries) == 1 and entries[0].is_dir():
        return entries[0]
    return directory


def fetch(source: str, revision: str = "main", *, offline: bool = False, pickles: bool = False) -> Path:
    """Return the files of a repository that are needed of it; arguments and errors as of `open_source`."""
    with needs("import,export", otherwise="; for finished bundles 'txport[hub]' is enough"):
        import huggingface_hub as hub
        from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE
        from huggingface_hub.errors import LocalEntryNotFoundError
        from huggingface_hub.utils.logging import set_verbosity_error
        from huggingface_hub.utils.tqdm import disable_progress_bars
    set_verbosity_error()  # type: ignore[no-untyped-call]  # its message is part of the sentence below
    if not sys.stderr.isatty():
        disable_progress_bars()
    offline = offline or HF_HUB_OFFLINE
    allowed = ignored = None
    try:
        files = [] if offline else hub.list_repo_files(source, revision=revision)
        if NAME in files:
            with file_errors(Path(HF_HUB_CACHE), ours=False), catch_warnings():
                filterwarnings("ignore", "Not enough free disk space")
                manifest = Path(hub.hf_hub_download(source, NAME, revision=revision))
            allowed = [
                escape(name) for name in (NAME, *Manifest.parse(manifest.read_bytes(), f"{source}/{NAME}").files)
            ]
        else:
            allowed = list(_MODEL_FILES)
            # Prefer weights without pickle if there are two files.
            ignored = ["*.bin"] if any(file.endswith(".safetensors") for file in files) else None
            if not pickles:
                _refuse_pickles(source, files)
        with file_errors(Path(HF_HUB_CACHE), ours=False), catch_warnings():
            filterwarnings("ignore", "Not enough free disk space")  # a warning for each file; the error is raised once
            fetched = hub.snapshot_download(
                source, revision=revision, local_files_only=offline, allow_patterns=allowed, ignore_patterns=ignored
            )
        if not pickles and not Path(fetched, NAME).is_file():
            paths = [str(path) for path in Path(fetched).rglob("*.*") if path.is_file()]
            _refuse_pickles(source, paths, _is_plain)
        return Path(fetched)
    except TxportError:
        raise
    except Exception as error:  # of the network, of the hub, of the disk: each library has its own
        if offline and isinstance(error, LocalEntryNotFoundError):
            raise InputError(
                f"{source} is not a local file, and is not cached at {revision}, while huggingface_hub is offline"
            ) from None
        raise InputError(f"{source} is not a local file, and {_reason(error, source, revision)}") from None


def _reason(error: Exception, source: str, revision: str) -> str:
    """Return the reason why a repository was not downloaded, and what to do."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return f"{source} on the hub is gated: accept its terms on its page there, and log in with `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return "the hub has no such repository, or it is private: check the name, or log in with `hf auth login`"
    if isinstance(error, RevisionNotFoundError):
        return f"the repository on the hub has no revision {revision}: name a branch, tag or commit that it has"
    return f"its download from the hub failed: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"


def _is_plain(file: str) -> bool:
    """Return whether a file begins as weights of CTranslate2 or Marian do."""
    with open(file, "rb") as opened:
        return opened.read(4) in _VERSIONS


def _has_plain_name(file: str) -> bool:
    return any(map(PurePosixPath(file).match, _PLAIN))


def _refuse_pickles(source: str, files: Sequence[str], is_plain: Callable[[str], bool] = _has_plain_name) -> None:
    """Refuse a repository whose weights are pickles only: hostile ones have corrupted memory (CVE-2026-24747)."""
    pickles = any(file.endswith(".bin") and not (_has_plain_name(file) and is_plain(file)) for file in files)
    if pickles and not any(file.endswith(".safetensors") for file in files):
        raise InputError(
            f"{source} has its weights in files of PyTorch only, which are pickles: use --allow-pickle if you trust it"
        )
