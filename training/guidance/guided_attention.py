"""Guided attention: chosen heads of cross-attention learn to point to the source, in addition to the normal loss.

Normal training does not make heads point to the word that is being translated; a neighbouring state may contain the
same information. Two losses add this, for the average of the heads in `alignment_heads` of the config. "diagonal"
rewards attention at the same relative position in source and target, for tasks with parallel order: Tachibana et al.
(2017), "Efficiently Trainable Text-to-Speech System Based on Deep Convolutional Networks with Guided Attention",
arXiv:1710.08969, section 4.1. "alignments" rewards attention at the words that an aligner has found: Chen et al.
(2016), "Guided Alignment Training for Topic-Aware Neural Machine Translation", arXiv:1607.01628, section 4, in the form
of fairseq (Garg et al. 2019) and OpenNMT-py for Transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from txport.models.transformer import Transformer
from txport.runtime.text.tokenizer import TextTokenizer
from txport.training.guidance.pharaoh import Links, piece_links
from txport.training.options import TrainingOptions

Matrix = npt.NDArray[np.float32]
Pair = tuple[str, str]


class Guide(Protocol):
    """Targets of each pair's attention."""

    def points(self, pair: Pair, source: range, target: range) -> Sequence[int]:
        """Return the numbers to store for a pair. `fill` computes the matrix from them.

        Args:
            pair: the texts.
            source: positions of source pieces among the source ids, which may also contain a language and eos.
            target: steps that predict target pieces.
        """

    def fill(self, matrix: Matrix, points: npt.NDArray[np.int32]) -> None:
        """Fill a matrix `[t, s]` of zeros for one pair. Rows are steps, columns are source ids."""


class Diagonal(Guide):
    """Penalties for `diagonal_loss`.

    For step t of T and source piece n of N, both counted from 0: 1 - exp(-(n / N - t / T)^2 / (2 g^2)). Special tokens
    (eos, a language) do not count in N and T. Attention to them has penalty 1, since it would be a way to avoid others.
    Steps that predict no text have no penalty.

    Args:
        width: g.
    """

    def __init__(self, width: float) -> None:
        self._width = width

    def points(self, pair: Pair, source: range, target: range) -> Sequence[int]:
        return source.start, source.stop, target.start, target.stop

    def fill(self, matrix: Matrix, points: npt.NDArray[np.int32]) -> None:
        source, source_end, target, target_end = points.tolist()
        sources = source_end - source
        targets = target_end - target
        distance = np.arange(sources) / max(1, sources) - np.arange(targets)[:, None] / max(1, targets)
        matrix[target:target_end] = 1.0
        matrix[target:target_end, source:source_end] = 1 - np.exp(-(distance**2) / (2 * self._width**2))


class Aligned(Guide):
    """References for `alignment_loss`: the weights of a step's aligned source pieces sum to 1, others are 0.

    Args:
        alignments: word alignments by pair; other pairs are not aligned.
        tokenizer: splits words into pieces.
    """

    def __init__(self, alignments: Mapping[Pair, Links], tokenizer: TextTokenizer) -> None:
        self._alignments = alignments
        self._tokenizer = tokenizer

    def points(self, pair: Pair, source: range, target: range) -> Sequence[int]:
        links = self._alignments.get(pair)
        if links is None or not len(links):
            return ()
        points = piece_links(links, *pair, self._tokenizer) + np.array([source.start, target.start], np.int32)
        return points.flatten().tolist()

    def fill(self, matrix: Matrix, points: npt.NDArray[np.int32]) -> None:
        matrix[points[1::2], points[::2]] = 1.0
        matrix /= np.maximum(1.0, matrix.sum(axis=1, keepdims=True))


def choose_guide(options: TrainingOptions, alignments: Mapping[Pair, Links], tokenizer: TextTokenizer) -> Guide | None:
    """Return the guide for a recipe's `[training]`, or None if guided attention is not used."""
    if options.guided_attention == "none" or not options.guided_weight:
        return None
    if options.guided_attention == "diagonal":
        return Diagonal(options.guided_width)
    return Aligned(alignments, tokenizer)


def cross_attentions(model: Transformer) -> list[torch.nn.Module]:
    """Return the cross-attention modules with heads in the config's `alignment_heads`, by layer."""
    layers = sorted({layer for layer, _ in model.config.alignment_heads})
    return [_cross_attention(model, layer) for layer in layers]


def average_of_heads(model: Transformer, weights: Mapping[torch.nn.Module, Tensor]) -> Tensor:
    """Return the mean weights of `alignment_heads`: float32 `[b, t, s]`; rows sum to 1.

    Args:
        model: model whose decoder has run.
        weights: `[b, h, t, s]` for each of `cross_attentions`, see `txport.models.attention_maps.recorded_weights`.
    """
    heads = [weights[_cross_attention(model, layer)][:, head] for layer, head in model.config.alignment_heads]
    return torch.stack(heads).float().mean(dim=0)


def _cross_attention(model: Transformer, layer: int) -> torch.nn.Module:
    return model.decoder[layer].cross_attention  # type: ignore[return-value]


def guided_loss(kind: str, attention: Tensor, guide: Tensor, tokens: int | Tensor) -> Tensor:
    """Return `diagonal_loss` or `alignment_loss`, by its name in recipes."""
    return {"diagonal": diagonal_loss, "alignments": alignment_loss}[kind](attention, guide, tokens)


def diagonal_loss(attention: Tensor, penalties: Tensor, tokens: int | Tensor) -> Tensor:
    """Return the mean penalty of attention over steps, from 0 to 1, without unit.

    The paper also averages over source positions, so that long sources have a smaller loss.

    Args:
        attention: `[b, t, s]`, weights with sum 1 over s.
        penalties: `[b, t, s]`, see `Diagonal`.
        tokens: number of target tokens in the batch without padding, including eos, as for cross-entropy.
    """
    return (attention * penalties).sum() / tokens


def alignment_loss(attention: Tensor, references: Tensor, tokens: int | Tensor) -> Tensor:
    """Return the cross-entropy of attention with a reference, in nats per target token.

    Arguments are those of `diagonal_loss`.

    Steps without a reference have no loss. Weights below 1e-18 count as 1e-18, as in OpenNMT-py, to avoid the logarithm
    of 0.
    """
    return -(attention.clamp(min=1e-18).log() * references).sum() / tokens
