"""The step of beam search against PyTorch: hypotheses that fork and are refilled, over caches that stay."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_runner import OPTIONS, open_session, random_model, run_graph
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.graphs.beams import write_beams
from txport.exporter.graphs.encoder import write_encoder
from txport.exporter.graphs.tensors import ModelTensors
from txport.models.checkpoint import save_checkpoint
from txport.models.transformer import Transformer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.ort_beams import WINDOW
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Search
from txport.training.torch_engine import TorchEngine

LENGTH = 10


class Runner:
    """Feeds and fetches plain arrays, by the words of `txport.runtime.bundle.interface` alone."""

    def __init__(self, model: Transformer) -> None:
        tensors = ModelTensors()
        self.model = model
        self._encoder = open_session(write_encoder(model, model.config.max_positions, tensors))
        self._step = open_session(write_beams(model, model.config.max_positions, tensors))

    def start(self, sources: np.ndarray, lengths: np.ndarray, beams: int) -> None:
        sizes, sentences = self.model.config.sizes, len(sources)
        self._cross = run_graph(self._encoder, {"input_ids": sources, "source_lengths": lengths})
        self.ancestors = np.zeros((sentences, beams, LENGTH, beams), bool)
        names = [value.name for value in self._step.get_inputs() if value.name[:8] in ("self_key", "self_val")]
        # What is masked may be anything but NaN.
        shape = sentences, sizes.heads, LENGTH * beams, sizes.head_dim
        self._caches = {name: np.full(shape, 1e3, np.float32) for name in names}

    def step(self, tokens: np.ndarray, positions: Sequence[int]) -> dict[str, np.ndarray]:
        """One step of tokens `[sentences, beams]`, each sentence at its own position."""
        sentences, beams = tokens.shape
        here = np.array(positions)
        for beam in range(beams):
            self.ancestors[np.arange(sentences), beam, here, beam] = True
        feed = {
            "token_ids": tokens,
            "positions": np.repeat(here[:, None], beams, axis=1),
            "rows": np.arange(tokens.size).reshape(tokens.shape),
            "first_slots": here * beams,
            "slot_positions": np.arange(LENGTH).repeat(beams),
            "self_ancestors": self.ancestors.reshape(sentences, beams, -1),
            **self._cross,
            **self._caches,
        }
        output = run_graph(self._step, {value.name: feed[value.name] for value in self._step.get_inputs()})
        self._caches = {name: output[f"next_{name}"] for name in self._caches}
        return output


@pytest.fixture(scope="module", params=OPTIONS)
def runner(request: pytest.FixtureRequest) -> Runner:
    return Runner(random_model(**OPTIONS[request.param]))


@settings(max_examples=4, deadline=None)
@given(sentences=st.integers(1, 3), beams=st.integers(1, 4), seed=st.integers(0, 2**16), waits=st.integers(0, 2))
def test_hypotheses_that_fork_equal_pytorch(runner: Runner, sentences: int, beams: int, seed: int, waits: int) -> None:
    """Each hypothesis as PyTorch reads it alone; the last sentence begins some steps later, in a used entry."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 7, sentences)
    sources = random.integers(4, 64, (sentences, 6))
    runner.start(sources, lengths, beams)
    made: list[list[list[int]]] = [[[] for _ in range(beams)] for _ in range(sentences)]
    for turn in range(6):
        if turn == waits:  # refilled
            runner.ancestors[-1], made[-1] = False, [[] for _ in range(beams)]
        for sentence in range(sentences):
            parents = random.integers(0, beams, beams)
            made[sentence] = [list(made[sentence][parent]) for parent in parents]
            runner.ancestors[sentence] = runner.ancestors[sentence, parents]
        tokens = random.integers(0, 64, (sentences, beams))
        positions = [len(rows[0]) for rows in made]
        for sentence, beam in np.ndindex(sentences, beams):
            made[sentence][beam].append(int(tokens[sentence, beam]))
        check(runner, runner.step(tokens, positions), sources, lengths, made)


@torch.inference_mode()
def check(
    runner: Runner,
    output: dict[str, np.ndarray],
    sources: np.ndarray,
    lengths: np.ndarray,
    made: Sequence[Sequence[Sequence[int]]],
) -> None:
    beams = len(made[0])
    rows = [torch.tensor(row) for sentence in made for row in sentence]
    ends = torch.tensor([len(row) - 1 for row in rows])
    repeated = torch.from_numpy(sources.repeat(beams, axis=0)), torch.from_numpy(lengths.repeat(beams))
    expected = runner.model(*repeated, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
    expected = expected[torch.arange(len(rows)), ends]
    logits, ids = output["logits"], output["top_ids"]
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-4)
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=1, kind="stable")[:, : ids.shape[1]])
    scores = output["top_logits"] - output["normaliser"]
    wanted = expected.log_softmax(-1).gather(1, torch.from_numpy(ids))
    np.testing.assert_allclose(scores, wanted, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module", params=["learned", "sinusoidal", "rotary", "relative"])
def short_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Transformer]:
    """A bundle whose positions do not fill the last window of a cache."""
    directory = tmp_path_factory.mktemp("short")
    model = random_model(positions=request.param, max_positions=WINDOW + 4)
    save_checkpoint(directory / "checkpoint", model, None, [], {})
    options = ExportOptions(lowerings=("ort",), beams=True, verify=False)
    export_bundle(directory / "checkpoint", directory / "bundle", options)
    return directory / "bundle", model


@pytest.mark.parametrize("beams", [2, 4])
def test_hypotheses_may_reach_the_last_position(short_bundle: tuple[Path, Transformer], beams: int) -> None:
    """While other sentences of the batch continue, which were started later."""
    bundle, model = short_bundle
    search = Search(beam=beams)
    limits = [WINDOW + 4, 3, 3, WINDOW + 4, WINDOW + 4]
    requests = [Request((5 + i, 9, 3), limit, min_length=limit, search=search) for i, limit in enumerate(limits)]
    engine = OrtEngine(bundle, Manifest.load(bundle), ["ort"], threads=1)
    found = decode_all(engine, requests, rows=3)
    expected = [decode_all(TorchEngine(model), [request])[0] for request in requests]
    assert [result.ids for result in found] == [result.ids for result in expected]
    assert [len(result.ids) for result in found] == limits
