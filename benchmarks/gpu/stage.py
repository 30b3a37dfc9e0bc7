"""One stage in a process of its own: `python -m txport.benchmarks.gpu.stage NAME --result FILE --bundles DIRECTORY`.

A stage is a function that writes what it finds into a `StageContext`.
"""

import argparse
import importlib
from pathlib import Path

from txport.benchmarks.gpu.stage_context import Skip, StageContext
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.device.gpu import find_gpu
from txport.runtime.processes import end_with_parent

# Each stage's function as module:function, and its limit in seconds; in the order in which they run.
STAGES = {
    "environment": ("environment:environment", 60),
    "device": ("environment:device", 60),
    "onnxruntime": ("onnxruntime:matrix", 300),
    "threads": ("onnxruntime:threads", 60),
    "tensorrt": ("tensorrt:builds", 420),
    "memory": ("memory:memory", 120),
    "table": ("timing:table", 180),
    "refill": ("timing:refilling", 120),
    "cpp": ("cpp:cpp", 120),
}
WITHOUT_GPU = ("environment",)


def run(name: str, context: StageContext) -> None:
    """Run a stage, unless there is no GPU for it."""
    if name not in WITHOUT_GPU and isinstance(gpu := find_gpu(), str):
        return context.check("the GPU that was here before", False, gpu) if context.gpu_seen else context.skip(gpu)
    module, function = STAGES[name][0].split(":")
    try:
        getattr(importlib.import_module(f"txport.benchmarks.gpu.{module}"), function)(context)
    except Skip as reason:
        context.skip(str(reason))


def bundles_in(directory: Path) -> dict[str, Path]:
    """Bundles by the names of their directories, those with the smallest weights first."""
    found = {path.parent.name: path.parent for path in directory.glob("*/manifest.json")}
    weights = {name: Manifest.load(path).files[WEIGHTS].bytes for name, path in found.items()}
    return {name: found[name] for name in sorted(found, key=lambda name: (weights[name], name))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--result", type=Path, required=True, help="The file for what is found.")
    parser.add_argument("--bundles", type=Path, required=True, help="A directory of bundles.")
    parser.add_argument("--scratch", type=Path, required=True, help="A directory for engines and files to keep.")
    parser.add_argument("--programs", type=Path, help="The directory of txport-translate and txport-bench.")
    parser.add_argument("--rehearsal", action="store_true", help="The driver is one in host memory.")
    parser.add_argument("--gpu-seen", action="store_true", help="An earlier stage has used the GPU.")
    options = parser.parse_args()
    end_with_parent()
    arguments = (options.rehearsal, options.programs, options.scratch, options.gpu_seen)
    run(options.stage, StageContext(options.result, bundles_in(options.bundles), *arguments))


if __name__ == "__main__":
    main()
