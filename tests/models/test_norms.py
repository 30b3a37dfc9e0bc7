"""Norms against others' implementations, and PowerNorm against the equations of its paper, in NumPy."""

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.config import NORM_KINDS, Config, preset
from txport.models.norms import MOMENTUM, NORM_CLASSES, BatchNorm, PowerNorm, RMSNorm, SharedNorm
from txport.models.padding import padding_left_out
from txport.models.transformer import Transformer
from txport.runtime.errors import CheckpointError, InputError
from warm import warm_commands

Array = npt.NDArray[np.float64]
EPS = 1e-5


def inputs(steps: int = 5) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """float32 batches `[3, 7, 6]`, of channels of different sizes, their gradients and which tokens are no padding."""
    torch.manual_seed(0)
    spread, centre = torch.rand(6) * 4 + 0.1, torch.randn(6)
    batches = [torch.randn(3, 7, 6) * spread + centre for _ in range(steps)]
    lengths = [torch.randint(1, 8, (3, 1)) for _ in range(steps)]
    return batches, [torch.randn(3, 7, 6) for _ in range(steps)], [torch.arange(7) < length for length in lengths]


def randomised(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return norm


def test_rms_norm_is_that_of_t5() -> None:
    t5 = pytest.importorskip(
        "transformers.models.t5.modeling_t5", reason="needs transformers: pip install 'txport[dev]'"
    )
    theirs, ours = t5.T5LayerNorm(6, EPS), randomised(RMSNorm(6, EPS))
    theirs.load_state_dict(ours.state_dict())
    x = inputs(1)[0][0].requires_grad_()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)
    (mine,), (other,) = (torch.autograd.grad(norm(x).square().sum(), x) for norm in (ours, theirs))
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_batch_norm_is_pytorchs_of_the_tokens_packed_together() -> None:
    ours, theirs = randomised(BatchNorm(6, EPS)), nn.BatchNorm1d(6, EPS, MOMENTUM)
    theirs.weight.data, theirs.bias.data = ours.weight.data.clone(), ours.bias.data.clone()
    for x, gradient, tokens in zip(*inputs(), strict=True):
        x, packed = x.requires_grad_(), x.detach()[tokens].requires_grad_()
        ours.lengths = tokens.sum(-1)
        y, expected = ours(x), theirs(packed)
        torch.testing.assert_close(y[tokens], expected, rtol=1e-4, atol=1e-5)
        (mine,) = torch.autograd.grad((y * gradient)[tokens].sum(), x)
        (other,) = torch.autograd.grad((expected * gradient[tokens]).sum(), packed)
        torch.testing.assert_close(mine[tokens], other, rtol=1e-4, atol=1e-5)
        assert not mine[~tokens].any()
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_variance, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x.flatten(0, 1)).view_as(x), rtol=1e-5, atol=1e-5)


class PowerNormOfThePaper:
    """Algorithm 2 of arXiv:2003.07845, over the rows of packed tokens, in float64."""

    def __init__(self, weight: Array, bias: Array, alpha: float) -> None:
        self.gamma, self.beta, self.alpha = weight, bias, alpha
        self.psi_squared, self.nu = np.ones_like(weight), np.zeros_like(weight)

    def step(self, x: Array, gradient: Array) -> tuple[Array, Array]:
        """x and dL/dY `[tokens, d]` -> Y and dL/dX."""
        psi = np.sqrt(self.psi_squared + EPS)
        x_hat = x / psi
        y = self.gamma * x_hat + self.beta
        of_batch = (x**2).sum(0) / len(x)
        self.psi_squared = self.psi_squared + (1 - self.alpha) * (of_batch - self.psi_squared)
        of_x_hat = self.gamma * gradient
        corrected = of_x_hat - self.nu * x_hat
        capital_gamma, capital_lambda = (x_hat * x_hat).sum(0) / len(x), (of_x_hat * x_hat).sum(0) / len(x)
        self.nu = self.nu * (1 - (1 - self.alpha) * capital_gamma) + (1 - self.alpha) * capital_lambda
        return y, corrected / psi


