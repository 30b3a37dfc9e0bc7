"""A grown model says what the small one says, by PyTorch."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
import torch
from click.testing import CliRunner
from txport.benchmarks.studies.widened_checkpoint import main, widened
from txport.models.checkpoint import load_checkpoint
from txport.runtime.errors import InputError


def test_logits_are_those_of_the_small_model(checkpoint: Path) -> None:
    small = load_checkpoint(checkpoint).model
    old = small.config
    sizes = {"d_model": 2 * old.d_model, "heads": 2 * old.heads, "ffn": 4 * old.ffn}
    layers = {"encoder_layers": old.encoder_layers + 1, "decoder_layers": old.decoder_layers + 2}
    vocabulary = old.target_vocabulary + 40
    ids = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary}
    large = widened(small, replace(old, positions="learned", **sizes, **layers, **ids))
    torch.manual_seed(0)
    source, target = (torch.randint(4, old.target_vocabulary, (3, length)) for length in (9, 7))
    lengths = torch.tensor([9, 4, 7])
    with torch.no_grad():
        expected, found = small(source, lengths, target), large(source, lengths, target)
    # The projection is the table of embeddings, and two of its rows meet two features, each smaller by sqrt(2).
    torch.testing.assert_close(found[..., : old.target_vocabulary] / 2**0.5, expected, atol=1e-4, rtol=1e-4)
    further = found[..., old.target_vocabulary :]
    assert (further == found[..., [old.pad_id]]).all()
    assert (found.argmax(-1) == expected.argmax(-1)).all()


def test_what_cannot_be_grown_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    small = load_checkpoint(checkpoint)
    done = CliRunner().invoke(main, [str(checkpoint), "-o", str(tmp_path / "large")])
    assert isinstance(done.exception, InputError) and "head by head" in str(done.exception)
    assert not (tmp_path / "large").exists()
    with pytest.raises(InputError, match="more layers or more ids"):
        widened(small.model, replace(small.config, encoder_layers=1, positions="learned"))
    with pytest.raises(InputError, match="norm 'pre'"):
        widened(type(small.model)(replace(small.config, norm="post")), small.config)
