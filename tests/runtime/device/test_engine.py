"""The state on a device: buckets, refills, waits and capture, over memory that checks every access."""

import dataclasses
import gc
import weakref
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from device_engines import (
    any_request,
    check_threads,
    engine_on,
    expected,
    ids_of,
    manifest_of,
    reading_vectors,
    sources,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_device import BOUND, MemoryDevice
from memory_engine import TOKENS, MemoryEngine
from txport.runtime.bundle.schema import Limits
from txport.runtime.device.buffers import UPLOADS, StepSizes, bytes_needed, stack_bytes
from txport.runtime.errors import EngineError, ResourceError
from txport.runtime.search.decoding import decode_all, stream
from txport.runtime.search.requests import Request

BUFFERS = ("caches", "cross", "bias", "masked", "cache_positions", "state", "logits")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(any_request(), min_size=1, max_size=12),
    st.booleans(),
    st.sampled_from([1, 4, 7]),
    st.sampled_from([(1, 4), (3,), (1, 2, 4)]),
    st.sampled_from([(32, 100), (100,), (16, 48, 100)]),
    st.sampled_from(["float32", "float16"]),
    st.booleans(),
)
def test_any_batch_gives_what_each_sentence_gives_alone(
    requests: list[Request],
    lazy: bool,
    poll: int,
    batches: tuple[int, ...],
    targets: tuple[int, ...],
    precision: str,
    features: bool,
) -> None:
    engine, _ = engine_on(MemoryDevice(lazy), poll, batches, targets, precision, features)
    if precision == "float16":  # the second best of rounded logits may be another one than that of exact ones
        requests = [dataclasses.replace(request, min_length=0) for request in requests]
    wanted = expected(requests)
    if features:
        requests = reading_vectors(requests)
    assert ids_of(engine, requests) == wanted
    assert ids_of(engine, requests) == wanted, "buffers that are used again hold nothing of before"
    for request, ids in zip(requests[:3], wanted, strict=False):
        assert [token.id for token in stream(engine, request)] == ids


@settings(max_examples=20, deadline=None)
@given(st.lists(any_request(), min_size=1, max_size=6), st.booleans())
def test_scores_are_those_of_the_step(requests: list[Request], lazy: bool) -> None:
    engine, _ = engine_on(MemoryDevice(lazy))
    requests = [dataclasses.replace(request, scores=True) for request in requests]
    wanted = decode_all(MemoryEngine(BOUND), requests)
    for found, right in zip(decode_all(engine, requests), wanted, strict=True):
        assert found.ids == right.ids
        assert found.scores == pytest.approx(right.scores, abs=1e-5)


def test_the_host_waits_once_for_some_steps_and_copies_nothing_else() -> None:
    device = MemoryDevice()
    engine, program = engine_on(device, poll=8)
    program.eos_weight = -99.0
    decode_all(engine, sources(4, 32))  # buffers are made and the step is captured
    waits, steps, captures = device.waits, len(program.launched), device.captures
    decode_all(engine, sources(4, 32))
    assert len(program.launched) - steps == 32
    assert device.waits - waits == 8, "one poll for each group of steps, of which two make eight, and no other wait"
    assert device.captures == captures, "nothing is captured twice"


def test_the_next_group_of_steps_is_enqueued_before_the_host_waits_for_the_one_before() -> None:
    device = MemoryDevice()
    engine, program = engine_on(device, poll=8)
    program.eos_weight = -99.0
    assert ids_of(engine, sources(4, 30)) == expected(sources(4, 30), -99.0)
    group = 4 * 2 + 1  # a step and the copy of its tokens, four times, and the download
    assert device.behind == [group] * 6 + [2 * 2 + 1, 0], "30 steps: seven groups of four, and two"
    device.behind.clear()
    requests = [Request([4, 5, TOKENS.eos], 20, prefix=[7, 8, 9], min_length=5)]
    ids_of(engine, requests)
    assert device.behind[:5] == [0] * 5, "the host must see a token that it may replace"
    assert all(device.behind[5:-1]), "and none after those"


def test_groups_of_one_size_are_one_graph() -> None:
    """A replay of a whole group is one call of the driver; its copies of tokens are in it."""
    device = MemoryDevice()
    engine, program = engine_on(device)
    program.eos_weight = -99.0
    memory = engine.encode(np.array([[4, 5, 3]]), np.array([3]))
    state = engine.allocate(1, 3, 64)
    state.place([0], memory, [0], [64])
    made: list[int] = []
    captures: list[int] = []
    copies: list[int] = []
    for count in (4, 4, 1, 3, 4, 1, 3):
        before = device.copies
        state.step(count)
        made += state.read().token_ids[:, 0].tolist()
        captures.append(device.captures)
        copies.append(device.copies - before)
    assert captures == [1, 1, 2, 3, 3, 3, 3] and copies == [4, 0, 1, 3, 0, 0, 0]
    assert made == expected([Request([4, 5, 3], 20)], -99.0)[0]


