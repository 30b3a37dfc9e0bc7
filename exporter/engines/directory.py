"""Directory of TensorRT engines: name, lock, contents and record. It is renamed into place when it is complete."""

import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Literal

from txport.exporter.engines.builder import BuildOptions, EngineBuilder
from txport.exporter.engines.check import try_engines
from txport.exporter.engines.process import BuildCrashed, run_apart
from txport.exporter.engines.profiles import Buckets, beam_profiles, encoder_profiles, step_profiles
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.schema import Lowering, MadeBy
from txport.runtime.bundle.strict_json import encode
from txport.runtime.device.gpu import Gpu, dotted
from txport.runtime.engines.build_record import (
    FORMAT_VERSION,
    NAME,
    TIMING_CACHE,
    BuildRecord,
    CudaVersions,
    EngineFile,
    EnginePrecision,
    Flags,
    LibraryName,
    TargetGpu,
)
from txport.runtime.engines.directories import user_engines
from txport.runtime.engines.tensorrt import TensorRt, find_tensorrt
from txport.runtime.errors import BundleError, InputError
from txport.runtime.files import new_directory, remove_leftovers, write_atomically
from txport.runtime.system import Lock, process_memory
from txport.runtime.version import VERSION

_log = logging.getLogger("txport")


@dataclass(frozen=True)
class BuildPlan:
    """Graphs, options and GPU of a build. It is pickled for the process that builds."""

    bundle: Path
    library: LibraryName
    lowerings: tuple[Lowering, ...]  # in order of preference
    buckets: Buckets
    options: BuildOptions
    gpu: TargetGpu
    driver: str | None


def target_gpu(tensorrt: TensorRt, gpu: Gpu | str, capabilities: tuple[str, ...], ampere_plus: bool) -> TargetGpu:
    """Return the GPU to build for.

    Args:
        tensorrt: the library.
        gpu: the GPU of this machine, or the reason why none is available.
        capabilities: compute capabilities to build for, if they were given (TensorRT-RTX only).
        ampere_plus: build for all GPUs of compute capability 8.0 or more.

    Raises:
        InputError: no GPU is available and no capabilities are given, or capabilities are given and the library is not
            TensorRT-RTX.
    """
    if tensorrt.is_rtx:
        if not capabilities:
            if isinstance(gpu, str):
                raise InputError(f"{gpu}: name the GPU to build for, as --compute-capability 8.9")
            capabilities = (gpu.compute_capability,)
        if isinstance(gpu, Gpu):
            name = gpu.name
        else:
            name = None
        return TargetGpu(name, capabilities, "same_compute_capability", None)
    if capabilities:
        raise InputError(f"{tensorrt.library} builds for the GPU of this machine: leave --compute-capability out")
    if isinstance(gpu, str):
        raise InputError(f"{gpu}: {tensorrt.library} can only build on the GPU that will run the engines")
    if ampere_plus:
        return TargetGpu(gpu.name, (gpu.compute_capability,), "ampere_plus", None)
    return TargetGpu(gpu.name, (gpu.compute_capability,), "exact", gpu.multiprocessors)


def build_directory(
    plan: BuildPlan,
    manifest: Manifest,
    version: str,
    *,
    timing_cache: Path | None,
    timeout: float | None,
    force: bool,
    progress: Callable[[str, float], None],
) -> Path:
    """Build all engines of a plan and return their directory, which is renamed into place after all checks.

    Args:
        plan: what to build.
        manifest: of the bundle.
        version: of the library.
        timing_cache: file of timing measurements to read and write. None: read that of the directory to be replaced,
            if there is one. The new directory always contains the measurements.
        timeout: of the build, in seconds; None for no limit.
        force: replace an existing directory of the same plan.
        progress: called with (file, fraction done from 0 to 1).

    Raises:
        InputError: the directory exists, is being built by another process, or cannot be written.
        BundleError, CheckFailed: see `EngineBuilder.build` and `try_engines`.
    """
    target = user_engines(manifest) / directory_name(plan, manifest, version)
    with _build_lock(target):
        remove_leftovers(target.parent)  # also of other plans
        if target.exists() and not force:
            raise InputError(f"{target} exists already: use it, or build it again with --force")
        cache = timing_cache or target / TIMING_CACHE
        if cache.is_file():
            timings = cache.read_bytes()
        else:
            timings = b""
        with new_directory(target, replace=force, marker=NAME) as directory:
            new_timings = _build_in_process(plan, directory, timings, timeout, progress)
        if timing_cache is not None and new_timings:
            write_atomically(timing_cache, new_timings)
    return target


