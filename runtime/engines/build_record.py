"""build.json: contents of a directory of TensorRT engines, their bundle, and the machines on which they run.

The classes mirror the file field by field. `runtime/cpp` reads it by the same rules; both are tested with the files in
`tests/data/engines`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from txport.runtime.bundle.manifest import check_contents
from txport.runtime.bundle.rules import HEX
from txport.runtime.bundle.schema import FileEntry, MadeBy, Range, Role, added
from txport.runtime.bundle.strict_json import check_version, decode, encode, parse
from txport.runtime.console.words import plural
from txport.runtime.errors import BundleError
from txport.runtime.files import write_atomically

FORMAT_VERSION = 1
NAME = "build.json"
TIMING_CACHE = "timing.cache"
# Outputs of engines whose names begin so are not read: tx-build adds them for TensorRT 8.6, against a wrong fusion.
SCORES = "self_scores_"

LibraryName = Literal["tensorrt", "tensorrt_rtx"]
Compatibility = Literal["exact", "same_compute_capability", "ampere_plus"]
IdType = Literal["int32", "int64"]
EngineRole = Literal[Role, "decoder_beams"]

TITLES: dict[LibraryName, str] = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}

_LARGEST_FILE = 1 << 20
_LARGEST_SIZE = 2**31 - 1
_VERSION = re.compile(r"\d+(\.\d+){1,3}")
_CAPABILITY = re.compile(r"\d+\.\d")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class LibraryVersion:
    """The library that built the engines, and its version."""

    name: LibraryName
    version: str

    def __str__(self) -> str:
        return f"{TITLES[self.name]} {self.version}"


@dataclass(frozen=True)
class TargetGpu:
    """The GPUs that engines are for.

    Attributes:
        name: CUDA's name; None if they were built without a GPU.
        compute_capabilities: "MAJOR.MINOR"; several only if the library builds for several.
        compatibility: "exact": only GPUs of this name and size; "same_compute_capability": GPUs with one of these;
            "ampere_plus": GPUs of compute capability 8.0 or more.
        multiprocessors: their number if `compatibility` is "exact": engines for 16 may fail on a GPU of the same name
            with 8.
    """

    name: str | None
    compute_capabilities: tuple[str, ...]
    compatibility: Compatibility
    multiprocessors: int | None


@dataclass(frozen=True)
class CudaVersions:
    """CUDA versions at the build: the newest that the driver supports, and the runtime's; for information only."""

    driver: str | None
    runtime: str | None


@dataclass(frozen=True)
class EnginePrecision:
    """Types in which the engines compute.

    Attributes:
        type: as in the manifest.
        proof: "network": the network was strongly typed and checked before the build; "inspector": the library chose
            types, which the layers of the finished engine show.
        layers: number of layers of each type, in the finished engine if it was opened, otherwise in the network.
    """

    type: Literal["float32", "float16"]
    proof: Literal["inspector", "network"]
    layers: dict[str, int]


@dataclass(frozen=True)
class Flags:
    """Settings of the builder.

    Attributes:
        optimization_level: 0 to 5.
        workspace: bytes; None for the default.
        caches: kind of layer that writes caches in the `scatter` lowering; None for `tensorscatter`.
    """

    optimization_level: int
    workspace: int | None
    caches: Literal["select", "scatter"] | None = added(None)


@dataclass(frozen=True)
class Profile:
    """Sizes of one optimization profile.

    Attributes:
        batch: rows, or sentences for beam search.
        source: source tokens.
        target: the cache length, in positions; None for an encoder.
        beams: rows of a sentence; None except for beam search.
    """

    batch: Range
    source: Range
    target: Range | None
    beams: int | None = added(None)


@dataclass(frozen=True)
class EngineFile:
    """One serialized engine; `profiles[i]` is its optimization profile i."""

    role: EngineRole
    file: str
    bytes: int
    sha256: str
    profiles: tuple[Profile, ...]


