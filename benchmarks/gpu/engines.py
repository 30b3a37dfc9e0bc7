"""Engines for the stages, and what their answers must be."""

import dataclasses
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from txport.benchmarks.gpu.stage_context import Skip, StageContext
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import Engine
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.engines.directories import directories
from txport.runtime.errors import TxportError
from txport.runtime.golden import load_golden
from txport.runtime.greedy import Request, decode_all
from txport.runtime.libraries import cuda_provider
from txport.runtime.text.affixes import affixes


def on_onnxruntime(
    context: StageContext, bundle: Path, lowering: Lowering | None = None, *, captured: bool = True
) -> DeviceEngine:
    """The bundle on ONNX Runtime's CUDA provider, with its state on the device."""
    from txport.runtime.device.cuda import CudaDevice
    from txport.runtime.engines.ort_cuda import OrtProgram

    manifest, device = Manifest.load(bundle), CudaDevice()
    lowerings = choose(manifest, "cuda", lowering).lowerings
    program = OrtProgram(bundle, manifest, lowerings, device, where=context.where)
    program.captures &= captured
    return DeviceEngine(device, manifest, program)


def on_tensorrt(bundle: Path) -> DeviceEngine:
    """The bundle on the TensorRT engines that fit."""
    manifest = Manifest.load(bundle)
    choice = dataclasses.replace(choose(manifest, "trt", bundle=bundle), fallback=None)
    engine = open_engine(bundle, manifest, choice)
    assert isinstance(engine, DeviceEngine)
    return engine


def largest(context: StageContext, precision: str = "float16") -> Path:
    """The bundle with the largest weights in this precision, or in any if there is none."""
    manifests = {path: Manifest.load(path) for path in context.bundles.values()}
    alike = [path for path in manifests if manifests[path].precision.type == precision] or list(manifests)
    return max(alike, key=lambda path: manifests[path].files[WEIGHTS].bytes)


def no_onnxruntime(context: StageContext) -> str:
    """Why no stage runs ONNX Runtime here, as far as packages tell; empty if its package is here."""
    if find_spec("onnxruntime") is None:
        return "ONNX Runtime is not installed: pip install 'txport[ort-gpu]'"
    absent = not context.rehearsal and cuda_provider() is None
    return "the ONNX Runtime here has no CUDA provider: pip install 'txport[ort-gpu]'" if absent else ""


def openers(context: StageContext, bundle: Path) -> dict[str, Callable[[], Engine]]:
    """What opens the bundle, by device: ONNX Runtime if it is installed, TensorRT engines if they are built."""
    found: dict[str, Callable[[], Engine]] = {}
    if not no_onnxruntime(context):
        found["cuda"] = lambda: on_onnxruntime(context, bundle)
    if directories(bundle):
        found["trt"] = lambda: on_tensorrt(bundle)
    return found


def need_opener(context: StageContext, bundle: Path) -> None:
    """Skip the stage if no library that is here can run the bundle."""
    if not openers(context, bundle):
        engines = f"{bundle.name} has no TensorRT engines: the stage tensorrt builds them"
        raise Skip(f"{no_onnxruntime(context)}; and {engines}")


def engines(context: StageContext, bundle: Path) -> Iterator[tuple[str, DeviceEngine]]:
    """Every device that runs the bundle here; one that does not is noted."""
    need_opener(context, bundle)
    for device, opener in openers(context, bundle).items():
        try:
            engine = opener()
        except TxportError as error:
            context.check(f"{bundle.name} on {device}", False, str(error))
            continue
        assert isinstance(engine, DeviceEngine)
        yield device, engine


def golden_fault(engine: Engine, bundle: Path, rows: int | None = None) -> str:
    """How the answers differ from the bundle's golden cases, in rows that are refilled; empty if they do not."""
    cases = load_golden(bundle).cases
    longest = max(len(case.target_ids) for case in cases)
    prefix = affixes(Manifest.load(bundle).tokenizer).target_prefix
    requests = [Request(case.source_ids, min(longest, engine.limits.target), prefix=prefix) for case in cases]
    answers = decode_all(engine, requests, rows=rows and min(rows, engine.limits.batch))
    wrong = [
        f"case {number}: {list(case.target_ids)[:12]} became {answer.ids[:12]}"
        for number, (case, answer) in enumerate(zip(cases, answers, strict=True))
        if answer.ids[: len(case.target_ids)] != list(case.target_ids)
    ]
    return f"{len(wrong)} of {len(cases)} differ; {wrong[0]}" if wrong else ""
