"""Vocabularies that are word lists: files with one token on each line. The id of a token is its line, counted from 0.

Text is split at spaces, and words that are not in the list are unknown. SentencePiece's algorithm "word" does this,
with two unavoidable differences: consecutive unknown words become one, and spaces are never kept.
"""

import io
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
from txport.models.importers.imported import ImportOptions, TokenizerParts
from txport.models.importers.tokenizers.languages import refuse_languages
from txport.models.importers.tokenizers.pieces import completed, pieces_of, without_rule_file
from txport.models.importers.tokenizers.vocabulary import vocabulary_bytes
from txport.models.normalisation import spacing_rules
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription, TokenizerFiles, ids_only
from txport.runtime.console.words import plural
from txport.runtime.errors import CheckpointError
from txport.runtime.text.lines import read_lines

# Usual names of special tokens in such lists.
NAMES = {"pad_id": ("<pad>", "<blank>"), "unk_id": ("<unk>",), "bos_id": ("<bos>", "<s>"), "eos_id": ("<eos>", "</s>")}
_SPECIAL = {name for names in NAMES.values() for name in names}
# SentencePiece reads this character as a space. In tokens that contain it, a character for private use that no token
# contains replaces it, in texts and back in answers.
_SPACE = "\u2581"
_PRIVATE = range(0xE000, 0xF900)


@dataclass(frozen=True)
class WordLists:
    """Tokens of both sides by id.

    Attributes:
        source, target: all tokens.
        files: the files of source and target.
    """

    source: list[str]
    target: list[str]
    files: tuple[Path, Path]

    def token(self, name: str, side: str = "target") -> int | None:
        """Return the id of a special token (a key of `NAMES`) on one side, or None."""
        if side == "source":
            tokens = self.source
        else:
            tokens = self.target
        return next((tokens.index(token) for token in NAMES[name] if token in tokens), None)

    def special(self) -> dict[str, int]:
        """Return the ids of special tokens on the target side, as fields of our config.

        Raises:
            CheckpointError: one is missing.
        """
        special_ids = {}
        for name, tokens in NAMES.items():
            token = self.token(name)
            if token is None:
                raise CheckpointError(f"{self.files[1]} has no {' or '.join(tokens)}: give the whole list of tokens")
            special_ids[name] = token
        if self.token("unk_id", "source") is None:
            raise CheckpointError(f"{self.files[0]} has no {NAMES['unk_id'][0]}: give the whole list of tokens")
        return special_ids


def has_lists(place: Path | None) -> bool:
    """Return whether a directory contains word lists, and no SentencePiece models."""
    if place is None or any(place.glob("*.model")):
        return False
    return any((place / name).is_file() for name in ("shared.txt", "source.txt"))


def read_word_lists(place: Path, rows: tuple[int, int]) -> WordLists:
    """Read shared.txt, or source.txt and target.txt.

    Args:
        place: the directory.
        rows: sizes of the source and target embedding.

    Raises:
        CheckpointError: a file is missing, contains a duplicate, or its number of lines is not that of the rows.
    """
    if (place / "shared.txt").is_file():
        names = ["shared.txt"] * 2
    else:
        names = ["source.txt", "target.txt"]
    lists = []
    for name, size in zip(names, rows, strict=True):
        if not (place / name).is_file():
            raise CheckpointError(
                f"{place / name} is missing: write the model's tokens there, one a line in the order of their ids, "
                "or give their directory with --vocabulary, or --no-tokenizer"
            )
        tokens = read_lines(place / name, CheckpointError)
        if len(tokens) != size:
            raise CheckpointError(
                f"{place / name} has {plural(len(tokens), 'line')}, but the embedding has {size} rows: "
                "there must be one token a line, special ones too"
            )
        if repeated := {token for token, count in Counter(tokens).items() if token.strip() and count > 1}:
            raise CheckpointError(f"{place / name} has the token {min(repeated)!r} twice: write each token once")
        lists.append(tokens)
    return WordLists(lists[0], lists[1], (place / names[0], place / names[1]))


