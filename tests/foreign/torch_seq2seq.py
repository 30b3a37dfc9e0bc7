"""A model with `torch.nn.Transformer` that tx-import can import with a torch.json. Users may copy it."""

import math

import torch
from torch import Tensor, nn
from txport.models.positions import sinusoids


class TorchSeq2Seq(nn.Module):
    """`nn.Transformer` with embeddings, sinusoidal positions (Vaswani et al. 2017, 3.5) and a projection.

    Args:
        source_vocabulary: rows of the source embedding.
        target_vocabulary: rows of the target embedding and of the projection.
        max_positions: maximum source or target length.
        transformer: a Transformer with `batch_first=True`.
        scale_embedding: multiply embeddings by sqrt(d_model).
    """

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        max_positions: int,
        transformer: nn.Transformer,
        scale_embedding: bool = True,
    ) -> None:
        super().__init__()
        d_model = transformer.d_model
        self.source_embedding = nn.Embedding(source_vocabulary, d_model)
        self.target_embedding = nn.Embedding(target_vocabulary, d_model)
        self.transformer = transformer
        self.projection = nn.Linear(d_model, target_vocabulary)
        self.scale = math.sqrt(d_model) if scale_embedding else 1.0
        self.positions: Tensor
        self.register_buffer("positions", sinusoids(max_positions, d_model), persistent=False)

    def forward(self, source_ids: Tensor, source_padding: Tensor, target_ids: Tensor) -> Tensor:
        """Return logits for int64 `[b, s]`, bool `[b, s]` (True for padding), int64 `[b, t]` that start with bos."""
        source = self.source_embedding(source_ids) * self.scale + self.positions[: source_ids.shape[1]]
        target = self.target_embedding(target_ids) * self.scale + self.positions[: target_ids.shape[1]]
        length = target_ids.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=target_ids.device).triu(1)
        states = self.transformer(
            source,
            target,
            tgt_mask=future,
            src_key_padding_mask=source_padding,
            memory_key_padding_mask=source_padding,
        )
        return self.projection(states)  # type: ignore[no-any-return]