@dataclass(frozen=True)
class BuildRecord:
    """Contents of the file.

    Attributes:
        version_compatible: later versions of the same major version may load the engines too.
        bundle: names and SHA-256 of the bundle's files from which the engines were built.
        lowering: lowering of the decoder step.
        id_type: type in the engines of the manifest's int64 tensors (TensorRT 8.6 has no 64-bit integers).
        peak_memory: maximum memory of the building process, in bytes.
    """

    format_version: int
    made_by: MadeBy
    library: LibraryVersion
    gpu: TargetGpu
    cuda: CudaVersions
    version_compatible: bool
    bundle: dict[str, str]
    lowering: Literal["scatter", "tensorscatter"]
    id_type: IdType
    precision: EnginePrecision
    flags: Flags
    engines: tuple[EngineFile, ...]
    build_seconds: float
    peak_memory: int

    @staticmethod
    def load(directory: Path) -> "BuildRecord":
        """Read and validate `directory/build.json`.

        Raises:
            BundleError: it cannot be read, has a newer format, or contradicts itself.
        """
        path = directory / NAME
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST_FILE + 1)
        except OSError as error:
            raise BundleError(f"{path} cannot be read ({error.strerror})") from error
        return BuildRecord.parse(data, str(path))

    @staticmethod
    def parse(data: bytes, file: str = NAME) -> "BuildRecord":
        """Decode and validate the bytes of a build.json; `file` is its name in messages.

        Raises:
            BundleError: as for `load`.
        """
        if len(data) > _LARGEST_FILE:
            raise BundleError(f"{file} is larger than {_LARGEST_FILE} bytes: it is not the record of a build")
        value = parse(data, file)
        check_version(value, FORMAT_VERSION, file, "the record of a build", "build the engines")
        record = decode(BuildRecord, value, file)
        for fault in _faults(record):
            raise BundleError(f"{file}: {fault}")
        return record

    def write(self, directory: Path) -> None:
        """Write `directory/build.json` atomically.

        Raises:
            BundleError: `load` would refuse this record.
        """
        data = (json.dumps(encode(self), indent=1, ensure_ascii=False) + "\n").encode()
        BuildRecord.parse(data, str(directory / NAME))
        write_atomically(directory / NAME, data)

    def of_role(self, role: EngineRole) -> list[EngineFile]:
        """Return the engine files of a role."""
        return [engine for engine in self.engines if engine.role == role]

    @property
    def beams(self) -> list[int]:
        """The numbers of beams for which there are engines, ascending."""
        profiles = [profile for engine in self.of_role("decoder_beams") for profile in engine.profiles]
        return sorted({profile.beams for profile in profiles if profile.beams is not None})

    @property
    def sizes(self) -> str:
        """Return a readable summary of the sizes of the steps, such as "4 buckets, beams 4"."""
        count = sum(len(engine.profiles) for engine in self.of_role("decoder_step"))
        if self.beams:
            beams = f", beams {' and '.join(map(str, self.beams))}"
        else:
            beams = ""
        return f"{plural(count, 'bucket')}{beams}"

    def check_files(self, directory: Path) -> None:
        """Compare every engine file with its size and hash.

        Raises:
            BundleError: a file is missing or was changed.
        """
        for engine in self.engines:
            path = directory / engine.file
            try:
                check_contents(path, FileEntry(engine.bytes, engine.sha256), "run tx-build again")
            except OSError as error:
                raise BundleError(f"{path} is missing or cannot be read: run tx-build again") from error


def _faults(record: BuildRecord) -> Iterator[str]:
    """Yield invalid fields and contradictions between fields."""
    if not _VERSION.fullmatch(record.library.version):
        yield f"library.version is {record.library.version!r}, which is not two to four numbers with dots between"
    yield from _gpu_faults(record.gpu)
    if not record.bundle:
        yield "bundle is empty"
    for name, digest in record.bundle.items():
        if not HEX.fullmatch(digest):
            yield f"bundle[{name!r}] is not a sha256 of 64 lower-case hexadecimal digits"
    if [engine.role for engine in record.engines].count("encoder") != 1:
        yield "engines must have exactly one of role 'encoder'"
    if not record.of_role("decoder_step"):
        yield "engines must have at least one of role 'decoder_step'"
    counts = Counter(engine.file for engine in record.engines)
    for name in counts:
        if not _PLAIN_NAME.fullmatch(name):
            yield f"engines names the file {name!r}, which is not a plain file name"
        if counts[name] > 1:
            yield f"engines names the file {name!r} twice"
    for engine in record.engines:
        yield from _engine_faults(engine)
    yield from _bucket_faults(record)


def _gpu_faults(gpu: TargetGpu) -> Iterator[str]:
    if not gpu.compute_capabilities:
        yield "gpu.compute_capabilities is empty"
    for capability in gpu.compute_capabilities:
        if not _CAPABILITY.fullmatch(capability):
            yield f"gpu.compute_capabilities has {capability!r}, which is not like '9.0'"
    if gpu.compatibility == "exact" and (gpu.name is None or len(gpu.compute_capabilities) != 1):
        yield "gpu.compatibility is exact, which takes a name and exactly one compute capability"
    if (gpu.compatibility == "exact") != (gpu.multiprocessors is not None and gpu.multiprocessors > 0):
        yield "gpu.multiprocessors must be a positive number if gpu.compatibility is exact, else null"


def _engine_faults(engine: EngineFile) -> Iterator[str]:
    if engine.bytes < 1 or not HEX.fullmatch(engine.sha256):
        yield f"{engine.file!r} has no size or a sha256 that is not 64 lower-case hexadecimal digits"
    if not engine.profiles:
        yield f"{engine.file!r} has no profiles"
    for number, profile in enumerate(engine.profiles):
        if (profile.target is None) != (engine.role == "encoder"):
            yield f"profile {number} of {engine.file!r} has a target where it must have none, or none where it must"
        if (profile.beams is not None) != (engine.role == "decoder_beams"):
            yield f"profile {number} of {engine.file!r} has beams where it must have none, or none where it must"
        if profile.beams is not None and not 2 <= profile.beams <= _LARGEST_SIZE:
            yield f"profile {number} of {engine.file!r}: beams is {profile.beams}, which is not 2 or more"
        for name in ("batch", "source", "target"):
            sizes: Range | None = getattr(profile, name)
            if sizes is not None and not 1 <= sizes.min <= sizes.opt <= sizes.max <= _LARGEST_SIZE:
                yield f"profile {number} of {engine.file!r}: {name} must satisfy 1 <= min <= opt <= max"


def _bucket_faults(record: BuildRecord) -> Iterator[str]:
    seen: set[tuple[int, int, int | None]] = set()
    for engine in (*record.of_role("decoder_step"), *record.of_role("decoder_beams")):
        for profile in engine.profiles:
            bucket = profile.batch.max, profile.target.max if profile.target else 0, profile.beams
            if bucket in seen:
                yield f"two profiles are for a batch of {bucket[0]} with a target of {bucket[1]}"
            seen.add(bucket)
