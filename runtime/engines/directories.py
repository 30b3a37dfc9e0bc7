"""Choice of TensorRT engines of a bundle that fit this machine, and reasons against all others.

An engine is native code, and a bundle may be untrusted. So tx-build writes engines into this user's cache. Engines in a
bundle, as earlier versions wrote them, run only if the caller trusts them.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.names import cache_directory
from txport.runtime.bundle.schema import WEIGHTS
from txport.runtime.device.gpu import Gpu
from txport.runtime.engines.build_record import NAME, BuildRecord, LibraryVersion
from txport.runtime.errors import BundleError
from txport.runtime.system import is_private

ENGINES = "engines"


@dataclass(frozen=True)
class Built:
    """Directory of engines and its record."""

    directory: Path
    record: BuildRecord


@dataclass(frozen=True)
class Candidates:
    """Fitting engines, the best first, and (name, reason) of every other directory, in name order."""

    fitting: tuple[Built, ...]
    refused: tuple[tuple[str, str], ...]


def user_engines(manifest: Manifest) -> Path:
    """Return this user's folder of engines for a bundle, named by the hashes of its graphs and weights."""
    folder = f"{WEIGHTS.partition('/')[0]}/"
    # Engines depend on graphs and weights only, so a new tokenizer or model card does not require a new build.
    hashes = sorted((name, entry.sha256) for name, entry in manifest.files.items() if name.startswith(folder))
    digest = hashlib.sha256("".join(f"{name} {sha256}\n" for name, sha256 in hashes).encode()).hexdigest()
    return cache_directory() / ENGINES / digest


def candidates(
    bundle: Path, manifest: Manifest, gpu: Gpu, library: LibraryVersion, trust_engines: bool = False
) -> Candidates:
    """Check the record of every directory of trusted engines, without opening engine files.

    Args:
        bundle: the bundle.
        manifest: its manifest.
        gpu: the GPU of this machine.
        library: the installed TensorRT.
        trust_engines: whether engines in the bundle may run too.
    """
    fitting: list[Built] = []
    refused: list[tuple[str, str]] = []
    for directory in usable_directories(bundle, manifest, trust_engines):
        try:
            record = BuildRecord.load(directory)
        except BundleError as error:
            refused.append((directory.name, str(error).removeprefix(f"{directory}/")))
            continue
        if (reason := misfit(record, manifest, gpu, library)) is not None:
            refused.append((directory.name, reason))
        else:
            fitting.append(Built(directory, record))
    return Candidates(tuple(sorted(fitting, key=_rank)), tuple(refused))


def best(bundle: Path, manifest: Manifest, gpu: Gpu, library: LibraryVersion, trust_engines: bool = False) -> Built:
    """Return the engines to run; see `candidates`.

    Raises:
        BundleError: none fits. The message lists engines, GPU and library, and contains the command to build engines.
    """
    checked = candidates(bundle, manifest, gpu, library, trust_engines)
    if checked.fitting:
        return checked.fitting[0]
    machine = f"{gpu.name}, compute capability {gpu.compute_capability}, {library}"
    reasons = "; ".join(f"{ENGINES}/{name}: {reason}" for name, reason in checked.refused) or "there is none"
    raise BundleError(
        f"no TensorRT engine of {bundle} fits this machine ({machine}): {reasons}; run tx-build {bundle} here"
        + ("" if trust_engines or not directories(bundle / ENGINES) else f"; {untrusted(bundle)}")
    )


def untrusted(bundle: Path) -> str:
    """Return a sentence about untrusted engines of a bundle, with advice."""
    return (
        f"the engines in {bundle / ENGINES} are native code of a third party and are not used: run tx-build "
        f"{bundle}, or trust them with --trust-engines (trust_engines=True)"
    )


def usable_directories(bundle: Path, manifest: Manifest, trust_engines: bool) -> list[Path]:
    """Return directories of trusted engines: this user's, then those of the bundle if the caller trusts them.

    Raises:
        BundleError: other users can write this user's engines.
    """
    user_folder = user_engines(manifest)
    user_directories = directories(user_folder)
    if user_directories and not is_private(user_folder):
        raise BundleError(
            f"other users can write the TensorRT engines in {user_folder}: remove it, and run tx-build {bundle}"
        )
    return [*user_directories, *(directories(bundle / ENGINES) if trust_engines else ())]


def directories(folder: Path) -> list[Path]:
    """Return directories of engines in name order, without hidden ones, which are unfinished builds."""
    records = folder.glob(f"*/{NAME}")
    return sorted((path.parent for path in records if not path.parent.name.startswith(".")), key=lambda path: path.name)


def misfit(record: BuildRecord, manifest: Manifest, gpu: Gpu, library: LibraryVersion) -> str | None:
    """Return the reason why these engines must not run, or None if they may."""
    for name, digest in record.bundle.items():
        if name not in manifest.files or manifest.files[name].sha256 != digest:
            return "was built from another bundle"
    if not _version_fits(record, library):
        return f"needs {record.library}, but {library} is installed"
    target = record.gpu
    capabilities = ", ".join(target.compute_capabilities)
    is_match = False
    size = ""
    detail = ""
    if target.compatibility == "exact":
        if (target.name, target.compute_capabilities) == (gpu.name, (gpu.compute_capability,)):
            is_match = target.multiprocessors == gpu.multiprocessors
            size = f" of {target.multiprocessors} multiprocessors"
            detail = f" of {gpu.multiprocessors}"
        requirement = f"{target.name} ({capabilities}){size}"
    elif target.compatibility == "same_compute_capability":
        is_match = gpu.compute_capability in target.compute_capabilities
        requirement = f"compute capability {capabilities}"
    else:
        is_match = float(gpu.compute_capability) >= 8
        requirement = "compute capability 8.0 and later"
    if is_match:
        return None
    return f"is for {requirement}, but this machine has {gpu}{detail}"


def _version_fits(record: BuildRecord, library: LibraryVersion) -> bool:
    if record.library == library:
        return True
    version_built = _numbers(record.library.version)
    version_installed = _numbers(library.version)
    # NVIDIA promises version compatibility only within a major version, and only for later ones.
    is_same_major = record.library.name == library.name and version_built[0] == version_installed[0]
    return record.version_compatible and is_same_major and version_installed >= version_built


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def _rank(built: Built) -> tuple[bool, bool, int, str]:
    """Return the sort key: engines for exactly this GPU, then for exactly this version, then with the largest batch."""
    record = built.record
    batch = max(profile.batch.max for engine in record.of_role("decoder_step") for profile in engine.profiles)
    return record.gpu.compatibility != "exact", record.version_compatible, -batch, built.directory.name
