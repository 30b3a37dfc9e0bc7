"""Alignment of a translation's words with those of its source, read off cross-attention.

The weights of the heads that are known to align (`alignment_heads` of the manifest) are averaged, or of all heads of
the last `LAST_LAYERS` layers: the last but one aligns best if no head was trained for it (Garg et al.
2019, "Jointly Learning to Align and Translate with Transformer Models", section 4.1; with one layer, that one). A token
is aligned to the token of the source text to which the average gives most, and two words are if any of their tokens are
(section 4.3 there). Attention is not an alignment by definition: check the results before you rely on it.
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
        tokens: for each id of the translation, the position in the source ids that it comes from; None for ids that
            leave no text by their nature (eos, a forced language).
        source_spans: the characters of each source id in the sentence, without white space; empty for ids that are not
            of the text, and where a tokenizer puts a space only.
        target_spans: the characters of each id of the translation in its text, likewise; where an id completes a
            character that others began, that one has it.
        source_words, target_words: the characters of each word, which is what white space separates: in a language
            without spaces look at tokens.
        words: pairs of a source word's number and a target word's, each once, in order.
        times: for a model that reads feature vectors at a known rate, the time in seconds at which the vector of each
            id begins; None for ids without one.
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
        """The pairs in the form of fast_align, Marian and Pharaoh: "0-0 1-2", source first, counted from 0."""
        return " ".join(f"{source}-{target}" for source, target in self.words)


def averaged(cross: Float32, heads: Sequence[tuple[int, int]]) -> Float32:
    """Return the average of the heads that align: float32 `[layers, heads, t, s]` -> `[t, s]`.

    Args:
        cross: cross-attention.
        heads: (layer, head) pairs that align; empty for all of the last layers.
    """
    if heads:
        layers, numbers = zip(*heads, strict=True)
        chosen = cross[list(layers), list(numbers)]
    else:
        chosen = cross[-LAST_LAYERS:].reshape(-1, *cross.shape[2:])
    mean: Float32 = chosen.mean(axis=0, dtype=np.float32)
    return mean


def align_tokens(attention: Float32, candidates: Sequence[int], aligned: Collection[int]) -> list[int | None]:
    """Candidate with the most attention for each row of `[t, s]`, the first of equal ones.

    Args:
        attention: see `averaged`.
        candidates: the positions to choose from.
        aligned: the rows that have one at all.
    """
    if not candidates:
        return [None] * len(attention)
    best = attention[:, candidates].argmax(axis=1)
    return [candidates[best[row]] if row in aligned else None for row in range(len(attention))]


def times_of(tokens: Sequence[int | None], rate: float | None) -> list[float | None] | None:
    """Return the seconds at which the vectors `tokens` begin, at this number of vectors per second."""
    if rate is None:
        return None
    return [None if token is None else token / rate for token in tokens]


def words_of(text: str) -> list[Span]:
    """Return the characters of each word of a text."""
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


def stripped(span: Span, text: str) -> Span:
    """Return a span without white space around it; a span of spaces only becomes empty, at its end."""
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
    """Pairs of words of which any tokens are aligned; a token without characters counts to the word that follows."""
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
