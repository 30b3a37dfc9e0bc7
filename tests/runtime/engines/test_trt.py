"""Engines as a program of the device engine, over a TensorRT in memory that keeps the library's rules."""

import dataclasses
import gc
import hashlib
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from device_engines import any_request, expected, ids_of, reading_vectors, sources
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_device import BOUND, MemoryDevice
from memory_engine import TOKENS, MemoryEngine
from memory_tensorrt import Context, Context10, Engine, Engine10
from patches import records
from tensorrt_programs import open_program, trt_engine
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Limits
from txport.runtime.device.beams import DeviceBeams
from txport.runtime.device.buffers import StepBuffers, StepSizes, state_block
from txport.runtime.device.capture import WHOLE_DEVICE
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.build_record import BuildRecord, LibraryName, LibraryVersion
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.engines.trt import TrtProgram, limits_of, smallest_bucket, step_buckets
from txport.runtime.errors import BundleError, EngineError, ResourceError
from txport.runtime.search.decoding import decode_all, stream
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Search


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(any_request(), min_size=1, max_size=10),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["8.6.0", "10.3.0"]),
    st.booleans(),
)
def test_any_batch_gives_what_each_sentence_gives_alone(
    tmp_path: Path, requests: list[Request], lazy: bool, one_file: bool, twice: bool, version: str, features: bool
) -> None:
    """Also where the library computes twice, the second time from what it has written over its inputs."""
    device = MemoryDevice(lazy)
    program, library = open_program(tmp_path, device, one_file=one_file, features=features, version=version)
    library.twice = twice
    engine = trt_engine(program, library)
    wanted = expected(requests)
    if features:
        requests = reading_vectors(requests)
    assert ids_of(engine, requests) == wanted
    assert ids_of(engine, requests) == wanted
    for request, ids in zip(requests[:2], wanted, strict=False):
        assert [token.id for token in stream(engine, request)] == ids


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(any_request(), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
    st.integers(2, 4),
)
def test_beams_run_on_the_engines_that_were_built_for_them(
    tmp_path: Path, requests: list[Request], lazy: bool, twice: bool, beam: int
) -> None:
    """For 2 and 4 beams; 3 are searched over plain rows. Also where the library computes twice."""
    program, library = open_program(tmp_path, MemoryDevice(lazy), version="10.15.1", beams=(2, 4))
    library.twice = twice
    engine = trt_engine(program, library)
    search, eos = Search(beam=beam, n_best=2), TOKENS.eos
    prefixes = [[token for token in request.prefix if token != eos] for request in requests]
    requests = [
        dataclasses.replace(request, search=search, min_length=0, prefix=prefix)
        for request, prefix in zip(requests, prefixes, strict=True)
    ]
    assert isinstance(engine.allocate(beam, 4, 32, beams=beam), DeviceBeams) == (beam != 3)
    assert (engine.limits, engine.captured) == (BOUND, True)
    for found, right in zip(decode_all(engine, requests), decode_all(MemoryEngine(BOUND), requests), strict=True):
        assert [made.ids for made in found.hypotheses] == [made.ids for made in right.hypotheses]
        scores = [made.score for made in right.hypotheses]
        assert [made.score for made in found.hypotheses] == pytest.approx(scores, abs=1e-5)
    ran = {context.sizes["beam"] for opened in library.opened for context in opened.contexts if "beam" in context.sizes}
    assert ran == ({beam} if beam != 3 else set())


def test_engines_of_beams_for_a_bundle_without_their_graph(tmp_path: Path) -> None:
    _, library = open_program(tmp_path, version="10.15.1", beams=(2,))
    graphs = tuple(graph for graph in library.manifest.graphs if graph.role != "decoder_beams")
    manifest = dataclasses.replace(library.manifest, graphs=graphs)
    with pytest.raises(BundleError, match="has engines of a graph that the bundle lacks: run tx-build again"):
        TrtProgram(tmp_path, library.record, manifest, library, library.model.device)


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


