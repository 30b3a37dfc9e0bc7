"""Sentences that no eos ends: as many tokens as asked for, where the host looks at each step and where it does not."""

import numpy as np
import pytest
from memory_device import MemoryDevice
from memory_engine import TOKENS
from txport.benchmarks.contestants.ignore_eos import EndlessEngine
from txport.runtime.greedy import Request, decode_all

from tests.runtime.device.test_engine import engine_on

SOURCES = [[4, 5, 6, TOKENS.eos], [7, TOKENS.eos], [8, 9, 4, 5, 11, TOKENS.eos]]


@pytest.mark.parametrize("poll", [1, 4])
@pytest.mark.parametrize("target", [1, 7, 33])
def test_every_sentence_makes_all_its_tokens(target: int, poll: int) -> None:
    engine, _ = engine_on(MemoryDevice(), poll)
    requests = [Request(source, target) for source in SOURCES]
    plain = [result.ids for result in decode_all(engine, requests)]
    endless = [result.ids for result in decode_all(EndlessEngine(engine), requests)]
    assert [len(ids) for ids in endless] == [target] * 3
    for before, after in zip(plain, endless, strict=True):
        assert after[: len(before)] == before, "the same until its end"
    if target == 33:
        assert any(len(ids) < target for ids in plain), "else nothing was to be taken back"


def test_the_encoder_is_waited_for() -> None:
    device = MemoryDevice(lazy=True)
    engine, _ = engine_on(device)
    ids, lengths = np.array([[4, TOKENS.eos]]), np.array([2])
    memory = engine.encode(ids, lengths)
    assert device.queue, "this device does nothing before it is waited for"
    EndlessEngine(engine).encode_and_wait(ids, lengths)
    assert not device.queue
    del memory
