"""The average of a run's last validations: its arithmetic, and that the checkpoint is it."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import changed, weights
from torch.optim.swa_utils import AveragedModel
from txport.models.checkpoint import load_checkpoint
from txport.models.config import preset
from txport.models.transformer import Transformer
from txport.training.loop import train
from txport.training.recipe import Recipe
from txport.training.run.averaging import average_weights
from txport.training.run.directory import RunDirectory

Tiny = Callable[..., Recipe]
OPTIONS = ("training.keep=average", "training.average_last=3", "training.validate_every=3", "model.dropout=0.1")


@pytest.mark.parametrize("kind", ["layer", "batch"])
def test_the_average_is_pytorchs(kind: str) -> None:
    """With the counter of BatchNorm, a whole number, which is the last one's."""
    sizes = {"source_vocabulary": 16, "target_vocabulary": 16, "d_model": 8, "ffn": 8, "norm_kind": kind}
    models = [Transformer(preset("tiny", **sizes)) for _ in range(4)]
    for number, model in enumerate(models):
        for tensor in model.state_dict().values():
            tensor.random_(0, 9) if not tensor.is_floating_point() else tensor.normal_(number)
    theirs = AveragedModel(models[0], use_buffers=True)
    for model in models:
        theirs.update_parameters(model)
    mine = average_weights([model.state_dict() for model in models])
    for name, tensor in theirs.module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(mine[name], tensor)
        else:
            assert torch.equal(mine[name], models[-1].state_dict()[name])


def test_small_differences_of_large_weights_are_not_lost() -> None:
    """In float32, 1e8 + 1 is 1e8, and the average would be 0."""
    states = [{"weight": torch.tensor([value, 0.1])} for value in (1e8, 1.0, -1e8)]
    assert average_weights(states)["weight"].tolist() == pytest.approx([1 / 3, 0.1], rel=1e-6)


def test_the_checkpoint_is_the_average_of_the_last_validations(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of steps 6 and 9 and of the last, 11; runs that end at each of these have the weights that are averaged."""
    with caplog.at_level(logging.INFO):
        train(tiny("training.max_steps=11", *OPTIONS), tmp_path / "average", Path())
    assert "kept the average of the weights after steps 6, 9, 11" in caplog.text
    ends = []
    for steps in (6, 9, 11):
        output = tmp_path / str(steps)
        train(tiny(f"training.max_steps={steps}", *OPTIONS, "training.keep=last"), output, Path())
        ends.append(weights(output))
    average = weights(tmp_path / "average")
    for name, tensor in average.items():
        torch.testing.assert_close(tensor, sum(each[name] for each in ends) / 3)
    assert any(not torch.allclose(ends[-1][name], tensor, atol=1e-4) for name, tensor in average.items())
    assert load_checkpoint(tmp_path / "average").config == load_checkpoint(tmp_path / "11").config
    kept = sorted(file.name for file in RunDirectory(tmp_path / "average").state.glob("validated-*"))
    assert kept == ["validated-step=3.ckpt", "validated-step=6.ckpt", "validated-step=9.ckpt"]


def test_a_resumed_run_averages_what_it_saved_before(tiny: Tiny, tmp_path: Path) -> None:
    for output, parts in (("whole", [11]), ("parts", [7, 11])):
        for steps in parts:
            train(tiny(f"training.max_steps={steps}", *OPTIONS), tmp_path / output, Path(), resume=steps != parts[0])
    assert not changed(tmp_path / "whole", tmp_path / "parts")


def test_one_validation_is_no_average_and_that_is_said(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tiny("training.max_steps=3", *OPTIONS), tmp_path / "checkpoint", Path())
    assert "nothing is averaged; set training.validate_every lower" in caplog.text
    train(tiny("training.max_steps=3", *OPTIONS, "training.keep=last"), tmp_path / "last", Path())
    assert not changed(tmp_path / "checkpoint", tmp_path / "last")
