"""Rules on the next token of an answer, as in Hugging Face's generation/logits_process.py."""

from collections.abc import Iterator, Sequence

import numpy as np
from txport.runtime.bundle.schema import SpecialTokens
from txport.runtime.engine import Float32, Float64
from txport.runtime.search.requests import Request, Slot
from txport.runtime.search.settings import Rules


def forced_token(slot: Slot) -> int | None:
    """Return the only id that may come next, or None."""
    position = slot.length
    prefix = slot.request.prefix
    if position < len(prefix):
        return int(prefix[position])
    if position == slot.limit - 1:
        return slot.request.search.rules.forced_end
    return None


class Constraints:
    """Rules of a search, applied to one hypothesis at a time.

    Args:
        rules: the rules of the search.
        tokens: ids of special tokens.
    """

    def __init__(self, rules: Rules, tokens: SpecialTokens) -> None:
        self._rules = rules
        self._bos = tokens.bos
        self._eos = tokens.eos
        self.ends = frozenset([tokens.eos, *rules.end_ids])
        # As in Hugging Face, eos is never a bad word.
        words = [word for word in rules.bad_words if len(word) > 1 or word[0] not in self.ends]
        self._never = frozenset([*rules.suppress, *(word[0] for word in words if len(word) == 1)])
        self._phrases = [list(word) for word in words if len(word) > 1]
        self.penalises = rules.repetition_penalty != 1

    def banned_ids(self, generated: Sequence[int], request: Request) -> set[int]:
        """Return the ids that must not follow the ids `generated` so far (with the prefix, without bos)."""
        ids = [self._bos, *generated]
        banned = {*self._never, *_repeats(ids, self._rules.no_repeat_ngram)}
        banned.update(phrase[-1] for phrase in self._phrases if ids[1 - len(phrase) :] == phrase[:-1])
        if len(generated) < request.min_length:
            banned |= self.ends
        if len(generated) == len(request.prefix):
            banned.update(self._rules.begin_suppress)
        return banned

    def apply(self, scores: Float32 | Float64, generated: Sequence[int], request: Request) -> None:
        """Apply the rules to the scores of the next token, in place. If no token is allowed, eos gets the score 0.

        Args:
            scores: `[vocabulary]`; forbidden tokens get -inf.
            generated: ids so far, with the prefix, without bos.
            request: the request that they answer.
        """
        if self.penalises:
            repeated = np.unique([self._bos, *generated])
            penalty = scores.dtype.type(self._rules.repetition_penalty)
            scores[repeated] = np.where(scores[repeated] < 0, scores[repeated] * penalty, scores[repeated] / penalty)
        scores[list(self.banned_ids(generated, request))] = -np.inf
        if scores.max() == -np.inf:
            scores[self._eos] = 0


def _repeats(ids: Sequence[int], n: int) -> Iterator[int]:
    """Yield the ids that would repeat an n-gram of `ids`."""
    if n == 0:
        return
    last = list(ids[len(ids) - n + 1 :])
    for first in range(len(ids) - n + 1):
        if ids[first : first + n - 1] == last:
            yield ids[first + n - 1]
