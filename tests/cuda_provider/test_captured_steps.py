"""Decoder steps on ONNX Runtime's own CUDA provider: what it makes of the graphs, and what a captured run does.

On a GPU, a step that allocates, copies from or to the host or waits while it is captured ends the capture. Kernels
compute nothing here, so tokens are not looked at.
"""

import ctypes
import gc
import itertools
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from cuda_calls import Step, taken_calls
from txport.exporter.graphs.capturable import not_capturable
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Lowering
from txport.runtime.engine import Engine
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.engines.ort_session import _GpuSession, open_session, providers_of
from txport.runtime.errors import BundleError
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request

pytestmark = pytest.mark.cuda_provider
BUNDLES = ("bundle", "float16_bundle", "island_bundle")
IS_1_23 = onnxruntime.__version__.startswith("1.23.")
# Of float32, ort has kernels for the CPU alone; 1.23 does not read tensorscatter.
LOWERINGS: tuple[Lowering, ...] = ("ort", "scatter") if IS_1_23 else ("ort", "scatter", "tensorscatter")
RUNNABLE = [pair for pair in itertools.product(BUNDLES, LOWERINGS) if pair != ("bundle", "ort")]
LENGTHS = (32, 64, 128)
SIZES = list(itertools.product((1, 2, 4, 8, 16, 32, 64), LENGTHS, LENGTHS))
_CHANCE = random.Random(5)
ANY_SIZES = [(_CHANCE.randrange(1, 65), _CHANCE.randrange(8, 129, 8), _CHANCE.randrange(8, 129)) for _ in range(63)]
# What a captured run may call: work for the GPU, and questions that the runtime answers by itself.
WORK = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync DtoD", "cudaMemsetAsync"}
QUESTIONS = {"cudaGetDevice", "cudaSetDevice", "cudaDeviceGetAttribute", "cudaFuncGetAttributes"}


@pytest.fixture(scope="module", params=BUNDLES)
def any_bundle(request: pytest.FixtureRequest) -> Path:
    """A bundle of each precision."""
    directory: Path = request.getfixturevalue(request.param)
    return directory


@pytest.fixture(scope="module", params=RUNNABLE)
def bundle_and_lowering(request: pytest.FixtureRequest) -> tuple[Path, Lowering]:
    """A bundle of each precision, with each lowering that ONNX Runtime runs on a GPU in it."""
    name, lowering = request.param
    return request.getfixturevalue(name), lowering


def operators(bundle: Path, graph: Graph, scratch: Path) -> Counter[str]:
    """Of a graph as the provider runs it, after all optimisations."""
    saved = scratch / "optimised.onnx"
    open_session(bundle, graph, threads=1, providers=providers_of("cuda"), saved=saved)
    return Counter(node.op_type for node in onnx.load(saved, load_external_data=False).graph.node)


def test_the_steps_operators_may_be_captured_and_nothing_moves_to_the_host(
    bundle_and_lowering: tuple[Path, Lowering], tmp_path: Path
) -> None:
    directory, lowering = bundle_and_lowering
    manifest = Manifest.load(directory)
    assert not_capturable(operators(directory, manifest.step(lowering), tmp_path)) == []
    assert not [name for name in operators(directory, manifest.encoder, tmp_path) if "Memcpy" in name]


def test_its_options_are_accepted(bundle_and_lowering: tuple[Path, Lowering]) -> None:
    """Full float32 products; the arena's default, which settles; and no attention of cuDNN's.

    ONNX Runtime would choose it for most sizes of heads; over stand-ins the steps of the lowering `ort` then fail.
    """
    options = Step(*bundle_and_lowering).program._step.get_provider_options()["CUDAExecutionProvider"]
    assert options["use_tf32"] == "0" and options["has_user_compute_stream"] == "1"
    assert options["sdpa_kernel"] == "19"
    assert options["arena_extend_strategy"] == "kNextPowerOfTwo"


