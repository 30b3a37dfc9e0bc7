"""What a captured decoder step makes the GPU do, by ONNX Runtime's own CUDA provider over `cuda_stubs`.

    LD_LIBRARY_PATH=DIRECTORY/cudnn python tests/fakes/cuda_calls.py BUNDLE [LOWERING ...] [--rows N]

prints the nodes of its CUDA graph and the calls of the run that was captured.
"""

import argparse
import ctypes
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.beam_buffers import BeamBuffers
from txport.runtime.device.buffers import StepBuffers, StepSizes
from txport.runtime.device.capture import StepGroups
from txport.runtime.device.cuda import CudaDevice
from txport.runtime.device.pool import PreparedStep
from txport.runtime.engines import ort_cuda
from txport.runtime.errors import BundleError

_ROOM = 1 << 16


def taken_calls() -> Counter[str]:
    """Return the number of calls of each function of CUDA since the last call of this function."""
    text = ctypes.create_string_buffer(_ROOM)
    needed = ctypes.CDLL("libcuda.so.1").txport_test_calls(text, _ROOM)
    assert needed < _ROOM
    lines = (line.split("\t") for line in text.value.decode().splitlines())
    return Counter({name: int(calls) for name, calls in lines})


class Step:
    """The decoder step of a bundle on the CUDA provider, with counts of the CUDA calls of each run.

    Args:
        bundle: directory of the bundle.
        lowering: the decoder step.

    Raises:
        BundleError: this version of ONNX Runtime does not load it.
    """

    def __init__(self, bundle: Path, lowering: Lowering) -> None:
        self._manifest = Manifest.load(bundle)
        self.device = CudaDevice()
        self.program = ort_cuda.OrtProgram(bundle, self._manifest, [lowering], self.device)

    def prepare(self, rows: int, source: int, target: int, beams: int = 1) -> tuple[PreparedStep, list[Counter[str]]]:
        """Capture a step with new buffers; return it and the calls of each of its runs, the captured one last."""
        sizes, graph = StepSizes(rows, source, target, False, beams), self.program.graph_of(beams)
        assert graph is not None, "the bundle has no step of beam search"
        kind = StepBuffers if beams == 1 else BeamBuffers
        buffers = kind(self.device, self._manifest, graph, sizes, self.program.id_type, 0)
        runs: list[Counter[str]] = []
        run = ort_cuda.run

        def counting(*arguments: object) -> None:
            taken_calls()
            try:
                run(*arguments)
            finally:
                runs.append(taken_calls())

        ort_cuda.run = counting
        try:
            groups = StepGroups(buffers, self.program.prepare(buffers.addresses, sizes), self.program)
            groups.launch(1)
            return PreparedStep(buffers, groups), runs
        finally:
            ort_cuda.run = run


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the nodes and calls of captured steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("lowerings", nargs="*")
    parser.add_argument("--rows", type=int, default=1)
    options = parser.parse_args(arguments)
    manifest = Manifest.load(options.bundle)
    for lowering in options.lowerings or manifest.usable_lowerings(None):
        try:
            step = Step(options.bundle, lowering)
        except BundleError as error:
            print(f"{lowering}: {error}")
            continue
        step.device.graphs = []
        _, runs = step.prepare(options.rows, 32, 64)
        for nodes in step.device.graphs:
            print(f"{lowering}: {sum(nodes.values())} nodes: {_listed(nodes)}")
        print(f"  calls: {_listed(runs[-1])}")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


if __name__ == "__main__":
    main()
