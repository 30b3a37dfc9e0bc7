"""Stages "onnxruntime" and "threads": each precision, lowering and way to launch, and several threads at once."""

import threading

from txport.benchmarks.gpu.engines import golden_fault, no_onnxruntime, on_onnxruntime
from txport.benchmarks.gpu.graphs import check_operators, report_nodes
from txport.benchmarks.gpu.stage_context import Skip, StageContext
from txport.benchmarks.gpu.timing import BATCHES, step_seconds
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import BundleError


def matrix(context: StageContext) -> None:
    """Golden ids, capture and the time of a step, by bundle, lowering and launch."""
    if reason := no_onnxruntime(context):
        raise Skip(reason)
    for name, bundle in context.bundles.items():
        manifest = Manifest.load(bundle)
        for lowering in manifest.lowerings:
            for captured in (True, False):
                title = f"{name}, {lowering}, {'captured' if captured else 'plain'}"
                try:
                    engine = on_onnxruntime(context, bundle, lowering, captured=captured)
                except BundleError as error:  # an opset or a kernel that this version lacks
                    context.row("left out", bundle=name, lowering=lowering, reason=str(error))
                    break
                with context.checking(title):
                    if captured:
                        check_operators(context, f"{name}, {lowering}", bundle, lowering)
                        report_nodes(context, title, engine, bundle=name, lowering=lowering)
                    fault = golden_fault(engine, bundle, rows=3)
                    context.check(title, not fault, fault or "golden ids")
                    if captured and not context.rehearsal:
                        context.check(f"{title}: a CUDA graph", engine.captured)
                    for batch in BATCHES:
                        if batch <= engine.limits.batch:
                            seconds = step_seconds(
                                engine, batch, 32, min(64, engine.limits.target), rounds=context.rounds
                            )
                            row = {"bundle": name, "lowering": lowering, "captured": captured, "batch": batch}
                            context.row("microseconds a step", **row, microseconds=round(1e6 * seconds, 1))


def threads(context: StageContext) -> None:
    """Threads one after the other, whose identifiers repeat, two engines at once, and threads that share one."""
    if reason := no_onnxruntime(context):
        raise Skip(reason)
    bundle = next(iter(context.bundles.values()))
    engine = on_onnxruntime(context, bundle)
    faults: list[str] = []

    def work(own: bool, times: int) -> None:
        try:
            mine = on_onnxruntime(context, bundle) if own else engine
            faults.extend(golden_fault(mine, bundle, rows=1 + turn % 5) for turn in range(times))
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}")

    for _ in range(6):
        _together([threading.Thread(target=work, args=(False, 1))])
    context.check("six threads, one after the other", not any(faults), next(filter(None, faults), "golden ids"))
    faults.clear()
    _together([threading.Thread(target=work, args=(True, 5)) for _ in range(2)])
    context.check("two engines at once", not any(faults), next(filter(None, faults), "golden ids"))
    faults.clear()
    _together([threading.Thread(target=work, args=(False, 5)) for _ in range(4)])
    context.check("four threads on one engine", not any(faults), next(filter(None, faults), "golden ids"))


def _together(workers: list[threading.Thread]) -> None:
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
