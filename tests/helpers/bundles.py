"""Recorded checkpoints, and the bundles of a session of tests, which are exported from one of them.

`python tests/helpers/bundles.py NAME` exports all. NAME is the float32 bundle's directory; the others stand beside it.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from txport.exporter.export import ExportOptions
    from txport.runtime.bundle.schema import Island

RECORDED = Path(__file__).parents[1] / "data" / "checkpoints"
# Suffixes of their names; bundles with the longest export come first.
KINDS = ("-int8", "-attention", "", "-float16", "-islands")


def recorded_checkpoint(name: str, directory: Path) -> None:
    """Copy a recorded checkpoint (`data/make_checkpoints.py`), which is the same on every processor.

    Args:
        name: name of the model. All models have the tokenizer and the sentences of `tiny`.
        directory: directory to write; it must not exist.
    """
    shutil.copytree(RECORDED / "tiny", directory)
    shutil.copytree(RECORDED / name, directory, dirs_exist_ok=True)


def export(checkpoint: Path, directory: Path, kind: str) -> None:
    """Export one bundle.

    Args:
        checkpoint: checkpoint of the recorded model `tiny`.
        directory: directory of the bundle.
        kind: one of `KINDS`.
    """
    from txport.exporter import export as exporter

    with patch.object(exporter, "choose_islands", _first_layers if kind == "-islands" else _none):
        exporter.export_bundle(checkpoint, directory, _options(kind))


def _options(kind: str) -> "ExportOptions":
    from txport.exporter.export import ExportOptions

    if kind == "-attention":
        return ExportOptions(sentences=32, singles=2, lowerings=("ort", "scatter"), attention=True, beams=True)
    if kind == "-int8":
        return ExportOptions(sentences=200, int8=True, lowerings=("ort",))
    # The model was trained for seconds, so half of its answers are ties. In float16, the whole model would become an
    # island and verification would fail. The golden cases are those that do not change by rounding.
    return ExportOptions(sentences=64, singles=4, float16=bool(kind), verify=not kind)


def _none(*_: object) -> "list[Island]":
    return []


def _first_layers(_scratch: Path, files: dict[str, Path], *_others: object) -> "list[Island]":
    import onnx_ir
    from txport.runtime.bundle.schema import Island

    chosen = re.compile(r"layers\.0\.(feed_forward|\w*norm)")
    nodes = {name: [node.name or "" for node in onnx_ir.load(file).graph] for name, file in files.items()}
    return [Island(name, tuple(filter(chosen.match, sorted(names))), "loss") for name, names in nodes.items()]


def main(named: Path, *kinds: str) -> None:
    """Export the missing bundles of these kinds or, without a kind, all bundles in parallel."""
    if not kinds:
        command = [sys.executable, __file__, str(named)]
        workers = [
            subprocess.Popen([*command, *KINDS[first::2]], env=os.environ | {"OMP_NUM_THREADS": "1"})
            for first in (0, 1)
        ]
        sys.exit(max(worker.wait() for worker in workers))
    for kind in kinds:
        directory = named.with_name(named.name + kind)
        if not directory.exists():
            export(RECORDED / "tiny", directory, kind)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