def test_steps_that_a_batch_left_behind_are_done_before_its_buffers_go() -> None:
    device = MemoryDevice()
    engine, program = engine_on(device)
    state = engine.allocate(1, 2, 64)
    state.step(4)
    state.step(4)  # nobody reads
    launched = len(program.launched)
    del state, engine
    gc.collect()
    assert len(program.launched) - launched == 8 and not device.queue


def test_a_device_that_fails_with_steps_under_way_frees_what_it_held() -> None:
    device = MemoryDevice()
    engine, _ = engine_on(device)
    state = engine.allocate(1, 2, 64)
    state.step(2)
    state.step(2)
    device.broken = "an illegal memory access was encountered"
    with pytest.raises(EngineError, match="illegal memory access"):
        state.read()
    with pytest.raises(EngineError, match="failed before"):
        state.read()
    held = weakref.ref(state._buffers)
    del state, engine
    gc.collect()
    assert held() is None, "waiting for a device that has failed neither hangs nor raises"


def test_buffers_are_made_once_for_each_bucket() -> None:
    device = MemoryDevice()
    engine, program = engine_on(device)
    program.eos_weight = -99.0
    for _ in range(3):
        decode_all(engine, sources(3, 100))
        gc.collect()
    assert program.prepared == [StepSizes(4, 32, 32, True), StepSizes(4, 32, 100, True)]
    before = dict(device.memory)
    decode_all(engine, sources(4, 60))
    assert device.memory.keys() == before.keys()


def test_a_row_that_finishes_is_refilled_while_the_others_go_on() -> None:
    engine, program = engine_on(MemoryDevice(), poll=1)
    program.eos_weight = -99.0
    requests = [dataclasses.replace(r, max_length=10 if i % 4 else 40) for i, r in enumerate(sources(16, 40))]
    assert ids_of(engine, requests) == expected(requests, -99.0)
    assert len(program.launched) < 120, "160 if each batch waited for its longest"


def test_rows_move_within_their_buffers_without_a_copy() -> None:
    device = MemoryDevice()
    engine, _ = engine_on(device, batches=(4,), targets=(100,))
    state = engine.allocate(4, 3, 32)
    memory = engine.encode(np.array([[4, 5, 3]] * 4), np.array([3] * 4))
    state.place([0, 1, 2, 3], memory, [0, 1, 2, 3], [9] * 4)
    state.step()
    made = state.read().token_ids
    copies = device.copies
    moved = state.resized([2, 0], 64)
    assert device.copies == copies and (moved.rows, moved.target) == (2, 100)
    assert moved._buffers.host.finished.tolist() == [False, True, False, True], "rows that are left out stop"
    moved.step()
    output = moved.read()
    assert output.token_ids.shape == (1, 2) and not output.finished.any() and (made[0] == made[0][0]).all()


def test_an_upload_waits_for_the_one_before_from_the_same_memory() -> None:
    """On the slowest device, which reads page-locked memory only when it must."""
    engine, _ = engine_on(MemoryDevice())
    buffers, slots = engine.allocate(2, 3, 32)._buffers, range(2 * UPLOADS + 1)
    for slot in slots:
        buffers.host.token_ids[:] = slot
        buffers.upload_state()
        buffers.keep_tokens(slot)
    buffers.download_state(buffers.polls[0], len(slots))
    buffers.polls[0].memory.used.synchronize()
    assert buffers.polls[0].ring[: len(slots), 0].tolist() == list(slots)


def test_two_states_at_once_have_their_own_buffers() -> None:
    engine, _ = engine_on(MemoryDevice())
    requests = [Request([4, 5, 6, TOKENS.eos], 20), Request([7, 8, TOKENS.eos], 20)]
    both = [stream(engine, request) for request in requests]
    found: list[list[int]] = [[], []]
    for _ in range(20):
        for tokens, ids in zip(both, found, strict=True):
            ids.extend(token.id for token in [next(tokens, None)] if token is not None)
    assert found == expected(requests)


def test_threads_share_an_engine() -> None:
    check_threads(engine_on(MemoryDevice())[0])