@pytest.mark.parametrize("order", ["ascending", "shuffled", "any"])
def test_the_run_that_is_captured_gives_the_gpu_work_and_does_nothing_else(
    bundle_and_lowering: tuple[Path, Lowering], order: str
) -> None:
    sizes = {"ascending": SIZES, "shuffled": random.Random(1).sample(SIZES, len(SIZES)), "any": ANY_SIZES}[order]
    step = Step(*bundle_and_lowering)
    step.device.graphs = []
    kept = []
    for size in sizes:
        prepared, runs = step.prepare(*size)
        kept.append(prepared)  # their memory is not reused
        assert len(runs) == 3, f"the capture over {size} was refused"
        for run in runs[2:]:
            others = {name for name in run if not name.startswith(("cublas", "cudnn"))} - WORK - QUESTIONS
            assert not others, f"over {size}"
    assert step.program.captured and len(step.device.graphs) == len(sizes)
    assert set().union(*step.device.graphs) <= {"kernel", "memcpy", "memset"}


@pytest.mark.parametrize("rows", [1, 8])
def test_a_step_of_ort_has_few_nodes(rows: int, float16_bundle: Path) -> None:
    """Of two decoder layers: with a bias before each ReLU and two operators for the end of sentences, three more."""
    step = Step(float16_bundle, "ort")
    step.device.graphs = []
    step.prepare(rows, 32, 64)
    assert step.device.graphs[-1].total() <= (52 if IS_1_23 else 49)


def launches_of_self_attention() -> Counter[str]:
    """The work of the GPU in a run of self-attention of one token, over heads of 64 as in the base preset."""
    shapes = {"qkv": [1, 1, 384], "key": [1, 2, 64, 64], "value": [1, 2, 64, 64], "context": [1, 1, 128]}
    typed = {name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, shapes[name]) for name in shapes}
    caches = [
        onnx.helper.make_tensor_value_info(f"{name}_after", onnx.TensorProto.FLOAT16, shapes[name])
        for name in ("key", "value")
    ]
    lengths = [
        onnx.numpy_helper.from_array(np.full(1, value, np.int32), name) for name, value in (("last", 31), ("total", 64))
    ]
    names = ["qkv", "", "", "key", "value", "last", "total"]
    node = onnx.helper.make_node(
        "GroupQueryAttention",
        names,
        ["context", *(cache.name for cache in caches)],
        domain="com.microsoft",
        num_heads=2,
        kv_num_heads=2,
    )
    inputs = [typed[name] for name in names[:5] if name]
    graph = onnx.helper.make_graph([node], "attention", inputs, [typed["context"], *caches], lengths)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = _GpuSession(model.SerializeToString(), providers=providers_of("cuda"))
    binding = session.io_binding()
    for name, shape in shapes.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float16), "cuda", 0)
        if name != "context":
            binding.bind_ortvalue_input(name, value)
        if name != "qkv":
            binding.bind_ortvalue_output("context" if name == "context" else f"{name}_after", value)
    for _ in range(3):
        taken_calls()
        session.run_with_iobinding(binding)
    calls = taken_calls()
    return Counter({name: calls[name] for name in WORK if calls[name]})


def test_self_attention_without_xqa_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """XQA, the default of newer versions, is four nodes of a CUDA graph, but faster at batches of 1 and 8 (H200)."""
    monkeypatch.delenv("ORT_ENABLE_XQA", raising=False)
    assert launches_of_self_attention().total() == (1 if IS_1_23 else 4)
    monkeypatch.setenv("ORT_ENABLE_XQA", "0")
    assert launches_of_self_attention() == {"cudaLaunchKernel": 1}


@pytest.mark.parametrize("capability", ["75", "87", "120"])
def test_steps_are_captured_on_every_generation_of_gpus(capability: str, float16_bundle: Path) -> None:
    """Turing, Orin and Blackwell, for which ONNX Runtime chooses other kernels; other tests run as Hopper, 9.0."""
    script = Path(__file__).parents[1] / "fakes" / "cuda_calls.py"
    for rows in ("1", "8"):
        command = [sys.executable, str(script), str(float16_bundle), *LOWERINGS, "--rows", rows]
        environment = {**os.environ, "TXPORT_TEST_CAPABILITY": capability}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
        found = re.findall(r"(\w+): \d+ nodes: (.*)", done.stdout)
        assert [lowering for lowering, _ in found] == list(LOWERINGS), done.stdout + done.stderr
        kinds = {part.split(" ", 1)[1] for _, nodes in found for part in nodes.split(", ")}
        assert "kernel" in kinds and kinds <= {"kernel", "memcpy", "memset"}


