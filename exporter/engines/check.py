"""Check of new engines by the golden cases of the bundle, on the GPU that the engines were built for.

Wrong fusions, overflows and errors when a row is refilled cannot be detected from the layers, only from output.
"""

import logging
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from txport.exporter.engines.first_beams import FirstBeams
from txport.runtime.bundle.manifest import GOLDEN, Manifest
from txport.runtime.device.gpu import find_gpu
from txport.runtime.engine import Engine, Float32
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.engines.choice import built_choice, open_engine
from txport.runtime.engines.directories import misfit
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.errors import CheckFailed, MissingLibrary
from txport.runtime.golden import Case, Golden, check, load_golden
from txport.runtime.text.affixes import affixes

_FEW_ROWS = 3  # few, so that every row is refilled many times
_STEPS = 8  # number of steps whose logits are compared between rows
# Allowed differences of logits, relative to the largest logit. Rows of one batch use the same kernel. A single row may
# use another kernel, with other rounding.
_BATCH_TOLERANCE = 1e-3
_ALONE_TOLERANCE = {"float32": 1e-3, "float16": 2e-2}
_log = logging.getLogger("txport")


def try_engines(bundle: Path, directory: Path, record: BuildRecord, manifest: Manifest, tensorrt: TensorRt) -> bool:
    """Run the golden cases on the engines of a directory. Warn and return False if they cannot run on this machine.

    Args:
        bundle: directory with golden.json.
        directory: of the engines.
        record: of the build.
        manifest: of the bundle.
        tensorrt: the library.

    Raises:
        CheckFailed: the output of a case differs, or rows with the same sentence differ.
        BundleError: golden.json is missing or was changed.
        EngineError, ResourceError: the engines do not run.
    """
    gpu = find_gpu()
    reason = gpu if isinstance(gpu, str) else misfit(record, manifest, gpu, tensorrt.library)
    if reason is None:
        try:
            engine = open_engine(bundle, manifest, built_choice(directory, record, "it was just built"))
        except MissingLibrary as error:
            reason = str(error)
    if reason is not None:
        _log.warning("the engines have not been tried (%s): run tx-verify --engine trt where they will be used", reason)
        return False
    manifest.check_file(bundle, GOLDEN, contents=True)
    golden = load_golden(bundle)
    check_buckets(engine, golden, affixes(manifest.tokenizer).target_prefix, record)
    check_rows(engine, golden, record)
    return True


def check_buckets(engine: Engine, golden: Golden, prefix: list[int], record: BuildRecord) -> None:
    """Run the cases in every bucket, always with more sentences than rows, so that rows are refilled.

    Engines of beam search also run greedy search, in the first beam of each sentence.

    Args:
        engine: the engine to check.
        golden: sources and expected ids.
        prefix: ids that all outputs begin with.
        record: contains the buckets of the engines.

    Raises:
        CheckFailed: the output of a case differs.
    """
    for greedy, rows, target in _buckets(engine, record):
        _check_bucket(greedy, golden, prefix, rows, target)


def check_rows(engine: Engine, golden: Golden, record: BuildRecord) -> None:
    """Compare the logits of one sentence between all rows of every bucket, and with those of the sentence alone.

    Ids show only large errors. TensorRT's most common silent error is a wrong result in rows after the first.

    Args:
        engine: the engine to check.
        golden: every row gets its longest source and output.
        record: contains the buckets of the engines.

    Raises:
        CheckFailed: rows differ.
    """
    case = max(golden.cases, key=lambda case: (len(case.target_ids), len(case.read)), default=None)
    if case is None:
        return
    all_buckets = list(_buckets(engine, record))
    case = replace(case, target_ids=case.target_ids[: min(_STEPS, *(target for _, _, target in all_buckets))])
    alone_tolerance = _ALONE_TOLERANCE[record.precision.type]
    for buckets in (list(each) for _, each in groupby(all_buckets, key=lambda bucket: bucket[0])):
        greedy = buckets[0][0]
        alone = _logits(greedy, case, 1, buckets[0][2])
        for _, rows, target in buckets:
            together = _logits(greedy, case, rows, target)
            _compare(together, together[:, :1], _BATCH_TOLERANCE, f"in a batch of {rows} with caches of {target}")
            _compare(together, alone, alone_tolerance, f"alone and in a batch of {rows} with caches of {target}")


def _logits(engine: Any, case: Case, rows: int, target: int) -> Float32:
    """Return logits, float32 `[steps, rows, vocabulary]`, for the same source and output tokens in all rows."""
    sources = np.array([case.read] * rows)
    memory = engine.encode(sources, np.full(rows, sources.shape[1]))
    state = engine.allocate(rows, sources.shape[1], target, logits=True)
    all_rows = range(rows)
    state.place(all_rows, memory, all_rows, [target] * rows)
    steps = []
    for token in case.target_ids:
        state.step()
        state.read()
        steps.append(state.logits(all_rows))
        state.override(all_rows, [token] * rows, [False] * rows)
    return np.stack(steps)


def _compare(actual: Float32, expected: Float32, tolerance: float, situation: str) -> None:
    size = np.abs(expected).max()
    errors = np.abs(actual - expected).max(axis=(0, 2))
    row = int(np.argmax(np.where(np.isnan(errors), np.inf, errors)))
    if not errors[row] <= tolerance * size:
        raise CheckFailed(
            f"the engines compute one sentence differently {situation}: the logits of row {row} differ by "
            f"{errors[row]:.3g}, of up to {size:.3g}; build with another --optimization-level, or use ONNX Runtime"
        )


def _buckets(engine: Engine, record: BuildRecord) -> Iterator[tuple[Any, int, int]]:
    """Yield (engine of greedy search, rows, cache length) for every bucket, and for a few rows."""
    for role, beams in [("decoder_step", 1), *(("decoder_beams", number) for number in record.beams)]:
        files = [file for file in record.engines if file.role == role]
        profiles = [profile for file in files for profile in file.profiles if (profile.beams or 1) == beams]
        max_sentences = engine.limits.batch // beams
        sizes = {min(size, max_sentences) for size in (*(profile.batch.max for profile in profiles), _FEW_ROWS)}
        for target in sorted({profile.target.max for profile in profiles if profile.target is not None}):
            with_length: Any = copy(engine)
            with_length.first_target = lambda _source, length=target: length
            greedy: Any = with_length if beams == 1 else FirstBeams(with_length, beams)
            yield from ((greedy, rows, target) for rows in sorted(sizes))


def _check_bucket(engine: Engine, golden: Golden, prefix: list[int], rows: int, target: int) -> None:
    count = len(golden.cases)
    if count:
        order = [index % count for index in range(rows + count)]
    else:
        order = []
    for difference in check(engine, golden, prefix, rows=rows, order=order, min_tokens=target):
        raise CheckFailed(
            f"the engines differ from the bundle's golden.json: case {difference.case} in a batch of "
            f"{rows} with caches of {target} gave {difference.actual[:20]} instead of {difference.expected[:20]}"
        )