def test_power_norm_is_algorithm_2_of_the_paper() -> None:
    """Five steps, so that both running means count; padding has no part in them and no gradient."""
    ours = randomised(PowerNorm(6, EPS))
    paper = PowerNormOfThePaper(*(p.detach().double().numpy() for p in (ours.weight, ours.bias)), alpha=0.9)
    for x, gradient, tokens in zip(*inputs(), strict=True):
        x = x.requires_grad_()
        ours.lengths = tokens.sum(-1)
        y = ours(x)
        (mine,) = torch.autograd.grad((y * gradient)[tokens].sum(), x)
        expected, other = paper.step(x.detach()[tokens].double().numpy(), gradient[tokens].double().numpy())
        np.testing.assert_allclose(y.detach()[tokens], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mine[tokens], other, rtol=1e-4, atol=1e-5)
        assert not mine[~tokens].any()
    assert np.abs(paper.nu).min() > 1e-3 and np.abs(paper.psi_squared - 1).min() > 1e-2
    np.testing.assert_allclose(ours.running_square, paper.psi_squared, rtol=1e-5)
    np.testing.assert_allclose(ours.running_gradient, paper.nu, rtol=1e-4, atol=1e-6)
    before = ours.eval().running_square.clone()
    y = ours(x).detach()
    expected = paper.gamma * x.detach().double().numpy() / np.sqrt(paper.psi_squared + EPS) + paper.beta
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.running_square, before)


def test_a_step_that_overflows_leaves_no_trace_in_the_running_gradient() -> None:
    norm = PowerNorm(6, EPS)
    x = inputs(1)[0][0].requires_grad_()
    (norm(x) * float("inf")).sum().backward()
    assert not norm.running_gradient.any()


