"""tx-verify --layers: print the values of a bundle's graphs that a device's precision costs most."""

import dataclasses
import json
from pathlib import Path

import click
from txport.exporter.verification.layer_errors import LayerError, layer_errors, worst
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.strict_json import finite
from txport.runtime.device.gpu import usable_gpu
from txport.runtime.engines.tensorrt import find_tensorrt
from txport.runtime.errors import CheckFailed, InputError
from txport.runtime.files import scratch_directory

_SHOWN = 20
_WHERE = (("cpu", "ort"), ("cuda", "ort"), ("cuda", "trt"))


def verify_layers(bundle: Path, manifest: Manifest, device: str, engine: str, *, as_json: bool) -> None:
    """Compare and print; see `txport.exporter.verification.layer_errors`.

    Raises:
        InputError: there are no layers to compare on this device with this engine.
        CheckFailed: a value is not finite.
    """
    where = (device, "ort" if engine == "auto" else engine)
    if where not in _WHERE:
        choices = ", ".join(f"device {device} with engine {engine}" for device, engine in _WHERE)
        raise InputError(f"--layers cannot run on device {device} with engine {engine}: choose {choices}")
    lowering = manifest.lowerings[0]
    if where[1] == "trt":
        usable_gpu("engine trt")
        lowering = find_tensorrt().lowering
    with scratch_directory() as scratch:
        errors = layer_errors(bundle, manifest, where, lowering, scratch)
    if as_json:
        click.echo(json.dumps(finite([dataclasses.asdict(each) for each in errors]), indent=1))
    else:
        click.echo(_table(errors))
    if broken := [each for each in errors if not each.finite]:
        first = broken[0]
        raise CheckFailed(
            f"{bundle}: {len(broken)} values are not finite, the first is {first.value} of {first.node} "
            f"({first.operator}) in {first.graph}: export it without --fp16, or leave that layer in float32"
        )


def _table(errors: list[LayerError]) -> str:
    shown = worst(errors, _SHOWN)
    lines = [
        f"{len(errors)} values compared with float32; the {len(shown)} with the largest relative errors, in order:",
        f"{'relative':>9} {'error':>9} {'of':>9}  node",
    ]
    lines += [
        f"{each.relative:9.2g} {each.error:9.2g} {each.largest:9.3g}  {each.graph}: {each.node or each.value} "
        f"({each.operator})"
        for each in shown
    ]
    return "\n".join(lines)
