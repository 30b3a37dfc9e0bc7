"""What this machine can do: `python -m txport.benchmarks.machine.probe SIZE ...` prints bandwidth and peaks as JSON.

In a process of its own, because libraries read the number of threads when they are loaded. Bandwidth is that of reading
a float32 matrix for a product with a vector (BLAS), or of copying it with as many threads, whichever is faster: sizes
that fit a cache are as fast as that cache. Peaks are those of a product of square matrices.
"""

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from txport.runtime.workers import cores

SIDE = 2048
SECONDS = 0.3


def fastest(call: Callable[[], object], seconds: float = SECONDS) -> float:
    """Seconds of the fastest call within about `seconds`, after one that is not timed."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def bandwidth(size: int, threads: int) -> float:
    """Bytes a second, of about `size` bytes."""
    columns = 1024
    matrix = np.ones((max(threads, size // (4 * columns)), columns), np.float32)
    vector = np.ones(columns, np.float32)
    product = matrix.nbytes / fastest(lambda: matrix @ vector)
    copy = np.empty_like(matrix)
    edges = np.linspace(0, len(matrix), threads + 1, dtype=int)
    parts = [slice(*edges[index : index + 2]) for index in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        copied = fastest(lambda: list(pool.map(lambda part: np.copyto(copy[part], matrix[part]), parts)))
    return max(product, 2 * matrix.nbytes / copied)


def peaks(threads: int) -> list[dict[str, Any]]:
    """Operations a second of matrix products, by library and type."""
    a = np.ones((SIDE, SIDE), np.float32)
    out = np.empty_like(a)
    found = [("numpy", "float32", fastest(lambda: np.matmul(a, a, out=out)))]
    found += _onnxruntime(threads)
    return [
        {"library": library, "type": kind, "operations_per_second": 2 * SIDE**3 / seconds}
        for library, kind, seconds in found
    ]


def _onnxruntime(threads: int) -> list[tuple[str, str, float]]:
    """ONNX Runtime's own products, where onnx is installed to describe one."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return []
    types = {
        "float32": ("MatMul", onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT, np.float32, np.float32),
        "int8": ("MatMulInteger", onnx.TensorProto.UINT8, onnx.TensorProto.INT8, np.uint8, np.int8),
    }
    found = []
    for kind, (operator, left, right, left_type, right_type) in types.items():
        result = onnx.TensorProto.FLOAT if kind == "float32" else onnx.TensorProto.INT32
        weights = onnx.numpy_helper.from_array(np.ones((SIDE, SIDE), right_type), "b")
        assert weights.data_type == right
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node(operator, ["a", "b"], ["c"])],
            "product",
            [onnx.helper.make_tensor_value_info("a", left, [SIDE, SIDE])],
            [onnx.helper.make_tensor_value_info("c", result, [SIDE, SIDE])],
            [weights],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        binding = session.io_binding()
        given = np.ones((SIDE, SIDE), left_type)
        binding.bind_cpu_input("a", given)
        binding.bind_output("c")
        found.append(("ONNX Runtime", kind, fastest(lambda s=session, b=binding: s.run_with_iobinding(b))))  # type: ignore[misc]
    return found


def on_gpu(sizes: list[int]) -> dict[str, Any]:
    """The same of the first GPU, by PyTorch: copies, which read and write, and products. Nothing where it has none."""
    try:
        import torch
    except ImportError:
        return {"bandwidth": [], "peaks": []}
    if not torch.cuda.is_available():
        return {"bandwidth": [], "peaks": []}

    def synchronized(call: Callable[[], object]) -> float:
        def run() -> None:
            for _ in range(10):
                call()
            torch.cuda.synchronize()

        return fastest(run) / 10

    read = []
    for size in sizes:
        source = torch.ones(size // 4, device="cuda")
        target = torch.empty_like(source)
        seconds = synchronized(lambda s=source, t=target: t.copy_(s))  # type: ignore[misc]
        read.append({"bytes": size, "bytes_per_second": 2 * size / seconds})
    found = []
    for name, kind in (("float32", torch.float32), ("float16", torch.float16)):
        a = torch.ones(4 * SIDE, 4 * SIDE, dtype=kind, device="cuda")
        seconds = synchronized(lambda a=a: a @ a)  # type: ignore[misc]
        found.append({"library": "PyTorch", "type": name, "operations_per_second": 2 * (4 * SIDE) ** 3 / seconds})
    return {"bandwidth": read, "peaks": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="+", help="Bytes of the arrays to read.")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    if given.device == "cuda":
        print(json.dumps(on_gpu(given.sizes)))
        return
    read = [{"bytes": size, "bytes_per_second": bandwidth(size, given.threads)} for size in given.sizes]
    print(json.dumps({"bandwidth": read, "peaks": peaks(given.threads)}))


if __name__ == "__main__":
    main()
