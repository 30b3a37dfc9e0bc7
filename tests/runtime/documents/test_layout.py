"""Documents as segments and layout: nothing is lost, and what is layout stays where it is."""

import itertools
import random
import sys
import time

import pytest
from document_texts import KINDS
from hypothesis import given
from hypothesis import strategies as st
from txport.runtime.documents.cuts import split_long_sentence
from txport.runtime.documents.layout import Segment, join, split
from txport.runtime.libraries import without_collection


def texts_of(document: str, language: str | None = "en") -> list[str]:
    return [segment.text for segment in split(document, language)]


def whole(document: str, segments: list[Segment]) -> str:
    return join(document, segments, [segment.text for segment in segments])[0]


def check(document: str, segments: list[Segment]) -> None:
    """Segments are in order, have something to translate, and only layout between them."""
    assert whole(document, segments) == document
    end = 0
    for segment in segments:
        assert end <= segment.start < segment.end
        own = document[segment.start : segment.end]
        assert own == own.strip()
        assert segment.text.split() == own.split()
        assert not set(segment.text) & set("\n\r\v\f\x85\u2028\u2029")
        end = segment.end


@given(st.text(), st.sampled_from(["en", "de", "ja", None]))
def test_segments_joined_are_the_document(document: str, language: str | None) -> None:
    check(document, split(document, language))


@given(st.randoms(use_true_random=False), st.sampled_from(KINDS), st.sampled_from(["en", "de", None]))
def test_segments_of_what_rules_look_at_joined_are_the_document(
    draw: random.Random, kind: object, language: str | None
) -> None:
    document = kind(draw)  # type: ignore[operator]
    segments = split(document, language)
    check(document, segments)
    between = [
        document[a:b]
        for a, b in zip([0, *(s.end for s in segments)], [*(s.start for s in segments), len(document)], strict=True)
    ]
    for layout in between:  # bullets and numbers of items have characters, but no sentence is left out
        assert len([each for each in layout if each.isalpha()]) <= layout.count(")") + layout.count("x") + layout.count(
            "X"
        )


@given(st.text(alphabet="ab, ;.\n、，", min_size=1), st.integers(1, 12))
def test_parts_of_a_segment_fit_and_lose_nothing(document: str, most: int) -> None:
    parts = []
    for segment in split(document):
        found = list(split_long_sentence(document, segment, lambda text: min(most, len(text)), 50))
        assert all(each.cut and 0 < len(each.text) <= most for each in found)
        assert (found[0].start, found[-1].end) == (segment.start, segment.end)
        for before, after in itertools.pairwise(found):
            assert not document[before.end : after.start].strip()
        parts += found
    assert whole(document, parts) == document


