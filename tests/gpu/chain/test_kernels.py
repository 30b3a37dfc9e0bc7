"""The chain of kernels, emulated on the CPU, against PyTorch."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chain_emulator import (
    SANITIZERS,
    Emulator,
    HostMemory,
    build_emulator,
    decode_emulated,
    missing,
    sanitized,
)
from chain_plan import Attention as AttentionArguments
from chain_plan import Chain, ChainModel, Launch, pack_weights
from small_models import recorded

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")

from numpy_runner import OPTIONS, random_model  # noqa: E402
from txport.exporter.graphs.parameters import model_parameters  # noqa: E402
from txport.exporter.graphs.tensors import query_scale  # noqa: E402
from txport.models.norms import SharedNorm  # noqa: E402
from txport.models.transformer import Attention, Transformer  # noqa: E402

LENGTH = 20
SOURCE = 7
BLOCKS = 3
# Every option but Shaw's positions, which the kernels lack. The last model has more inputs than a warp holds at once.
KINDS = {kind: fields for kind, fields in OPTIONS.items() if kind != "shaw"} | {
    "no_final": {"norm": "pre_no_final"},
    "copies_post": {"copy_heads": ((1, 2),), "norm": "post_final", "norm_kind": "rms", "attention_bias": False},
    "copies_no_final": {"copy_heads": ((0, 1), (1, 1), (0, 0)), "norm": "pre_no_final", "decoder_layers": 3},
    "wide": {"d_model": 576, "heads": 8, "ffn": 600, "encoder_layers": 1, "decoder_layers": 1, "norm": "pre"},
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := missing():
        pytest.skip(reason)
    return build_emulator(tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module")
def emulator(library: Path) -> Emulator:
    return Emulator(library)


def round_weights(model: Transformer) -> Transformer:
    """Make every matrix of the decoder one of float16 numbers, as the kernels read them."""
    scales = {module.query: query_scale(module) for module in model.decoder.modules() if isinstance(module, Attention)}
    layers = [module for module in model.decoder.modules() if isinstance(module, torch.nn.Linear)]
    with torch.no_grad():
        for layer in [*layers, model.projection, model.target_embedding.tokens]:
            scale = scales.get(layer, 1.0)
            layer.weight.copy_((layer.weight * scale).half().float() / scale)
    return model


def chain_model(model: Transformer) -> ChainModel:
    config = model.config
    parameters = dict(model_parameters(model, config.max_positions))
    for name, module in model.named_modules():
        if isinstance(module, SharedNorm):
            weight, bias = module.affine()
            parameters[f"{name}.weight"] = weight.detach().numpy()
            parameters[f"{name}.bias"] = bias.detach().numpy()
    return ChainModel(
        parameters=parameters,
        heads=config.decoder.heads,
        norm=config.norm,
        norm_kind=config.norm_kind if config.norm_kind in ("layer", "rms") else "affine",
        activation=config.activation,
        embedding_scale=model.target_embedding.scale,
        epsilon=config.layer_norm_epsilon,
        pad_id=config.pad_id,
        eos_id=config.eos_id,
        copy_heads=config.copy_heads,
    )


class Decoding:
    """A batch of ragged sources, decoded by PyTorch and by the chain."""

    def __init__(self, model: Transformer, rows: int, half_caches: bool = False, blocks: int = BLOCKS) -> None:
        generator = torch.Generator().manual_seed(1)
        self.model = model
        self.rows = rows
        self.tokens: list[np.ndarray] = []  # chosen after each position of `forced`
        self.lengths = torch.arange(rows) * 5 % SOURCE + 1
        self.source = torch.randint(4, 64, (rows, SOURCE), generator=generator)
        self.source[:, 2] = self.source[:, 0]  # a word that is copied from two places
        self.chain = Chain(
            chain_model(model),
            HostMemory(),
            rows=rows,
            cache=LENGTH,
            source=SOURCE,
            blocks=blocks,
            half_caches=half_caches,
        )
        with torch.inference_mode():
            self.memory = model.encode(self.source, self.lengths)
            self.cross = model.cross_key_values(self.memory)
        cross = [(key.numpy(), value.numpy()) for key, value in self.cross]
        self.chain.place_sources(cross, self.lengths.numpy(), self.source.numpy())

    def forced(self, emulator: Emulator, target: Any, **order: int) -> np.ndarray:
        """Logits `[b, t, v]` of the chain, of the target `[b, t]`."""
        logits, self.tokens = [], []
        for position in range(target.shape[1]):
            self.chain.poison()
            positions = np.full(self.rows, position)
            self.chain.place_rows(target[:, position].numpy(), positions, np.full(self.rows, LENGTH))
            emulator.step(self.chain.launches, self.chain.constants, **order)
            logits.append(self.chain.logits())
            self.tokens.append(self.chain.state("tokens"))
        assert self.chain.error() == 0
        return np.stack(logits, axis=1)

    def expected(self, target: Any) -> np.ndarray:
        with torch.inference_mode():
            return self.model.decode(target, self.memory, self.lengths, self.source).numpy()


def random_target(rows: int, length: int) -> Any:
    return torch.randint(4, 64, (rows, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_pytorch(emulator: Emulator, kind: str) -> None:
    """With float32 caches. Up to 8 rows activations are exact."""
    model = round_weights(random_model(**KINDS[kind]))
    decoding = Decoding(model, rows=3)
    target = random_target(3, 2 if kind == "wide" else 4)
    logits = decoding.forced(emulator, target)
    expected = decoding.expected(target)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=3e-6 * np.abs(expected).max())
    np.testing.assert_array_equal(np.stack(decoding.tokens, axis=1), logits.argmax(-1))
    config = model.config
    more = (config.norm == "post_final") + config.copies * (1 + (config.norm != "pre_no_final"))
    assert len(decoding.chain.launches) == 8 * config.decoder_layers + 3 + more
    # Each block twice, in any order: no kernel reads what another of its blocks, or itself, has written.
    np.testing.assert_array_equal(decoding.forced(emulator, target[:, :2], times=2, seed=7), logits[:, :2])


def round_states(model: Transformer, activations: bool) -> Transformer:
    """Let PyTorch round caches to float16, and inputs of products if `activations`."""

    def round_input(_: Any, inputs: tuple[Any, ...]) -> Any:
        return (inputs[0].half().float(),)

    def round_output(_: Any, inputs: Any, output: Any) -> Any:
        return output.half().float()

    for name, module in [*model.decoder.named_modules(), ("projection", model.projection)]:
        if isinstance(module, torch.nn.Linear):
            if activations and "cross_attention.key" not in name and "cross_attention.value" not in name:
                module.register_forward_pre_hook(round_input)
            if name.endswith(("attention.key", "attention.value")):
                module.register_forward_hook(round_output)
    return model


@pytest.mark.parametrize(
    ("rows", "kind", "blocks"),
    [
        (1, "pre", 64),
        (2, "umt5", 5),
        (8, "rms", 1),
        (9, "marian", 4),
        (16, "sides", 3),
        (17, "t5", 2),
        (32, "bart", 7),
        (5, "copies", 2),
        (20, "copies_post", 3),
    ],
)
def test_batches_in_float16_equal_pytorch(emulator: Emulator, rows: int, kind: str, blocks: int) -> None:
    """The same roundings by PyTorch leave the few that another order of sums moves."""
    model = round_states(round_weights(random_model(**KINDS[kind])), activations=rows > 8)
    decoding = Decoding(model, rows, half_caches=True, blocks=blocks)
    target = random_target(rows, 3 if rows <= 8 else 2)
    logits = decoding.forced(emulator, target, times=2, seed=3)
    errors = np.abs(logits - decoding.expected(target))
    assert errors.max() < 1e-2
    # The normaliser of the probabilities of a model that copies has a part of the error of each logit.
    assert np.median(errors) < (2e-4 if model.config.copies else 1e-5)


@pytest.mark.parametrize("head_dim", [5, 12, 40, 64, 128])
@pytest.mark.parametrize("half", [False, True])
def test_attention_equals_a_softmax(emulator: Emulator, head_dim: int, half: bool) -> None:
    """Rows of one key, of as many as are read at once, and of more; biases by distance."""
    random = np.random.default_rng(head_dim)
    heads, capacity = 3, 300
    lengths = np.array([1, 64, 65, 300], np.int32)
    rows = len(lengths)
    width = -(-heads * head_dim // 8) * 8
    query = random.standard_normal((rows, width), np.float32)
    caches = random.standard_normal((2, rows, heads, capacity, head_dim)).astype(np.float16 if half else np.float32)
    for row, length in enumerate(lengths):
        caches[:, row, :, length:] = np.nan
    biases = random.standard_normal((heads, capacity), np.float32)
    memory = HostMemory()
    keys, values = memory.place(caches[0]), memory.place(caches[1])
    pointers = {"query": query, "lengths": lengths, "biases": biases, "context": np.full_like(query, np.nan)}
    at = {name: memory.place(array) for name, array in pointers.items()}
    arguments = AttentionArguments(**at, keys=keys, values=values, capacity=capacity)
    constants: dict[str, int | float] = {"HEADS": heads, "HEAD_DIM": head_dim, "CACHE": capacity}
    emulator.step([Launch("attend", rows * heads, arguments)], {**constants, "HALF_CACHES": int(half)}, 2, 5)
    context = memory.read(at["context"], query.shape, np.float32)
    exact = caches.astype(np.float64)
    for row, length in enumerate(lengths):
        parts = query[row, : heads * head_dim].astype(np.float64).reshape(heads, head_dim, 1)
        scores = (exact[0, row, :, :length] @ parts)[..., 0] + biases[:, :length][:, ::-1]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        expected = (weights[:, None] @ exact[1, row, :, :length])[:, 0].reshape(-1)
        np.testing.assert_allclose(context[row, : heads * head_dim], expected, atol=1e-5)
    assert not context[:, heads * head_dim :].any()


def greedy(model: Transformer, source: Any, limit: int, eos: int) -> list[int]:
    """PyTorch's greedy translation, alone, without a cache."""
    ids = [model.config.bos_id]
    with torch.inference_mode():
        memory = model.encode(source[None], torch.tensor([len(source)]))
        while len(ids) <= limit and (len(ids) == 1 or ids[-1] != eos):
            ids.append(int(model.decode(torch.tensor([ids]), memory, torch.tensor([len(source)]))[0, -1].argmax()))
    return ids[1:]


