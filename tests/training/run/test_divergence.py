"""A loss that is NaN or infinite ends the run with the number of the step; what was saved before can still be used."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from txport.models.checkpoint import load_checkpoint
from txport.training.loop import train
from txport.training.recipe import Recipe
from txport.training.run import lightning_module
from txport.training.run.divergence import DivergenceError

Tiny = Callable[..., Recipe]
OPTIONS = ("training.max_steps=12", "training.validate_every=4", "training.keep=last")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_the_last_good_state_becomes_a_checkpoint(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    train(tiny(*OPTIONS, "training.max_steps=4"), tmp_path / "four", Path())
    true, calls = lightning_module.smoothed_cross_entropy, [0]

    def sometimes(logits: Tensor, *rest: object) -> Tensor:
        calls[0] += logits.requires_grad  # not those of validations
        return true(logits, *rest) * (float(value) if calls[0] == 7 else 1.0)  # type: ignore[arg-type]

    monkeypatch.setattr(lightning_module, "smoothed_cross_entropy", sometimes)
    name = "NaN" if value == "nan" else "infinite"
    said = f"the loss of step 7 is {name}, the training diverged: start again with a lower training.learning_rate"
    with pytest.raises(DivergenceError, match=said) as caught:
        train(tiny(*OPTIONS), tmp_path / "run", Path())
    assert not (tmp_path / "run").exists()
    options = re.search(r"--resume --set (training.max_steps=4) --set (training.keep=last)$", str(caught.value))
    assert options is not None
    outcome = train(tiny(*OPTIONS, *options.groups()), tmp_path / "run", Path(), resume=True)
    assert outcome is not None and outcome.steps == 4
    expected = dict(load_checkpoint(tmp_path / "four").model.named_parameters())
    for name, parameter in load_checkpoint(tmp_path / "run").model.named_parameters():
        assert torch.equal(parameter, expected[name]), name


def test_a_rate_that_is_far_too_high(tiny: Tiny, tmp_path: Path) -> None:
    """What a user sees: weights explode, and no state of them is kept."""
    options = ("training.learning_rate=1e38", "training.warmup_steps=1", "training.validate_every=2", *OPTIONS[2:])
    with pytest.raises(DivergenceError, match="lower training.learning_rate or a longer warm-up$"):
        train(tiny(OPTIONS[0], *options), tmp_path / "run", Path())
    assert not list((tmp_path / "run.run").glob("state/*"))


def test_weights_that_are_no_numbers_are_not_saved(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient can overflow where the loss does not, in the last step too, after which no loss is computed."""
    true = lightning_module.TranslationModule.on_before_optimizer_step

    def broken(module: lightning_module.TranslationModule, optimizer: torch.optim.Optimizer) -> None:
        true(module, optimizer)
        if module.global_step == 4:
            next(iter(module.parameters())).grad.fill_(float("nan"))  # type: ignore[union-attr]

    monkeypatch.setattr(lightning_module.TranslationModule, "on_before_optimizer_step", broken)
    options = ("training.max_steps=5", "training.validate_every=2", "training.keep=last")
    with pytest.raises(DivergenceError, match="a weight after step 5 is NaN, .* stop at step 4, the last"):
        train(tiny(*options), tmp_path / "run", Path())
    state = torch.load(tmp_path / "run.run" / "state" / "last.ckpt", weights_only=True)
    assert state["global_step"] == 4 and all(bool(value.isfinite().all()) for value in state["state_dict"].values())
