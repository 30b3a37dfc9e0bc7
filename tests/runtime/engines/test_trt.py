"""Engines as a program of the device engine, over a TensorRT in memory that keeps the library's rules."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import make_build_records
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_build_records import sizes
from memory_device import BOUND, HashProgram, MemoryDevice
from memory_engine import TOKENS
from memory_tensorrt import Context, Engine, MemoryTensorRt
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.build_record import BuildRecord, LibraryName, LibraryVersion
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.engines.trt import TrtProgram
from txport.runtime.errors import BundleError, EngineError
from txport.runtime.greedy import Request, decode_all, stream

from tests.runtime.device.test_engine import REQUEST, expected, ids_of, manifest_of, sources, step_of

BATCHES, TARGETS = (1, 4), (32, 100)


def profile(batch: int, target: int | None) -> make_build_records.Value:
    wide = make_build_records.profile(batch, target)
    return wide | {"source": sizes(1, 32, BOUND.source)}


def record_in(directory: Path, one_file: bool = True, version: str = "8.6.0") -> BuildRecord:
    """Engine files, each of which holds its own name, and what was built."""
    engine = make_build_records.engine
    steps = [profile(batch, target) for batch in BATCHES for target in TARGETS]
    value = make_build_records.base() | {
        "library": {"name": "tensorrt", "version": version},
        "id_type": "int32" if version.startswith("8") else "int64",
        "engines": [engine("encoder", "encoder.plan", [profile(batch, None) for batch in BATCHES])],
    }
    if one_file:
        value["engines"].append(engine("decoder_step", "decoder_step.plan", steps))
    else:  # as for layers whose cache length is fixed
        for target in TARGETS:
            profiles = [profile(batch, target) for batch in BATCHES]
            value["engines"].append(engine("decoder_step", f"decoder_step.{target}.plan", profiles))
    for file in value["engines"]:
        plan = file["file"].encode()
        (directory / file["file"]).write_bytes(plan)
        file |= {"bytes": len(plan), "sha256": hashlib.sha256(plan).hexdigest()}
    return BuildRecord.parse(make_build_records.text(value))


def open_program(
    directory: Path, device: MemoryDevice | None = None, shared: bool = True, one_file: bool = True, **changes: str
) -> tuple[TrtProgram, MemoryTensorRt]:
    manifest = manifest_of()
    record = record_in(directory, one_file, **changes)
    device = MemoryDevice() if device is None else device
    model = HashProgram(device, manifest, step_of(manifest), BATCHES, TARGETS)
    model.id_type = record.id_type
    library = MemoryTensorRt(model, manifest, record, shared)
    return TrtProgram(directory, record, manifest, library, device), library  # type: ignore[arg-type]


def engine_on(program: TrtProgram, library: MemoryTensorRt) -> DeviceEngine:
    return DeviceEngine(library.model.device, library.manifest, program)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(REQUEST, min_size=1, max_size=10), st.booleans(), st.booleans(), st.sampled_from(["8.6.0", "10.3.0"]))
def test_any_batch_gives_what_each_sentence_gives_alone(
    tmp_path: Path, requests: list[Request], lazy: bool, one_file: bool, version: str
) -> None:
    engine = engine_on(*open_program(tmp_path, MemoryDevice(lazy), one_file=one_file, version=version))
    wanted = expected(requests)
    assert ids_of(engine, requests) == wanted
    assert ids_of(engine, requests) == wanted
    for request, ids in zip(requests[:2], wanted, strict=False):
        assert [token.id for token in stream(engine, request)] == ids


def test_batches_of_one_size_run_at_the_same_time_because_profiles_are_shared(tmp_path: Path) -> None:
    def open_engine(shared: bool) -> DeviceEngine:
        program, library = open_program(tmp_path, shared=shared)
        library.model.eos_weight = -99.0  # none ends before its limit
        return engine_on(program, library)

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

    engine = engine_on(*open_program(tmp_path, NoGraphs()))
    assert ids_of(engine, sources(4, 20)) == expected(sources(4, 20))
    assert "steps are launched one by one, without CUDA graphs: operation not permitted" in caplog.text


def test_steps_are_captured_once_and_the_encoder_runs_at_its_own_sizes(tmp_path: Path) -> None:
    program, library = open_program(tmp_path)
    device, engine = library.model.device, engine_on(program, library)
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
    engine = engine_on(program, library)
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


def test_the_names_are_those_of_tensorrt() -> None:
    module = pytest.importorskip("tensorrt_rtx_bindings", reason="needs TensorRT-RTX: pip install 'txport[rtx]'")
    for ours, theirs in ((Context, module.IExecutionContext), (Engine, module.ICudaEngine)):
        public = {name for name in vars(ours) if not name.startswith("_")}
        assert public and all(hasattr(theirs, name) for name in public)