def test_rows_end_and_are_refilled(emulator: Emulator) -> None:
    """Rows at different positions, over sources of different lengths, with limits; each ends as if it were alone."""
    model = round_weights(random_model(**OPTIONS["relative_odd"]))
    sources = [torch.randint(4, 64, (1 + 3 * number % SOURCE,)) for number in range(7)]
    limits = [3 + 4 * number % 9 for number in range(7)]
    eos = greedy(model, sources[2], 9, -1)[2]
    model.config = dataclasses.replace(model.config, eos_id=eos)
    expected = [greedy(model, source, limit, eos) for source, limit in zip(sources, limits, strict=True)]
    assert any(len(ids) < limit for ids, limit in zip(expected, limits, strict=True)), "none ends by eos"
    assert any(ids[-1] != eos for ids in expected), "none ends by its limit"
    decoding = Decoding(model, rows=3)
    chain, config = decoding.chain, model.config
    waiting, running = list(range(7)), dict[int, int]()
    found: dict[int, list[int]] = {}
    tokens, positions = np.full(3, config.pad_id), np.zeros(3, int)
    finished, row_limits = np.ones(3, int), np.ones(3, int)
    cross = [[part.numpy().copy() for part in pair] for pair in decoding.cross]
    lengths = np.ones(3, int)
    while len(found) < len(sources):
        for row in np.flatnonzero(finished):
            if row in running:
                sentence = running.pop(row)
                found[sentence] = chain.history()[row, : positions[row] + 1].tolist()
            if waiting:
                sentence = running[row] = waiting.pop(0)
                source = sources[sentence]
                tokens[row], positions[row], finished[row] = config.bos_id, 0, 0
                row_limits[row], lengths[row] = limits[sentence], len(source)
                with torch.inference_mode():
                    states = model.encode(source[None], torch.tensor([len(source)]))
                    for pair, new in zip(cross, model.cross_key_values(states), strict=True):
                        for stored, values in zip(pair, new, strict=True):
                            stored[row, :, : len(source)] = values[0].numpy()
        chain.poison()
        chain.place_sources([(keys, values) for keys, values in cross], lengths)
        chain.place_rows(tokens, positions, row_limits, finished)
        before = finished.copy()
        emulator.step(chain.launches, chain.constants, times=2, seed=len(found) + 1)
        tokens, positions, finished = (chain.state(name) for name in ("tokens", "positions", "finished"))
        assert (tokens[before > 0] == config.pad_id).all() and (finished >= before).all()
    assert [found[number] for number in range(7)] == expected


