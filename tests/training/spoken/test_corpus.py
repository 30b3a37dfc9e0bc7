"""The built-in corpus: its splits, its richness, and what its sentences look like."""

import hashlib
import itertools
import random
import re
from collections import defaultdict
from pathlib import Path

import pytest
from txport.benchmarks.demo_summary import MAX_LISTED
from txport.training.spoken import corpus as spoken
from txport.training.spoken import dates, letters, slots, verbalise
from txport.training.spoken.templates import AMOUNTS, CLAUSES, EVERYDAY, JOINTS, LOOSE, OPENERS, TAILS
from txport.training.spoken.words import UNITS, WORDS

COUNT = 20_000
SENTENCES = Path(spoken.__file__).parents[2] / "benchmarks" / "demo_sentences.tsv"


@pytest.fixture(scope="module")
def train() -> list[tuple[str, str]]:
    return list(itertools.islice(spoken.sentences(1, "train"), COUNT))


@pytest.fixture(scope="module")
def held_out() -> list[tuple[str, str]]:
    return list(itertools.islice(spoken.sentences(1, "test"), 1_000))


def words_of(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())


def test_splits_share_no_sentence_not_even_by_case_or_punctuation(
    train: list[tuple[str, str]], held_out: list[tuple[str, str]]
) -> None:
    validation = list(itertools.islice(spoken.sentences(1, "validation"), 1_000))
    keys = [{words_of(source) for source, _ in split} for split in (train, validation, held_out)]
    for one, other in itertools.combinations(keys, 2):
        assert not one & other


def test_splits_of_different_seeds_share_no_sentence(train: list[tuple[str, str]]) -> None:
    other = itertools.islice(spoken.sentences(2, "test"), 1_000)
    assert not {words_of(source) for source, _ in train} & {words_of(source) for source, _ in other}


def test_case_and_punctuation_do_not_change_the_split() -> None:
    for source, _ in itertools.islice(spoken.sentences(3, "test"), 100):
        assert spoken.split_of(source.upper().replace(".", "") + "!") == "test"


def test_a_seed_decides_everything(train: list[tuple[str, str]]) -> None:
    again = list(itertools.islice(spoken.sentences(1, "train"), 500))
    other = list(itertools.islice(spoken.sentences(2, "train"), 500))
    assert (
        again == train[:500] and len(set(again) & set(other)) < 25
    )  # "Good morning!" comes up soon, whatever the seed


def test_the_corpus_stays_what_it_is(train: list[tuple[str, str]]) -> None:
    """Figures of the demo, and splits that were drawn before, hold for this corpus only."""
    lines = "".join(f"{source}\t{target}\n" for source, target in train)
    assert (
        hashlib.sha256(lines.encode()).hexdigest() == "4d5e5794bcf8c73de7547eb0ed7939409ea8b78f414ca16f7f45d1b182ad14ab"
    )


def test_sentences_are_distinct(train: list[tuple[str, str]]) -> None:
    assert len({source for source, _ in train}) == COUNT


def test_equal_sources_have_equal_targets() -> None:
    """The task is a function: a written form means one thing in its place."""
    meanings = defaultdict(set)
    for source, target in (spoken.sentence(random.Random(seed)) for seed in range(60_000)):
        # What the model sees: case folded, without the end of the sentence.
        meanings[source.casefold().rstrip(".!?")].add(target)
    assert [source for source, targets in meanings.items() if len(targets) > 1] == []


def test_memorising_fails(train: list[tuple[str, str]], held_out: list[tuple[str, str]]) -> None:
    """Hardly any held-out sentence has the words of a training sentence around its numbers, which are often other ones
    too; short sentences have but one number, and a small one.
    """

    def frame(source: str) -> str:
        return re.sub(r"\d+", "0", source.casefold())

    def numbers(source: str) -> tuple[str, ...]:
        return tuple(re.findall(r"\d+", source))

    frames, seen = {frame(source) for source, _ in train}, {numbers(source) for source, _ in train}
    with_numbers = [source for source, _ in held_out if numbers(source)]
    assert sum(frame(source) in frames for source in with_numbers) < 0.35 * len(with_numbers)
    assert sum(numbers(source) in seen for source in with_numbers) < 0.6 * len(with_numbers)


def test_richness() -> None:
    """The sizes that the documentation quotes."""
    assert len(CLAUSES) >= 200 and len(OPENERS) >= 30 and len(TAILS) >= 18 and len(EVERYDAY) >= 250 and len(LOOSE) >= 55
    assert len(set(JOINTS)) >= 15 and len(set(AMOUNTS)) >= 40
    assert len({*CLAUSES, *EVERYDAY, *LOOSE}) == len(CLAUSES) + len(EVERYDAY) + len(LOOSE)
    assert sum(map(len, WORDS.values())) >= 5_000 and len(set(WORDS["common"])) == len(WORDS["common"]) >= 4_000
    assert len(slots.SLOTS) >= 35


def test_every_slot_and_list_is_used_and_every_used_one_exists() -> None:
    used = {
        name
        for template in (*CLAUSES, *OPENERS, *TAILS, *EVERYDAY, *LOOSE, *AMOUNTS)
        for name in re.findall(r"\{(\w+)\}", template)
    }
    assert used - {"amount"} == set(slots.SLOTS) | set(WORDS)


