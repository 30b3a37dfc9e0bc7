"""Decoding during a run, with progress, and the selection of test sentences."""

from collections.abc import Callable, Sequence

import numpy as np
from txport.runtime.engine import Engine
from txport.runtime.text.tokenizer import Tokenizer
from txport.training.corpora import Pair
from txport.training.quality.evaluation import Scores, answers, score

# Number of test sentences for each minute of a run, and the minimum.
PER_MINUTE = 50
FEWEST = 100

# Called with the number of finished sentences and of all sentences.
Watch = Callable[[int, int], None]


def decode(engine: Engine, tokenizer: Tokenizer, sentences: Sequence[str], watch: Watch) -> list[str]:
    """Translate all sentences, in order."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        watch(done, len(sentences))

    advance(0)
    return [answer.text for answer in answers(engine, tokenizer, sentences, watch=advance)]


def sampled_pairs(pairs: Sequence[Pair], minutes: float | None) -> list[Pair]:
    """Select test pairs: `PER_MINUTE` for each minute of the limit, but at least FEWEST; all pairs without a limit.

    Equal limits give the same pairs, so results are comparable. They are a random sample, since a corpus may be sorted.

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
    """Translate all pairs and return the scores. `watch` is called with the progress."""
    hypotheses = decode(engine, tokenizer, [source for source, _ in pairs], watch)
    return score(hypotheses, [target for _, target in pairs])