def word_tokenizer(
    lists: WordLists | None, options: ImportOptions, eos: int, *, prefix: Sequence[int] = (), spaced: bool = False
) -> TokenizerParts:
    """Return a tokenizer of word lists.

    Args:
        lists: the word lists; None for a model of token ids.
        options: may not contain a language.
        eos: id that ends a text.
        prefix: ids before each source text. It is followed by eos, if the source side has one.
        spaced: whether texts are in lower case with a space before each mark, see `txport.models.normalisation`.

    Raises:
        CheckpointError: a list has no words.
        InputError: a language is chosen.
    """
    if lists is None:
        refuse_languages(options, Path("this model"))
        return TokenizerParts(ids_only(eos))
    refuse_languages(options, lists.files[0])
    files: dict[str, bytes] = {}
    for side, tokens, file in zip(("source", "target"), (lists.source, lists.target), lists.files, strict=True):
        letters = are_characters(tokens)
        piece_of = _piece
        if letters:
            piece_of = _character
        mark = _mark(tokens)
        pieces = [piece_of(token, mark) for token in tokens]
        words = [piece for piece in pieces if piece is not None]
        if not words:
            raise CheckpointError(f"{file} has no words: give the whole list of tokens")
        if letters:
            model = _letters(words, mark)
        else:
            model = _model(words, mark, spaced)
        files[f"{side}.model"] = completed(model, pieces_of(model, file), words)
        files[f"{side}.vocabulary.json"] = vocabulary_bytes(pieces)
    end = lists.token("eos_id", "source")
    suffix = () if end is None else (end,)
    return TokenizerParts(_describe(files, tuple(prefix), suffix), files)


def _mark(tokens: Sequence[str]) -> str:
    """Return a character that no token contains."""
    known = set("".join(tokens))
    return next(chr(code) for code in _PRIVATE if chr(code) not in known)


def _piece(token: str, mark: str) -> str | None:
    """Return the piece of a token; None for special tokens, blanks and words with spaces, which cannot occur."""
    if token in _SPECIAL or token.split() != [token]:
        return None
    return f"▁{token.replace(_SPACE, mark)}"


def are_characters(tokens: Sequence[str]) -> bool:
    """Return whether all tokens are characters, including a space, which word lists never contain."""
    rest = [token for token in tokens if token not in _SPECIAL]
    return " " in rest and all(len(token) == 1 for token in rest)


def _character(token: str, mark: str) -> str | None:
    if token in _SPECIAL:
        return None
    return token.replace(_SPACE, mark).replace(" ", _SPACE)


def _letters(characters: Sequence[str], mark: str) -> bytes:
    """Train SentencePiece's algorithm "char" on exactly these characters, without changes to spaces."""
    options = {"model_type": "char", "add_dummy_prefix": False, "remove_extra_whitespaces": False}
    return _train(["".join(characters).replace(_SPACE, " ")], 2 * len(characters) + 4, mark, False, **options)


def _model(words: Sequence[str], mark: str, spaced: bool) -> bytes:
    return _train([word[1:] for word in words], 2 * len(words) + 3, mark, spaced, model_type="word")


def _train(sentences: Sequence[str], size: int, mark: str, spaced: bool, **options: Any) -> bytes:
    """Train SentencePiece on texts that contain each token once."""
    out = io.BytesIO()
    used = mark if any(mark in sentence for sentence in sentences) else None
    with _rules(used, spaced) as rules:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=out,
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            num_threads=1,
            minloglevel=2,
            **rules,
            **options,
        )
    return without_rule_file(out.getvalue())


@contextmanager
def _rules(mark: str | None, spaced: bool) -> Iterator[dict[str, str]]:
    """Yield the trainer's options for the normalisation of texts and answers.

    Args:
        mark: what replaces `_SPACE` in tokens; None if no token contains it.
        spaced: whether texts are lower-cased and split before punctuation, as d2l does.
    """
    if not mark and not spaced:
        yield {"normalization_rule_name": "identity"}
        return
    with tempfile.TemporaryDirectory() as scratch:
        texts, answers = Path(scratch) / "texts.tsv", Path(scratch) / "answers.tsv"
        rules = spacing_rules(lower_case=True) if spaced else ""
        options = {"normalization_rule_tsv": str(texts)}
        if mark:
            rules += f"{ord(_SPACE):X}\t{ord(mark):X}\n"
            answers.write_text(f"{ord(mark):X}\t{ord(_SPACE):X}\n", encoding="ascii")
            options["denormalization_rule_tsv"] = str(answers)
        texts.write_text(rules, encoding="ascii")
        yield options


def _describe(files: Mapping[str, bytes], prefix: tuple[int, ...], suffix: tuple[int, ...]) -> TokenizerDescription:
    source, target = (
        TokenizerFiles(*(f"tokenizer/{name}" for name in files if name.startswith(side)))
        for side in ("source", "target")
    )
    return TokenizerDescription("sentencepiece", source, target, prefix, suffix, (), None)
