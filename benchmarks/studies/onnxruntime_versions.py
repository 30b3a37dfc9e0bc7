"""Golden cases and beams of bundles on each minor version of ONNX Runtime: `make test-onnxruntime`.

Each version is installed into a separate folder and runs in a separate process. Ids must be those of the bundle's
golden cases, in batches and alone, and beams those of the fused engine. A lowering that a version cannot load or would
compute wrongly must be refused with a sentence.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click

# Program for the process of one version. It prints [lowering, verdict] for each lowering.
CHILD = """
import json, pathlib, sys
from txport.runtime.errors import BundleError
from txport.runtime.golden import check_translator, load_golden
from txport.runtime.translator import Translator
bundle = pathlib.Path(sys.argv[1])
fused, golden = Translator(bundle, engine="fused", threads=1), load_golden(bundle)
sources = [case.source_ids for case in golden.cases]
beams = [each.ids for each in fused.translate_ids(sources, beam=4)]
for lowering in (*fused.manifest.lowerings, None):
    try:
        translator = Translator(bundle, "cpu", "ort", lowering, threads=1)
    except BundleError as error:
        print(json.dumps([lowering, f"refused: {error}"]))
        continue
    wrong = len(check_translator(translator, golden))
    wrong += sum(a.ids != b for a, b in zip(translator.translate_ids(sources, beam=4), beams, strict=True))
    right = "right" if lowering else f"right by {translator.engine.step_graph.lowering}"
    print(json.dumps([lowering or "auto", f"{wrong} wrong" if wrong else right]))
"""
OLDEST = (1, 20, 0)
# Versions around the first one that computes `ort` correctly.
NEIGHBOURS = {(1, 20, 0), (1, 21, 0), (1, 21, 1)}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def available() -> list[str]:
    """Return the versions for this Python: the newest of each minor version, and `NEIGHBOURS`."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", "onnxruntime"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    versions = sorted(map(numbers, re.findall(r"\d+\.\d+\.\d+(?=,|$)", output.split("versions:")[1].splitlines()[0])))
    newest = {version[:2]: version for version in versions}
    selected = {version for version in versions if version == newest[version[:2]]} | NEIGHBOURS.intersection(versions)
    return [".".join(map(str, version)) for version in sorted(selected) if version >= OLDEST]


def installed(version: str, folder: Path) -> Path:
    """Return the folder of a version, and install the version if necessary."""
    target = folder / version
    if not (target / "onnxruntime").exists():
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
        subprocess.run([*command, "--no-compile", "--target", target, f"onnxruntime=={version}"], check=True)
    return target


def verdicts(version: str, bundle: Path, folder: Path) -> dict[str, str]:
    """Return the verdict on each lowering of a bundle, and on the choice of the runtime."""
    environment = {**os.environ, "PYTHONPATH": str(installed(version, folder))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, bundle], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        return {"auto": f"failed: {done.stderr.strip().splitlines()[-1]}"}
    return dict(json.loads(line) for line in done.stdout.splitlines())


@click.command()
@click.argument("bundles", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/onnxruntime"), show_default=True)
@click.option("--version", "versions", multiple=True, help="Version to test. [default: every minor version]")
def main(bundles: tuple[Path, ...], folder: Path, versions: tuple[str, ...]) -> None:
    """Print a table of the verdicts on BUNDLES; exit with 1 if an answer is wrong."""
    failed = False
    for bundle in bundles:
        click.echo(str(bundle))
        for version in versions or available():
            results = verdicts(version, bundle.resolve(), folder)
            failed = (
                failed
                or not results["auto"].startswith("right")
                or any("wrong" in f for f in map(_short, results.values()))
            )
            click.echo(f"  {version:8}" + "; ".join(f"{name} {_short(verdict)}" for name, verdict in results.items()))
    sys.exit(failed)


def _short(verdict: str) -> str:
    if verdict.startswith("refused"):
        return verdict.partition(":")[0]
    return verdict


if __name__ == "__main__":
    main()