def test_a_device_that_fails_is_not_used_again() -> None:
    """What it made until then may be wrong: no text comes of it, and none later."""
    device = MemoryDevice()
    engine, _ = engine_on(device)
    tokens = stream(engine, sources(1, 90)[0])
    next(tokens)
    device.broken = "an illegal memory access was encountered"
    with pytest.raises(EngineError, match="illegal memory access"):
        for _ in tokens:
            pass
    device.broken = None
    with pytest.raises(EngineError, match="failed before .*illegal memory access.* create the Translator again"):
        decode_all(engine, sources(1, 5))
    with pytest.raises(EngineError, match="create the Translator again"):
        engine.allocate(1, 1, 1)


def test_too_little_memory_is_reported_with_the_batch_that_would_fit() -> None:
    manifest = manifest_of()
    two, four = (bytes_needed(manifest, StepSizes(rows, 32, 100, True), "int32") for rows in (2, 4))
    device = MemoryDevice(room=(two + four) // 2)
    engine, _ = engine_on(device, batches=(1, 2, 4), targets=(100,))
    with pytest.raises(ResourceError, match=r"batch of 4 rows of 32 source and 100 target .* a batch of 2 would fit"):
        engine.allocate(4, 5, 90)
    engine.allocate(2, 5, 90)
    device.room = 100
    with pytest.raises(ResourceError, match="not even one row would fit"):
        engine_on(MemoryDevice(room=1000), batches=(4,))[0].allocate(4, 5, 90)


def test_buffers_that_nobody_uses_make_room_for_others() -> None:
    manifest = manifest_of()
    needed = bytes_needed(manifest, StepSizes(4, 32, 100, True), "int32")
    device = MemoryDevice(room=needed + needed // 2)
    engine, program = engine_on(device, batches=(4,), targets=(96, 100))
    first = engine.allocate(4, 5, 100)
    with pytest.raises(ResourceError, match="no room"):
        engine.allocate(4, 5, 90)
    del first
    gc.collect()
    assert engine.allocate(4, 5, 90).target == 96
    assert len(program.prepared) == 2


@given(st.integers(1, 24), st.integers(1, 64), st.integers(1, 20), st.integers(1, 3000))
def test_planes_are_aligned_and_whole_lines(count: int, rows: int, heads: int, line: int) -> None:
    plane, whole = stack_bytes(count, rows, heads, line)
    assert plane % 256 == 0 and plane % line == 0 and plane >= rows * heads * line and whole == count * plane


def test_sizes_are_those_of_buckets() -> None:
    engine, _ = engine_on(MemoryDevice(), batches=(1, 4), targets=(32, 100))
    assert engine._pool.sizes(2, 1, 33, False) == StepSizes(4, 32, 100, True)
    assert engine._pool.sizes(1, 33, 32, False) == StepSizes(1, BOUND.source, 32, True)
    assert engine.limits == Limits(4, BOUND.source, 100)


def test_a_step_for_which_memory_runs_out_is_prepared_again_once_there_is_room() -> None:
    """Of the first try nothing is left: neither its buffers nor what the library had half made."""
    device = MemoryDevice()
    engine, program = engine_on(device, batches=(4,), targets=(96, 100))
    engine.allocate(4, 5, 90)  # idle at once
    gc.collect()
    prepare, tries = program.prepare, list[weakref.ref[MemoryEngine]]()

    def scarce(addresses: Mapping[str, int], sizes: StepSizes) -> Callable[[], None]:
        half_made = MemoryEngine(BOUND)
        assert not any(made() for made in tries)
        tries.append(weakref.ref(half_made))
        if len(device.memory) > len(BUFFERS):
            raise ResourceError("CUDA_ERROR_OUT_OF_MEMORY")
        return prepare(addresses, sizes)

    program.prepare = scarce  # type: ignore[method-assign]
    state = engine.allocate(4, 5, 100)
    assert len(tries) == 2 and state.target == 100 and len(device.memory) == len(BUFFERS)
    program.prepare = prepare  # type: ignore[method-assign]
    del state
    assert ids_of(engine, sources(4, 20)) == expected(sources(4, 20)), "the engine is not broken"


def test_few_buffers_are_kept_idle() -> None:
    """Other processes need the memory of a shared GPU; the latest sizes stay."""
    device, targets = MemoryDevice(), tuple(range(20, 60))
    engine, _ = engine_on(device, 4, (1,), targets)
    pool = engine._pool
    leases = [pool.memory(256) for _ in targets]
    leases.clear()
    for target in targets:
        engine.allocate(1, 4, target)
    full = device.free_memory()
    engine.allocate(1, 4, targets[-1])
    pool.memory(256)
    assert {step.buffers.sizes.target for step in pool._idle_steps} == set(targets[-16:])
    assert len(pool._idle_memory) == 16
    assert device.free_memory() > full
