"""Stage "tensorrt": engines of each precision, what the inspector says of them, and their golden cases."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from txport.benchmarks.gpu.engines import golden_fault, on_tensorrt
from txport.benchmarks.gpu.graphs import report_nodes
from txport.benchmarks.gpu.stage_context import Skip, StageContext
from txport.exporter.engines.inspector import engine_layers
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.directories import directories
from txport.runtime.engines.tensorrt import TensorRt, find_tensorrt
from txport.runtime.errors import TxportError

_BUILD = "import sys; sys.argv[0] = 'tx-build'; from txport.exporter.entry import build; build()"
_SECONDS = 180


def builds(context: StageContext) -> None:
    """Build every bundle, the smallest first, then the smallest again with its timing cache; run the golden cases."""
    try:
        tensorrt = find_tensorrt()
    except TxportError as error:
        raise Skip(str(error)) from None
    for number, (name, bundle) in enumerate(context.bundles.items()):
        # The next stages find the engines in the bundle; a rehearsal must leave it as it is.
        place = Path(shutil.copytree(bundle, context.scratch / name)) if context.rehearsal else bundle
        _build(context, tensorrt, name, place)
        if number == 0:
            _build(context, tensorrt, f"{name}, with the timing cache", place)
        if tensorrt.is_rtx:
            context.row("left out", bundle=name, reason="engines of TensorRT-RTX for another GPU are not run here")
            continue
        with context.checking(f"{name}: golden cases"):
            engine = on_tensorrt(place)
            report_nodes(context, name, engine, bundle=name, runs=engine.name)
            fault = golden_fault(engine, place, rows=3)
            context.check(f"{name}: golden cases", not fault, fault or "golden ids")


def _build(context: StageContext, tensorrt: TensorRt, title: str, bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    rows = [str(rows) for rows in (1, 8, 32) if rows <= manifest.limits.batch]
    targets = [str(length) for length in (64, 128) if length <= manifest.limits.target]
    sizes = [
        "--batch-buckets",
        ",".join(rows),
        "--max-batch",
        rows[-1],
        "--target-buckets",
        ",".join(targets or ["32"]),
    ]
    other = ["--compute-capability", "8.9"] if tensorrt.is_rtx and context.rehearsal else []
    command = [sys.executable, "-c", _BUILD, str(bundle), *sizes, *other, "--force", "--json"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    print(done.stderr)
    said = (done.stderr.strip().splitlines() or [""])[-1]
    context.check(f"{title}: build", done.returncode == 0, said if done.returncode else "")
    if done.returncode == 0:
        record = json.loads(done.stdout)
        library, precision = record["library"], record["precision"]
        layers = ", ".join(f"{count} in {kind}" for kind, count in precision["layers"].items())
        context.row(
            "builds",
            bundle=title,
            library=f"{library['name']} {library['version']}",
            layers=layers,
            proof=precision["proof"],
            build_seconds=record["build_seconds"],
            seconds=round(time.monotonic() - start, 1),
        )
        if not tensorrt.is_rtx:
            _inspect(context, tensorrt, title, bundle)


def _inspect(context: StageContext, tensorrt: TensorRt, title: str, bundle: Path) -> None:
    """Keep what the inspector says of each engine: names, types and tactics of its layers."""
    for file in (path for directory in directories(bundle) for path in directory.glob("*.engine")):
        with context.checking(f"{title}: inspector"):
            held = tensorrt.open_engine(file.read_bytes(), False)
            kept = context.scratch / f"{title.replace(', ', '-').replace(' ', '-')}.{file.stem}.json"
            kept.write_text(json.dumps(engine_layers(tensorrt, held[1]), indent=1))