@pytest.mark.parametrize("half", [False, True])
def test_finished_rows_write_nothing(emulator: Emulator, half: bool) -> None:
    """Other rows write one position of each cache."""
    model = round_weights(random_model(pad_id=1, unk_id=0))  # the history is 0 at first
    chain = Decoding(model, rows=3, half_caches=half).chain
    chain.place_rows(np.array([4, 5, 6]), np.array([0, 3, 0]), np.full(3, LENGTH), np.array([0, 1, 0]))
    emulator.step(chain.launches, chain.constants)
    for layer in range(chain.model.layers):
        for part in ("keys", "values"):
            written = ~np.isnan(chain.cache(layer, part)).all((1, 3))
            assert np.argwhere(written).tolist() == [[0, 0], [2, 0]]
    assert chain.state("positions").tolist() == [1, 3, 1] and chain.state("finished").tolist() == [0, 1, 0]
    assert chain.state("tokens")[1] == chain.model.pad_id and not chain.history()[1].any()


@pytest.mark.parametrize("best", [(6, 7), (5, 14), (20, 40), (3, 63)])
def test_of_equal_logits_the_smallest_id_is_chosen(emulator: Emulator, best: tuple[int, int]) -> None:
    """In one pair of outputs, one block, and in two."""
    model = random_model(tie_projection=False, projection_bias=True)
    with torch.no_grad():
        model.projection.weight.zero_()
        model.projection.bias.fill_(-1.0)[list(best)] = 2.0
    chain = Decoding(round_weights(model), rows=3).chain
    chain.place_rows(np.full(3, 4), np.zeros(3), np.full(3, LENGTH))
    emulator.step(chain.launches, chain.constants, times=2, seed=5)
    assert chain.state("tokens").tolist() == [best[0]] * 3


