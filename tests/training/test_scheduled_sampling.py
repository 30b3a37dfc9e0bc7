"""Scheduled sampling against the formulas of its paper and a decoder that is asked token by token."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import changed
from hypothesis import given
from hypothesis import strategies as st
from txport.models.config import preset
from txport.models.transformer import Transformer
from txport.runtime.errors import InputError
from txport.training.fitting import fit
from txport.training.loop import train
from txport.training.recipe import Recipe, as_before
from txport.training.scheduled_sampling import Schedule, mixed_inputs, time_constant

Tiny = Callable[..., Recipe]
KINDS = ("linear", "exponential", "inverse_sigmoid")
OPTIONS = ("training.validate_every=4", "model.dropout=0.1", "training.keep=last", "training.max_steps=8")
SAMPLED = ("training.scheduled_sampling=linear", "training.sampling_steps=10", "training.sampling_least=0.1")


@given(
    step=st.integers(0, 100_000),
    steps=st.floats(1, 20_000),
    least=st.floats(0, 1),
    start=st.integers(0, 5_000),
    kind=st.sampled_from(KINDS),
)
def test_the_schedules_are_those_of_the_paper(step: int, steps: float, least: float, start: int, kind: str) -> None:
    """Bengio et al. (2015), section 2.4: max(e, k - c i), k^i, k / (k + exp(i / k))."""
    i = np.longdouble(step - start)
    paper = {
        "linear": lambda: 1 - i * (1 / np.longdouble(steps)),  # k = 1, c = 1 / steps
        "exponential": lambda: np.longdouble(np.exp(-1 / np.longdouble(steps))) ** i,
        "inverse_sigmoid": lambda: steps / (steps + np.exp(i / np.longdouble(steps))),
    }
    expected = 1.0 if i < 0 else max(least, float(paper[kind]()))
    assert Schedule(kind, start, least, steps).true_token_probability(step) == pytest.approx(expected, abs=1e-9)  # type: ignore[arg-type]


@given(half=st.floats(3, 1e6), kind=st.sampled_from(KINDS))
def test_one_half_after_half(half: float, kind: str) -> None:
    schedule = Schedule(kind, steps=time_constant(kind, half))  # type: ignore[arg-type]
    low, high = (schedule.true_token_probability(round(step)) for step in (1.1 * half + 1, 0.9 * half - 1))
    assert low <= 0.5 <= high


def test_without_a_schedule_every_token_is_true() -> None:
    assert {Schedule().true_token_probability(step) for step in range(0, 10_000, 77)} == {1.0}


@pytest.fixture(scope="module")
def model() -> Transformer:
    """With dropout, which must not touch what the model would have said."""
    torch.manual_seed(3)
    sizes = {"source_vocabulary": 64, "target_vocabulary": 64, "d_model": 32, "ffn": 48, "max_positions": 64}
    return Transformer(preset("tiny", **sizes, dropout=0.5)).train()


@pytest.fixture(scope="module")
def batch(model: Transformer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Target ids, memory, lengths of 128 sentences."""
    draw = torch.Generator().manual_seed(1)
    source = torch.randint(4, 64, (128, 9), generator=draw)
    target = torch.randint(4, 64, (128, 33), generator=draw)
    target[:, 0] = 2
    lengths = torch.randint(1, 10, (128,), generator=draw)
    with torch.no_grad():
        return target, model.eval().encode(source, lengths), lengths