def test_a_cut_is_after_a_clause_or_at_white_space() -> None:
    def parts(text: str, most: int) -> list[str]:
        (segment,) = split(text, "en")
        return [each.text for each in split_long_sentence(text, segment, lambda part: min(most, len(part)), 50)]

    assert parts("one two three, four five six", 20) == ["one two three,", "four five six"]
    assert parts("one, two three four five six", 20) == ["one, two three four", "five six"]
    assert parts("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert parts("这个，那个很长的句子", 5) == ["这个，", "那个很长的", "句子"]
    assert parts("it is 1,000,000 in all", 13) == ["it is", "1,000,000 in", "all"]


def test_the_layout_of_a_plain_text() -> None:
    document = (
        "\ufeff# A heading\r\n\r\n"
        "  An indented one. And   another!\t\r\n"
        "\t- an item of 3.5 kg\r\n  * second item.  More of it.\r\n"
        "1. One\n12) Two\n(3) Three\na) four\n- [x] five\n> quoted\n> - six\n• 7. seven\n"
        "\n***\n-----\n\nname\tvalue 5\tnote\nwide    cell\n\n\n"
    )
    expected = [
        "A heading", "An indented one.", "And   another!", "an item of 3.5 kg", "second item.", "More of it.", "One",
        "Two", "Three", "four", "five", "quoted", "six", "seven", "name", "value 5", "note", "wide", "cell",
    ]  # fmt: skip
    assert texts_of(document) == expected
    made, spans = join(document, split(document), [text.upper() for text in expected])
    assert made == document.upper().replace("[X]", "[x]").replace("A) ", "a) ")
    assert [made[start:end] for start, end in spans] == [text.upper() for text in expected]


@pytest.mark.parametrize("document", ["", " ", "\n\n", "\t\r\n ", "---\n***", "?!", "😀", "\ufeff", "- \n* \n> "])
def test_what_has_no_word_is_layout(document: str) -> None:
    assert split(document) == []
    assert join(document, [], []) == (document, [])


def test_wide_white_space_of_any_kind_is_layout() -> None:
    spaces = [each for each in map(chr, range(sys.maxunicode + 1)) if each.isspace()]
    assert [texts_of(f"one{4 * each}two") for each in spaces] == [["one", "two"]] * len(spaces)


WRAPPED = """\
This paragraph was wrapped by an editor at a width of sixty,
so that its sentences go over several lines. Another one is
here, with names such as those of
Anna and Bert.
"""


def test_lines_of_a_wrapped_paragraph_are_one() -> None:
    assert texts_of(WRAPPED) == [
        "This paragraph was wrapped by an editor at a width of sixty, so that its sentences go over several lines.",
        "Another one is here, with names such as those of",
        "Anna and Bert.",
    ]
    assert texts_of(WRAPPED.replace("\n", "\r\n  "))[0] == texts_of(WRAPPED)[0]


def test_a_break_comes_back_where_it_was_in_proportion() -> None:
    (first, *_) = split(WRAPPED)
    made, _ = join(WRAPPED[: first.end], [first], ["eins zwei drei vier fünf sechs sieben acht neun"])
    assert made == "eins zwei drei vier fünf\nsechs sieben acht neun"
    made, _ = join(WRAPPED[: first.end], [first], ["Donaudampfschiff"])
    assert made == "Donaudampfschiff\n"  # no line is lost


@pytest.mark.parametrize(
    "document",
    [
        "a line of its own\nb line of its own\nc line",  # short ones
        "A title that is about as long as the others\nA second title that is about as long\nA third title of a list",
        "- an item of a list that is wide enough to be wrapped\n- another item that is long enough, too\nlast",
        "x" * 200 + " goes on and\non and on",  # nobody wraps so wide
        "some of the cells of a table are as wide as this\tand this\nand some are not so wide\tat all",
    ],
)
def test_other_lines_are_apart(document: str) -> None:
    cells = [cell for line in document.split("\n") for cell in line.split("\t")]
    assert texts_of(document) == [cell.removeprefix("- ") for cell in cells]


def test_a_space_comes_between_sentences_of_a_script_that_has_none() -> None:
    document = "这是第一句。这是第二句！"
    segments = split(document, "zh")
    assert [segment.text for segment in segments] == ["这是第一句。", "这是第二句！"]
    assert join(document, segments, ["One.", "Two!"])[0] == "One. Two!"
    assert join(document, segments, ["一。", "二！"])[0] == "一。二！"


@pytest.mark.parametrize("hostile", ["(", "1. ", ". ", "\n", "a\n", "- ", "[1]", "» ", "a.b ", "• ", "x ( . "])
def test_time_grows_with_the_length_only(hostile: str) -> None:
    def seconds(count: int) -> float:
        """Of this thread, without the collector, which has all tests of the process to look at."""
        text = hostile * (count // len(hostile))
        with without_collection():
            start = time.thread_time()
            split(text, "de")
            return time.thread_time() - start

    least = min(seconds(4_000) for _ in range(3))
    assert min(seconds(32_000) for _ in range(2)) < 8 * 4 * least + 0.05
