"""Decoding during a run, in parts, so that it can be watched; and what a run is tested on."""

from collections.abc import Callable, Sequence

import numpy as np
from txport.runtime.engine import Engine
from txport.runtime.text.tokenizer import Tokenizer
from txport.training.corpora import Pair
from txport.training.quality.evaluation import Scores, answers, score

# Test sentences for each minute of a run, and the fewest.
PER_MINUTE = 50
FEWEST = 100

# Called with the number of finished sentences and of all sentences.
Watch = Callable[[int, int], None]


def decode(engine: Engine, tokenizer: Tokenizer, sentences: Sequence[str], watch: Watch) -> list[str]:
    """Translations of all sentences, in order."""
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        watch(done, len(sentences))

    advance(0)
    return [answer.text for answer in answers(engine, tokenizer, sentences, watch=advance)]


def drawn(pairs: Sequence[Pair], minutes: float | None) -> list[Pair]:
    """Draw what a run is tested on: `PER_MINUTE` pairs for each minute that it may take, FEWEST at least, else all.

    The same ones for the same minutes, so that figures compare; a corpus may be sorted, so they are a random sample.

    Args:
        pairs: the test split.
        minutes: the recipe's `max_minutes`.
    """
    if minutes is None:
        count = len(pairs)
    else:
        count = max(FEWEST, round(PER_MINUTE * minutes))
    return [pairs[number] for number in np.random.default_rng(0).permutation(len(pairs))[:count]]


def score_pairs(engine: Engine, tokenizer: Tokenizer, pairs: Sequence[Pair], watch: Watch) -> Scores:
    """Return the scores of the translations of all pairs; `watch` is called with the progress."""
    hypotheses = decode(engine, tokenizer, [source for source, _ in pairs], watch)
    return score(hypotheses, [target for _, target in pairs])
