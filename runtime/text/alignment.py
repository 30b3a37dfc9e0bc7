"""Alignment of the words of a translation and its source, computed from cross-attention.

The weights of the alignment heads (`alignment_heads` of the manifest) are averaged. Without alignment heads, all heads
of the last `LAST_LAYERS` layers are averaged: if no head was trained for alignment, the layer before the last aligns
best (Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models", section 4.1). A target token
is aligned to the source token with the largest average. Two words are aligned if any of their tokens are (section 4.3
there). Attention is not an alignment by definition: check the results before you rely on it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from txport.runtime.engine import Float32

LAST_LAYERS = 2

Span = tuple[int, int]  # of characters: the first, and the one after the last


@dataclass(frozen=True)
class Alignment:
    """Alignment of a translation.

    Attributes:
        tokens: for each id of the translation, the aligned position in the source ids; None for ids without text (eos,
            a forced language).
        source_spans: the character span of each source id in the sentence, without white space; empty for ids that are
            not in the text or contain only a space.
        target_spans: the character span of each id of the translation in its text, in the same way. A character of
            several ids belongs to the id that completes it.
        source_words, target_words: the character span of each word. Words are separated by white space, so use `tokens`
            for languages without spaces.
        words: pairs of the index of a source word and the index of a target word, without duplicates, in order.
        times: for a model that reads feature vectors at a known rate, the time in seconds at which the aligned vector
            of each id begins; None for ids without a vector.
    """

    tokens: list[int | None]
    source_spans: list[Span]
    target_spans: list[Span]
    source_words: list[Span]
    target_words: list[Span]
    words: list[tuple[int, int]]
    times: list[float | None] | None = None

    @property
    def pharaoh(self) -> str:
        """Word pairs in the format of fast_align, Marian and Pharaoh: "0-0 1-2", source first, counted from 0."""
        return " ".join(f"{source}-{target}" for source, target in self.words)


def average_heads(cross: Float32, heads: Sequence[tuple[int, int]]) -> Float32:
    """Return the average of the heads that align: float32 `[layers, heads, t, s]` -> `[t, s]`.

    Args:
        cross: cross-attention.
        heads: (layer, head) pairs of alignment heads; empty for all heads of the last layers.
    """
    if heads:
        layers, numbers = zip(*heads, strict=True)
        selected_heads = cross[list(layers), list(numbers)]
    else:
        selected_heads = cross[-LAST_LAYERS:].reshape(-1, *cross.shape[2:])
    mean: Float32 = selected_heads.mean(axis=0, dtype=np.float32)
    return mean


def align_tokens(attention: Float32, candidates: Sequence[int], aligned: Collection[int]) -> list[int | None]:
    """Return the candidate with the most attention for each row of `[t, s]`, the first one if several are equal.

    Args:
        attention: see `average_heads`.
        candidates: the source positions to choose from.
        aligned: the rows to align; the result of other rows is None.
    """
    if not candidates:
        return [None] * len(attention)
    best = attention[:, candidates].argmax(axis=1)
    return [candidates[best[row]] if row in aligned else None for row in range(len(attention))]


def times_of(tokens: Sequence[int | None], rate: float | None) -> list[float | None] | None:
    """Return the seconds at which the vectors at the positions `tokens` begin; `rate` is in vectors per second."""
    if rate is None:
        return None
    return [None if token is None else token / rate for token in tokens]


def words_of(text: str) -> list[Span]:
    """Return the character span of each word of a text."""
    words = []
    start = None
    for position, character in enumerate([*text, " "]):
        if character.isspace():
            if start is not None:
                words.append((start, position))
            start = None
        elif start is None:
            start = position
    return words


def strip_span(span: Span, text: str) -> Span:
    """Return a span without surrounding white space. A span of white space only becomes empty, at its end."""
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def align_words(
    tokens: Sequence[int | None],
    source_spans: Sequence[Span],
    target_spans: Sequence[Span],
    source_words: Sequence[Span],
    target_words: Sequence[Span],
) -> list[tuple[int, int]]:
    """Return pairs of words with aligned tokens. A token without characters belongs to the following word."""
    pairs = set()
    for position, token in enumerate(tokens):
        if token is not None:
            pair = _word(source_spans[token], source_words), _word(target_spans[position], target_words)
            if pair[0] is not None and pair[1] is not None:
                pairs.add((pair[0], pair[1]))
    return sorted(pairs)


def _word(span: Span, words: Sequence[Span]) -> int | None:
    """Return the first word that ends after the span begins."""
    return next((number for number, (_, end) in enumerate(words) if end > span[0]), None)
