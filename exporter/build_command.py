"""Command tx-build: build TensorRT engines of a bundle, for this machine's GPU or for named GPUs."""

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from txport.exporter.engines.builder import BuildOptions
from txport.exporter.engines.directory import BuildPlan, build_directory, sources, target_gpu
from txport.exporter.engines.profiles import choose_beams, choose_buckets
from txport.runtime.bundle.argument import BUNDLE_DIRECTORY
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.bundle.strict_json import encode
from txport.runtime.console.progress import Stages
from txport.runtime.device.gpu import Gpu, find_gpu
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.engines.tensorrt import TensorRt, find_tensorrt
from txport.runtime.errors import BundleError, InputError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LOWERINGS: tuple[Lowering, ...] = ("scatter", "tensorscatter")


def _numbers(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", value):
        raise click.BadParameter(f"{value!r} is not a list of whole numbers: give for example 1,8,32")
    return tuple(int(number) for number in value.split(","))


def _bytes(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    match = re.fullmatch(r"(\d+)([KMG]?)", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a number of bytes: give for example 512M or 4G")
    return int(match[1]) * _UNITS[match[2]]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE_DIRECTORY)
@click.option("--max-batch", type=int, help="Maximum batch size in rows. [default: the bundle's maximum]")
@click.option(
    "--batch-buckets",
    metavar="N,N,...",
    callback=_numbers,
    help="Batch sizes to optimize for. [default: 1,8,32,... and --max-batch; on small GPUs 1,8]",
)
@click.option(
    "--target-buckets",
    metavar="N,N,...",
    callback=_numbers,
    help="Cache lengths. [default: 32,64,... and the bundle's maximum; on small GPUs two]",
)
@click.option(
    "--beams",
    metavar="N,N,...",
    callback=_numbers,
    help="Numbers of beams to build beam search for, 1 for none. [default: the model's generation setting]",
)
@click.option(
    "--lowering",
    type=click.Choice(_LOWERINGS),
    help="Decoder step graph. [default: the best for the installed TensorRT]",
)
@click.option(
    "--workspace",
    metavar="BYTES",
    callback=_bytes,
    help="Maximum device memory for temporaries, for example 4G. [default: TensorRT's limit]",
)
@click.option(
    "--optimization-level",
    type=click.IntRange(0, 5),
    default=3,
    show_default=True,
    help="Optimization level of TensorRT.",
)
@click.option("--timing-cache", type=click.Path(path_type=Path), help="Timing cache to read and update.")
@click.option(
    "--hardware-compatible",
    "ampere_plus",
    is_flag=True,
    help="Build engines that run on every GPU since Ampere. They are slower.",
)
@click.option(
    "--version-compatible",
    is_flag=True,
    help="Build engines that later TensorRT releases of the same major version can load.",
)
@click.option(
    "--compute-capability",
    multiple=True,
    help="Compute capability of a GPU to build for, for example 8.9; TensorRT-RTX only. Repeatable.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Maximum build time in seconds.")
@click.option("--force", is_flag=True, help="Rebuild engines that exist, using their timing cache.")
@click.option("--json", "as_json", is_flag=True, help="Print the build's record as JSON.")
def main(
    bundle: Path,
    max_batch: int | None,
    batch_buckets: tuple[int, ...] | None,
    target_buckets: tuple[int, ...] | None,
    beams: tuple[int, ...] | None,
    lowering: Lowering | None,
    timing_cache: Path | None,
    compute_capability: tuple[str, ...],
    timeout: float | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Build TensorRT engines of BUNDLE for the GPU of this machine and store them in the cache (TXPORT_CACHE)."""
    logging.basicConfig(format="%(message)s")
    manifest = Manifest.load(bundle)
    if manifest.precision.weights == "int8":
        raise InputError(
            f"{bundle} has int8 weights, which are for ONNX Runtime: export the checkpoint with --fp16 for TensorRT"
        )
    # Only TensorRT-RTX can build for a named GPU. Otherwise the installed library is used, preferably TensorRT.
    tensorrt = find_tensorrt("tensorrt_rtx" if compute_capability else None)
    gpu = find_gpu()
    target = target_gpu(tensorrt, gpu, _capabilities(compute_capability), options["ampere_plus"])
    capabilities = target.compute_capabilities if tensorrt.is_rtx else ()
    multiprocessors = gpu.multiprocessors if isinstance(gpu, Gpu) else None
    buckets = choose_buckets(manifest, max_batch, batch_buckets, target_buckets, multiprocessors)
    buckets = replace(buckets, beams=choose_beams(manifest, tensorrt, buckets.batches[-1], beams))
    plan = BuildPlan(
        bundle=bundle.resolve(),
        library=tensorrt.library.name,
        lowerings=_lowerings(bundle, manifest, tensorrt, lowering),
        buckets=buckets,
        options=BuildOptions(
            capabilities=capabilities,
            select_caches=tensorrt.selects_caches,
            inspect=not tensorrt.is_rtx,
            **options,
        ),
        gpu=target,
        driver=gpu.driver if isinstance(gpu, Gpu) else None,
    )
    for file in sources(plan, manifest):
        manifest.check_file(bundle, file, contents=True)
    click.echo(f"building {buckets}", err=True)
    with Stages() as stages:
        directory = build_directory(
            plan,
            manifest,
            tensorrt.library.version,
            timing_cache=timing_cache,
            timeout=timeout,
            force=force,
            progress=lambda file, part: stages.reach(file, int(100 * part), 100),
        )
    record = BuildRecord.load(directory)
    click.echo(json.dumps(encode(record), indent=1) if as_json else _summary(directory, record))


def _capabilities(capabilities: tuple[str, ...]) -> tuple[str, ...]:
    for capability in capabilities:
        if not re.fullmatch(r"\d+\.\d", capability):
            raise InputError(f"the compute capability {capability!r} is not like 8.9")
    return tuple(sorted(set(capabilities)))


def _lowerings(
    bundle: Path, manifest: Manifest, tensorrt: TensorRt, requested: Lowering | None
) -> tuple[Lowering, ...]:
    """Return the chosen lowering, or the best one for this version followed by the one that all versions can build."""
    best: tuple[Lowering, ...] = (tensorrt.lowering, "scatter")
    candidates = (requested,) if requested else tuple(dict.fromkeys(best))
    usable = tuple(name for name in candidates if name in manifest.lowerings)
    if not usable:
        raise BundleError(
            f"{bundle} has no decoder step of the lowering {candidates[0]}: export it again with that lowering"
        )
    return usable


def _summary(directory: Path, record: BuildRecord) -> str:
    size = sum(engine.bytes for engine in record.engines)
    layers = ", ".join(f"{count} layers {kind}" for kind, count in sorted(record.precision.layers.items()))
    return (
        f"{directory}: {record.library}, lowering {record.lowering}, {record.precision.type} "
        f"(by the {record.precision.proof}: {layers}), {record.sizes}, {size / 1e6:.1f} MB, "
        f"{record.build_seconds:.1f} s, {record.peak_memory / 1e6:.0f} MB of memory at most"
    )