def choose_in_place(launches: list[Launch]) -> None:
    for name in ("tokens", "positions", "finished"):
        setattr(launches[-1].arguments, name, getattr(launches[-1].arguments, f"next_{name}"))


def add_in_place(launches: list[Launch]) -> None:
    """The first kernel that adds to the stream replaces it, and the following ones read it there."""
    place = next(number for number, launch in enumerate(launches) if launch.kernel == "project_context")
    adding = launches[place].arguments
    free, adding.output = adding.output, adding.stream
    for launch in launches[place + 1 :]:
        if getattr(launch.arguments, "stream", None) == free:
            launch.arguments.stream = adding.stream
        if launch.kernel == "project_outer":
            break


@pytest.mark.parametrize("plant", [choose_in_place, add_in_place])
def test_the_emulator_finds_a_kernel_that_reads_what_it_writes(
    emulator: Emulator, plant: Callable[[list[Launch]], None]
) -> None:
    """It is found by running each block twice."""
    decoding = Decoding(round_weights(random_model(norm="pre")), rows=3)
    target = random_target(3, 2)

    def run(**order: int) -> list[np.ndarray]:
        return [decoding.forced(emulator, target, **order), decoding.chain.state("positions")]

    plain, twice = run(), {"times": 2, "seed": 3}
    np.testing.assert_equal(run(**twice), plain)
    plant(decoding.chain.launches)
    np.testing.assert_equal(run(), plain)
    assert any((a != b).any() for a, b in zip(run(**twice), plain, strict=True))


