"""The fused engine against PyTorch, for every option of the model: ids, logits, and rows that depend on nothing else.

Its bundles are written by a helper, so that nothing here rests on the exporter; `test_parameters.py` compares the two.
"""

import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from make_fused_bundle import Form, write_fused_bundle
from moved_rows import Turn, check_moves, turns
from numpy_runner import FUSED, random_model
from txport.exporter.reference import answers, pad
from txport.models.transformer import Transformer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engine import Engine
from txport.runtime.engines.native import NativeEngine, missing
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.training.torch_engine import TorchEngine

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")

LIMIT = 32
SOURCE = st.lists(st.integers(4, 63), min_size=0, max_size=LIMIT - 1).map(lambda ids: [*ids, 3])
SOURCES = st.lists(SOURCE, min_size=1, max_size=20)
# What FUSED lacks: heads that fill no vector, widths that no vector divides, layers of any number.
MORE: dict[str, dict[str, Any]] = {
    "one_head": {"heads": 1, "ffn": 100},
    "rotary_pairs": {"positions": "rotary", "head_dim": 10, "decoder_heads": 3},
    "wide_decoder": {"heads": 8, "decoder_heads": 2, "positions": "rotary"},
    "narrow_heads": {"heads": 16, "activation": "gelu"},
    "odd_sizes": {"d_model": 36, "heads": 6, "ffn": 50, "source_vocabulary": 70, "target_vocabulary": 65,
                  "share_embeddings": False, "projection_bias": True, "tie_projection": False},
    "one_layer": {"encoder_layers": 1, "decoder_layers": 1, "norm": "pre", "activation": "silu"},
    # So many weights that threads share rows which they would else have apart.
    "large": {"encoder_layers": 1, "decoder_layers": 1, "target_vocabulary": 90_000, "share_embeddings": False},
}  # fmt: skip
MODELS = {**FUSED, **MORE}
# Threads and rows: one thread, two or five, with few rows and with many. TXPORT_WHOLE_GRID=1 tries all combinations.
WAYS = [(1, 3), (1, 16), (2, 3), (5, 16)]
if os.environ.get("TXPORT_WHOLE_GRID") == "1":
    WAYS = list(itertools.product((1, 2, 5), (3, 16)))


def limit_of(name: str) -> int:
    """Return the maximum length of answers. A token of the large model takes a thousand times as long."""
    return 6 if name == "large" else LIMIT


@functools.cache
def model_of(name: str) -> Transformer:
    """With its last LayerNorm's weights of random signs: a tied projection would else repeat the token that went in."""
    model = random_model(**MODELS[name])
    norm = model.decoder_norm if model.config.norm != "post" else model.decoder[-1].feed_forward_residual.norm
    with torch.no_grad():
        weight = norm.weight  # type: ignore[union-attr]
        weight.mul_(2 * torch.sign(torch.randn(weight.shape)))  # type: ignore[operator, union-attr, arg-type]
    return model


