"""Training SentencePiece models: ids, digits, case, joint and separate."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import sentencepiece
from txport.runtime.errors import InputError
from txport.training.options import TokenizerOptions
from txport.training.spoken import corpus as spoken
from txport.training.tokenizers import load_tokenizer, most_pieces, padded_vocabulary, train_tokenizer

PAIRS = list(itertools.islice(spoken.sentences(1, "train"), 800))


def pieces(file: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(file))


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_joint(tmp_path: Path, algorithm: str) -> None:
    options = TokenizerOptions(vocabulary=300, algorithm=algorithm, lower_case=True)  # type: ignore[arg-type]
    train_tokenizer(PAIRS, options, tmp_path / "tokenizer")
    assert [file.name for file in (tmp_path / "tokenizer").glob("*.model")] == ["shared.model"]
    model = pieces(tmp_path / "tokenizer" / "shared.model")
    assert (model.pad_id(), model.unk_id(), model.bos_id(), model.eos_id()) == (0, 1, 2, 3)
    assert model.get_piece_size() == 300
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    for source, target in PAIRS[:100]:
        assert tokenizer.encode(source)[-1] == 3
        assert tokenizer.decode(tokenizer.encode_prefix(target)) == target


def test_digits_are_single_pieces(tmp_path: Path) -> None:
    train_tokenizer(PAIRS, TokenizerOptions(vocabulary=400), tmp_path / "tokenizer")
    model = pieces(tmp_path / "tokenizer" / "shared.model")
    for number in range(model.get_piece_size()):
        digits = [c for c in model.id_to_piece(number) if c.isdigit()]
        assert len(digits) <= 1, model.id_to_piece(number)


def test_case_is_kept_unless_folded(tmp_path: Path) -> None:
    for lower in (False, True):
        train_tokenizer(PAIRS, TokenizerOptions(vocabulary=300, lower_case=lower), tmp_path / str(lower))
    assert load_tokenizer(tmp_path / "True").encode("Anna") == load_tokenizer(tmp_path / "True").encode("anna")
    assert load_tokenizer(tmp_path / "False").encode("Anna") != load_tokenizer(tmp_path / "False").encode("anna")


def test_long_lines_are_not_left_out(tmp_path: Path) -> None:
    """A letter that stands only in a line of 12,000 bytes has a piece."""
    line = "we say ж often " * 750
    train_tokenizer([*PAIRS, (line, "often")], TokenizerOptions(vocabulary=300), tmp_path / "tokenizer")
    model = pieces(tmp_path / "tokenizer" / "shared.model")
    assert model.unk_id() not in model.encode("ж")


def test_separate(tmp_path: Path) -> None:
    train_tokenizer(PAIRS, TokenizerOptions(vocabulary=200, joint=False), tmp_path / "tokenizer")
    assert {file.name for file in (tmp_path / "tokenizer").glob("*.model")} == {"source.model", "target.model"}
    target = pieces(tmp_path / "tokenizer" / "target.model")
    assert not any(target.id_to_piece(number).lstrip("▁").isdigit() for number in range(target.get_piece_size()))
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    assert tokenizer.decode(tokenizer.encode_prefix("twelve dollars")) == "twelve dollars"


TEXTS = [("Go.", "Va !"), ("Go!", "Va !"), ("I'm home.", "Je suis chez moi."), ("I'm 17, go.", "J'ai 17 ans, va.")]
WORDS = TokenizerOptions(vocabulary=100, algorithm="word", minimum_count=2, space_punctuation=True, lower_case=True)


def test_words_that_are_frequent_enough(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, dataclasses.replace(WORDS, joint=False), tmp_path / "tokenizer")
    sides = [pieces(tmp_path / "tokenizer" / f"{side}.model") for side in ("source", "target")]
    words = [{model.id_to_piece(i)[1:] for i in range(4, model.get_piece_size())} for model in sides]
    assert words == [{"go", ".", "i'm"}, {"va", "!", "."}]
    assert most_pieces(TEXTS, dataclasses.replace(WORDS, joint=False)) == 7
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    assert tokenizer.encode("GO  .") == tokenizer.encode("go.") == tokenizer.encode(" Go\u00a0.")
    assert tokenizer.encode("home.")[0] == 1, "a rare word is unknown"
    assert tokenizer.decode(tokenizer.encode_prefix("Va!")) == "va !"


def test_the_vocabulary_keeps_the_most_frequent_words(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, dataclasses.replace(WORDS, vocabulary=6), tmp_path / "tokenizer")
    model = pieces(tmp_path / "tokenizer" / "shared.model")
    assert [model.id_to_piece(i) for i in range(4, model.get_piece_size())] == ["▁.", "▁!"]


def test_characters(tmp_path: Path) -> None:
    options = TokenizerOptions(vocabulary=300, algorithm="char")
    train_tokenizer(PAIRS, options, tmp_path / "tokenizer")
    model = pieces(tmp_path / "tokenizer" / "shared.model")
    assert all(len(model.id_to_piece(i)) == 1 for i in range(4, model.get_piece_size()))
    assert model.get_piece_size() == most_pieces(PAIRS, options)
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    for _, target in PAIRS[:50]:
        assert tokenizer.decode(tokenizer.encode_prefix(target)) == target
        assert len(tokenizer.encode_prefix(target)) == len(target) + 1


def test_rules_stand_in_the_model_and_no_path_does(tmp_path: Path) -> None:
    """The bytes are the same each time, although the rules come from a file of another name."""
    for name in ("one", "two"):
        train_tokenizer(TEXTS, WORDS, tmp_path / name)
    one, two = ((tmp_path / name / "shared.model").read_bytes() for name in ("one", "two"))
    assert one == two and b"rules.tsv" not in one


def test_byte_fallback_spells_unseen_characters(tmp_path: Path) -> None:
    train_tokenizer(PAIRS, TokenizerOptions(vocabulary=600, byte_fallback=True), tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    assert tokenizer.decode(tokenizer.encode_prefix("smile 🙂")) == "smile 🙂"
    assert 1 not in tokenizer.encode("smile 🙂")


def test_training_is_deterministic(tmp_path: Path) -> None:
    for name in ("one", "two"):
        train_tokenizer(PAIRS, TokenizerOptions(vocabulary=300), tmp_path / name)
    one, two = ((tmp_path / name / "shared.model").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_vocabulary_smaller_than_the_alphabet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"shared tokenizer cannot have 16 pieces .*tokenizer.vocabulary"):
        train_tokenizer(PAIRS, TokenizerOptions(vocabulary=16), tmp_path / "tokenizer")
    assert not (tmp_path / "tokenizer").exists()


def test_an_existing_directory_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists"):
        train_tokenizer(PAIRS, TokenizerOptions(vocabulary=300), tmp_path)


@pytest.mark.parametrize(("count", "padded"), [(8, 8), (9, 16), (1999, 2000), (1, 8)])
def test_vocabulary_is_a_multiple_of_8(count: int, padded: int) -> None:
    assert padded_vocabulary(count) == padded
