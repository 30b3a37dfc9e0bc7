"""Results of a `Translator`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from txport.runtime.calls.requests import Sentence
from txport.runtime.engine import Float32
from txport.runtime.options import Options
from txport.runtime.search.requests import Hypothesis, Result
from txport.runtime.text.alignment import Alignment

if TYPE_CHECKING:
    from txport.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Translation:
    """The translation of one sentence.

    Attributes:
        text: the translation; empty for an empty sentence.
        ids: target ids without bos. The last one is eos or one of `Options.end_ids`, unless the maximum length was
            reached. At the maximum length it is `Options.forced_end`, if that is set.
        scores: natural log-probability of each id, if requested.
        truncated: whether the sentence was longer than the bundle supports and was truncated.
        finished: whether the last id is eos or one of `Options.end_ids`, including one that `Options.forced_end` set
            at the maximum length; true for an empty sentence.
        looped: whether the end repeats a phrase at least three times, over at least twelve tokens.
        score: score of the hypothesis in beam search, the log-probability divided by a power of the length; None
            otherwise.
        hypotheses: all translations that `n_best` or `alternatives` requested, this one first; empty for a single one.
        alignment: alignment of words and tokens with the source, if requested; None for an empty sentence.
        attention: float32 `[ids, source ids]`, attention of each id over the source ids, if requested: the average over
            the alignment heads of the manifest, or without these over all heads of the last two layers. None for an
            empty sentence.
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
    """Return the translation of a sentence without words."""
    return Translation("", [], [] if options.scores else None, truncated=False, finished=True)


def translations_of(
    tokenizer: "Tokenizer", eos: int, sentences: Sequence[Sentence], results: Sequence[Result]
) -> list[Translation]:
    """Return a translation for each hypothesis of the results. `sentences` contains the sentence of each."""
    hypotheses = [hypothesis for result in results for hypothesis in result.hypotheses]
    return [_translation(tokenizer, eos, *each) for each in zip(sentences, hypotheses, strict=True)]


def best_of(translations: Sequence[Translation], results: Sequence[Result]) -> list[Translation]:
    """Return the first translation of each result, with the others as its hypotheses."""
    following = iter(translations)
    groups = (tuple(next(following) for _ in result.hypotheses) for result in results)
    return [group[0] if len(group) == 1 else replace(group[0], hypotheses=group) for group in groups]


def _translation(tokenizer: "Tokenizer", eos: int, sentence: Sentence, hypothesis: Hypothesis) -> Translation:
    visible = sentence.visible(hypothesis.ids)
    finished = hypothesis.ids[-1] == eos or visible is not hypothesis.ids
    text = tokenizer.decode(visible)
    is_looped = looped(hypothesis.ids[:-1] if finished else hypothesis.ids)
    return Translation(
        text, hypothesis.ids, hypothesis.scores, sentence.truncated, finished, looped=is_looped, score=hypothesis.score
    )


def looped(ids: Sequence[int]) -> bool:
    """Return whether ids end with at least three repetitions of one sequence, of at least twelve ids in total."""
    count = len(ids)
    for period in range(1, count // 3 + 1):
        start = count - period
        while start > 0 and ids[start - 1] == ids[start - 1 + period]:
            start -= 1
        if count - start >= max(3 * period, _MIN_LOOP_TOKENS):
            return True
    return False


# Ordinary text repeats short phrases, such as "no, no, no". Longer repetitions are a sign of a degenerate search.
_MIN_LOOP_TOKENS = 12


@dataclass(frozen=True)
class Score:
    """Score of a reference translation.

    Attributes:
        ids: target ids without bos, including eos.
        scores: natural log-probability of each id given the ids before it.
    """

    ids: list[int]
    scores: list[float]

    @property
    def total(self) -> float:
        """Return the log-probability of the whole translation."""
        return sum(self.scores)


@dataclass(frozen=True)
class AttentionMaps:
    """All attention of one sentence with s source ids and its translation with t target ids.

    Attributes:
        source_ids, target_ids: ids including special tokens, without bos.
        source_labels, target_labels: readable tokens of these ids, for the labels of an axis.
        encoder: float32 `[layers, heads, s, s]`.
        decoder: float32 `[layers, heads, t, t]`. Row i is the step that generates target id i. Columns are its inputs:
            bos and all ids except the last.
        cross: float32 `[layers, heads, t, s]`.
        scores: natural log-probability of each target id.
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
    """One step of a stream: the id, the text that it completes (often empty), and its score if requested."""

    id: int
    text: str
    score: float | None