@pytest.mark.parametrize("version", ["8.6.0", "10.3.0"])
def test_the_library_opens_and_closes_engines_while_nothing_is_captured(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for the whole device then, which spoils a capture; files are hashed before, which takes seconds."""
    held = dict[str, set[bool]]()

    def note(what: str) -> None:
        held.setdefault(what, set()).add(WHOLE_DEVICE._is_owned())

    class Closing:
        def __init__(self, what: str) -> None:
            weakref.finalize(self, note, what)

    new, init, check = Engine.new, Engine.__init__, BuildRecord.check_files

    def new_context(self: Engine, kind: type[Context]) -> Context | None:
        note("opening a context")
        context = new(self, kind)
        context.part = Closing("closing a context")  # type: ignore[union-attr]
        return context

    def new_engine(self: Engine, *arguments: object) -> None:
        note("opening an engine")
        init(self, *arguments)  # type: ignore[arg-type]
        self.part = Closing("closing an engine")  # type: ignore[attr-defined]

    def checked(self: BuildRecord, directory: Path) -> None:
        note("hashing")
        check(self, directory)

    monkeypatch.setattr(Engine, "new", new_context)
    monkeypatch.setattr(Engine, "__init__", new_engine)
    monkeypatch.setattr(BuildRecord, "check_files", checked)
    program, library = open_program(tmp_path, version=version)
    engine = trt_engine(program, library)
    assert ids_of(engine, sources(3, 20)) == expected(sources(3, 20))
    library.opened.clear()
    del program, engine
    gc.collect()
    assert held.pop("hashing") == {False}
    assert held.keys() == {f"{verb} {what}" for verb in ("opening", "closing") for what in ("a context", "an engine")}
    assert all(owned == {True} for owned in held.values()), held


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

    program, library = open_program(tmp_path, NoGraphs())
    engine = trt_engine(program, library)
    assert ids_of(engine, sources(4, 20)) == expected(sources(4, 20))
    assert "steps are launched one by one, without CUDA graphs: operation not permitted" in caplog.text
    assert not program.captured


@pytest.mark.parametrize("version", ["8.6.0", "10.3.0"])
def test_all_contexts_share_one_block_for_temporaries(version: str, tmp_path: Path) -> None:
    """Each would else have memory for the largest profile: gigabytes. It stays where captured graphs look for it."""
    program, library = open_program(tmp_path, version=version, one_file=False)
    device, engine = library.model.device, trt_engine(program, library)
    (block,) = device.memory
    assert len(device.memory[block]) >= 4000, "the largest of all engines"
    library.model.eos_weight = -99.0
    requests = [Request([4, 5, 6, TOKENS.eos], limit) for limit in (9, 9, 70, 9)]
    for rows in (1, 4, 1):
        decode_all(engine, requests, rows=rows)
    scratch = {context.scratch for opened in library.opened for context in opened.contexts}
    assert {address for address, _ in scratch} == {block} and block in device.memory
    assert sum(len(opened.contexts) for opened in library.opened) >= 5, "encoders and several buckets"


def test_scores_have_memory_that_nothing_else_uses(tmp_path: Path) -> None:
    """Behind the temporaries and the new state, for the largest bucket: 4 rows, 100 positions."""
    program, library = open_program(tmp_path)
    engine = trt_engine(program, library)
    ids_of(engine, sources(4, 90))
    (block,) = (at for at, data in library.model.device.memory.items() if at == program._scratch)
    bytes_of_scores = 4 * 4 * library.manifest.model.heads * 100
    contexts = [context for opened in library.opened for context in opened.contexts if opened.scores]
    assert contexts and all(len(context.engine.scores) == library.manifest.model.decoder_layers for context in contexts)
    for context in contexts:
        bound = sorted(context.addresses[name] for name in context.engine.scores)
        assert bound[0] >= max(sum(context.scratch or ()), program._aside + state_block(4, program.id_type).size)
        ends = [*bound[1:], block + len(library.model.device.memory[block])]
        assert all(end - start >= bytes_of_scores for start, end in zip(bound, ends, strict=True))


def test_memory_that_runs_out_for_a_context_ends_nothing(tmp_path: Path) -> None:
    program, library = open_program(tmp_path)
    engine, device = trt_engine(program, library), library.model.device
    before = set(device.memory)
    words = ["IExecutionContext creation failed", "Error Code 1: Cuda Runtime (CUDA_ERROR_OUT_OF_MEMORY)"]
    for library.refuses_contexts, room in ((words, device.room), (["it failed"], 0)):
        room, device.room = device.room, room or device.room - device.free_memory() + (16 << 20)
        with pytest.raises(ResourceError, match=r"the GPU has no room for a batch of 4 rows"):
            decode_all(engine, sources(4, 20))
        device.room = room
        gc.collect()
        assert {at for at, data in device.memory.items() if len(data) > 1 << 20} <= before, "fresh buffers are freed"
    library.refuses_contexts = []
    assert ids_of(engine, sources(4, 20)) == expected(sources(4, 20)), "the translator goes on"


def test_temporaries_that_do_not_fit_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        ResourceError, match="no room for .* for the engines' temporaries: run tx-build again with a sm"
    ):
        open_program(tmp_path, MemoryDevice(room=2000))


def test_steps_are_captured_once_and_the_encoder_runs_at_its_own_sizes(tmp_path: Path) -> None:
    program, library = open_program(tmp_path)
    device, engine = library.model.device, trt_engine(program, library)
    library.model.eos_weight = -99.0
    for _ in range(3):
        ids_of(engine, sources(4, 20))
    assert device.captures == 1 and program.captured
    assert engine.limits == BOUND and engine.name.startswith("TensorRT 8.6.0, lowering scatter")
    with pytest.raises(BundleError, match="no profile for 5 rows"):
        program.bucket(5, 10)


def test_the_library_in_memory_keeps_the_rules_of_runs(tmp_path: Path) -> None:
    """What no engine of ours may do: the stand-in refuses it as TensorRT does, or notices."""
    program, library = open_program(tmp_path)
    device, manifest, graph = library.model.device, library.manifest, program.step_graph
    context = program._context(*program._steps[1][1, 32])

    def bind(source: int) -> StepBuffers:
        buffers = StepBuffers(device, manifest, graph, StepSizes(1, source, 32, True), program.id_type, TOKENS.pad)
        program._bind(context, graph, buffers.addresses, {"batch": 1, "source": source, "target": 32})
        return buffers

    def enqueue() -> None:
        program._enqueue(context)

    buffers = [bind(32)]
    with pytest.raises(EngineError, match="operation not permitted when stream is capturing"):
        device.capture(enqueue)
    enqueue()
    assert not context.library.set_optimization_profile_async(0, device.stream) and "profile" in library.messages[-1]
    device.synchronize()
    replay = device.capture(enqueue)
    replay()
    device.synchronize()
    buffers.append(bind(16))
    enqueue()
    device.synchronize()
    replay()
    with pytest.raises(AssertionError, match="captured before the shapes changed"):
        device.synchronize()
    assert context.library.set_optimization_profile_async(0, device.stream)


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
    with pytest.raises(BundleError, match="has other inputs or outputs than the manifest: run tx-build again"):
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
    library.refuses_contexts = ["the driver was upset"]
    with pytest.raises(EngineError, match="makes no execution context: the driver was upset"):
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
    pairs = ((Context, module.IExecutionContext), (Engine, module.ICudaEngine))
    for ours, theirs in (*pairs, (Context10, module.IExecutionContext), (Engine10, module.ICudaEngine)):
        public = {name for name in vars(ours) if not name.startswith("_")} - {"new"}
        assert public and all(hasattr(theirs, name) for name in public)
