"""Lists of tokens, characters or words, as the tokenizer of any model (`--vocabulary`)."""

from pathlib import Path
from typing import Any

import pytest
from foreign_models import import_here
from tiny_marian import tiny_marian
from token_lists import check_lists
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.tokenizer import open_tokenizer

pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

from added_tokens import FAMILIES, TARGETS, saved

WORDS = ["</s>", "<unk>", *(f"word{i}" for i in range(58)), "<pad>"]
LETTERS = ["</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz .,!?'-éñ漢0123456789ABCDEFGHIJKLM", "<pad>"]
LETTERS = [*LETTERS[:60], "<pad>"]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("marian") / "theirs"
    tiny_marian(directory)
    return directory


def opened(marian: Path, tmp_path: Path, tokens: list[str]) -> Any:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "shared.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"--vocabulary .* has no effect: it contains no lists of tokens"):
        import_here(marian, tmp_path / "checkpoint", vocabulary=tmp_path)
    checkpoint = import_here(marian, tmp_path / "checkpoint", vocabulary=tmp_path / "lists")
    assert checkpoint.config.unk_id == 1 and checkpoint.config.eos_id == 0
    return open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)


def test_words(marian: Path, tmp_path: Path) -> None:
    ours = opened(marian, tmp_path, WORDS)
    for text in ("word3 word57  word0", "word1 other word2", "x"):
        ids = [WORDS.index(word) if word in WORDS else 1 for word in text.split()]
        assert ours.encode(text) == [*ids, 0]
    assert ours.decode([2, 5, 60, 0]) == "word0 word3"


def test_characters(marian: Path, tmp_path: Path) -> None:
    """Every space counts, also at the beginning, and two of them."""
    ours = opened(marian, tmp_path, LETTERS)
    for text in ("a cat, 12", " the  dog!", "été", "a漢b"):
        ids = [LETTERS.index(letter) if letter in LETTERS else 1 for letter in text]
        assert ours.encode(text) == [*ids, 0]
        if 1 not in ids:
            assert ours.decode([*ids, 60, 0]) == text


def test_words_with_the_mark_of_a_space(marian: Path, tmp_path: Path) -> None:
    """SentencePiece reads U+2581 as a space; in a list of tokens it is a character like others."""
    marked = ["</s>", "<unk>", "▁", "▁the", "the▁", "x▁y", "▁▁", *WORDS[7:]]
    ours = opened(marian, tmp_path, marked)
    for text in ("word9 ▁", "▁", "▁ word9 ▁ ▁", "▁the the▁ x▁y", "word9 ▁▁ ▁", "x▁ word9"):
        ids = [marked.index(word) if word in marked else 1 for word in text.split()]
        assert ours.encode(text) == [*ids, 0]
        if 1 not in ids:
            assert ours.decode([*ids, 60, 0]) == text


def test_characters_with_the_mark_of_a_space(marian: Path, tmp_path: Path) -> None:
    marked = [*LETTERS[:28], "▁", *LETTERS[28:59], "<pad>"]
    ours = opened(marian, tmp_path, marked)
    for text in ("a▁ b", "▁", " ▁ ▁", "ab▁"):
        ids = [marked.index(letter) for letter in text]
        assert ours.encode(text) == [*ids, 0]
        assert ours.decode([*ids, 60, 0]) == text


def test_lists_that_do_not_fit(marian: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has 60 lines, but the embedding has 61 rows"):
        opened(marian, tmp_path, WORDS[:-1])


def test_an_end_in_another_line(marian: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has the end of a text in line 2, but the model's has the id 0"):
        opened(marian, tmp_path, ["<unk>", "</s>", *WORDS[2:]])


@pytest.mark.parametrize("letters", [False, True], ids=["words", "characters"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, letters: bool, tmp_path: Path) -> None:
    saved(family, tmp_path / "theirs", tokens=[])
    checkpoint = check_lists(tmp_path / "theirs", tmp_path, letters, target_language=TARGETS.get(family))
    assert len(checkpoint.tokenizer.target_prefix) == (family in TARGETS)


def test_a_language_where_there_is_none(marian: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--target-language fr means nothing"):
        check_lists(marian, tmp_path, False, target_language="fr")
