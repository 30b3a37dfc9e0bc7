"""Word alignments in the format of fast_align, Marian and Pharaoh: "0-0 1-2", source first, counted from 0.

Words are separated by white space. A tokenizer splits them into pieces, and pieces are aligned if their words are: each
piece of one word with each piece of the other, as in OpenNMT-py (`to_subword_align`).
"""

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from txport.runtime.errors import InputError
from txport.runtime.text.alignment import strip_span, words_of
from txport.runtime.text.tokenizer import TextTokenizer

# Positions in source and target: int32 `[n, 2]`.
Links: TypeAlias = npt.NDArray[np.int32]

_LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


def read_links(text: str, source: str, target: str, location: str) -> Links:
    """Return the word alignment of one pair.

    Args:
        text: alignment in Pharaoh format; may be empty.
        source, target: the pair.
        location: file and line, for messages.

    Raises:
        InputError: the format is wrong, or a word does not exist.
    """
    links = []
    for item in text.split():
        match = _LINK.fullmatch(item)
        if match is None:
            raise InputError(
                f"{location} has {item[:40]!r}, but an alignment is pairs of a source word and a target word, counted "
                "from 0, such as 0-0 1-2"
            )
        links.append((int(match[1]), int(match[2])))
    counts = len(source.split()), len(target.split())
    for link in links:
        for side, position, count in zip(("source", "target"), link, counts, strict=True):
            if position >= count:
                raise InputError(
                    f"{location} aligns word {position} of the {side}, counted from 0, which has {count}: align this "
                    "text, with words separated by white space"
                )
    return np.array(links, np.int32).reshape(-1, 2)


def piece_links(links: Links, source: str, target: str, tokenizer: TextTokenizer) -> Links:
    """Convert the word alignment of a pair to an alignment of pieces, counted from the first piece of each text."""
    sides = (source, tokenizer.locate_source(source)[1]), (target, tokenizer.prefix_spans(target))
    pieces_of_source, pieces_of_target = (_pieces(text, spans) for text, spans in sides)
    links_of_pieces = [
        (source_piece, target_piece)
        for source_word, target_word in links.tolist()
        for source_piece in pieces_of_source[source_word]
        for target_piece in pieces_of_target[target_word]
    ]
    return np.array(links_of_pieces, np.int32).reshape(-1, 2)


def by_pair(
    pairs: Iterable[tuple[str, str]], alignments: Sequence[str], lines: Iterable[str]
) -> dict[tuple[str, str], Links]:
    """Return the alignment of each pair (see `read_links`). For duplicate pairs it is that of the first.

    Args:
        pairs: pairs; those with an empty side are ignored.
        alignments: alignment of each, in Pharaoh format.
        lines: file and line of each, for messages.
    """
    links_by_pair: dict[tuple[str, str], Links] = {}
    for pair, text, location in zip(pairs, alignments, lines, strict=True):
        if pair[0].strip() and pair[1].strip():
            links = read_links(text, *pair, location)
            links_by_pair.setdefault(pair, links)
    return links_by_pair


def _pieces(text: str, spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the pieces of each word. A piece without characters belongs to the next word, if there is one."""
    words = words_of(text)
    starts = [strip_span(span, text)[0] for span in spans]
    pieces: list[list[int]] = [[] for _ in words]
    for piece, word in enumerate(np.searchsorted([end for _, end in words], starts, side="right").tolist()):
        if word < len(words):
            pieces[word].append(piece)
    return pieces
