"""Stage "cpp": the C++ tools, on the same bundles."""

import json
import os
import subprocess
import sys
from pathlib import Path

from txport.benchmarks.gpu.engines import largest, need_opener, openers
from txport.benchmarks.gpu.stage_context import Skip, StageContext
from txport.benchmarks.gpu.timing import BATCHES, SOURCE, TARGET
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.golden import load_golden


def cpp(context: StageContext) -> None:
    """Golden cases by txport-translate, and whole calls by txport-bench."""
    if context.programs is None:
        raise Skip("the C++ tools are not here: build them with make cpp, and name their directory with --programs")
    environment, bundle = surroundings(context.programs), largest(context)
    need_opener(context, bundle)
    for name in context.bundles:
        for device in openers(context, context.bundles[name]):
            _golden(context, context.programs, name, "cpu" if context.rehearsal else device, environment)
    limits = Manifest.load(bundle).limits
    for batch in (batch for batch in BATCHES if batch <= limits.batch):
        sizes = {
            "batch": batch,
            "source": min(SOURCE, limits.source),
            "target": min(TARGET, limits.target),
            "calls": 50,
        }
        options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        command = [str(context.programs / "txport-bench"), str(bundle), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        if done.returncode:
            context.check(f"txport-bench, batch {batch}", False, done.stderr.strip())
            continue
        figures = json.loads(done.stdout)
        times = {f"{name}_ms_per_token": value for name, value in figures["figures"]["ms_per_token"].items()}
        runs = {"engine": str(figures["engine"]), "reason": str(figures["reason"])}
        context.row(f"C++, whole calls, {bundle.name}", **runs, batch=batch, **times)


def surroundings(programs: Path) -> dict[str, str]:
    """The environment in which the tools find the libraries beside them, and those that pip has installed."""

    def found(pattern: str) -> list[str]:
        return [str(path.absolute()) for place in sys.path for path in sorted(Path(place or ".").glob(pattern))]

    patterns = ("nvidia/*/lib", "tensorrt_libs", "tensorrt")
    places = [*filter(None, [os.environ.get("LD_LIBRARY_PATH")]), *sum(map(found, patterns), []), str(programs / "lib")]
    onnxruntime = [("TXPORT_ONNXRUNTIME", library) for library in found("onnxruntime/capi/libonnxruntime.so.*")[:1]]
    return {**dict(onnxruntime), **os.environ, "LD_LIBRARY_PATH": os.pathsep.join(places)}


def _golden(context: StageContext, programs: Path, name: str, device: str, environment: dict[str, str]) -> None:
    bundle = context.bundles[name]
    cases = [case for case in load_golden(bundle).cases if case.source]
    title = f"{name} on {device}: golden cases in C++"
    if not cases:
        return
    command = [str(programs / "txport-translate"), str(bundle), "--device", device, "--json"]
    text = "".join(f"{case.source}\n" for case in cases)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, env=environment)
    found = [json.loads(line)["ids"] for line in done.stdout.splitlines()]
    pairs = zip(cases, found, strict=False)
    right = sum(ids[: len(case.target_ids)] == list(case.target_ids) for case, ids in pairs)
    context.check(title, right == len(cases), done.stderr.strip() or f"{right} of {len(cases)} have golden ids")
