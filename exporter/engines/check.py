"""Engines that were just built answer the bundle's golden cases before they count, on the GPU that they were built for.

No look at the layers shows what a wrong fusion, an overflow or a row that is refilled too early makes of a sentence.
"""

import logging
from copy import copy
from pathlib import Path
from typing import Any

from txport.exporter.engines.first_beams import FirstBeams
from txport.runtime.bundle.manifest import GOLDEN, Manifest
from txport.runtime.device.gpu import find_gpu
from txport.runtime.engine import Engine
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.engines.choice import built_choice, open_engine
from txport.runtime.engines.directories import misfit
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.errors import CheckFailed, MissingLibrary
from txport.runtime.golden import Golden, check, load_golden
from txport.runtime.text.affixes import affixes

_FEW_ROWS = 3  # so that every row is refilled again and again
_log = logging.getLogger("txport")


def try_engines(bundle: Path, directory: Path, record: BuildRecord, manifest: Manifest, tensorrt: TensorRt) -> bool:
    """Run the golden cases on the engines of a directory; False, with a warning, if they cannot run on this machine.

    Args:
        bundle: where golden.json is.
        directory: of the engines.
        record: of the build.
        manifest: the bundle's.
        tensorrt: the library.

    Raises:
        CheckFailed: a case comes out differently.
        BundleError: golden.json is missing or was changed.
        EngineError, ResourceError: the engines do not run.
    """
    gpu = find_gpu()
    why = gpu if isinstance(gpu, str) else misfit(record, manifest, gpu, tensorrt.library)
    if why is None:
        try:
            engine = open_engine(bundle, manifest, built_choice(directory, record, "it was just built"))
        except MissingLibrary as error:
            why = str(error)
    if why is not None:
        _log.warning("the engines have not been tried (%s): run tx-verify --engine trt where they will be used", why)
        return False
    manifest.check_file(bundle, GOLDEN, contents=True)
    check_buckets(engine, load_golden(bundle), affixes(manifest.tokenizer).target_prefix, record)
    return True


def check_buckets(engine: Engine, golden: Golden, prefix: list[int], record: BuildRecord) -> None:
    """Answer the cases in every bucket, always with more sentences than rows, so that rows refill.

    Engines of beam search also search greedily, with the first of each sentence's beams.

    Args:
        engine: what answers.
        golden: sources and the ids that must come out.
        prefix: what every answer is forced to begin with.
        record: of the engines' buckets.

    Raises:
        CheckFailed: a case comes out differently.
    """
    for role, beams in [("decoder_step", 1), *(("decoder_beams", number) for number in record.beams)]:
        files = [file for file in record.engines if file.role == role]
        profiles = [profile for file in files for profile in file.profiles if (profile.beams or 1) == beams]
        most = engine.limits.batch // beams
        sizes = {min(size, most) for size in (*(profile.batch.max for profile in profiles), _FEW_ROWS)}
        for target in sorted({profile.target.max for profile in profiles if profile.target is not None}):
            started: Any = copy(engine)
            started.first_target = lambda _source, length=target: length
            greedy: Any = started if beams == 1 else FirstBeams(started, beams)
            for rows in sorted(sizes):
                _check_bucket(greedy, golden, prefix, rows, target)


def _check_bucket(engine: Engine, golden: Golden, prefix: list[int], rows: int, target: int) -> None:
    count = len(golden.cases)
    if count:
        order = [index % count for index in range(rows + count)]
    else:
        order = []
    for wrong in check(engine, golden, prefix, rows=rows, order=order, least=target):
        raise CheckFailed(
            f"the engines differ from the bundle's golden.json: case {wrong.case} in a batch of "
            f"{rows} with caches of {target} came out as {wrong.found[:20]} instead of {wrong.expected[:20]}"
        )
