"""Settings of a search, with the meaning of Hugging Face's `generate` (transformers 5, generation/utils.py)."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True)
class Rules:
    """Constraints on the next token, in addition to the model.

    With beams and in sampling, rules act on log-probabilities; in greedy search, on logits.

    Attributes:
        repetition_penalty: for tokens of the answer so far, bos included, a negative score is multiplied by this, a
            positive one divided (Keskar et al., CTRL, section 4.1); 1 for no penalty.
        no_repeat_ngram: no n-gram of this size occurs twice, bos included (Paulus et al., section 2.5); 0 for no rule.
        bad_words: sequences of ids that never occur.
        suppress: ids that never occur.
        begin_suppress: ids that are never the first after a forced prefix.
        end_ids: ids that end an answer, in addition to eos.
        forced_end: the last id of an answer that reaches its maximum length; with beams its score is 0.
        renormalize: with beams, probabilities are normalised again after all rules.
    """

    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    suppress: tuple[int, ...] = ()
    begin_suppress: tuple[int, ...] = ()
    end_ids: tuple[int, ...] = ()
    forced_end: int | None = None
    renormalize: bool = False

    @cached_property
    def change_scores(self) -> bool:
        """True if a rule may change the score of a token."""
        return replace(self, end_ids=(), forced_end=None, renormalize=False) != NO_RULES


NO_RULES = Rules()


@dataclass(frozen=True)
class Sampling:
    """Settings of random sampling.

    Attributes:
        temperature: logits are divided by it.
        top_k: sample from the k most likely tokens; 0 for all.
        top_p: sample from the smallest set of tokens with this total probability (Holtzman et al., section 3.1).
        min_p: sample from tokens with at least this fraction of the best probability (Nguyen et al., section 3).
        seed: random seed. The answer to a sentence does not depend on its batch.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Search:
    """Settings of one search.

    Attributes:
        beam: number of beams; 1 for greedy search.
        n_best: number of hypotheses of each result, at most `beam`; with sampling, of independent samples.
        length_penalty: the score of a hypothesis is its log-probability divided by its length to this power.
        early_stopping: True: stop when `beam` hypotheses are finished. False: stop when no running hypothesis has, at
            its present length, a better score than the worst finished one. "never": when none can reach a better one.
        patience: with `early_stopping` True, stop when `beam` times this are finished (Kasai et al., 2022).
        sampling: settings of random sampling; None for the most likely tokens.
        alternatives: number of best tokens after the prefix that are continued by greedy search; 0 for none.
        rules: rules on the next token.
        shortlist: whether each request has a shortlist, `Request.words`.
    """

    beam: int = 1
    n_best: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    patience: float = 1.0
    sampling: Sampling | None = None
    alternatives: int = 0
    rules: Rules = NO_RULES
    shortlist: bool = False


GREEDY = Search()
