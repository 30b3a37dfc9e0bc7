"""Alignments in Pharaoh form: what is read, which pieces they align, and what is refused."""

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest
from txport.models.checkpoint import load_checkpoint
from txport.runtime.errors import InputError
from txport.runtime.text.tokenizer import TextTokenizer, open_tokenizer
from txport.training.corpora import load
from txport.training.guidance.pharaoh import piece_links, read_links
from txport.training.options import ParallelOptions, TableOptions

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> TextTokenizer:
    loaded = load_checkpoint(checkpoint)
    opened = open_tokenizer(checkpoint, loaded.tokenizer, loaded.config.vocabularies)
    assert isinstance(opened, TextTokenizer)
    return opened


def test_links_are_pairs_of_words() -> None:
    assert read_links("0-1  2-0\t1-1", "a b c", "x y", "file, line 1").tolist() == [[0, 1], [2, 0], [1, 1]]
    assert read_links("", "a", "x", "file, line 1").shape == (0, 2)


TEXTS = ["Call me at 5:30, please.", "  the  train\tto Rome ", "ｆｕｌｌ width", "x"]


@pytest.mark.parametrize("source", TEXTS)
@pytest.mark.parametrize("target", TEXTS)
def test_each_piece_of_a_word_is_aligned_to_each_of_the_other(
    tokenizer: TextTokenizer, source: str, target: str
) -> None:
    """The oracle reads off the pieces, where SentencePiece marks the beginnings of words by itself."""

    def words(labels: list[str]) -> list[int]:
        return ["".join(labels[: number + 1]).count("▁") - 1 for number in range(len(labels))]

    of_source = words(tokenizer.source_pieces(tokenizer.encode_source(source)[0]))
    of_target = words(tokenizer.target_pieces(tokenizer.encode_prefix(target)))
    aligned = [[len(source.split()) - 1, 0], [0, len(target.split()) - 1], [0, 0]]
    links = read_links(" ".join(f"{i}-{j}" for i, j in aligned), source, target, "")
    expected = {
        (i, j) for i, word in enumerate(of_source) for j, other in enumerate(of_target) if [word, other] in aligned
    }
    assert {(i, j) for i, j in piece_links(links, source, target, tokenizer).tolist()} == expected


def test_a_word_has_the_pieces_from_its_space_to_the_next(tokenizer: TextTokenizer) -> None:
    """As OpenNMT-py has it (`subword_map_by_spacer`)."""

    def labels(text: str) -> list[str]:
        return tokenizer.source_pieces(tokenizer.encode_source(text)[0])

    words = [word for word in "seven at of eleven the trains street street. five".split() if "▁" not in labels(word)]
    source = " ".join(words)
    owners = [count - 1 for count in accumulate(label.startswith("▁") for label in labels(source))]
    assert len(set(owners)) == len(words) > 4 and len(owners) > len(words)
    for word in range(len(words)):
        links = piece_links(read_links(f"{word}-0", source, "x", ""), source, "x", tokenizer)
        assert set(links[:, 0].tolist()) == {piece for piece, owner in enumerate(owners) if owner == word}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0 1", "a.align, line 7 has '1', but an alignment is pairs of a source word and a target word, counted"),
        ("0:1", "has '0:1', but"),
        ("0-0-1", "has '0-0-1', but"),
        ("-1-0", "has '-1-0', but"),
        ("²-0", "has '²-0', but"),
        (
            "1-0 0-3",
            "a.align, line 7 aligns word 3 of the target, counted from 0, which has 3: align this text, with words "
            "separated by white space",
        ),
        ("2-0", "aligns word 2 of the source, counted from 0, which has 2"),
    ],
)
def test_malformed_and_impossible_alignments(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        read_links(text, "one two", "un deux trois", "a.align, line 7")
    assert message in str(raised.value) and "\n" not in str(raised.value)


def parallel(write: Write, alignments: str, count: int = 40) -> ParallelOptions:
    write("train.en", "".join(f"word {number}\n" for number in range(count)))
    write("train.de", "".join(f"das Wort {number}\n" for number in range(count)))
    write("train.align", alignments)
    return ParallelOptions(alignments="align")


def test_alignments_follow_their_pairs(write: Write, tmp_path: Path) -> None:
    """Whatever is held out of the training pairs."""
    corpus = load(parallel(write, "".join(f"0-1 1-{number % 3}\n" for number in range(40))), tmp_path)
    assert 0 < len(corpus.train) < 40
    for source, target in corpus.train:
        links = corpus.alignments[source, target]
        assert links.tolist() == [[0, 1], [1, int(source.split()[1]) % 3]]


def test_alignments_of_a_table(write: Write, tmp_path: Path) -> None:
    write("t.tsv", "".join(f"\nword {number}\t0-1 1-2\tdas Wort {number}\n" for number in range(40)))
    corpus = load(TableOptions(train="t.tsv", target_column=3, alignment_column=2), tmp_path)
    assert {tuple(map(tuple, corpus.alignments[pair].tolist())) for pair in corpus.train} == {((0, 1), (1, 2))}
    write("t.tsv", "".join(f"word {number}\tdas Wort {number}\n" for number in range(40)))
    with pytest.raises(InputError, match=r"t\.tsv, line 1 has 2 tab-separated columns, but column 3 is needed"):
        load(TableOptions(train="t.tsv", alignment_column=3), tmp_path)


def test_files_that_do_not_fit(write: Write, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.en has 40 lines and .*train\.align has 39: each pair of lines needs"):
        load(parallel(write, "0-0\n" * 39), tmp_path)
    with pytest.raises(InputError, match=r"train\.align, line 4 aligns word 9 of the source, counted from 0"):
        load(parallel(write, "0-0\n" * 3 + "9-0\n" * 37), tmp_path)
    with pytest.raises(InputError, match=r"train\.none does not exist: name the directory"):
        load(ParallelOptions(alignments="none"), tmp_path)
    write("t.tsv", "a\tb\t0-0\nc\td\t0-1\n")
    with pytest.raises(InputError, match=r"t\.tsv, line 2 aligns word 1 of the target"):
        load(TableOptions(train="t.tsv", validation="t.tsv", test="t.tsv", alignment_column=3), tmp_path)
