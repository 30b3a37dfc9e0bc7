"""Texts of words: the function against plain rules, and SentencePiece's rules against the function."""

import io
import re

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from txport.models.normalisation import spaced, spacing_rules

LETTERS = [*"abcXYZ éÀçÇœß'’-…,.!?\u00a0\u202f\t 019ŒİΣ漢한", "e\u0301", "C\u0327"]


@pytest.fixture(scope="module", params=[False, True])
def processor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, object]:
    rules, model = tmp_path_factory.mktemp("rules") / "rules.tsv", io.BytesIO()
    rules.write_text(spacing_rules(lower_case=request.param), encoding="ascii")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b"]), model_writer=model, model_type="word", vocab_size=5,
        normalization_rule_tsv=str(rules), minloglevel=2,
    )  # fmt: skip
    return request.param, sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@settings(max_examples=300, deadline=None)
@given(text=st.lists(st.sampled_from(LETTERS), max_size=20).map("".join))
def test_sentencepiece_does_the_same(processor: tuple[bool, object], text: str) -> None:
    lower_case, model = processor
    normalised = model.normalize(text).replace("▁", " ").strip()  # type: ignore[attr-defined]
    assert normalised == spaced(text, lower_case=lower_case)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Go.", "go ."),
        ("He's calm.", "he's calm ."),
        ("Va\u202f!", "va !"),
        ("Oh,no!?", "oh , no ! ?".replace(", no", ",no")),
        ("J'ai  perdu ...", "j'ai perdu . . ."),
        ("", ""),
    ],
)
def test_a_space_before_each_mark(text: str, expected: str) -> None:
    assert spaced(text, lower_case=True) == expected


@given(text=st.text(st.sampled_from("aB ,.!?\u00a0"), max_size=15))
def test_words_and_marks_of_the_textbook(text: str) -> None:
    """Its rule, in its own words: a mark that is not the first character and follows no space gets one."""
    plain = text.replace("\u00a0", " ").lower()
    words = re.sub(r"(?<=[^ ])([,.!?])", r" \1", plain).split(" ")
    assert spaced(text, lower_case=True).split(" ") == ([word for word in words if word] or [""])