@pytest.mark.parametrize("kind", NORM_KINDS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_padding_changes_nothing(make_model: Callable[..., Transformer], kind: str, norm: str) -> None:
    """Sentences in training mode with and without columns of padding: the same logits, gradients and running means."""
    seen = []
    for extra in (0, 4):
        model = make_model(norm_kind=kind, norm=norm, embedding_norm=True, dropout=0.0).train()
        generator = torch.Generator().manual_seed(1)
        source, target = (torch.randint(4, 40, (3, 6), generator=generator) for _ in range(2))
        lengths = torch.tensor([6, 2, 4])
        wide = [nn.functional.pad(ids, (0, extra), value=7) for ids in (source, target)]
        for _ in range(2):
            model.zero_grad()
            with padding_left_out(model, lengths, lengths):
                logits = model(wide[0], lengths, wide[1])[torch.arange(6 + extra) < lengths[:, None]]
            logits.logsumexp(-1).mean().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        seen.append((logits, gradients, dict(model.named_buffers())))
    (one, of_one, kept), (two, of_two, kept_two) = seen
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    for name, gradient in of_one.items():
        torch.testing.assert_close(of_two[name], gradient, rtol=1e-3, atol=1e-4, msg=name)
    for name, value in kept.items():
        torch.testing.assert_close(kept_two[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", NORM_KINDS)
def test_every_norm_of_a_model_is_of_its_kind(kind: str, tmp_path: Path) -> None:
    """And comes back from a checkpoint with its running means."""
    config = preset("tiny", norm_kind=kind, norm="pre", embedding_norm=True, source_vocabulary=40, target_vocabulary=40)
    model = Transformer(config)
    norms = [module for module in model.modules() if isinstance(module, (nn.LayerNorm, RMSNorm, SharedNorm))]
    # For both stacks: embedding, end, and the sublayers of two layers.
    assert [type(norm) for norm in norms] == [NORM_CLASSES[kind]] * (2 * 2 + 2 * 2 + 2 * 3)
    source = torch.randint(4, 40, (2, 5))
    model.train()(source, torch.tensor([5, 3]), source).sum().backward()
    save_checkpoint(tmp_path / "checkpoint", model, None, [], {})
    loaded = load_checkpoint(tmp_path / "checkpoint")
    assert loaded.config.norm_kind == kind
    kept, state = model.state_dict(), loaded.model.state_dict()
    assert kept.keys() == state.keys() and any("running" in name for name in kept) == (kind in ("power", "batch"))
    assert all(torch.equal(kept[name], value) for name, value in state.items())
    with torch.inference_mode():
        ids = source, torch.tensor([5, 3]), source
        torch.testing.assert_close(loaded.model(*ids), model.eval()(*ids))


def test_a_checkpoint_with_layer_norm_is_as_before(tmp_path: Path) -> None:
    """Its file does not name the kind, as those that older versions wrote."""
    model = Transformer(preset("tiny", source_vocabulary=40, target_vocabulary=40))
    save_checkpoint(tmp_path / "checkpoint", model, None, [], {})
    assert "norm_kind" not in json.loads((tmp_path / "checkpoint" / "config.json").read_text())["config"]
    assert load_checkpoint(tmp_path / "checkpoint").config.norm_kind == "layer"


def test_what_is_no_norm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="norm_kind = 'group' must be one of layer, rms, power, batch"):
        Config(norm_kind="group")
    model = Transformer(preset("tiny", norm_kind="power", source_vocabulary=40, target_vocabulary=40))
    model.encoder[0].attention_residual.norm.running_square[3] = -1.0
    save_checkpoint(tmp_path / "checkpoint", model, None, [], {})
    with pytest.raises(CheckpointError, match="running_square has values below 0, which no mean of squares has"):
        load_checkpoint(tmp_path / "checkpoint")


# Trains the two norms on rows of the batch that belong to this rank; prints what they have become, and gradients.
RANK = """
import json, sys, torch, torch.distributed
from txport.models.norms import BatchNorm, PowerNorm
rank, world, port = map(int, sys.argv[1:])
torch.set_num_threads(1)
if world > 1:
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
torch.manual_seed(0)
lengths = torch.tensor([7, 3, 5, 4])
tokens = torch.arange(7) < lengths[:, None]
said = []
for norm in (PowerNorm(6, 1e-5), BatchNorm(6, 1e-5)):
    for _ in range(3):
        x, gradient = torch.randn(4, 7, 6) * 3 + 1, torch.randn(4, 7, 6)
        # Not as many tokens on each: 12 and 7.
        mine = slice(None) if world == 1 else (slice(0, 4, 2), slice(1, 4, 2))[rank]
        leaf = x[mine].requires_grad_()
        # The loss of all devices is the mean of theirs, as with DDP.
        norm.lengths = lengths[mine]
        loss = world * (norm(leaf) * gradient[mine] * tokens[mine][..., None]).sum()
        (found,) = torch.autograd.grad(loss, leaf)
    said.append([{name: buffer.tolist() for name, buffer in norm.named_buffers()}, (found / world).tolist()])
print(json.dumps(said))
"""


def test_two_devices_make_the_running_means_of_one() -> None:
    """By gloo, each with its share of the tokens: the same running means, and the gradients of its share."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]

    def start(rank: int, world: int) -> "subprocess.Popen[str]":
        words = [warm_commands() / "python", "-c", RANK, str(rank), str(world), str(port)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    processes = [start(0, 2), start(1, 2), start(0, 1)]
    first, second, alone = (json.loads(process.communicate(timeout=500)[0]) for process in processes)
    for (buffers, gradients), (one, of_one), (two, of_two) in zip(alone, first, second, strict=True):
        assert one == two and buffers.keys() == one.keys()
        for name, value in buffers.items():
            np.testing.assert_allclose(one[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
        shares = [of_one[0], of_two[0], of_one[1], of_two[1]]
        np.testing.assert_allclose(shares, gradients, rtol=1e-4, atol=1e-5)