def _build_in_process(
    plan: BuildPlan, directory: Path, timings: bytes, timeout: float | None, progress: Callable[[str, float], None]
) -> bytes:
    """Build in a separate process. After a crash with `BuildOptions.select_caches`, build once more without it.

    Caches are then written by ScatterElements instead of `Where`. TensorRT-RTX 1.7.1 crashes with `Where` in a step
    with one decoder layer.
    """
    start = monotonic()
    try:
        return run_apart(partial(_build, plan, directory, timings), timeout, progress)
    except BuildCrashed as crash:
        if not plan.options.select_caches or "scatter" not in plan.lowerings:
            raise
        _log.warning("%s; building once more, with caches written by ScatterElements", crash)
    for file in directory.iterdir():
        file.unlink()
    if timeout is not None:
        timeout -= monotonic() - start
    plan = replace(plan, options=replace(plan.options, select_caches=False))
    return run_apart(partial(_build, plan, directory, timings), timeout, progress)


def directory_name(plan: BuildPlan, manifest: Manifest, version: str) -> str:
    """Return a readable name from the GPU, the library and a hash of all options."""
    identity = {
        "bundle": sources(plan, manifest),
        "gpu": encode(plan.gpu),
        "options": encode(plan.options),
        "buckets": encode(plan.buckets),
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    gpus = "+".join("sm" + capability.replace(".", "") for capability in plan.gpu.compute_capabilities)
    if plan.library == "tensorrt_rtx":
        library = "trt_rtx"
    else:
        library = "trt"
    return f"{gpus}-{library}{version}-{digest}"


def sources(plan: BuildPlan, manifest: Manifest) -> dict[str, str]:
    """Return the SHA-256 of each file of the bundle that the engines are built from, by name."""
    if plan.buckets.beams:
        beams = manifest.optional_graph("decoder_beams")
    else:
        beams = None
    graphs = [manifest.encoder, *(manifest.step(name) for name in plan.lowerings), *([beams] if beams else [])]
    return {name: manifest.files[name].sha256 for name in [*(graph.file for graph in graphs), WEIGHTS]}


@contextmanager
def _build_lock(target: Path) -> Iterator[None]:
    """Hold the lock for engines of the bundle. Concurrent builds would also disturb each other's timings."""
    file = target.with_name(".lock")
    try:
        file.parent.parent.mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(mode=0o700, exist_ok=True)  # engines are executed, so only the user may write them
        file.touch(0o644)
        lock = Lock(file)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error.strerror}): set TXPORT_CACHE to another folder"
        ) from error
    try:
        if lock.held_by_another:
            raise InputError(f"another tx-build is writing into {target.parent}: wait until it has finished")
        yield
    finally:
        lock.close()


def _build(plan: BuildPlan, directory: Path, timings: bytes, progress: Callable[[str, float], None]) -> bytes:
    """Write all engines and the record, check them, and return the timing cache. Runs in the separate process."""
    tensorrt = find_tensorrt(plan.library)
    manifest = Manifest.load(plan.bundle)
    builder = EngineBuilder(tensorrt, plan.bundle, manifest, plan.options, directory, timings, progress)
    record = _write_record(plan, builder)
    if new_timings := builder.timing_cache:
        (directory / TIMING_CACHE).write_bytes(new_timings)
    del builder  # frees its memory
    try_engines(plan.bundle, directory, record, manifest, tensorrt)
    return new_timings


