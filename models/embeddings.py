"""Input layers of the encoder and decoder: token embeddings or projected feature vectors, with positions.

Shapes: b batch, s source, d d_model, f feature_size.
"""

import math

import torch
from torch import Tensor, nn
from txport.models.config import Config
from txport.models.norms import NoNorm, new_norm
from txport.models.positions import sinusoids


class InputLayer(nn.Module):
    """Base of input layers: adds absolute positions, if there are any, then applies an optional norm and dropout.

    Args:
        config: of the model.
        length: size of a table of learned positions, or initial size of the table of sinusoids.
    """

    def __init__(self, config: Config, length: int) -> None:
        super().__init__()
        self.norm = new_norm(config) if config.embedding_norm else NoNorm()
        self.dropout = nn.Dropout(config.dropout)
        self.positions: Tensor | None
        size = length, config.d_model
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.empty(size))
        else:
            table = sinusoids(*size) if config.positions == "sinusoidal" else None
            # Not in checkpoints: sinusoids are computed, and their length may grow.
            self.register_buffer("positions", table, persistent=False)

    def placed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add positions int64 `[...]` (or broadcastable) to x `[..., d]`, and apply norm and dropout."""
        if self.positions is not None:
            x = x + self.positions[positions]
        return self.dropout(self.norm(x))  # type: ignore[no-any-return]

    def lengthen(self, length: int) -> None:
        """Extend sinusoids to at least `length` positions; learned positions do not change."""
        table = self.positions
        if table is not None and len(table) < length and not isinstance(table, nn.Parameter):
            self.positions = sinusoids(length, table.shape[1]).to(table)


class Embedding(InputLayer):
    """Token embedding with positions."""

    def __init__(self, config: Config, tokens: nn.Embedding, length: int) -> None:
        super().__init__(config, length)
        self.tokens = tokens
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed ids int64 `[...]` at positions int64 `[...]` (or broadcastable) as `[..., d]`."""
        return self.placed(self.tokens(ids) * self.scale, positions)


class FeatureProjection(InputLayer):
    """Linear projection of feature vectors, such as the frames of a spectrogram, with positions."""

    def __init__(self, config: Config, length: int) -> None:
        super().__init__(config, length)
        assert config.feature_size is not None
        self.projection = nn.Linear(config.feature_size, config.d_model)

    def forward(self, features: Tensor, positions: Tensor) -> Tensor:
        """Project feature vectors `[b, s, f]` at positions int64 `[s]` to `[b, s, d]`."""
        return self.placed(self.projection(features), positions)


def source_layer(config: Config) -> InputLayer | None:
    """Return the input layer of the encoder, or None for a model without an encoder (its input is encoder states)."""
    if config.reads_states:
        return None
    length = config.max_source_positions or config.max_positions
    if config.source == "features":
        return FeatureProjection(config, length)
    return Embedding(config, nn.Embedding(config.source_vocabulary, config.d_model), length)


def target_layer(config: Config, source: InputLayer | None) -> Embedding:
    """Return the input layer of the decoder. With `share_embeddings` its token embedding is that of `source`."""
    if config.share_embeddings and isinstance(source, Embedding):
        tokens = source.tokens
    else:
        tokens = nn.Embedding(config.target_vocabulary, config.d_model)
    return Embedding(config, tokens, config.max_positions)
