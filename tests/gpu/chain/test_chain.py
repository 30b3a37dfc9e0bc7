"""The chain of kernels, emulated on the CPU, against PyTorch."""

from typing import Any

import numpy as np
import pytest
from chain_emulator import Emulator, HostMemory, build_emulator, missing
from chain_plan import Chain, ChainModel

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")

from numpy_runner import OPTIONS, random_model  # noqa: E402
from txport.exporter.graphs.parameters import model_parameters  # noqa: E402
from txport.exporter.graphs.tensors import query_scale  # noqa: E402
from txport.models.norms import SharedNorm  # noqa: E402
from txport.models.transformer import Attention, Transformer  # noqa: E402

LENGTH = 20
SOURCE = 7
BLOCKS = 3
# Every option except copying, which the kernels do not have.
KINDS = {name: options for name, options in OPTIONS.items() if "copy_heads" not in options}


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    if reason := missing():
        pytest.skip(reason)
    return Emulator(build_emulator(tmp_path_factory.mktemp("chain")))


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
    )


class Decoding:
    """A batch of ragged sources, decoded by PyTorch and by the chain."""

    def __init__(self, model: Transformer, rows: int, half_caches: bool = False, blocks: int = BLOCKS) -> None:
        generator = torch.Generator().manual_seed(1)
        self.model = model
        self.rows = rows
        self.lengths = torch.arange(rows) * 5 % SOURCE + 1
        source = torch.randint(4, 64, (rows, SOURCE), generator=generator)
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
            self.memory = model.encode(source, self.lengths)
            self.cross = model.cross_key_values(self.memory)
        self.chain.place_sources([(k.numpy(), v.numpy()) for k, v in self.cross], self.lengths.numpy())

    def forced(self, emulator: Emulator, target: Any, **order: int) -> np.ndarray:
        """Logits `[b, t, v]` of the chain, of the target `[b, t]`."""
        logits = []
        for position in range(target.shape[1]):
            self.chain.poison()
            positions = np.full(self.rows, position)
            self.chain.place_rows(target[:, position].numpy(), positions, np.full(self.rows, LENGTH))
            emulator.step(self.chain.launches, self.chain.constants, **order)
            logits.append(self.chain.logits())
        assert self.chain.error() == 0
        return np.stack(logits, axis=1)

    def expected(self, target: Any) -> np.ndarray:
        with torch.inference_mode():
            return self.model.decode(target, self.memory, self.lengths).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_pytorch(emulator: Emulator, kind: str) -> None:
    """With float32 caches, and activations that are exact up to 8 rows."""
    model = round_weights(random_model(**KINDS[kind]))
    decoding = Decoding(model, rows=3)
    target = torch.randint(4, 64, (3, 5), generator=torch.Generator().manual_seed(2))
    expected = decoding.expected(target)
    np.testing.assert_allclose(decoding.forced(emulator, target), expected, atol=1e-4, rtol=1e-4)
