"""manifest.json: all facts about a bundle that a runtime may rely on.

`txport.runtime.bundle.schema` mirrors the file field by field. `Manifest.load` accepts a bundle or explains its fault
in one sentence. `runtime/cpp` applies the same rules; both are tested with the shared files in
`tests/data/manifests`.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from txport.runtime.bundle.archive import File, Files, exists, files_of, hash_of, size_of
from txport.runtime.bundle.kinds import check_kind
from txport.runtime.bundle.rules import HEX, UNLISTED, faults
from txport.runtime.bundle.schema import WEIGHTS as WEIGHTS
from txport.runtime.bundle.schema import FileEntry, Graph, ManifestFields, OptionalRole
from txport.runtime.bundle.strict_json import check_version, decode, encode, parse
from txport.runtime.errors import BundleError
from txport.runtime.files import sha256, write_atomically

FORMAT_VERSION = 1
NAME = "manifest.json"
GOLDEN = "golden.json"

_ZEROS = "0" * 64
# Files that runtimes do not read.
INFORMATIONAL_FILES = ("README.md", "verification.json")
_LARGEST_FILE = 16 << 20
# Roles of optional graphs, and the features that need them.
_FEATURES_OF_ROLE = {
    "decoder": "alignments, attention, replace_unknowns and the scores of given translations need",
    "encoder_attention": "embeddings and the encoder's attention need",
}


@dataclass(frozen=True)
class Manifest(ManifestFields):
    """Manifest of a bundle. `sha256` is the hash of the file with this field set to zeros; `write` fills it in."""

    sha256: str = _ZEROS

    @staticmethod
    def load(bundle: Files) -> "Manifest":
        """Read and validate manifest.json, and check that each listed file exists and has the listed size.

        Args:
            bundle: the directory that tx-export wrote, or the file that tx-pack wrote.

        Raises:
            BundleError: there is no bundle, or its format is newer, or it is damaged, incomplete or contradictory.
        """
        files = files_of(bundle)
        if isinstance(files, Path) and not files.is_dir():
            if files.exists():
                reason = "is not a directory"
            else:
                reason = "does not exist"
            raise BundleError(f"{files} {reason}: give a directory of tx-export or a file of tx-pack")
        path = files / NAME
        try:
            data = _read_manifest(path)
        except FileNotFoundError:
            if isinstance(files, Path):
                check_kind(files, "bundle", BundleError)
            raise BundleError(f"{files} has no {NAME}: it is not a bundle, or an incomplete copy of one") from None
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error.strerror}") from error
        manifest = Manifest.parse(data, str(path))
        manifest.check_files(files)
        return manifest

    @staticmethod
    def parse(data: bytes, file: str = NAME) -> "Manifest":
        """Decode and validate the bytes of a manifest; `file` is its name in messages.

        Raises:
            BundleError: as for `load`, without the checks of listed files.
        """
        if len(data) > _LARGEST_FILE:
            raise BundleError(f"{file} is larger than {_LARGEST_FILE} bytes: it is not a manifest")
        value = parse(data, file)
        check_version(value, FORMAT_VERSION, file, "the manifest of a bundle", "export the bundle")
        _check_own_hash(data, value.get("sha256"), file)
        _upgrade(value)
        manifest = decode(Manifest, value, file)
        for fault in faults(manifest):
            raise BundleError(f"{file}: {fault}")
        return manifest

    def write(self, directory: Path) -> "Manifest":
        """Write `directory/manifest.json` atomically and return the manifest with its own hash filled in.

        Raises:
            BundleError: `load` would refuse this manifest.
        """
        text = json.dumps(encode(replace(self, sha256=_ZEROS)), indent=1, ensure_ascii=False) + "\n"
        digest = hashlib.sha256(text.encode()).hexdigest()
        start = text.rindex(_ZEROS)  # the last field; other fields may contain zeros as well
        data = (text[:start] + digest + text[start + 64 :]).encode()
        manifest = Manifest.parse(data, str(directory / NAME))
        write_atomically(directory / NAME, data)
        return manifest

    def check_files(self, bundle: Files, hashes: Callable[[str], bool] = lambda name: False) -> None:
        """Check that every listed file is inside the bundle and has the listed size and, optionally, the listed hash.

        Informational files, such as README.md, may be missing.

        Args:
            bundle: the bundle.
            hashes: returns whether to compare the SHA-256 of a file too, given its name.

        Raises:
            BundleError: the first fault.
        """
        files = files_of(bundle)
        for name in self.present_files(files):
            self.check_file(files, name, contents=hashes(name))

    def present_files(self, files: Files) -> list[str]:
        """Return the names of the listed files, without missing informational files."""
        return [name for name in self.files if name not in INFORMATIONAL_FILES or exists(files, name)]

    def check_file(self, files: Files, name: str, *, contents: bool) -> None:
        """Check place, size and, with `contents`, hash of one listed file.

        Raises:
            BundleError: the file is missing, is a link that leaves the bundle, or was changed.
        """
        path = files / name
        try:
            if isinstance(files, Path):
                _check_place(files / name, files)
            check_contents(path, self.files[name], "copy or export the bundle again", hashed=contents)
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
            raise BundleError(f"{path} is missing or cannot be read: copy or export the bundle again") from error


def _read_manifest(file: File) -> bytes:
    """Return the bytes of a manifest, but no more than a manifest may have."""
    if not isinstance(file, Path):
        return bytes(file.view()[: _LARGEST_FILE + 1])
    if file.exists() and not (file.is_file() or file.is_dir()):  # to open a named pipe may take forever
        raise BundleError(f"{file} is not a file: the bundle is damaged, copy or export it again")
    with file.open("rb") as stream:
        return stream.read(_LARGEST_FILE + 1)


def _check_place(path: Path, directory: Path) -> None:
    if not path.resolve(strict=True).is_relative_to(directory.resolve()):
        raise BundleError(f"{path} is a link that leaves the bundle: copy the bundle with cp -rL")
    if not path.is_file():
        raise BundleError(f"{path} is not a file: the bundle is damaged, copy or export it again")


def check_contents(path: File, entry: FileEntry, remedy: str, hashed: bool = True) -> None:
    """Compare a file's size and, if `hashed`, its hash; `remedy` is the advice in messages.

    Raises:
        BundleError: the file was changed.
        OSError: it cannot be read.
    """
    size = size_of(path)
    if size != entry.bytes:
        raise BundleError(f"{path} has {size} bytes instead of {entry.bytes}: {remedy}")
    if hashed and hash_of(path) != entry.sha256:
        raise BundleError(f"{path} was changed (its SHA-256 differs): {remedy}")


def list_files(directory: Path) -> dict[str, FileEntry]:
    """Return size and hash of every file of an unfinished bundle, as in `Manifest.files`."""
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    included = [name for name in names if name.split("/")[0] not in UNLISTED]
    return {name: entry_of(directory / name) for name in included}


def entry_of(path: Path) -> FileEntry:
    """Return the size and hash of a file."""
    return FileEntry(path.stat().st_size, sha256(path))


def _upgrade(value: dict[str, Any]) -> None:
    """Replace `verification.fused`, a flag in bundles of older versions, by `verification.engines`."""
    verification = value.get("verification")
    if not isinstance(verification, dict) or "engines" in verification:
        return
    if isinstance(fused := verification.get("fused"), bool):
        del verification["fused"]
        verification["engines"] = ["ort", "fused"] if fused else ["ort"]


def _check_own_hash(data: bytes, recorded: object, file: str) -> None:
    if not isinstance(recorded, str) or not HEX.fullmatch(recorded):
        raise BundleError(f"{file} lacks the field 'sha256' (64 lower-case hexadecimal digits): it is incomplete")
    if recorded.encode() in data:
        start = data.rindex(recorded.encode())
    else:
        start = 0
    if hashlib.sha256(data[:start] + _ZEROS.encode() + data[start + 64 :]).hexdigest() != recorded:
        raise BundleError(f"{file} was changed after it was written (its own sha256 differs): get the bundle again")


def graph_of(bundle: Files, manifest: Manifest, role: OptionalRole) -> Graph:
    """Return the graph of a role.

    Raises:
        BundleError: the bundle has none.
    """
    graph = manifest.optional_graph(role)
    if graph is None:
        raise BundleError(
            f"{bundle} has no graph of the role {role!r}, which {_FEATURES_OF_ROLE[role]}: "
            "export it again with tx-export --with-attention"
        )
    return graph