@pytest.mark.skipif(IS_1_23, reason="1.23 does not read the opset of the step of beam search")
def test_the_step_of_beam_search_may_be_captured_too(attention_bundle: Path, tmp_path: Path) -> None:
    """Each operator is on the GPU, and the captured run gives it work and does nothing else."""
    graph = Manifest.load(attention_bundle).optional_graph("decoder_beams")
    assert graph is not None and not_capturable(operators(attention_bundle, graph, tmp_path)) == []
    step = Step(attention_bundle, "scatter")
    step.device.graphs = []
    kept = []
    for rows, source, target, beams in itertools.product((1, 2, 4), (32, 64), (32, 128), (2, 4)):
        prepared, runs = step.prepare(rows, source, target, beams)
        kept.append(prepared)
        assert len(runs) == 3, "the capture was refused"
        others = {name for name in runs[2] if not name.startswith(("cublas", "cudnn"))} - WORK - QUESTIONS
        assert not others, f"over {rows, source, target, beams}"
    assert step.program.captured and set().union(*step.device.graphs) <= {"kernel", "memcpy", "memset"}


@pytest.mark.parametrize("order", ["random", "growing"])
def test_the_encoders_memory_is_near_that_of_the_widest_alone(float16_bundle: Path, order: str) -> None:
    """A service sees texts of any length for days."""
    manifest = Manifest.load(float16_bundle)

    def taken(widths: list[int]) -> int:
        engine = open_engine(float16_bundle, manifest, choose(manifest, "cuda"))
        before = engine.device.free_memory()
        for width in widths:
            engine.encode(np.full((32, width), 5, np.int64), np.full(32, width, np.int64))
        return before - engine.device.free_memory()

    most, chance = manifest.limits.source, random.Random(0)
    widths = [chance.randrange(1, most + 1) for _ in range(200)]
    assert taken(sorted(widths) if order == "growing" else widths) <= 1.5 * taken([most] * 2)


def check_threads(engine: Engine) -> None:
    """Two threads one after the other, then two at once."""
    faults: list[Exception] = []

    def work() -> None:
        try:
            decode_all(engine, [Request([5, 6, 7, 3], 20)] * 9, rows=3)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads[:2]:
        thread.start()
        thread.join()
    for thread in threads[2:]:
        thread.start()
    for thread in threads[2:]:
        thread.join()
    assert not faults


def test_threads_share_captured_steps_and_dropped_engines_leave_nothing(any_bundle: Path) -> None:
    manifest = Manifest.load(any_bundle)
    count = ctypes.CDLL("libcuda.so.1").txport_test_cuda_left
    count.restype = ctypes.c_ulonglong
    left = []
    for _ in range(4):
        engine = open_engine(any_bundle, manifest, choose(manifest, "cuda"))
        check_threads(engine)
        assert engine.captured
        del engine
        gc.collect()
        left.append(count())
    assert left[1:] == left[:-1]


def test_a_group_of_steps_is_three_calls_of_the_driver(bundle_and_lowering: tuple[Path, Lowering]) -> None:
    """A launch, the download of what the group made, and an event."""
    directory, lowering = bundle_and_lowering
    manifest = Manifest.load(directory)
    calls = ctypes.CDLL("libcuda.so.1").txport_test_cuda_calls
    calls.restype = ctypes.c_ulonglong
    state = open_engine(directory, manifest, choose(manifest, "cuda", lowering=lowering)).allocate(2, 8, 32)
    made = []
    for _ in range(2):  # the first group of a size is captured
        before = calls()
        state.step(4)
        made.append(calls() - before)
        state.read()
    assert made[1] == 3 < made[0]


@pytest.mark.skipif(not IS_1_23, reason="is about ONNX Runtime 1.23")
def test_1_23_does_not_read_tensorscatter(bundle: Path) -> None:
    with pytest.raises(BundleError, match="does not load .*tensorscatter.onnx: Unsupported model IR version"):
        Step(bundle, "tensorscatter")