def _write_record(plan: BuildPlan, builder: EngineBuilder) -> BuildRecord:
    """Build all engines of a plan, then write the record."""
    start = monotonic()
    tensorrt = builder.tensorrt
    manifest = builder.manifest
    lowering, engines = _build_engines(builder, plan)
    engines += tuple(_build_beams(builder, plan.buckets))
    record = BuildRecord(
        format_version=FORMAT_VERSION,
        made_by=MadeBy("txport", VERSION),
        library=tensorrt.library,
        gpu=plan.gpu,
        cuda=CudaVersions(plan.driver, _cuda_runtime()),
        version_compatible=plan.options.version_compatible,
        bundle=sources(replace(plan, lowerings=(lowering,)), manifest),
        lowering="tensorscatter" if lowering == "tensorscatter" else "scatter",
        id_type=tensorrt.id_type,
        precision=EnginePrecision(
            manifest.precision.type, "network" if tensorrt.strongly_typed else "inspector", builder.layers
        ),
        flags=Flags(plan.options.optimization_level, plan.options.workspace, _caches(plan.options, lowering)),
        engines=engines,
        build_seconds=round(monotonic() - start, 3),
        peak_memory=process_memory("VmHWM") or 0,
    )
    record.write(builder.directory)
    return record


def _caches(options: BuildOptions, lowering: Lowering) -> Literal["select", "scatter"] | None:
    if lowering != "scatter":
        return None
    return "select" if options.select_caches else "scatter"


def _build_engines(builder: EngineBuilder, plan: BuildPlan) -> tuple[Lowering, tuple[EngineFile, ...]]:
    """Build the encoder, and the decoder step in the first lowering that the library can build. Return both."""
    manifest = builder.manifest
    buckets = plan.buckets
    start = monotonic()
    encoder = builder.build(manifest.encoder, "encoder.plan", encoder_profiles(manifest, buckets))
    if estimate := _estimate(monotonic() - start, len(encoder.profiles), buckets.profiles):
        _log.warning("%s", estimate)
    for lowering in plan.lowerings:
        try:
            return lowering, (encoder, *_build_steps(builder, lowering, buckets))
        except BundleError as error:
            if lowering == plan.lowerings[-1]:
                raise
            # The library has attention kernels only for some head sizes.
            _log.warning("%s: trying the next lowering", error)
            for file in builder.directory.glob("decoder_step*"):
                file.unlink()
    raise AssertionError("a plan has at least one lowering")


def _estimate(seconds: float, done: int, count: int) -> str | None:
    """Return a message about the estimated time for the other profiles; None if it is less than a minute."""
    minutes = seconds / done * (count - done) / 60
    if minutes < 1:
        return None
    return (
        f"built {done} of {count} profiles in {seconds:.0f} s: the others take about {minutes:.0f} minutes; fewer or "
        "smaller --batch-buckets and --target-buckets take less"
    )


def _build_steps(builder: EngineBuilder, lowering: Lowering, buckets: Buckets) -> Iterator[EngineFile]:
    """Build one engine for all buckets, so that weights are stored once.

    The cache length of `tensorscatter` is static, so this lowering needs one engine for each cache length.
    """
    manifest = builder.manifest
    step = manifest.step(lowering)
    if lowering != "tensorscatter":
        yield builder.build(step, "decoder_step.plan", step_profiles(manifest, buckets.batches, buckets.targets))
        return
    for target in buckets.targets:
        profiles = step_profiles(manifest, buckets.batches, [target])
        yield builder.build(step, f"decoder_step.{target}.plan", profiles, target)


def _build_beams(builder: EngineBuilder, buckets: Buckets) -> Iterator[EngineFile]:
    """Build one engine for each number of beams and cache length, which are both static."""
    graph = builder.manifest.optional_graph("decoder_beams")
    for beams, target in itertools.product(buckets.beams, buckets.targets):
        assert graph is not None, "beams were chosen for a bundle that has their step"
        profiles = beam_profiles(builder.manifest, buckets, beams, target)
        try:
            yield builder.build(graph, f"decoder_beams.{beams}.{target}.plan", profiles, target)
        except BundleError as error:
            raise BundleError(f"{error}; --beams 1 builds no step of beam search") from error


def _cuda_runtime() -> str | None:
    """Return the CUDA version of cuda-python, or None if it is not installed."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return None
    error, version = runtime.cudaRuntimeGetVersion()
    if int(error):
        return None
    return dotted(version)
