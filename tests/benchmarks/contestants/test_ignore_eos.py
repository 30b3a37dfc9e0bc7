"""Sentences that no eos ends: all make the most tokens, on engines that are polled after each step and on others."""

from pathlib import Path

import numpy as np
import pytest
from device_engines import engine_on
from memory_device import MemoryDevice
from memory_engine import TOKENS
from txport.benchmarks.contestants.backend import Task
from txport.benchmarks.contestants.ignore_eos import encode_and_wait, fused_without_eos, ignore_eos
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.native import NativeEngine, missing
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request

SOURCES = [[4, 5, 6, TOKENS.eos], [7, TOKENS.eos], [8, 9, 4, 5, 11, TOKENS.eos]]


@pytest.mark.parametrize("poll", [1, 4])
@pytest.mark.parametrize("target", [1, 7, 33])
def test_every_sentence_makes_all_its_tokens(target: int, poll: int) -> None:
    engine, _ = engine_on(MemoryDevice(), poll)
    requests = [Request(source, target) for source in SOURCES]
    plain = [result.ids for result in decode_all(engine, requests)]
    ids_without_end = [result.ids for result in decode_all(ignore_eos(engine), requests)]
    assert [len(ids) for ids in ids_without_end] == [target] * 3
    for before, after in zip(plain, ids_without_end, strict=True):
        assert after[: len(before)] == before, "the same until its end"
    if target == 33:
        assert any(len(ids) < target for ids in plain), "else nothing had to be overridden"


def test_the_encoder_is_waited_for() -> None:
    device = MemoryDevice(lazy=True)
    engine, _ = engine_on(device)
    ids, lengths = np.array([[4, TOKENS.eos]]), np.array([2])
    memory = engine.encode(ids, lengths)
    assert device.queue, "this device runs nothing before the host waits"
    encode_and_wait(engine, ids, lengths)
    assert not device.queue
    del memory


@pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")
def test_the_fused_engine_goes_on_after_eos(bundle: Path) -> None:
    rng = np.random.default_rng(0)
    sources = [[*rng.integers(4, 200, 9).tolist(), TOKENS.eos] for _ in range(8)]
    requests = [Request(source, 60) for source in sources]
    plain = [result.ids for result in decode_all(NativeEngine(bundle, Manifest.load(bundle), 1), requests)]
    engine = fused_without_eos(bundle, 1, Task(sources, 60, True, [], 0))
    endless = [result.ids for result in decode_all(engine, requests)]
    assert [len(ids) for ids in endless] == [60] * 8
    assert all(after[: len(before)] == before for before, after in zip(plain, endless, strict=True))
    assert any(len(ids) < 60 for ids in plain), "else nothing had to go on"
