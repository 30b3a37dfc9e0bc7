"""Exclusion of padding from the statistics of PowerNorm and BatchNorm."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from txport.models.norms import SharedNorm
from txport.models.transformer import Transformer


@contextmanager
def padding_left_out(model: Transformer, source_lengths: Tensor, target_lengths: Tensor) -> Iterator[None]:
    """Exclude padding from the statistics of PowerNorm and BatchNorm, while the context is active.

    Args:
        model: whose norms are changed.
        source_lengths: int64 `[b]`.
        target_lengths: int64 `[b]`.
    """
    encoder = (model.source_embedding, model.encoder, model.encoder_norm)
    decoder = (model.target_embedding, model.decoder, model.decoder_norm)
    norms = []
    for modules, lengths in ((encoder, source_lengths), (decoder, target_lengths)):
        present = [module for module in modules if module is not None]
        for norm in (each for module in present for each in module.modules() if isinstance(each, SharedNorm)):
            norm.lengths = lengths
            norms.append(norm)
    try:
        yield
    finally:
        for norm in norms:
            norm.lengths = None
