"""Fixtures for the tests of the reference model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checkpoints import randomised
from txport.models.config import Config, preset
from txport.models.transformer import Transformer

# At these sizes more threads only wait for each other.
torch.set_num_threads(1)

VOCABULARY = 40


def _make_model(seed: int = 0, **options: Any) -> Transformer:
    """A small model; every parameter is random, biases and LayerNorm gains too, so that none can be forgotten."""
    sizes = {"d_model": 32, "heads": 4, "ffn": 48, "source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY}
    config: Config = preset("tiny", **{**sizes, "max_positions": 24, **options})
    return randomised(Transformer(config), seed)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Transformer]:
    """`make_model(seed=0, **config_fields)`: session-wide, so that hypothesis may use it."""
    return _make_model
