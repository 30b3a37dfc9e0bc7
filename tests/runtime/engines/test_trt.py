"""Engines as a program of the device engine, over a TensorRT in memory that keeps the library's rules."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from device_engines import REQUEST, expected, ids_of, sources
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_device import BOUND, MemoryDevice
from memory_engine import TOKENS
from memory_tensorrt import Context, Engine
from patches import records
from tensorrt_programs import open_program, trt_engine
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import Limits
from txport.runtime.engines.build_record import BuildRecord, LibraryName, LibraryVersion
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.engines.trt import TrtProgram, limits_of, smallest_bucket, step_buckets
from txport.runtime.errors import BundleError, EngineError
from txport.runtime.greedy import Request, decode_all, stream


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(REQUEST, min_size=1, max_size=10), st.booleans(), st.booleans(), st.sampled_from(["8.6.0", "10.3.0"]))
def test_any_batch_gives_what_each_sentence_gives_alone(
    tmp_path: Path, requests: list[Request], lazy: bool, one_file: bool, version: str
) -> None:
    engine = trt_engine(*open_program(tmp_path, MemoryDevice(lazy), one_file=one_file, version=version))
    wanted = expected(requests)
    assert ids_of(engine, requests) == wanted
    assert ids_of(engine, requests) == wanted
    for request, ids in zip(requests[:2], wanted, strict=False):
        assert [token.id for token in stream(engine, request)] == ids


def test_batches_of_one_size_run_at_the_same_time_because_profiles_are_shared(tmp_path: Path) -> None:
    def open_engine(shared: bool) -> DeviceEngine:
        program, library = open_program(tmp_path, shared=shared)
        library.model.eos_weight = -99.0  # none ends before its limit
        return trt_engine(program, library)

    requests = [Request([4, 5, 6, TOKENS.eos], 9), Request([7, 8, TOKENS.eos], 9)]
    engine = open_engine(shared=True)
    both = [stream(engine, request) for request in requests]
    found = [[next(tokens).id] for tokens in both]
    for ids, tokens in zip(found, both, strict=True):
        ids += [token.id for token in tokens]
    assert found == expected(requests, -99.0)

    engine = open_engine(shared=False)
    both = [stream(engine, request) for request in requests]
    next(both[0])
    with pytest.raises(EngineError, match="makes no execution context: Profile 0 is in use"):
        next(both[1])


def test_profiles_are_shared_where_the_library_needs_a_flag() -> None:
    class Config:
        flags: list[tuple[str, bool]] = []

        def set_preview_feature(self, feature: str, value: bool) -> None:
            self.flags.append((feature, value))

    class Module:
        class PreviewFeature:
            PROFILE_SHARING_0806 = "PROFILE_SHARING_0806"

    def flags_of(name: LibraryName, version: str) -> list[tuple[str, bool]]:
        Config.flags = []
        TensorRt(Module, LibraryVersion(name, version), [], None).share_profiles(Config())
        return Config.flags

    assert flags_of("tensorrt", "8.6.0") == [("PROFILE_SHARING_0806", True)]
    assert flags_of("tensorrt", "10.3.0") == flags_of("tensorrt", "11.1.0") == flags_of("tensorrt_rtx", "1.7.1") == []


def test_a_step_that_cannot_be_captured_is_launched_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class NoGraphs(MemoryDevice):
        def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
            raise EngineError("operation not permitted when stream is capturing")

    engine = trt_engine(*open_program(tmp_path, NoGraphs()))
    assert ids_of(engine, sources(4, 20)) == expected(sources(4, 20))
    assert "steps are launched one by one, without CUDA graphs: operation not permitted" in caplog.text


def test_steps_are_captured_once_and_the_encoder_runs_at_its_own_sizes(tmp_path: Path) -> None:
    program, library = open_program(tmp_path)
    device, engine = library.model.device, trt_engine(program, library)
    library.model.eos_weight = -99.0
    for _ in range(3):
        ids_of(engine, sources(4, 20))
    assert device.captures == 1
    assert engine.limits == BOUND and engine.name.startswith("TensorRT 8.6.0, lowering scatter")
    with pytest.raises(BundleError, match="no profile for 5 rows"):
        program.bucket(5, 10)


def test_engines_that_are_not_what_the_record_says(tmp_path: Path) -> None:
    _, library = open_program(tmp_path)
    record, device = library.record, library.model.device

    def opened(manifest: Manifest, changed: BuildRecord = record) -> None:
        TrtProgram(tmp_path, changed, manifest, library, device)

    opened(library.manifest)
    other = dataclasses.replace(
        library.manifest,
        graphs=tuple(
            dataclasses.replace(g, outputs=(*g.outputs, dataclasses.replace(g.outputs[0], name="more")))
            for g in library.manifest.graphs
        ),
    )
    with pytest.raises(BundleError, match="has other inputs or outputs than the manifest says: run tx-build again"):
        opened(other)
    plan = tmp_path / "encoder.plan"
    plan.write_bytes(b"encoder_plan")
    with pytest.raises(BundleError, match=r"encoder.plan was changed"):
        opened(library.manifest)
    (encoder,) = record.of_role("encoder")
    torn = dataclasses.replace(encoder, sha256=hashlib.sha256(b"encoder_plan").hexdigest())
    changed = dataclasses.replace(record, engines=(torn, *record.of_role("decoder_step")))
    with pytest.raises(BundleError, match=r"TensorRT 8.6.0 does not open .*encoder.plan: Serialization assertion"):
        opened(library.manifest, changed)


def test_what_fails_on_the_way_ends_the_engine(tmp_path: Path) -> None:
    program, library = open_program(tmp_path)
    engine = trt_engine(program, library)
    tokens = stream(engine, sources(1, 90)[0])
    next(tokens)
    library.fails = True
    with pytest.raises(EngineError, match="TensorRT 8.6.0 failed"):
        decode_all(engine, sources(1, 5))
    with pytest.raises(EngineError, match="create the Translator again"):
        next(tokens)
    library.no_contexts = True
    with pytest.raises(EngineError, match="makes no execution context"):
        TrtProgram(tmp_path, library.record, library.manifest, library, library.model.device)


def test_a_request_takes_the_smallest_profile_with_room() -> None:
    record = BuildRecord.parse(records().data("tensorrt_8_6"))
    (step,) = record.of_role("decoder_step")
    buckets = dict.fromkeys(step_buckets(step))
    assert list(buckets) == [(1, 32), (1, 128), (32, 32), (32, 128)]
    assert smallest_bucket(buckets, 1, 20) == (1, 32)
    assert smallest_bucket(buckets, 1, 33) == (1, 128)
    assert smallest_bucket(buckets, 2, 32) == (32, 32)
    assert smallest_bucket(buckets, 32, 128) == (32, 128)
    for rows, target in ((33, 10), (1, 129)):
        with pytest.raises(BundleError, match=f"no profile for {rows} rows of {target} target tokens.*run tx-build"):
            smallest_bucket(buckets, rows, target)
    assert limits_of(record) == Limits(32, 256, 128)


def test_the_names_are_those_of_tensorrt() -> None:
    module = pytest.importorskip("tensorrt_rtx_bindings", reason="needs TensorRT-RTX: pip install 'txport[rtx]'")
    for ours, theirs in ((Context, module.IExecutionContext), (Engine, module.ICudaEngine)):
        public = {name for name in vars(ours) if not name.startswith("_")}
        assert public and all(hasattr(theirs, name) for name in public)
