"""Results of a `Translator`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from txport.runtime.engine import Float32
from txport.runtime.options import Options
from txport.runtime.search.requests import Hypothesis, Result
from txport.runtime.text.alignment import Alignment
from txport.runtime.text.requests import Sentence

if TYPE_CHECKING:
    from txport.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Translation:
    """The translation of one sentence.

    Attributes:
        text: the translation; empty for an empty sentence.
        ids: target ids without bos; the last is eos unless the maximum length came first.
        scores: the natural logarithm of each id's probability, if requested.
        truncated: the sentence was longer than the bundle takes and was cut.
        finished: the translation ended with eos, not at the maximum length; true of an empty sentence.
        looped: its end says one thing again and again: three times at least, and twelve tokens.
        score: what a beam search ranked it by: its log-probability divided by a power of its length; None without one.
        hypotheses: all translations that `n_best` or `alternatives` asked for, this one first; empty if only one was
            asked for.
        alignment: which words and tokens of the sentence each one comes from, if requested; None for an empty sentence.
        attention: float32 `[ids, source ids]`, how much each id attended to each source id: the average that
            `txport.runtime.alignment` describes; likewise.
    """

    text: str
    ids: list[int]
    scores: list[float] | None
    truncated: bool
    finished: bool
    alignment: Alignment | None = None
    attention: Float32 | None = field(default=None, compare=False)
    looped: bool = False
    score: float | None = None
    hypotheses: tuple["Translation", ...] = ()


def empty(options: Options) -> Translation:
    """The translation of a sentence in which there is nothing to translate."""
    return Translation("", [], [] if options.scores else None, truncated=False, finished=True)


def translations_of(
    tokenizer: "Tokenizer", eos: int, asked: Sequence[Sentence], results: Sequence[Result]
) -> list[Translation]:
    """A translation for each hypothesis of the results; `asked` has the sentence of each."""
    made = [hypothesis for result in results for hypothesis in result.hypotheses]
    return [_translation(tokenizer, eos, *each) for each in zip(asked, made, strict=True)]


def best_of(translations: Sequence[Translation], results: Sequence[Result]) -> list[Translation]:
    """The first translation of each result, which has the others as its hypotheses."""
    following = iter(translations)
    groups = (tuple(next(following) for _ in result.hypotheses) for result in results)
    return [group[0] if len(group) == 1 else replace(group[0], hypotheses=group) for group in groups]


def _translation(tokenizer: "Tokenizer", eos: int, asked: Sentence, made: Hypothesis) -> Translation:
    own = made.ids[:-1] if made.ids[-1] in asked.request.search.rules.end_ids else made.ids
    finished = made.ids[-1] == eos or own is not made.ids
    text = tokenizer.decode(own)
    loops = looped(made.ids[:-1] if finished else made.ids)
    return Translation(text, made.ids, made.scores, asked.truncated, finished, looped=loops, score=made.score)


def looped(ids: Sequence[int]) -> bool:
    """Whether ids end with one sequence three times in a row at least, and twelve ids of it."""
    count = len(ids)
    for period in range(1, count // 3 + 1):
        start = count - period
        while start > 0 and ids[start - 1] == ids[start - 1 + period]:
            start -= 1
        if count - start >= max(3 * period, _LOOP):
            return True
    return False


_LOOP = 12


@dataclass(frozen=True)
class Score:
    """Score of a given translation.

    Attributes:
        ids: target ids without bos, the end included.
        scores: the natural logarithm of each id's probability after those before it.
    """

    ids: list[int]
    scores: list[float]

    @property
    def total(self) -> float:
        """The logarithm of the whole translation's probability."""
        return sum(self.scores)


@dataclass(frozen=True)
class AttentionMaps:
    """All attention of one sentence and its translation: s source ids, t target ids.

    Attributes:
        source_ids, target_ids: with the ids around a text, and without bos.
        source_labels, target_labels: what a picture calls them.
        encoder: float32 `[layers, heads, s, s]`.
        decoder: float32 `[layers, heads, t, t]`; row i is of the step that makes target id i, and the columns are what
            it read: bos and the ids before the last.
        cross: float32 `[layers, heads, t, s]`.
        scores: the natural logarithm of each target id's probability.
    """

    source_ids: list[int]
    target_ids: list[int]
    source_labels: list[str]
    target_labels: list[str]
    encoder: Float32
    decoder: Float32
    cross: Float32
    scores: list[float]


@dataclass(frozen=True)
class Piece:
    """One step of a stream: the id, the text that it completes (often none), and its score if requested."""

    id: int
    text: str
    score: float | None
