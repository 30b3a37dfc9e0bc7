"""fairseq imports, against what fairseq's own models and its generator have made of sentences."""

from pathlib import Path

import pytest
import torch
from foreign_models import import_here
from recorded_models import assert_as_recorded, recorded

PAD = 1


@pytest.mark.parametrize("kind", ["post_norm_two_dictionaries", "pre_norm_shared", "learned_positions", "three_heads"])
def test_same_numbers_and_ids(kind: str, tmp_path: Path) -> None:
    theirs = recorded(f"fairseq_{kind}")
    (tmp_path / "fairseq").mkdir()
    torch.save(
        {"args": None, "cfg": theirs.config, "model": theirs.weights}, tmp_path / "fairseq" / "checkpoint_best.pt"
    )
    checkpoint = import_here(tmp_path / "fairseq", tmp_path / "checkpoint", tokenizer=False)
    assert_as_recorded(checkpoint, theirs, banned=(PAD,))
