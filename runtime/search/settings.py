"""Settings of a search. They mean what they mean in Hugging Face's `generate` (transformers 5, generation/utils.py)."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True)
class Rules:
    """Constraints on the next token, in addition to the model.

    With beams and in sampling, rules act on log-probabilities; in greedy search, on logits.

    Attributes:
        repetition_penalty: each token of the answer so far, bos included, gets its score times this where the score is
            negative, else divided by it (Keskar et al., CTRL, section 4.1); 1 for none.
        no_repeat_ngram: no n tokens in a row occur twice, bos included (Paulus et al., section 2.5); 0 for no rule.
        bad_words: sequences of ids that never occur.
        suppress: ids that never occur.
        begin_suppress: ids that are not the first of an answer, what it is forced to begin with aside.
        end_ids: ids that end an answer, besides eos.
        forced_end: the id that is the last of an answer that has reached its limit; with beams its score is 0.
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
    """Random choice of tokens.

    Attributes:
        temperature: what logits are divided by.
        top_k: sample from the k most likely tokens; 0 for all.
        top_p: choose among the most probable tokens whose probabilities sum up to this (Holtzman et al., section 3.1).
        min_p: choose among tokens of at least this share of the best one's probability (Nguyen et al., section 3).
        seed: one seed gives one answer to a sentence, wherever it stands in a batch.
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
        beam: hypotheses that are followed side by side; 1 for greedy search.
        n_best: hypotheses of each result, at most `beam`; with sampling, independent samples.
        length_penalty: a hypothesis has its log-probability divided by its length to this power as its score.
        early_stopping: True: a sentence ends when `beam` hypotheses are finished. False: when no running hypothesis is
            better than the worst that ended, by its score at its length now. "never": at the best length it may reach.
        patience: with `early_stopping` True, a sentence ends when `beam` times this have ended (Kasai et al., 2022).
        sampling: choose tokens at random; None for the best ones.
        alternatives: number of best tokens after the prefix that are continued by greedy search; 0 for none.
        rules: what may come next.
        shortlist: each request has `words` of its own.
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