def test_targets_are_plain_words(train: list[tuple[str, str]]) -> None:
    for source, target in train:
        assert re.fullmatch(r"[a-z']+( [a-z']+)*", target), (source, target)
        assert source == " ".join(source.split()) and "{" not in source and "|" not in source
        assert target.isascii()


def test_unchanged_words_come_through(train: list[tuple[str, str]]) -> None:
    """A source without digits, capitals in a row, symbols or abbreviations is only lower-cased and stripped."""
    plain = [pair for pair in train if re.fullmatch(r"[A-Z]?[a-z]+( [a-z]+)*[.!?]?", pair[0])]
    assert plain
    for source, target in plain:
        assert target == source.lower().rstrip(".!?") or re.search(r"\b[a-z]{1,4}\b", source)


@pytest.mark.parametrize("slot", sorted(slots.SLOTS))
def test_slots_vary_and_speak(slot: str) -> None:
    rng = random.Random(slot)
    pairs = [slots.SLOTS[slot](rng) for _ in range(300)]
    assert len({written for written, _ in pairs}) >= 10
    for written, said in pairs:
        assert written == written.strip() and re.fullmatch(r"[a-z']+( [a-z']+)*", said), (written, said)


@pytest.mark.parametrize(
    ("slot", "written", "said"),
    [
        ("date", "3/14/2025", "march fourteenth twenty twenty five"),
        ("date", "2025-03-14", "march fourteenth twenty twenty five"),
        ("time", "5:30 pm", "five thirty p m"),
        ("time", "5:00", "five o'clock"),
        ("time", "17:05", "seventeen oh five"),
        ("money", "$12.50", "twelve dollars and fifty cents"),
        ("money", "£0.01", "one penny"),
        ("money", "$1", "one dollar"),
        ("ordinal", "21st", "twenty first"),
        ("ordinal", "12th", "twelfth"),
        ("percentage", "12%", "twelve percent"),
        ("fraction", "3/4", "three quarters"),
        ("temperature", "-5°C", "minus five degrees celsius"),
        ("temperature", "1°", "one degree"),
        ("length", "1 km", "one kilometer"),
        ("decade", "1990s", "nineteen nineties"),
        ("roman_ordinal", "VIII", "the eighth"),
        ("plain", "20000", "twenty thousand"),
        ("version", "3.11", "three point eleven"),
        ("room", "305", "three oh five"),
        ("ratio", "3:1", "three to one"),
    ],
)
def test_written_forms_that_must_occur(monkeypatch: pytest.MonkeyPatch, slot: str, written: str, said: str) -> None:
    """Drawn until it comes up, so that a form cannot be lost or change its meaning unnoticed."""
    rng = random.Random(0)
    monkeypatch.setattr(dates, "random_year", lambda rng: 2025)  # one of 360: it would take seconds to come up
    drawn = (slots.SLOTS[slot](rng) for _ in range(200_000))
    assert next(spoken_form for form, spoken_form in drawn if form == written) == said


def test_template_rendering() -> None:
    rng = random.Random(1)
    assert spoken.render("the {letters} vs.|versus them", rng)[1].endswith("versus them")
    assert spoken.render("it's raining, isn't it", rng) == ("it's raining, isn't it", "it's raining isn't it")


def test_letters_without_accents_and_signs_without_a_word() -> None:
    assert spoken.say("Zoë's naïve café, São Paulo 😀!") == "zoe's naive cafe sao paulo "


def test_a_line_may_end_in_a_picture_and_have_curly_apostrophes(train: list[tuple[str, str]]) -> None:
    pictures = [source for source, _ in train if ord(source[-1]) > 0x2100]
    assert 0.02 * COUNT < len(pictures) < 0.04 * COUNT
    assert len({source[-1] for source in pictures}) > 0.5 * len(pictures)  # so rare that hardly one becomes a piece
    assert any("\u2019" in source and "'" in target for source, target in train)


def test_made_up_words_are_not_units_or_abbreviations() -> None:
    rng = random.Random(1)
    known = {entry.partition("|")[0].lower() for entry in WORDS["letters"]} | {
        symbol for units in UNITS.values() for symbol, _, _ in units
    }
    made = {letters.made_up(rng)[1] for _ in range(5_000)}
    assert len(made) > 4_000 and not made & known and min(map(len, made)) >= 4


def test_common_words_do_not_change_what_a_number_beside_them_means() -> None:
    others = {*verbalise.MONTHS, "am", "pm", "room", "bus", "highway", "version", "zip", "code", "flight", "chapter"}
    assert not {word.lower() for word in WORDS["common"]} & others


def test_the_sentences_of_the_demo_are_written_in_its_style() -> None:
    """What a newcomer types first, and what the trained demo has to say to it: `make demo` checks that."""
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    pairs = dict(line.split("\t") for line in lines)
    assert len(pairs) == len(lines) >= 400
    pinned = list(pairs)[:MAX_LISTED]
    assert {"It cost $12.50 and weighs 2.5 kg.", "I paid £3.20 for 2 coffees.", "12345"} <= set(pinned)
    for source, target in pairs.items():
        assert re.fullmatch(r"[a-z']+( [a-z']+)*", target), target
        # Nothing to read out: the words as they are.
        if not re.search(r"\d|\b(Dr|Mrs?|Prof)\.|\b[A-HJ-Z]{2,}\b|\b[IVX]{2,}\b", source) or source.isupper():
            assert target == " ".join(spoken.say(source.replace("\u2019", "'")).split())