def spoil_token(chain: Chain) -> None:
    chain.place_rows(np.array([4, 64, 5]), np.zeros(3), np.full(3, LENGTH))


def spoil_position(chain: Chain) -> None:
    chain.place_rows(np.full(3, 4), np.array([0, LENGTH, 0]), np.full(3, LENGTH))


def spoil_copied_word(chain: Chain) -> None:
    chain.place_lengths(np.full(3, SOURCE), np.full((3, SOURCE), 64))
    chain.place_rows(np.full(3, 4), np.zeros(3), np.full(3, LENGTH))


def spoil_sources(chain: Chain) -> None:
    cross = np.full((3, chain.model.heads, SOURCE, int(chain.constants["HEAD_DIM"])), np.nan)
    chain.place_sources([(cross, cross)] * chain.model.layers, np.full(3, SOURCE))
    chain.place_rows(np.full(3, 4), np.zeros(3), np.full(3, LENGTH))


@pytest.mark.parametrize(
    ("spoil", "error", "kind"),
    [
        (spoil_token, 1, "post"),
        (spoil_position, 1, "post"),
        (spoil_copied_word, 1, "copies"),
        (spoil_sources, 2, "post"),
        (spoil_sources, 2, "copies"),
    ],
)
def test_bad_states_set_the_error_word(
    emulator: Emulator, spoil: Callable[[Chain], None], error: int, kind: str
) -> None:
    chain = Decoding(round_weights(random_model(**OPTIONS[kind])), rows=3).chain
    spoil(chain)
    emulator.step(chain.launches, chain.constants)
    assert chain.error() == error
    if error == 2:
        assert (chain.state("finished") == 1).all() and (chain.state("tokens") == chain.model.pad_id).all()


def test_a_copied_word_wins_over_the_vocabulary(emulator: Emulator) -> None:
    model = random_model(**OPTIONS["copies"])
    with torch.no_grad():
        model.copying.state.bias.fill_(-20.0)  # copies nearly always
    decoding = Decoding(round_weights(model), rows=3)
    decoding.forced(emulator, random_target(3, 2), times=2, seed=3)
    for row, length in enumerate(decoding.lengths.tolist()):
        words = decoding.source[row, :length].tolist()
        assert {int(tokens[row]) for tokens in decoding.tokens} <= set(words)


def test_sanitizers_find_nothing_but_a_planted_fault(library: Path, tmp_path: Path) -> None:
    """AddressSanitizer and UBSan, on sizes that are not multiples of a tile or a chunk."""
    watched = build_emulator(tmp_path, SANITIZERS)
    clean = sanitized(watched)
    assert clean.returncode == 0, clean.stderr
    found = decode_emulated(library)
    assert json.loads(clean.stdout) == found
    np.testing.assert_allclose(found, recorded(), rtol=1e-5)
    planted = sanitized(watched, "9")
    assert planted.returncode != 0 and "heap-buffer-overflow" in planted.stderr, planted.stderr


def test_models_that_the_kernels_cannot_compute_are_refused() -> None:
    model = chain_model(random_model(heads=1, head_dim=136))
    with pytest.raises(ValueError, match="head_dim = 136: the kernels support at most 128"):
        model.constants(rows=1, cache=8, half_caches=True)
    with pytest.raises(ValueError, match="rows = 33: the kernels support 1 to 32"):
        chain_model(random_model()).constants(rows=33, cache=8, half_caches=True)
    with pytest.raises(ValueError, match="too large for float16"):
        pack_weights(np.full((8, 32), 1e5, np.float32))
