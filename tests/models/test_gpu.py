"""The reference model on a GPU gives what it gives on the CPU."""

from collections.abc import Callable

import pytest
import torch
from txport.models.transformer import Transformer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs PyTorch with CUDA"),
]

MakeModel = Callable[..., Transformer]
DEVICE = "cuda"


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_logits_and_cached_steps_equal_the_cpus(make_model: MakeModel, norm: str) -> None:
    model = make_model(norm=norm)
    source, lengths = torch.randint(3, 40, (3, 9)), torch.tensor([9, 2, 5])
    target = torch.randint(3, 40, (3, 7))
    expected = model(source, lengths, target)
    model, source, lengths, target = (each.to(DEVICE) for each in (model, source, lengths, target))
    torch.testing.assert_close(model(source, lengths, target).cpu(), expected, atol=1e-4, rtol=0.0)
    cross, caches = model.cross_key_values(model.encode(source, lengths)), model.new_caches(3, 8)
    for position in range(7):
        positions = torch.full((3,), position, device=DEVICE)
        logits = model.decode_step(target[:, position], positions, cross, lengths, caches)
        torch.testing.assert_close(logits.cpu(), expected[:, position], atol=1e-4, rtol=0.0)


def test_mixed_precision_gives_finite_gradients(make_model: MakeModel) -> None:
    model = make_model(dropout=0.1).to(DEVICE).train()
    source, target = (torch.randint(3, 40, (4, 9), device=DEVICE) for _ in range(2))
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = model(source, torch.tensor([9, 2, 5, 1], device=DEVICE), target)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())
    loss.backward()
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters())