def test_mixed_tokens_are_true_or_what_the_cached_step_says(
    model: Transformer, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    """The oracle is `decode_step`, one token at a time over caches; and as many as the probability says are true."""
    target, memory, lengths = batch
    model.eval()
    caches, cross = model.new_caches(128, 33), model.cross_key_values(memory)
    said = target.clone()
    with torch.no_grad():
        for position in range(32):
            at = torch.full((128,), position)
            said[:, position + 1] = model.decode_step(target[:, position], at, cross, lengths, caches).argmax(-1)
    model.train()
    different = (said != target)[:, 1:]
    for true_token in (0.0, 0.25, 0.7):
        mixed = mixed_inputs(model, target, memory, lengths, true_token, seed=5)
        assert model.training and torch.equal(mixed[:, 0], target[:, 0])
        true, own = (mixed == target)[:, 1:], (mixed == said)[:, 1:]
        assert bool((true | own).all())
        # 4,000 draws: five standard deviations.
        assert float(true[different].float().mean()) == pytest.approx(true_token, abs=0.04)
    assert torch.equal(mixed, mixed_inputs(model, target, memory, lengths, 0.7, seed=5))
    assert not torch.equal(mixed, mixed_inputs(model, target, memory, lengths, 0.7, seed=6))


def test_probability_one_computes_nothing(
    model: Transformer, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    before = torch.random.get_rng_state()
    assert mixed_inputs(model, *batch, true_token_probability=1.0, seed=1) is batch[0]
    assert mixed_inputs(model, *batch, true_token_probability=0.5, seed=1) is not batch[0]
    assert torch.equal(torch.random.get_rng_state(), before), "dropout draws what it would have drawn without"


def test_gradients_in_bfloat16_are_not_lost(
    model: Transformer, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    """Autocast remembers converted weights: those of a pass without gradients would have none."""
    target, memory, lengths = batch
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        read = mixed_inputs(model, target, memory, lengths, 0.5, seed=1)
        model.decode(read, memory, lengths).float().square().mean().backward()  # type: ignore[no-untyped-call]
    decoder = {name: p.grad for name, p in model.named_parameters() if name.startswith("decoder")}
    assert [name for name, gradient in decoder.items() if gradient is None] == []


@pytest.fixture(scope="module")
def runs(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`plain` without scheduled sampling, and `sampled` with."""
    directory = tmp_path_factory.mktemp("sampling")
    train(tiny(*OPTIONS), directory / "plain", Path())
    train(tiny(*OPTIONS, *SAMPLED), directory / "sampled", Path())
    return directory


def test_probability_one_is_training_without_it_bit_for_bit(tiny: Tiny, runs: Path, tmp_path: Path) -> None:
    train(tiny(*OPTIONS, *SAMPLED[:2], "training.sampling_least=1.0"), tmp_path / "least", Path())
    train(tiny(*OPTIONS, *SAMPLED, "training.sampling_start=8"), tmp_path / "late", Path())
    assert not changed(runs / "plain", tmp_path / "least") and not changed(runs / "plain", tmp_path / "late")
    assert changed(runs / "plain", runs / "sampled")


def test_a_resumed_run_draws_what_it_would_have_drawn(tiny: Tiny, runs: Path, tmp_path: Path) -> None:
    train(tiny(*OPTIONS, *SAMPLED, "training.max_steps=5"), tmp_path / "parts", Path())
    train(tiny(*OPTIONS, *SAMPLED), tmp_path / "parts", Path(), resume=True)
    assert not changed(runs / "sampled", tmp_path / "parts")


def test_the_time_constant_is_chosen_and_kept(tiny: Tiny) -> None:
    recipe = tiny("training.scheduled_sampling=exponential", "training.max_steps=100")
    fitted, choices = fit(recipe, [("a", "b")] * 200)
    steps = choices["training.sampling_steps"]
    assert steps == fitted.training.sampling_steps == pytest.approx(50 / np.log(2), rel=0.01)
    assert as_before(recipe, fitted).training.sampling_steps == steps
    assert fit(tiny(), [("a", "b")] * 200)[0].training.sampling_steps is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("scheduled_sampling=cosine",), "not one of none, linear"),
        (("scheduled_sampling=linear", "sampling_least=1.5"), "sampling_least is 1.5, but must be at most 1"),
        (("scheduled_sampling=linear", "sampling_least=-0.1"), "sampling_least is -0.1, but must be at least 0"),
        (("scheduled_sampling=linear", "sampling_steps=0.5"), "sampling_steps is 0.5, but must be at least 1"),
        (("scheduled_sampling=linear", "sampling_start=-1"), "sampling_start is -1, but must be at least 0"),
        (("sampling_steps=100",), "need a schedule: set training.scheduled_sampling"),
    ],
)
def test_impossible_schedules_are_refused(tiny: Tiny, values: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny(*(f"training.{value}" for value in values))
