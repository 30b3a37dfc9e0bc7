"""Sentences by rules."""

import pytest
from txport.runtime.documents.abbreviations import abbreviations_of, code_of
from txport.runtime.documents.sentences import sentences


def split(text: str, language: str | None = "en") -> list[str]:
    return [text[start:end] for start, end in sentences(text, 0, len(text), language)]


# Sentences of a text are parted by "|"; for any language.
ANY = [
    "One.| Two!| Three?| Four… | Five",
    "It costs 3.50.| Or 1,000.5 in all.",
    "See https://www.example.com/a.b?c=d.| It's there.",
    "Write to jane.doe@example.com!| Now.",
    "It goes on ... and on.| But then... | It ends.",
    "Really?!| Yes!!!| No?",
    '"Stop!" he said. | "Why?" | (He was late.) | [No.] | End.',
    "He taught (he was a teacher.) and left.| Then (see no. 5. or 6.) he came.",
    "Known.[1][2]| And this.[3] | And that. [4]| End",
    "« Bonjour ! » dit-il.| « Oui. » | Fin.",
    "My name is J. R. R. Tolkien.| Yes.",
    "这是第一句。|这是第二句！|“第三句？”他说。|他看《好吗？好！》了。|完",
    "これはペンです。|「はい。」と言った。|３．５です。",
    "यह पहला है।| यह दूसरा है।",
    "هل هذا؟| نعم.| لا",
    "Τι είναι αυτό;| Δεν ξέρω.| A; B",
    "Ի՞նչ ես մտածում:| Ոչինչ:| So: That",
    "• first",
]  # fmt: skip
ENGLISH = [
    "Dr. Smith met Mrs. Jones at 5 p.m. on Jan. 5.| They left.",
    "I live in the U.S. Government quarter.| I live in the U.S.| How about you?",
    "Pitt, Briggs & Co.| It closed.",
    "You and I.| Did you see Albert I. Jones?",
    "See p. 55 and Fig. 3 and No. 7.| No.| Yes.",
    "She works at Yahoo! in the office.| How?| why?| so",
]
GERMAN = [
    "Am 3. Oktober kam Dr. Meier z. B. mit Hrn. Müller.| Es war der 3.| Der Rest ging.",
    "Das sind ca. 5 Mio. Euro, d.h. viel usw. und so weiter.| Ende.",
    "Er wurde 1999.| Dann ging er.",
]


@pytest.mark.parametrize(
    ("marked", "language"),
    [
        *((text, language) for text in ANY for language in ("en", None, "xx")),
        *((text, "en") for text in ENGLISH),
        *((text, "deu_Latn") for text in GERMAN),
    ],
)
def test_sentences(marked: str, language: str | None) -> None:
    parts = [part.strip() for part in marked.split("|")]
    assert split(marked.replace("|", ""), language) == parts


def test_languages_by_their_names() -> None:
    assert [code_of(name) for name in ("en", "eng_Latn", "en_XX", "EN", ">>deu<<", "zh-Hant", "", None)] == [
        "en", "en", "en", "en", "de", "zh", "", None,
    ]  # fmt: skip
    assert "bzw" in abbreviations_of("de_DE").never
    assert "bzw" not in abbreviations_of("en").never
    assert {"bzw", "approx"} <= abbreviations_of(None).never
    assert abbreviations_of("ja") == abbreviations_of("")
