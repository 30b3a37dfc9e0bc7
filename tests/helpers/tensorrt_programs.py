"""Programs of TensorRT engines on the fake library in memory, in the form of tx-build."""

import hashlib
import itertools
from pathlib import Path
from typing import Any

from device_engines import manifest_of, step_of
from memory_device import BOUND, HashProgram, MemoryDevice
from memory_tensorrt import MemoryTensorRt
from patches import Value, records, text
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.engines.trt import TrtProgram

BATCHES, TARGETS = (1, 4), (32, 100)


def sizes(least: int, best: int, most: int) -> Value:
    return {"min": least, "opt": best, "max": most}


def profile(batch: int, target: int | None, beams: int | None = None) -> Value:
    """Return a bucket in the form of tx-build: an encoder supports any batch up to it, a step only this size."""
    more = {} if beams is None else {"beams": beams}
    return more | {
        "batch": sizes(1 if target is None else batch, batch, batch),
        "source": sizes(1, 32, BOUND.source),
        "target": None if target is None else sizes(target, target, target),
    }


def engine(role: str, file: str, profiles: list[Value]) -> Value:
    return {"role": role, "file": file, "profiles": profiles}


def record_in(
    directory: Path, one_file: bool = True, version: str = "8.6.0", beams: tuple[int, ...] = ()
) -> BuildRecord:
    """Write engine files that contain their own names, and return their build record."""
    steps = [profile(batch, target) for batch in BATCHES for target in TARGETS]
    value = records().value("tensorrt_8_6") | {
        "library": {"name": "tensorrt", "version": version},
        "id_type": "int32" if version.startswith("8") else "int64",
        "engines": [engine("encoder", "encoder.plan", [profile(batch, None) for batch in BATCHES])],
    }
    if one_file:
        value["engines"].append(engine("decoder_step", "decoder_step.plan", steps))
    else:  # one file for each cache length, as for layers with a fixed length
        for target in TARGETS:
            profiles = [profile(batch, target) for batch in BATCHES]
            value["engines"].append(engine("decoder_step", f"decoder_step.{target}.plan", profiles))
    for count, target in itertools.product(beams, TARGETS):
        profiles = [profile(batch, target, count) for batch in sorted({1, BATCHES[-1] // count})]
        value["engines"].append(engine("decoder_beams", f"decoder_beams.{count}.{target}.plan", profiles))
    for file in value["engines"]:
        plan = file["file"].encode()
        (directory / file["file"]).write_bytes(plan)
        file |= {"bytes": len(plan), "sha256": hashlib.sha256(plan).hexdigest()}
    return BuildRecord.parse(text(value))


def open_program(
    directory: Path,
    device: MemoryDevice | None = None,
    shared: bool = True,
    one_file: bool = True,
    features: bool = False,
    **changes: Any,
) -> tuple[TrtProgram, MemoryTensorRt]:
    """Return a program with engines in `directory`, and the library that runs them."""
    manifest = manifest_of(features=features)
    record = record_in(directory, one_file, **changes)
    device = MemoryDevice() if device is None else device
    model = HashProgram(device, manifest, step_of(manifest), BATCHES, TARGETS)
    model.id_type = record.id_type
    library = MemoryTensorRt(model, manifest, record, shared)
    return TrtProgram(directory, record, manifest, library, device), library  # type: ignore[arg-type]


def trt_engine(program: TrtProgram, library: MemoryTensorRt) -> DeviceEngine:
    """Return the engine for the results of `open_program`."""
    return DeviceEngine(library.model.device, library.manifest, program)