@pytest.fixture(scope="module")
def open_engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Engines by model, form and threads, each opened once."""

    @functools.cache
    def bundle(name: str, form: Form) -> Path:
        directory = tmp_path_factory.mktemp(f"{name}-{form}") / "bundle"
        write_fused_bundle(directory, model_of(name), form)
        return directory

    @functools.cache
    def opened(name: str, form: Form = "float32", threads: int = 1) -> NativeEngine:
        directory = bundle(name, form)
        return NativeEngine(directory, Manifest.load(directory), threads)

    return opened


def decoded(engine: Engine, sources: Sequence[Sequence[int]], limit: int = LIMIT, rows: int = 5) -> list[list[int]]:
    return [result.ids for result in decode_all(engine, [Request(source, limit) for source in sources], rows=rows)]


def expected(model: Transformer, sources: Sequence[Sequence[int]], limit: int = LIMIT) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for answer in answers(model, sources, limit):
        found.update(zip(answer.batch.indices, answer.batch.targets, strict=True))
    return [found[index] for index in range(len(sources))]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=10, deadline=None)
@given(sources=SOURCES, rows=st.integers(1, 16), limit=st.integers(1, LIMIT))
def test_ids_are_those_of_pytorch(open_engine: Any, name: str, sources: list[list[int]], rows: int, limit: int) -> None:
    """Ragged batches, in which rows are refilled and moved."""
    limit = min(limit, limit_of(name))
    assert decoded(open_engine(name), sources, limit, rows) == expected(model_of(name), sources, limit)


@pytest.mark.parametrize("name", ["pre", "bart", "odd_sizes"])
@settings(max_examples=15, deadline=None)
@given(
    sources=st.lists(SOURCE, min_size=1, max_size=4),
    limits=st.lists(st.integers(1, LIMIT), min_size=4, max_size=4),
    walk=turns(st.integers(4, 63), 4),
)
def test_rows_move_and_repeat(
    open_engine: Any, name: str, sources: list[list[int]], limits: list[int], walk: list[Turn]
) -> None:
    model = model_of(name)

    @torch.inference_mode()
    def after(source: Sequence[int], made: Sequence[int]) -> int:
        read = torch.tensor([[model.config.bos_id, *made]])
        return int(model(torch.tensor([source]), torch.tensor([len(source)]), read)[0, -1].argmax())

    check_moves(open_engine(name), sources, limits[: len(sources)], walk, after)


@pytest.mark.parametrize("form", ["float32", "float16", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_ids_depend_neither_on_the_batch_nor_on_threads(open_engine: Any, name: str, form: Form) -> None:
    """Exactly, and so do logits: alone, in batches, on one thread, two or five, and in calls side by side."""
    rng = np.random.default_rng(1)
    vocabulary = model_of(name).config.source_vocabulary
    sources = [[*rng.integers(4, vocabulary, rng.integers(0, LIMIT - 1)).tolist(), 3] for _ in range(20)]
    one, limit = open_engine(name, form), limit_of(name)
    alone = [decoded(one, [source], limit)[0] for source in sources]
    for threads, rows in WAYS:
        assert decoded(open_engine(name, form, threads), sources, limit, rows) == alone
    shared = open_engine(name, form, 2)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda source: decoded(shared, [source], limit)[0], sources)) == alone
    whole = logits_of(open_engine(name, form, 2), sources[:16], alone[:16])
    for row in range(0, 16, 5):
        single = logits_of(one, sources[row : row + 1], alone[row : row + 1])
        np.testing.assert_array_equal(whole[: len(alone[row]), row], single[: len(alone[row]), 0])


def logits_of(engine: NativeEngine, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> np.ndarray:
    """float32 `[steps, rows, vocabulary]` along these targets."""
    ids, lengths = pad(sources, engine.tokens.pad)
    rows, steps, made = range(len(sources)), max(map(len, targets)), []
    state = engine.allocate(len(sources), ids.shape[1], steps, logits=True)
    state.place(rows, engine.encode(ids, lengths), rows, [steps] * len(sources))
    for step in range(steps):
        state.step()
        state.read()
        made.append(state.logits())
        tokens = [t[step] if step < len(t) else engine.tokens.pad for t in targets]
        state.override(rows, tokens, [step + 1 == steps] * len(sources))
    return np.stack(made)


@pytest.mark.parametrize(("form", "most"), [("float32", 2e-4), ("float16", 0.1), ("int8", 3.0)])
# Of 90,000 logits in int8 the worst are further off.
@pytest.mark.parametrize("name", [name for name in MODELS if name != "large"])
def test_logits_are_those_of_pytorch(open_engine: Any, name: str, form: Form, most: float) -> None:
    rng, model = np.random.default_rng(2), model_of(name)
    sources = [[*rng.integers(4, model.config.source_vocabulary, n).tolist(), 3] for n in (0, 1, 9, 16, 31)]
    for answer in answers(model, sources, LIMIT):
        ours = logits_of(open_engine(name, form), [sources[i] for i in answer.batch.indices], answer.batch.targets)
        for row, target in enumerate(answer.batch.targets):
            error = np.abs(ours[: len(target), row] - answer.logits[row, : len(target)])
            assert error.max() <= most, f"logits go up to {np.abs(answer.logits).max():.1f}"


def test_scores_and_constraints_are_those_of_pytorch(open_engine: Any) -> None:
    """Log-probabilities, a forced prefix, a minimum length: what the search does step by step."""
    model, rng = model_of("pre"), np.random.default_rng(3)
    requests = [
        Request([*rng.integers(4, 64, 1 + n).tolist(), 3], 20, min_length=n, prefix=[9, 3, 11][: n % 4], scores=True)
        for n in range(12)
    ]
    ours = list(decode_all(open_engine("pre"), requests, rows=4))
    theirs = list(decode_all(TorchEngine(model), requests, rows=4))
    for result, other in zip(ours, theirs, strict=True):
        assert result.ids == other.ids
        np.testing.assert_allclose(result.scores, other.scores, atol=2e-4)


# A process of its own, in which no other library takes memory meanwhile.
LONG_RUN = """
import json
import sys
from pathlib import Path

import numpy as np
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.native import NativeEngine
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.system import process_memory

bundle = Path(sys.argv[1])
engine, rng = NativeEngine(bundle, Manifest.load(bundle), 2), np.random.default_rng(4)
pool, answered = json.load(sys.stdin)

def turn():
    chosen = rng.integers(0, len(pool), rng.integers(1, 40))
    requests = [Request(pool[index]) for index in chosen]
    ids = [result.ids for result in decode_all(engine, requests, rows=int(rng.integers(1, 17)))]
    assert ids == [answered[index] for index in chosen]

for _ in range(20):
    turn()
before = process_memory("VmRSS")
for _ in range(200):
    turn()
print(process_memory("VmRSS") - before)
"""


def test_a_long_run_neither_errs_nor_grows(tmp_path: Path) -> None:
    """States of changing sizes, made and freed; memory stays where it was after the first of them."""
    write_fused_bundle(tmp_path / "bundle", model_of("post"), "float32")
    rng = np.random.default_rng(4)
    pool = [[*rng.integers(4, 64, rng.integers(0, 31)).tolist(), 3] for _ in range(64)]
    text = json.dumps([pool, expected(model_of("post"), pool)])
    command = [sys.executable, "-c", LONG_RUN, str(tmp_path / "bundle")]
    ran = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 8e6


def test_the_oracle_is_not_trivial() -> None:
    """Answers differ, and some models' have many tokens, or the tests above would show little."""
    rng = np.random.default_rng(0)
    sources = [[*rng.integers(4, 64, 9).tolist(), 3] for _ in range(60)]
    outputs = {name: expected(model_of(name), sources, limit_of(name)) for name in MODELS}
    assert all(len({tuple(ids) for ids in answers}) >= 5 for answers in outputs.values())
    varied = [name for name, answers in outputs.items() if np.mean([len(set(ids)) for ids in answers]) > 4]
    assert len(varied) >= 3
