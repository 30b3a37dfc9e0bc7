"""Corpora from files: what is read, and what every kind of bad file says."""

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from txport.runtime.errors import InputError, MissingLibrary
from txport.runtime.text.lines import read_lines
from txport.training.corpora import (
    ParallelCorpus,
    hold_out,
    load,
    load_test,
    read_dataset,
    read_parallel,
    read_table,
)
from txport.training.options import BuiltinOptions, DatasetsOptions, ParallelOptions, TableOptions, TokenizerOptions
from txport.training.recipe import read

Write = Callable[..., Path]


def test_parallel_files(write: Write) -> None:
    source, target = write("a.en", "one\ntwo\n\nfour"), write("a.de", "eins\nzwei\ndrei\nvier\n")
    assert read_parallel(source, target) == [("one", "eins"), ("two", "zwei"), ("four", "vier")]


def test_lines_end_at_line_feeds_only(write: Write) -> None:
    file = write("a", b"\xef\xbb\xbfone\x0btwo\xe2\x80\xa8three\r\nfour\x85\n".replace(b"\x85", b"\xc2\x85"))
    assert read_lines(file) == ["one\x0btwo\u2028three", "four\x85"]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.en cannot be read: No such file"):
        read_parallel(tmp_path / "no.en", tmp_path / "no.de")


def test_not_utf8_names_file_and_line(write: Write) -> None:
    source, target = write("a.en", "one\ntwo\n"), write("a.de", b"eins\nzw\xe4i\n")
    with pytest.raises(InputError, match=r"a\.de, line 2 is not UTF-8 \(byte 3 is 0xe4\): .*iconv"):
        read_parallel(source, target)


def test_unequal_line_counts_name_both(write: Write) -> None:
    with pytest.raises(InputError, match=r"a\.en has 3 lines and .*a\.de has 2: parallel files need the same number"):
        read_parallel(write("a.en", "1\n2\n3\n"), write("a.de", "1\n2\n"))


@pytest.mark.parametrize("content", ["", "\n\n", "  \n\t\n"])
def test_empty_corpus(write: Write, content: str) -> None:
    with pytest.raises(InputError, match="hold no pair of sentences"):
        read_parallel(write("a.en", content), write("a.de", content))


def test_table_columns(write: Write) -> None:
    file = write("t.tsv", '1\tone\t"eins"\n\n2\ttwo\tzwei\textra\n3\t\tdrei\n')
    assert read_table(file, 2, 3) == [("one", '"eins"'), ("two", "zwei")]
    assert read_table(file, 3, 2) == [('"eins"', "one"), ("zwei", "two")]


def test_a_header(write: Write, tmp_path: Path) -> None:
    text = "english\tfrench\tlinks\n" + "".join(f"s{number}\tt{number}\t0-0\n" for number in range(40))
    assert read_table(write("t.tsv", text), header=True)[0] == ("s0", "t0")
    assert len(read_table(write("t.tsv", text))) == 41
    options = TableOptions(train="t.tsv", test="t.tsv", held_out=5, header=True, alignment_column=3)
    corpus = load(options, tmp_path)
    assert len(corpus.train) + len(corpus.validation) == len(corpus.test) == 40
    assert "english" not in {source for source, _ in (*corpus.train, *corpus.validation, *corpus.test)}


def test_table_with_too_few_columns(write: Write) -> None:
    with pytest.raises(InputError, match=r"t\.tsv, line 2 has 1 tab-separated column, but column 2"):
        read_table(write("t.tsv", "a\tb\nc\n"))


def test_empty_table(write: Write) -> None:
    with pytest.raises(InputError, match="holds no pair"):
        read_table(write("t.tsv", "\n"))


@given(count=st.integers(1, 490), seed=st.integers(0, 99))
def test_hold_out_takes_exactly_so_many_and_shares_no_source(count: int, seed: int) -> None:
    pairs = [(f"source {seed} {number % 300}", f"target {number}") for number in range(1_000)]
    kept, held = hold_out(pairs, count, "test")
    sources = {source for source, _ in held}
    assert len(held) == len(set(held)) == count and set(held) <= set(pairs)
    assert kept == [pair for pair in pairs if pair[0] not in sources]
    assert len(kept) + len(held) > 1_000 - 4  # all but the rest of one source


