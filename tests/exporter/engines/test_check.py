"""Engines count only if they answer the golden cases, over a TensorRT in memory."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_engines import expected, sources
from memory_engine import vectors_of
from tensorrt_programs import open_program, trt_engine
from txport.exporter.engines import check
from txport.exporter.engines.check import check_buckets, check_rows, try_engines
from txport.runtime.bundle.manifest import GOLDEN
from txport.runtime.bundle.strict_json import encode
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.device.gpu import Gpu
from txport.runtime.errors import BundleError, CheckFailed, MissingLibrary
from txport.runtime.files import sha256
from txport.runtime.golden import Case, Golden
from txport.runtime.search.requests import Request

FITTING = Gpu("NVIDIA H200", "9.0", 132, "13.0")


def golden() -> list[Case]:
    requests = [*sources(5, 40), Request([4, 5, 6, 3], 7), Request([9, 3], 90)]
    answers = expected(requests)
    return [Case("", tuple(r.source_ids), tuple(ids)) for r, ids in zip(requests, answers, strict=True)]


def engine_in(directory: Path, **changes: Any) -> tuple[DeviceEngine, Any]:
    program, library = open_program(directory, **changes)
    return trt_engine(program, library), library


def test_cases_are_answered_in_every_bucket_and_in_rows_that_refill(tmp_path: Path) -> None:
    engine, library = engine_in(tmp_path)
    (built,) = library.record.of_role("decoder_step")
    short = [Case("", (4, 5, 6, 3), tuple(expected([Request([4, 5, 6, 3], 7)])[0]))] * 9
    check_buckets(engine, Golden(1, tuple(short)), [], library.record)
    contexts = [context for opened in library.opened for context in opened.contexts if opened.file == built]
    assert {context.profile for context in contexts} == set(range(len(built.profiles))), "short answers reach them all"
    assert {1, 4} <= set(library.model.launched)
    check_buckets(engine, Golden(1, tuple(golden())), [], library.record)
    check_buckets(engine, Golden(1, ()), [], library.record)


def test_cases_of_vectors_are_answered_too(tmp_path: Path) -> None:
    engine, library = engine_in(tmp_path, features=True)
    cases = [Case.of("", vectors_of(case.source_ids), case.target_ids) for case in golden()]
    check_buckets(engine, Golden(1, tuple(cases)), [], library.record)
    check_rows(engine, Golden(1, tuple(cases)), library.record)
    with pytest.raises(CheckFailed, match=r"golden.json: case \d in a batch of"):
        check_buckets(engine, Golden(1, tuple(cases[1:2] + cases[:1])), [8, 9], library.record)


def test_an_engine_that_is_wrong_once_a_row_is_refilled_is_refused(tmp_path: Path) -> None:
    """Its first sentences are right, and so they are alone."""
    engine, library = engine_in(tmp_path)
    step, placed = library.model.step, list[int]()

    def stale(bound: dict[str, Any], sizes: Any) -> None:
        placed.extend(row for row in range(sizes.rows) if bound["positions"][row] == 0 and not bound["finished"][row])
        step(bound, sizes)
        if len(placed) > 12 and sizes.rows > 1:
            bound["next_token_ids"][0] = 4 + (bound["next_token_ids"][0] - 3) % 8

    library.model.step = stale
    with pytest.raises(CheckFailed, match=r"golden.json: case \d in a batch of [34] with caches of "):
        check_buckets(engine, Golden(1, tuple(golden())), [], library.record)


def test_the_step_of_beam_search_answers_the_cases_too(tmp_path: Path) -> None:
    """And is refused if only it is wrong."""
    engine, library = engine_in(tmp_path, version="10.15.1", beams=(2, 4))
    check_buckets(engine, Golden(1, tuple(golden())), [], library.record)
    ran = {(c.sizes["beam"], c.sizes["batch"], c.sizes["slots"] // c.sizes["beam"]) for c in beam_contexts(library)}
    assert ran == {(beam, count, target) for beam, count in ((2, 1), (2, 2), (4, 1)) for target in (32, 100)}
    step_beams = library.model.step_beams

    def wrong(bound: dict[str, Any], sizes: Any) -> None:
        step_beams(bound, sizes)
        if sizes.rows > 1:
            bound["top_ids"][-sizes.beams, :2] = bound["top_ids"][-sizes.beams, 1::-1]

    library.model.step_beams = wrong
    with pytest.raises(CheckFailed, match=r"golden.json: case \d in a batch of 2 with caches of 32"):
        check_buckets(engine, Golden(1, tuple(golden())), [], library.record)


@pytest.mark.parametrize("beams", [(), (2,)])
@pytest.mark.parametrize("fault", ["a row", "all rows", "no number"])
def test_a_sentence_has_the_same_logits_in_every_row_and_alone(
    tmp_path: Path, beams: tuple[int, ...], fault: str
) -> None:
    """Even where the ids are right: rows after the first, or all rows of a larger batch, are wrong by a little."""
    engine, library = engine_in(tmp_path, version="10.15.1", beams=beams)
    check_rows(engine, Golden(1, tuple(golden())), library.record)
    check_rows(engine, Golden(1, ()), library.record)
    name = "step_beams" if beams else "step"
    right = getattr(library.model, name)

    def wrong(bound: dict[str, Any], sizes: Any) -> None:
        right(bound, sizes)
        if sizes.rows > 1:
            rows = bound["logits"].reshape(sizes.rows, -1)[0 if fault == "all rows" else -1 :]
            rows += np.nan if fault == "no number" else np.abs(bound["logits"]).max() / 50

    setattr(library.model, name, wrong)
    where = "alone and in" if fault == "all rows" else "differently in"
    with pytest.raises(CheckFailed, match=rf"{where} a batch of [234] .*row \d differ by"):
        check_rows(engine, Golden(1, tuple(golden())), library.record)


def beam_contexts(library: Any) -> list[Any]:
    """Those that ran, of engines of beam search."""
    return [context for opened in library.opened for context in opened.contexts if "beam" in context.sizes]


def test_answers_begin_as_they_are_forced_to(tmp_path: Path) -> None:
    engine, library = engine_in(tmp_path)
    requests = [Request([4, 5, 6, 3], 12, prefix=[8, 9])]
    case = Case("", (4, 5, 6, 3), tuple(expected(requests)[0]))
    check_buckets(engine, Golden(1, (case,)), [8, 9], library.record)
    with pytest.raises(CheckFailed):
        check_buckets(engine, Golden(1, (case,)), [], library.record)


def test_engines_are_tried_where_they_fit_and_else_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, library = engine_in(tmp_path)
    record, path = library.record, tmp_path / GOLDEN
    path.write_text(json.dumps(encode(Golden(1, tuple(golden())))))
    entry = next(iter(library.manifest.files.values()))
    files = {name: dataclasses.replace(entry, sha256=digest) for name, digest in record.bundle.items()}
    files[GOLDEN] = dataclasses.replace(entry, bytes=path.stat().st_size, sha256=sha256(path))
    manifest = dataclasses.replace(library.manifest, files=files)

    def tried(gpu: Gpu | str, missing: str = "") -> bool:
        def opened(*_arguments: object) -> DeviceEngine:
            if missing:
                raise MissingLibrary(missing)
            return engine

        caplog.clear()
        monkeypatch.setattr(check, "find_gpu", lambda: gpu)
        monkeypatch.setattr(check, "open_engine", opened)
        return try_engines(tmp_path, tmp_path, record, manifest, library)

    assert tried(FITTING) and caplog.text == ""
    assert not tried("there is no NVIDIA GPU")
    assert "the engines have not been tried (there is no NVIDIA GPU): run tx-verify --engine trt where" in caplog.text
    assert not tried(dataclasses.replace(FITTING, name="NVIDIA L4", compute_capability="8.9"))
    assert "have not been tried (is for NVIDIA H200 (9.0), but this machine has NVIDIA L4 (8.9))" in caplog.text
    assert not tried(FITTING, missing="cuda is not installed: pip install 'txport[trt]'")
    assert "have not been tried (cuda is not installed" in caplog.text
    path.write_text(path.read_text().replace("4", "5", 1))
    with pytest.raises(BundleError, match=r"golden.json was changed"):
        tried(FITTING)
