"""Stage "cpp": the C++ tools, on the same bundles."""

import json
import subprocess
from pathlib import Path

from txport.benchmarks.gpu.engines import largest
from txport.benchmarks.gpu.notebook import Notebook, Skip
from txport.benchmarks.gpu.timing import BATCHES, SOURCE, TARGET
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.directories import directories
from txport.runtime.golden import load_golden


def cpp(notebook: Notebook) -> None:
    """Golden cases by txport-translate, and whole calls by txport-bench."""
    if notebook.programs is None:
        raise Skip("the C++ tools are not here: build them with make cpp, and name their directory with --programs")
    for name, bundle in notebook.bundles.items():
        devices = ["cuda", *(["trt"] if directories(bundle) else [])]
        for device in ["cpu"] if notebook.rehearsal else devices:
            _golden(notebook, notebook.programs, name, device)
    bundle = largest(notebook)
    limits = Manifest.load(bundle).limits
    for batch in (batch for batch in BATCHES if batch <= limits.batch):
        sizes = {
            "batch": batch,
            "source": min(SOURCE, limits.source),
            "target": min(TARGET, limits.target),
            "calls": 50,
        }
        options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        command = [str(notebook.programs / "txport-bench"), str(bundle), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode:
            notebook.check(f"txport-bench, batch {batch}", False, done.stderr.strip())
            continue
        figures = json.loads(done.stdout)
        times = {f"{name}_ms_per_token": value for name, value in figures["figures"]["ms_per_token"].items()}
        notebook.row(f"C++, whole calls, {bundle.name}", engine=str(figures["engine"]), batch=batch, **times)


def _golden(notebook: Notebook, programs: Path, name: str, device: str) -> None:
    bundle = notebook.bundles[name]
    cases = [case for case in load_golden(bundle).cases if case.source]
    title = f"{name} on {device}: golden cases in C++"
    if not cases:
        return
    command = [str(programs / "txport-translate"), str(bundle), "--device", device, "--json"]
    text = "".join(f"{case.source}\n" for case in cases)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    found = [json.loads(line)["ids"] for line in done.stdout.splitlines()]
    pairs = zip(cases, found, strict=False)
    right = sum(ids[: len(case.target_ids)] == list(case.target_ids) for case, ids in pairs)
    notebook.check(title, right == len(cases), done.stderr.strip() or f"{right} of {len(cases)} have golden ids")