def test_pairs_that_are_in_no_split_are_explained(
    write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each source has three pairs, and two are held out for a split: the third is in neither part."""
    caplog.set_level("INFO", "txport")
    write("own.tsv", "".join(f"{source}\t{source} {number}\n" for source in range(30) for number in range(3)))
    corpus = load(TableOptions(train="own.tsv", held_out=2), tmp_path)
    assert [len(corpus.train), len(corpus.validation), len(corpus.test)] == [84, 2, 2]
    (said,) = caplog.messages
    assert said == "2 pairs left out of all splits: a held-out pair has the same source, and its split has 2 already"


def test_hold_out_keeps_most_of_its_choice_when_data_comes() -> None:
    pairs = [(f"source {number}", "x") for number in range(1_100)]
    before, after = (set(hold_out(pairs[:size], 100, "test")[1]) for size in (1_000, 1_100))
    assert 75 <= len(before & after) < 100


def test_hold_out_does_not_depend_on_order() -> None:
    pairs = [(f"source {number}", "x") for number in range(1_000)]
    assert sorted(hold_out(pairs[::-1], 100, "test")[1]) == sorted(hold_out(pairs, 100, "test")[1])


def test_hold_out_of_too_few() -> None:
    with pytest.raises(InputError, match="10 pairs are too few to hold out 6"):
        hold_out([("a", "b")] * 10, 6, "test")
    with pytest.raises(InputError, match="too many share a source"):
        hold_out([("a", "b")] * 10, 2, "test")


def parts(corpus: ParallelCorpus) -> tuple[int, int, int]:
    return len(corpus.train), len(corpus.validation), len(corpus.test)


def test_load_parallel_by_languages(write: Write, tmp_path: Path) -> None:
    for name, count in (("train", 40), ("val", 5)):
        for language in ("en", "fr"):
            write(f"{name}.{language}", "".join(f"{name} {language} {number}\n" for number in range(count)))
    options = ParallelOptions(validation="val", source_language="fr", target_language="en", held_out=10)
    corpus = load(options, tmp_path)
    assert len(corpus.train) + len(corpus.test) == 40 and len(corpus.validation) == 5
    assert corpus.validation[0] == ("val fr 0", "val en 0")
    assert load_test(options, tmp_path) == corpus.test


@pytest.mark.parametrize(("pairs", "held"), [(3, 1), (400, 20), (40_000, 1_000)])
def test_of_a_small_corpus_less_is_held_out(write: Write, tmp_path: Path, pairs: int, held: int) -> None:
    write("train.tsv", "".join(f"source {number}\ttarget {number}\n" for number in range(pairs)))
    assert parts(load(TableOptions(), tmp_path)) == (pairs - 2 * held, held, held)


@pytest.mark.parametrize("options", [ParallelOptions(), TableOptions(), TableOptions(test="no.tsv", held_out=1)])
def test_a_file_that_is_not_there_names_the_way_out(
    write: Write, tmp_path: Path, options: ParallelOptions | TableOptions
) -> None:
    if options.test:
        write("train.tsv", "1\tx\n2\ty\n")
    with pytest.raises(
        InputError, match=r"(train\.en|train|no)(\.tsv)? does not exist: name .* --data or \$TXPORT_DATA"
    ):
        load(options, tmp_path)


def test_load_table(write: Write, tmp_path: Path) -> None:
    for name in ("train.tsv", "test.tsv"):
        write(name, "".join(f"{name} {number}\tx\n" for number in range(50)))
    corpus = load(TableOptions(test="test.tsv", held_out=10), tmp_path)
    assert len(corpus.test) == 50 and len(corpus.train) + len(corpus.validation) == 50


def test_the_first_of_unique_sources(write: Write, tmp_path: Path) -> None:
    write("train.tsv", "".join(f"s{number // 3}\tt{number}\n" for number in range(90)))
    options = TableOptions(first=20, unique_sources=True, held_out=2)
    whole = load(options, tmp_path)
    pairs = sorted((*whole.train, *whole.validation, *whole.test), key=lambda pair: int(pair[0][1:]))
    assert pairs == [(f"s{number}", f"t{3 * number}") for number in range(20)]
    assert len(load(TableOptions(first=20, held_out=2), tmp_path).train) <= 16


def test_references_are_as_a_model_of_words_writes_them(write: Write, tmp_path: Path) -> None:
    write("train.tsv", "".join(f"Go {number}.\tVa, {number}\u202f!\n" for number in range(40)))
    options = TokenizerOptions(algorithm="word", space_punctuation=True, lower_case=True)
    corpus = load(TableOptions(test="train.tsv"), tmp_path, options)
    assert corpus.test[0] == ("Go 0.", "va , 0 !")
    assert load_test(TableOptions(test="train.tsv"), tmp_path, options) == corpus.test
    assert all(target.startswith("va , ") for _, target in corpus.train + corpus.validation)
    assert load_test(TableOptions(test="train.tsv"), tmp_path)[0] == ("Go 0.", "Va, 0\u202f!")


def test_sentences_that_come_with_a_recipe(write: Write, tmp_path: Path) -> None:
    recipe = read("eng_fra")
    four = load_test(recipe.corpus, tmp_path, recipe.tokenizer)
    assert four == [
        ("go .", "va !"),
        ("i lost .", "j'ai perdu ."),
        ("he's calm .", "il est calme ."),
        ("i'm home .", "je suis chez moi ."),
    ]
    write("eng_fra.tsv", "mine\tmien\n")
    assert load_test(recipe.corpus, tmp_path, recipe.tokenizer) == [("mine", "mien")], "the user's own comes first"


def test_load_builtin() -> None:
    corpus = load(BuiltinOptions(train=50, validation=7, test=9), Path())
    assert parts(corpus) == (50, 7, 9)
    assert load_test(BuiltinOptions(train=50, validation=7, test=9), Path()) == corpus.test


def test_datasets_library_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'txport\[datasets\]'"):
        read_dataset(DatasetsOptions(name="any"), "train")


def stand_in(rows: list[dict[str, object]]) -> types.ModuleType:
    """The one function of `datasets` that is used; the library and its network are not needed to test what we do."""
    module = types.ModuleType("datasets")

    def load_dataset(name: str, configuration: str | None, split: str) -> list[dict[str, object]]:
        if split != "train":
            raise ValueError(f'Unknown split "{split}"')
        return rows

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    return module


def test_dataset_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, object]] = [{"translation": {"en": "a\nb", "de": "c"}}, {"translation": {"en": "", "de": "x"}}]
    monkeypatch.setitem(sys.modules, "datasets", stand_in(rows))
    options = DatasetsOptions(name="some/set")
    assert read_dataset(options, "train") == [("a b", "c")]
    with pytest.raises(InputError, match=r"some/set, split dev, cannot be loaded: Unknown split"):
        read_dataset(options, "dev")
    with pytest.raises(InputError, match=r"no field 'translation.fr'; available: en, de"):
        read_dataset(DatasetsOptions(name="some/set", source_field="translation.fr"), "train")
