"""Guided attention: chosen heads of cross-attention learn to point to the source, beside what all heads learn.

Heads learn to translate, and not to point at what they translate (a word's number may be read off its neighbour). Two
losses teach it, on the average of the heads that `alignment_heads` of a config names. "diagonal" rewards a target token
to look as far into the source as it is into the target, which is right where both run in parallel: Tachibana et al.
(2017), "Efficiently Trainable Text-to-Speech System Based on Deep Convolutional Networks with Guided Attention",
arXiv:1710.08969, section 4.1. "alignments" wants what an aligner has found: Chen et al. (2016), "Guided Alignment
Training for Topic-Aware Neural Machine Translation", arXiv:1607.01628, section 4, in the form that fairseq (Garg et al.
2019) and OpenNMT-py have for Transformers.
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
        """Numbers to keep of a pair, from which `fill` makes its matrix.

        Args:
            pair: the texts.
            source: positions of the source's pieces in its ids, which may have a language before them and eos behind.
            target: steps that make the target's pieces.
        """

    def fill(self, matrix: Matrix, points: npt.NDArray[np.int32]) -> None:
        """Fill a matrix of zeros, `[t, s]`, for one pair: rows are steps, columns are source ids."""


class Diagonal(Guide):
    """The penalties of `diagonal_loss`.

    Of step t of T and source piece n of N, both counted from 0, 1 - exp(-(n / N - t / T)^2 / (2 g^2)). Special tokens
    (eos, a language) counts in neither N nor T; to look there costs 1, or it would be a way out. Steps that make no
    text are free.

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
    """The references of `alignment_loss`: each aligned step's source pieces share 1; other steps have zeros.

    Args:
        alignments: of the words of pairs; others are not aligned.
        tokenizer: parts words into pieces.
    """

    def __init__(self, alignments: Mapping[Pair, Links], tokenizer: TextTokenizer) -> None:
        self._alignments = alignments
        self._tokenizer = tokenizer

    def points(self, pair: Pair, source: range, target: range) -> Sequence[int]:
        links = self._alignments.get(pair)
        if links is None or not len(links):
            return ()
        moved = piece_links(links, *pair, self._tokenizer) + np.array([source.start, target.start], np.int32)
        return moved.flatten().tolist()

    def fill(self, matrix: Matrix, points: npt.NDArray[np.int32]) -> None:
        matrix[points[1::2], points[::2]] = 1.0
        matrix /= np.maximum(1.0, matrix.sum(axis=1, keepdims=True))


def choose_guide(options: TrainingOptions, alignments: Mapping[Pair, Links], tokenizer: TextTokenizer) -> Guide | None:
    """Return the guide of a recipe's `[training]`; None where none has a weight."""
    if options.guided_attention == "none" or not options.guided_weight:
        return None
    if options.guided_attention == "diagonal":
        return Diagonal(options.guided_width)
    return Aligned(alignments, tokenizer)


def cross_attentions(model: Transformer) -> list[torch.nn.Module]:
    """Return the attentions that have a head of the config's `alignment_heads`, by layer."""
    layers = sorted({layer for layer, _ in model.config.alignment_heads})
    return [_cross_attention(model, layer) for layer in layers]


def average_of_heads(model: Transformer, weights: Mapping[torch.nn.Module, Tensor]) -> Tensor:
    """Mean weights of `alignment_heads`: float32 `[b, t, s]`; rows sum to 1.

    Args:
        model: whose decoder has run.
        weights: `[b, h, t, s]` of each of `cross_attentions`, see `txport.models.transformer.recorded_weights`.
    """
    chosen = [weights[_cross_attention(model, layer)][:, head] for layer, head in model.config.alignment_heads]
    return torch.stack(chosen).float().mean(dim=0)


def _cross_attention(model: Transformer, layer: int) -> torch.nn.Module:
    return model.decoder[layer].cross_attention  # type: ignore[return-value]


def guided_loss(kind: str, attention: Tensor, guide: Tensor, tokens: int | Tensor) -> Tensor:
    """`diagonal_loss` or `alignment_loss`, by the name that a recipe has for it."""
    return {"diagonal": diagonal_loss, "alignments": alignment_loss}[kind](attention, guide, tokens)


def diagonal_loss(attention: Tensor, penalties: Tensor, tokens: int | Tensor) -> Tensor:
    """Return the mean over steps of the penalty that a step's attention meets: from 0 to 1, without a unit.

    The paper takes the mean over source positions too, which makes long sources cheaper.

    Args:
        attention: `[b, t, s]`, weights that sum to 1 over s.
        penalties: `[b, t, s]`, see `Diagonal`.
        tokens: target tokens of the batch that are not padding, eos included, as in cross-entropy.
    """
    return (attention * penalties).sum() / tokens


def alignment_loss(attention: Tensor, references: Tensor, tokens: int | Tensor) -> Tensor:
    """Cross-entropy of attention with a reference, in nats per target token; arguments as for `diagonal_loss`.

    Steps without a reference cost nothing. A weight below 1e-18 counts as that, as in OpenNMT-py: float32 has no zero
    that a logarithm could take.
    """
    return -(attention.clamp(min=1e-18).log() * references).sum() / tokens
