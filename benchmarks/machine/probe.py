"""The bandwidth and peak of this machine: `python -m txport.benchmarks.machine.probe SIZE ...` prints them as JSON.

The probe runs in a separate process, because libraries read the number of threads when they are loaded. Bandwidth is
measured by the product of a float32 matrix and a vector (BLAS), and by a copy of the matrix with the same number of
threads; the faster one counts. Small sizes measure the bandwidth of a cache. Peaks are measured by products of square
matrices.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from txport.benchmarks.report.schema import Bandwidth, Peak
from txport.runtime.bundle.strict_json import decode, encode, parse
from txport.runtime.errors import EngineError
from txport.runtime.system import cores

# From an array that fits into a level-2 cache to one that no cache holds.
SIZES = (1 << 20, 8 << 20, 64 << 20, 256 << 20, 1 << 30)
SIDE = 2048  # large enough that the product is limited by arithmetic, not by memory
SECONDS = 0.3


@dataclass(frozen=True)
class Probed:
    """Output of a probe; empty if the device cannot be probed."""

    bandwidth: tuple[Bandwidth, ...] = ()
    peaks: tuple[Peak, ...] = ()


def probe(device: str, threads: int, memory_bytes: int) -> Probed:
    """Probe "cpu", with the number of threads of the contestants, or "cuda". This takes some seconds.

    Raises:
        EngineError: the probe failed.
    """
    # The array, its copy and the rest of the system must fit: swapping would measure the disk.
    sizes = [str(size) for size in SIZES if 4 * size < memory_bytes]
    variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(variables, str(threads))}
    command = [sys.executable, "-m", "txport.benchmarks.machine.probe", *sizes]
    options = ["--threads", str(threads), "--device", device]
    done = subprocess.run([*command, *options], env=environment, capture_output=True, timeout=300)
    if done.returncode:
        raise EngineError(f"the machine could not be probed: {done.stderr.decode().strip().splitlines()[-1]}")
    return decode(Probed, parse(done.stdout, "probe"), "probe")


def fastest(call: Callable[[], object]) -> float:
    """Return the seconds of the fastest call within about `SECONDS`, after an untimed call."""
    call()  # allocates memory and starts threads
    best = float("inf")
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def on_cpu(sizes: list[int], threads: int) -> Probed:
    """Measure the bandwidth by numpy, and peaks by numpy and, if onnx is installed, by ONNX Runtime."""
    a = np.ones((SIDE, SIDE), np.float32)
    out = np.empty_like(a)
    peaks = [_peak("numpy", "float32", SIDE, fastest(lambda: np.matmul(a, a, out=out)))]
    if all(map(find_spec, ("onnx", "onnxruntime"))):
        peaks += [_peak("ONNX Runtime", kind, SIDE, _onnxruntime(kind, threads)) for kind in ("float32", "int8")]
    return Probed(tuple(Bandwidth(size, _bandwidth(size, threads)) for size in sizes), tuple(peaks))


def _peak(library: str, kind: str, side: int, seconds: float) -> Peak:
    return Peak(library, kind, 2 * side**3 / seconds)


def _bandwidth(size: int, threads: int) -> float:
    """Return the bandwidth in bytes per second for an array of about `size` bytes."""
    columns = 1024
    matrix = np.ones((max(threads, size // (4 * columns)), columns), np.float32)
    vector = np.ones(columns, np.float32)
    product = matrix.nbytes / fastest(lambda: matrix @ vector)
    copy = np.empty_like(matrix)
    edges = np.linspace(0, len(matrix), threads + 1, dtype=int)
    parts = [slice(*edges[index : index + 2]) for index in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        copied = fastest(lambda: list(pool.map(lambda part: np.copyto(copy[part], matrix[part]), parts)))
    return max(product, 2 * matrix.nbytes / copied)  # a copy reads and writes each byte


def _onnxruntime(kind: str, threads: int) -> float:
    """Return the seconds of a matrix product of ONNX Runtime, of float32 or of uint8 and int8."""
    import onnxruntime
    from onnx import helper, numpy_helper

    operator = "MatMulInteger"
    left_type, right_type, product = map(np.dtype, ("uint8", "int8", "int32"))
    if kind == "float32":
        operator = "MatMul"
        left_type = right_type = product = np.dtype("float32")
    a = np.ones((SIDE, SIDE), left_type)
    graph = helper.make_graph(
        [helper.make_node(operator, ["a", "b"], ["c"])],
        "product",
        [helper.make_tensor_value_info("a", helper.np_dtype_to_tensor_dtype(left_type), a.shape)],
        [helper.make_tensor_value_info("c", helper.np_dtype_to_tensor_dtype(product), a.shape)],
        [numpy_helper.from_array(np.ones(a.shape, right_type), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("a", a)
    binding.bind_output("c")
    return fastest(lambda: session.run_with_iobinding(binding))


def on_gpu(sizes: list[int]) -> Probed:
    """Measure the bandwidth of copies and the peaks of products of the first GPU by PyTorch; empty without a GPU."""
    try:
        import torch
    except ImportError:
        return Probed()
    if not torch.cuda.is_available():
        return Probed()

    def seconds(call: Callable[[], object]) -> float:
        def run() -> None:
            for _ in range(10):  # so that waiting for the GPU is a small part of the time
                call()
            torch.cuda.synchronize()

        return fastest(run) / 10

    def copied(size: int) -> Bandwidth:
        source = torch.ones(size // 4, device="cuda")
        target = torch.empty_like(source)
        return Bandwidth(size, 2 * size / seconds(lambda: target.copy_(source)))

    def product(kind: str) -> Peak:
        a = torch.ones(4 * SIDE, 4 * SIDE, dtype=getattr(torch, kind), device="cuda")
        return _peak("PyTorch", kind, 4 * SIDE, seconds(lambda: a @ a))

    return Probed(tuple(map(copied, sizes)), tuple(map(product, ("float32", "float16"))))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="+", help="Size of the arrays in bytes.")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.device == "cuda":
        probed = on_gpu(options.sizes)
    else:
        probed = on_cpu(options.sizes, options.threads)
    print(json.dumps(encode(probed)))


if __name__ == "__main__":
    main()
