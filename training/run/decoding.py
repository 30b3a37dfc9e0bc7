"""Decoding during a run: in parts, so that it can be watched, and so that it ends when the time does."""

from collections.abc import Callable, Sequence

import numpy as np
from txport.runtime.engine import Engine
from txport.runtime.text.tokenizer import Tokenizer
from txport.training.corpora import Pair
from txport.training.evaluation import Scores, answers, score, translate

# Sentences of a part: two batches, so that rows are refilled.
PART = 128

# Told how many sentences are done, and of how many.
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


def judge(
    engine: Engine, tokenizer: Tokenizer, pairs: Sequence[Pair], watch: Watch, left: Callable[[], float | None]
) -> Scores:
    """Figures of the translations of as many pairs as there is time for: one part at least, of a random sample.

    Args:
        engine, tokenizer: the model.
        pairs: what to translate and its references.
        watch: told how far it is.
        left: seconds that are left; None for as many as it takes.
    """
    # A corpus may be sorted: the first sentences would be the shortest.
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    hypotheses: list[str] = []
    took, before = 0.0, left()
    watch(0, len(pairs))
    for start in range(0, len(pairs), PART):
        now = left()
        if hypotheses and now is not None and before is not None:
            took, before = max(took, before - now), now
            if now < took:
                break
        part = order[start : start + PART]
        hypotheses += translate(engine, tokenizer, [pairs[number][0] for number in part])
        watch(len(hypotheses), len(pairs))
    return score(hypotheses, [pairs[number][1] for number in order[: len(hypotheses)]])
