"""Small models that read feature vectors, and vectors for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from checkpoints import randomised
from txport.models.checkpoint import save_checkpoint
from txport.models.config import preset
from txport.models.transformer import Transformer

SIZE = 10  # size of a vector; not a multiple of the vector width of processors
READS: dict[str, Any] = {"source": "features", "feature_size": SIZE}
STATES = {"encoder_layers": 0, "feature_size": 24}  # encoder states that are narrower than the model
KINDS: dict[str, dict[str, Any]] = {
    "post": {"frame_rate": 50.0},
    "pre": {"norm": "pre", "positions": "learned", "max_source_positions": 50, "embedding_norm": True},
    "relative": {"norm": "pre", "norm_kind": "rms", "positions": "relative", "attention_bias": False},
    "rotary": {"norm": "pre", "positions": "rotary"},
    "states": {**STATES, "norm": "pre", "positions": "learned", "max_source_positions": 50, "frame_rate": 50.0},
    "wide_states": {"encoder_layers": 0, "feature_size": 80, "norm": "post"},
    "relative_states": {**STATES, "norm": "pre", "positions": "relative"},
    "rotary_states": {**STATES, "norm": "pre", "positions": "rotary"},
}


def feature_model(seed: int = 0, **options: Any) -> Transformer:
    """Return a model with random parameters and long answers."""
    sizes = {"d_model": 32, "heads": 4, "ffn": 48, "target_vocabulary": 40, "max_positions": 24}
    settings = {**READS, "tie_projection": False, **sizes, **options}
    return randomised(Transformer(preset("tiny", **settings)), seed)


def feature_checkpoint(directory: Path, **options: Any) -> Transformer:
    """Save a model of `feature_model` as a checkpoint, and return the model."""
    model = feature_model(**options)
    save_checkpoint(directory, model, None, [], {})
    return model


def vectors(lengths: Sequence[int], size: int, seed: int = 0) -> list[npt.NDArray[np.float32]]:
    """Return random sources of these lengths."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((length, size), np.float32) for length in lengths]
