"""Links between source and target ids, from a bundle's attention, an aligner, or a lexical table."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.calls.requests import Call, Sentence
from txport.runtime.console.words import plural
from txport.runtime.engine import Engine, Int64
from txport.runtime.errors import InputError
from txport.runtime.libraries import needs
from txport.runtime.text.alignment import align_tokens, average_heads
from txport.runtime.text.lines import read_lines
from txport.runtime.text.tokenizer import TextTokenizer
from txport.training.guidance.pharaoh import piece_links, read_links

# Number of sentences whose attention is computed at once.
PART = 512

Pair = tuple[str, str]
Weights = npt.NDArray[np.float64]


class Links:
    """Weights of pairs (source id, target id): counts or probabilities.

    Args:
        target_vocabulary: size of the target vocabulary.
    """

    def __init__(self, target_vocabulary: int) -> None:
        self._width = target_vocabulary
        self._keys: list[Int64] = []
        self._weights: list[Weights] = []

    def add(self, sources: Sequence[int], targets: Sequence[int], weights: Sequence[float] | None = None) -> None:
        """Add pairs, with weight 1 unless `weights` is set."""
        keys = np.asarray(sources, np.int64) * self._width + np.asarray(targets, np.int64)
        self._keys.append(keys)
        self._weights.append(np.ones(len(keys)) if weights is None else np.asarray(weights, np.float64))

    def best(self, count: int) -> tuple[Int64, Int64]:
        """Return source ids and target ids of all pairs that are among the `count` largest of their source id."""
        if not self._keys:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        keys, places = np.unique(np.concatenate(self._keys), return_inverse=True)
        weights = np.bincount(places, np.concatenate(self._weights))
        sources = keys // self._width
        targets = keys % self._width
        order = np.lexsort((targets, -weights, sources))
        sources = sources[order]
        targets = targets[order]
        rank = np.arange(len(sources)) - np.searchsorted(sources, sources)
        return sources[rank < count], targets[rank < count]


def by_aligner(links: Links, pairs: Sequence[Pair], file: Path, tokenizer: TextTokenizer) -> None:
    """Add the pieces of words that are aligned in a file, with a line in Pharaoh format for each pair.

    Raises:
        InputError: its number of lines differs, or a line cannot be read.
    """
    lines = read_lines(file)
    if len(lines) != len(pairs):
        raise InputError(
            f"{file} has {plural(len(lines), 'line')}, and the corpus {len(pairs):,}: each pair needs an alignment"
        )
    for number, (pair, line) in enumerate(zip(pairs, lines, strict=True), 1):
        pieces = piece_links(read_links(line, *pair, f"{file}, line {number}"), *pair, tokenizer)
        source = tokenizer.locate_source(pair[0])[0]
        target = tokenizer.encode_prefix(pair[1])
        links.add([source[piece] for piece in pieces[:, 0]], [target[piece] for piece in pieces[:, 1]])


def by_attention(
    links: Links, pairs: Sequence[Pair], call: Call, bundle: Path, manifest: Manifest, engine: Engine, threads: int
) -> None:
    """Add each target id with the source id of maximum attention, when the decoder reads the given translation.

    Raises:
        BundleError: the bundle has no graph for attention.
    """
    with needs("ort"):
        from txport.runtime.engines.teacher_forcing import TeacherForcing

    teacher = TeacherForcing(bundle, manifest, engine, "cpu", threads)
    teacher.graph("decoder")
    for start in range(0, len(pairs), PART):
        read = list(_read(call, pairs[start : start + PART], manifest))
        sources = [sentence.request.source_ids for sentence, _ in read]
        for index, reading in teacher.read(sources, [ids for _, ids in read], cross=True):
            sentence, ids = read[index]
            assert reading.cross is not None
            target_steps = range(len(sentence.request.prefix), len(ids) - 1)
            source_positions = list(range(sentence.first, sentence.last))
            aligned_sources = align_tokens(
                average_heads(reading.cross, manifest.alignment_heads), source_positions, target_steps
            )
            aligned = [(source, ids[step]) for step, source in enumerate(aligned_sources) if source is not None]
            links.add([sources[index][source] for source, _ in aligned], [target for _, target in aligned])


def _read(call: Call, pairs: Sequence[Pair], manifest: Manifest) -> Iterator[tuple[Sentence, list[int]]]:
    """Yield sentences and their complete target ids: prefix, translation and eos."""
    for source, target in pairs:
        sentence = call.sentence(source, "a sentence")
        if sentence is not None and (ids := call.tokenizer.encode_prefix(target)):
            target_ids = [*sentence.request.prefix, *ids][: manifest.limits.target - 1]
            yield sentence, [*target_ids, manifest.tokens.eos]


def by_table(links: Links, file: Path, source: dict[str, int], target: dict[str, int]) -> None:
    """Add a lexical table in Marian's format (`lex.s2t`): lines with target piece, source piece and probability.

    Args:
        links: table to extend.
        file: the lexical table.
        source, target: ids of pieces.

    Raises:
        InputError: a line has another format, or an unknown piece.
    """
    rows: list[tuple[int, int, float]] = []
    for number, line in enumerate(read_lines(file), 1):
        cells = line.split()
        if "NULL" in cells[:2] or not cells:
            continue
        try:
            words = cells[:2]
            probability = float(cells[2])
            if len(cells) != 3:
                raise ValueError
        except (ValueError, IndexError):
            raise InputError(
                f"{file}, line {number} is {line[:60]!r}, but a line has a target piece, a source piece and a "
                "probability, as extract_lex writes them"
            ) from None
        for word, vocabulary, side in zip(words, (target, source), ("target", "source"), strict=True):
            if word not in vocabulary:
                raise InputError(
                    f"{file}, line {number} has the {side} piece {word!r}, which the model's vocabulary does not: give "
                    "a table that was made with this model's tokenizer"
                )
        rows.append((source[words[1]], target[words[0]], probability))
    if rows:
        links.add(*zip(*rows, strict=True))
