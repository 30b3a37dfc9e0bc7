"""Fixtures for the tests of training."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from txport.models.config import preset
from txport.models.transformer import Transformer
from txport.training import corpora
from txport.training.recipe import Recipe, read

# At this size more threads only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def copying_model() -> Transformer:
    """Trained for a second to copy its source: not well, but its outputs follow the source and end."""
    torch.manual_seed(1)
    sizes = {"source_vocabulary": 24, "target_vocabulary": 24, "d_model": 32, "ffn": 48, "max_positions": 40}
    model = Transformer(preset("tiny", **sizes, norm="pre"))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        length = int(torch.randint(1, 30, ()))
        words, end = torch.randint(4, 24, (32, length)), torch.full((32, 1), 3)
        source, lengths = torch.cat([words, end], 1), torch.full((32,), length + 1)
        logits = model(source, lengths, torch.cat([torch.full((32, 1), 2), words], 1))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), source.flatten()).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="session", autouse=True)
def generated_once() -> Iterator[None]:
    """Generate each built-in corpus once, since most tests train on the same sentences."""
    generate = functools.cache(corpora._generated)
    with patch.object(corpora, "_generated", lambda *arguments: list(generate(*arguments))):
        yield


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Recipe]:
    """`tiny("training.max_steps=4", ...)`: the recipe `tiny`, smaller still."""

    def make(*overrides: str) -> Recipe:
        small = ("corpus.train=600", "corpus.validation=12", "corpus.test=12", "tokenizer.vocabulary=400")
        layers = ("model.encoder_layers=1", "model.decoder_layers=1", "model.d_model=32", "model.ffn=64")
        # A model that has learned little goes on to the longest output: most of the time is decoding.
        lengths = ("model.max_positions=64", "training.max_length=64", "training.validation_sentences=4")
        return read("tiny", [*small, *layers, *lengths, *overrides])

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write("name", "text or bytes")` makes a file."""

    def make(name: str, content: Any) -> Path:
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return make
