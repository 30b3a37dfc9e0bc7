"""The copy mechanism against its definition, summed word by word over the source in NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_runner import random_model
from torch import Tensor
from txport.models.attention_maps import attention_maps
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.config import Config, preset
from txport.models.transformer import Transformer
from txport.runtime.errors import CheckpointError, InputError

HEADS = ((1, 0), (0, 3))


@pytest.fixture(scope="module")
def model() -> Transformer:
    return random_model(copy_heads=HEADS, norm="pre", projection_bias=True)


def by_definition(model: Transformer, source: Tensor, lengths: Tensor, target: Tensor) -> np.ndarray:
    """P(w) of equation 9 of See et al. (2017), float64 `[b, t, v]`, from what the model's layers read and gave."""
    kept: dict[str, np.ndarray] = {}

    def keep(name: str) -> Any:
        return lambda module, inputs, output: kept.update({name: output.double().numpy()})

    last = model.decoder[max(layer for layer, _ in HEADS)]
    hooks = [
        module.register_forward_hook(keep(name))
        for name, module in {
            "context": last.cross_attention,
            "state": model.decoder_norm,
            "input": model.target_embedding,
            "logits": model.projection,
        }.items()
    ]
    with torch.inference_mode():
        full = torch.full((len(target),), target.shape[1])
        maps = attention_maps(model, source, lengths, torch.cat([target[:, 1:], target[:, :1]], 1), full)
        model(source, lengths, target)
    for hook in hooks:
        hook.remove()
    copying = model.copying
    assert copying is not None
    weights = {
        name: getattr(copying, name).weight[0].detach().double().numpy() for name in ("context", "state", "input")
    }
    gate = sum(kept[name] @ weight for name, weight in weights.items()) + copying.state.bias.item()
    generate = 1 / (1 + np.exp(-gate))
    said = np.exp(kept["logits"] - kept["logits"].max(-1, keepdims=True))
    result = generate[..., None] * said / said.sum(-1, keepdims=True)
    attention = np.mean([maps.cross[layer, :, head].double().numpy() for layer, head in HEADS], axis=0)
    for row, length in enumerate(lengths.tolist()):
        for step in range(target.shape[1]):
            for position in range(length):
                result[row, step, source[row, position]] += (1 - generate[row, step]) * attention[row, step, position]
    return result


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), words=st.integers(1, 60), data=st.data())
def test_the_mixture_is_its_definition(model: Transformer, seed: int, words: int, data: st.DataObject) -> None:
    """Sources of few words repeat them; padding is any id, one of a word that is there too."""
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    random = torch.Generator().manual_seed(seed)
    source = torch.randint(4, 4 + words, (len(lengths), 7), generator=random)
    target = torch.cat([torch.full((len(lengths), 1), 2), torch.randint(4, 64, (len(lengths), 5), generator=random)], 1)
    with torch.inference_mode():
        found = model(source, lengths, target).double().exp().numpy()
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(found, by_definition(model, source, lengths, target), atol=1e-6, rtol=1e-4)


def test_steps_with_caches_are_teacher_forcing(model: Transformer) -> None:
    source, lengths = torch.randint(4, 12, (3, 9)), torch.tensor([9, 4, 1])
    target = torch.randint(4, 64, (3, 8))
    with torch.inference_mode():
        expected = model(source, lengths, target)
        cross, caches = model.cross_key_values(model.encode(source, lengths)), model.new_caches(3, 8)
        for step in range(8):
            logits = model.decode_step(target[:, step], torch.full((3,), step), cross, lengths, caches, source)
            torch.testing.assert_close(logits, expected[:, step], atol=2e-4, rtol=1e-4)


