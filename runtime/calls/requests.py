"""Requests for the search, from texts and ids. Translation, evaluation, verification and benchmarks all use them."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from txport.runtime.arguments import check_ids, check_lengths, check_text
from txport.runtime.bundle.schema import Limits
from txport.runtime.bundle.shortlist import Shortlist
from txport.runtime.calls.search_options import ModelFacts, check_effect, search_of, with_settings
from txport.runtime.engine import Source
from txport.runtime.errors import InputError
from txport.runtime.options import DEFAULTS, Options
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import GREEDY, Search
from txport.runtime.text.affixes import Affixes
from txport.runtime.text.alignment import Span, strip_span

if TYPE_CHECKING:  # it needs SentencePiece, which machines that only build engines lack
    from txport.runtime.text.tokenizer import Tokenizer

# Default maximum length of a translation: LENGTH_RATIO x source tokens + LENGTH_OFFSET. A poorly trained model does not
# end its translations, and few real translations are longer.
LENGTH_RATIO = 2
LENGTH_OFFSET = 20
LIMIT = f"{LENGTH_RATIO} times the tokens of the source plus {LENGTH_OFFSET}"
_log = logging.getLogger("txport")


def length_limit(source: int, required: int, maximum: int) -> int:
    """Return the default of the maximum number of target tokens.

    Args:
        source: the tokens of the source, eos and languages included.
        required: the tokens that the answer must have, by a prefix or a minimum.
        maximum: the most that the engine makes.
    """
    # Required tokens are added, so that a long prefix leaves room for the translation itself.
    return min(maximum, LENGTH_RATIO * source + LENGTH_OFFSET + required)


def ignore_warnings(_message: str) -> None:
    """Discard warnings of a `Call`, for callers that count truncated sentences."""


@dataclass(frozen=True)
class Sentence:
    """Sentence for the search, and its text.

    Attributes:
        request: for the search.
        text: the sentence; empty if only its ids are known.
        first, last: range of the source ids that belong to the text; `last` is exclusive.
        spans: the characters of each id from `first` to `last`, without white space, if alignments are requested.
        forced: number of ids at the beginning of the request's prefix that select languages.
        truncated: whether the text was truncated.
    """

    request: Request
    text: str
    first: int
    last: int
    spans: Sequence[Span]
    forced: int
    truncated: bool

    def visible(self, ids: list[int]) -> list[int]:
        """Return the ids of a translation without one of `end_ids` at the end."""
        if ids[-1] in self.request.search.rules.end_ids:
            return ids[:-1]
        return ids


@dataclass(frozen=True)
class Call:
    """Checked options of one call. Its methods make sentences from texts and ids.

    Attributes:
        options: of the call.
        tokenizer: of the model.
        limits: of the engine.
        target_prefix: ids with which all translations in its languages begin.
        prefix: ids of the option of this name, which follow `target_prefix`.
        search: how to search.
        warn: is called with one sentence about a truncated text.
        shortlist: candidate tokens of each sentence; None for the whole vocabulary.
        prompt: whether `target_prefix` does not count in the length of a hypothesis.
    """

    options: Options
    tokenizer: "Tokenizer"
    limits: Limits
    target_prefix: Sequence[int]
    prefix: Sequence[int]
    search: Search
    warn: Callable[[str], object]
    shortlist: Shortlist | None = None
    prompt: bool = False

    @classmethod
    def of(
        cls,
        tokenizer: "Tokenizer",
        limits: Limits,
        options: Options = DEFAULTS,
        warn: Callable[[str], object] = _log.warning,
        model: ModelFacts | None = None,
    ) -> "Call":
        """Check the options, before any sentence is read.

        Args:
            tokenizer, limits, options, warn: see `Call`.
            model: facts that search options need; without it, the search is greedy.

        Raises:
            InputError: a language is unknown or missing, a length is not possible, or search options contradict
                each other.
        """
        if model is not None:
            requested = options
            options = with_settings(options, model.generation, limits)
            check_effect(requested, options)
        affixes = tokenizer.affixes(options.source_language, options.target_language)
        target_prefix = affixes.target_prefix
        prefix: Sequence[int] = []
        if isinstance(options.prefix, str):
            check_text(options.prefix, "the prefix")
            prefix = tokenizer.encode_prefix(options.prefix) if options.prefix else []
        elif options.prefix is not None:
            prefix = options.prefix if model is None else check_ids(options.prefix, model.vocabulary, "the prefix")
        prefix_length = len(target_prefix) + len(prefix)
        check_lengths(options.max_length, options.min_length, prefix_length, limits.target)
        if model is None:
            search = GREEDY
        else:
            search = search_of(options, model, limits, tokenizer)
        if model is not None and options.shortlist:
            shortlist = model.shortlist
        else:
            shortlist = None
        return cls(options, tokenizer, limits, target_prefix, prefix, search, warn, shortlist, affixes.prompt)

    def sentence(self, text: str, what: str, number: int = 1) -> Sentence | None:
        """Return the sentence of a text; None if the text is blank.

        Args:
            text: any text. One that is too long is truncated, or refused if the call is strict.
            what: its name in messages.
            number: of the sentence in its text, from 1; determines random samples.

        Raises:
            InputError: it is not text, or too long.
        """
        check_text(text, what)
        if not text or text.isspace():
            return None
        ids, spans, affixes = self._encode(text)
        if not ids:
            return None
        count = len(ids) + affixes.count
        maximum = self.limits.source
        if count > maximum:
            message = f"{what} has {count} tokens, more than the {maximum} that this model supports"
            if self.options.strict:
                raise InputError(f"{message}: shorten it, or leave out the option strict to truncate it")
            self.warn(f"{message}: it was cut")
        source = affixes.wrap(ids, maximum)
        request = self._request(source, affixes.target_prefix, number)
        first = len(affixes.source_prefix)
        last = len(source) - len(affixes.source_suffix)
        spans = [strip_span(span, text) for span in spans[: last - first]]
        return Sentence(request, text, first, last, spans, len(affixes.target_prefix), truncated=count > maximum)

    def fitting_length(self, text: str) -> int:
        """Return the number of characters at the beginning of a text that fit the model."""
        ids, spans, affixes = self.tokenizer.locate_source(text, *self._languages)
        room = max(0, self.limits.source - affixes.count)
        if len(ids) <= room:
            return len(text)
        return spans[room][0]

    def required_sentence(self, text: str, what: str) -> Sentence:
        """Return the sentence of a text that must not be blank, as `sentence` does.

        Raises:
            InputError: it is empty.
        """
        sentence = self.sentence(text, what)
        if sentence is None:
            raise InputError(f"{what} is empty: give text")
        return sentence

    def of_ids(self, source: Source, number: int = 1) -> Sentence:
        """Return the sentence of complete source ids or vectors, which the caller has checked."""
        request = self._request(source, self.target_prefix, number)
        return Sentence(request, "", 0, 0, [], len(self.target_prefix), truncated=False)

    def _encode(self, text: str) -> tuple[list[int], list[Span], Affixes]:
        if self.options.alignments:
            return self.tokenizer.locate_source(text, *self._languages)
        ids, affixes = self.tokenizer.encode_source(text, *self._languages)
        return ids, [], affixes

    @property
    def _languages(self) -> tuple[str | None, str | None]:
        return self.options.source_language, self.options.target_language

    def _request(self, source: Source, target_prefix: Sequence[int], number: int) -> Request:
        """Return the request of a sentence, whose target prefix may differ because its text selects a language."""
        options = self.options
        prefix = [*target_prefix, *self.prefix]
        limit = options.max_length
        if limit is None and options.full_length:
            limit = self.limits.target
        elif limit is None:
            limit = length_limit(len(source), max(len(prefix), options.min_length), self.limits.target)
        forced = 0 if self.prompt else len(target_prefix)
        if self.shortlist is None or isinstance(source, np.ndarray):
            words = None
        else:
            words = self.shortlist.words(source, [*prefix, *self._fixed])
        return Request(source, limit, options.min_length, prefix, options.scores, forced, number, self.search, words)

    @property
    def _fixed(self) -> list[int]:
        """Return ids that rules may insert or end with; every shortlist must contain them."""
        rules = self.search.rules
        return [*rules.end_ids, *([] if rules.forced_end is None else [rules.forced_end])]
