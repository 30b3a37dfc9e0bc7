"""Scores of single translations: by hand, against sacreBLEU, and in order."""

import math

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from txport.training.quality.sentence_scores import sentence_bleu, worst

WORDS = st.lists(st.sampled_from("a b c".split()), min_size=2, max_size=9)


@pytest.mark.parametrize(
    ("translation", "reference", "order", "expected"),
    [
        ("va !", "va !", 2, 1.0),
        # Three of four words and one of three pairs: the textbook prints 0.658 for such a sentence.
        ("il est riche .", "il est calme .", 2, (3 / 4) ** (1 / 2) * (1 / 3) ** (1 / 4)),
        # Too short: exp(1 - 5/3).
        ("je suis chez", "je suis chez moi .", 2, math.exp(1 - 5 / 3)),
        # Too long: no penalty beyond the words.
        ("va va !", "va !", 1, (2 / 3) ** (1 / 2)),
        # A single word has no pairs.
        ("va", "va !", 2, math.exp(1 - 2)),
        ("le le le le", "le la", 1, (1 / 4) ** (1 / 2)),
        ("x y", "va !", 2, 0.0),
        ("", "va !", 2, 0.0),
        ("a b c d", "a b c d", 4, 1.0),
    ],
)
def test_by_hand(translation: str, reference: str, order: int, expected: float) -> None:
    assert sentence_bleu(translation, reference, order) == pytest.approx(expected)


def test_figures_that_the_textbook_prints() -> None:
    assert f"{sentence_bleu('il est riche .', 'il est calme .'):.3f}" == "0.658"


@given(WORDS, WORDS)
def test_precisions_are_sacrebleus(made: list[str], wanted: list[str]) -> None:
    """The same counts with other weights: sacreBLEU's are equal, without smoothing here."""
    theirs = sacrebleu.sentence_bleu(
        " ".join(made), [" ".join(wanted)], smooth_method="none", tokenize="none", use_effective_order=False
    )
    one, two = (precision / 100 for precision in theirs.precisions[:2])
    expected = theirs.bp * one**0.5 * two**0.25
    assert sentence_bleu(" ".join(made), " ".join(wanted)) == pytest.approx(expected)


def test_the_worst_come_first() -> None:
    pairs = [("1", "a b c"), ("2", "a b c"), ("3", "abcd efgh"), ("4", "abcd efgh")]
    made = ["a b c", "a b", "abcx efgx", "zz"]
    shown = worst(pairs, made, 3)
    assert [each.source for each in shown] == ["4", "3", "2"], "of equal BLEU, the lower chrF"
    assert shown[1].bleu == 0 < shown[1].chrf == sacrebleu.sentence_chrf("abcx efgx", ["abcd efgh"]).score
    assert len(worst(pairs, made, 9)) == 4 and worst(pairs, made, 0) == []