def test_the_gradient_is_that_of_the_sum(model: Transformer) -> None:
    """Of a word that is in the source three times, by small changes of a gate's weight and of keys."""
    doubled = random_model(copy_heads=HEADS).double()
    assert doubled.copying is not None
    source, lengths, target = torch.tensor([[9, 5, 9, 9, 3]]), torch.tensor([5]), torch.tensor([[2, 9]])

    def loss() -> Tensor:
        return -doubled(source, lengths, target)[0, :, 9].sum()

    parameters = [doubled.copying.state.weight, doubled.decoder[1].cross_attention.key.weight]
    loss().backward()
    for parameter in parameters:
        assert parameter.grad is not None
        index = int(parameter.grad.abs().argmax())
        with torch.no_grad():
            flat, before = parameter.view(-1), parameter.view(-1)[index].item()
            ends = []
            for change in (1e-2, -1e-2):
                flat[index] = before + change
                ends.append(float(loss()))
            flat[index] = before
        slope = (ends[0] - ends[1]) / 2e-2
        assert parameter.grad.view(-1)[index].item() == pytest.approx(slope, rel=0.02)


def test_the_mixture_is_float32_under_autocast(model: Transformer) -> None:
    source, lengths, target = torch.randint(4, 12, (2, 6)), torch.tensor([6, 3]), torch.randint(4, 64, (2, 5))
    with torch.inference_mode():
        expected = model(source, lengths, target)
        with torch.autocast("cpu", torch.bfloat16):
            found = model(source, lengths, target)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.exp().sum(-1).numpy(), 1, atol=1e-4)
    assert 0 < float((found - expected).abs().mean()) < 0.3


def test_a_word_that_cannot_be_said_can_be_copied() -> None:
    model = random_model(copy_heads=((1, 0),), projection_bias=True)
    with torch.no_grad():
        model.projection.bias[9] = -30000.0
    source, target = torch.tensor([[9, 5, 3]]), torch.tensor([[2, 7]])
    with torch.inference_mode():
        there = model(source, torch.tensor([3]), target)[0, :, 9]
        masked = model(source.roll(-1), torch.tensor([2]), target)[0, :, 9]
    assert (there > -20).all() and (masked < -15000).all()


def test_models_without_it_are_as_before() -> None:
    torch.manual_seed(3)
    plain = Transformer(preset("tiny"))
    torch.manual_seed(3)
    copies = Transformer(preset("tiny", copy_heads=((0, 1),)))
    assert plain.copying is None and not any("copying" in name for name in plain.state_dict())
    assert {name for name in copies.state_dict() if name not in plain.state_dict()} == {
        "copying.context.weight", "copying.state.weight", "copying.state.bias", "copying.input.weight"
    }  # fmt: skip
    assert "copy_heads" not in Config().to_json()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"copy_heads": ((2, 0),)}, r"copy_heads = \[\[2, 0\]\] is outside the model's 2 decoder layers of 4 heads"),
        ({"copy_heads": ((1, 4),)}, r"copy_heads = \[\[1, 4\]\] is outside"),
        ({"copy_heads": ((1, 0), (1, 0))}, r"copy_heads = \[\[1, 0\]\] is there twice"),
        (
            {"copy_heads": ((1, 0),), "share_embeddings": False, "source_vocabulary": 40},
            r"copy_heads = \[\[1, 0\]\] needs one vocabulary for source and target",
        ),
    ],
)
def test_impossible_heads(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        preset("tiny", **fields)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_has_all_of_it(tmp_path: Path, model: Transformer) -> None:
    save_checkpoint(tmp_path / "copies", model, None, ["4 5 6"], {})
    loaded = load_checkpoint(tmp_path / "copies")
    assert loaded.config.copy_heads == HEADS
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    save_checkpoint(tmp_path / "plain", random_model(norm="pre", projection_bias=True), None, ["4 5 6"], {})
    (tmp_path / "plain" / "config.json").write_bytes((tmp_path / "copies" / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"lacks copying\.context\.weight, .* which its config\.json needs"):
        load_checkpoint(tmp_path / "plain")


def test_ids_of_the_source_are_needed(model: Transformer) -> None:
    source, lengths = torch.tensor([[5, 3]]), torch.tensor([2])
    with pytest.raises(ValueError, match="a model that copies needs source_ids"):
        model.decode(source, model.encode(source, lengths), lengths)
