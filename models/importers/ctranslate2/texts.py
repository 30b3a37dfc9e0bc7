"""Texts of CTranslate2 models, which have only tokens: SentencePiece models beside them, or tokens between spaces."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from txport.models.config import Config
from txport.models.importers.ctranslate2.vocabularies import PADDING, ModelVocabularies
from txport.models.importers.imported import ImportOptions, TokenizerParts
from txport.models.importers.tokenizers.languages import chosen_language, refuse_languages
from txport.models.importers.tokenizers.sentencepiece_models import dictionary_tokenizer, find_sentencepiece
from txport.models.importers.tokenizers.word_lists import WordLists, word_tokenizer
from txport.runtime.bundle.tokenizer_schema import TARGET_LANGUAGE, Languages, Placeholder, TokenizerDescription
from txport.runtime.errors import CheckpointError, InputError

# Pairs of SentencePiece models, as OPUS-MT and others call them.
_PAIRS = (("source.spm", "target.spm"), ("source.model", "target.model"))
# Fillers of vocabularies of OpenNMT-py and of converted models.
_FILLER = re.compile(r"averyunlikelytoken\d+|madeupword\d+|madeupwordforbt")
_LANGUAGE = re.compile(r"__[a-z]{2,3}__|[a-z]{2}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3}")
_FORMS = ("{}", "__{}__", "<2{}>")
_MARKED = re.compile(r">>(.+)<<")
# Marks of other tokenizers inside their tokens.
_MARKS = {
    "▁": "SentencePiece's",
    "@@": "those of subword-nmt (BPE)",
    "￭": "those of OpenNMT's Tokenizer",
    "Ġ": "of GPT-2's BPE",
}


@dataclass(frozen=True)
class Texts:
    """Properties of a model that matter to texts.

    Attributes:
        directory: of the model.
        vocabularies: its tokens.
        swaps: ids of the source and of the target that changed places.
        config: ours.
        models: SentencePiece models of both sides, if they have no usual names.
    """

    directory: Path
    vocabularies: ModelVocabularies
    swaps: tuple[tuple[int, int], tuple[int, int]]
    config: Config
    models: tuple[Path, Path] | None = None

    def tokens(self, side: int) -> list[str]:
        """Return the tokens of a side in the order of our ids."""
        tokens = list((self.vocabularies.source, self.vocabularies.target)[side])
        first, second = self.swaps[side]
        tokens[first], tokens[second] = tokens[second], tokens[first]
        return tokens

    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
        """Return the ids around a source text, and whether they are a guess.

        Converters of Hugging Face's models leave the end of a source to their tokenizers.
        """
        first, second = self.swaps[0]
        moved = {first: second, second: first}
        prefix, suffix = (
            tuple(moved.get(each, each) for each in ids) for ids in (self.vocabularies.prefix, self.vocabularies.suffix)
        )
        guess = not prefix and not suffix and "<blank>" not in self.vocabularies.source
        end = self.tokens(1)[self.config.eos_id]
        if guess and end in self.vocabularies.source:
            return (), (self.tokens(0).index(end),), True
        return prefix, suffix, False


def model_tokenizer(texts: Texts, options: ImportOptions) -> tuple[TokenizerParts, list[str]]:
    """Return the tokenizer, and notes for the user.

    Raises:
        CheckpointError: a SentencePiece model is missing or belongs to another model.
        InputError: a language that the model does not have, or none where it has many.
    """
    prefix, suffix, guess = texts.affixes()
    if not options.tokenizer:
        refuse_languages(replace(options, target_language=_of_answers(texts, options)), texts.directory)
        return TokenizerParts(TokenizerDescription("none", None, None, (), suffix, (), None)), []
    notes = []
    if guess:
        end = texts.tokens(1)[texts.config.eos_id]
        notes.append(f"config.json adds no token to a source; texts end with {end}, as in Hugging Face's tokenizers")
    place = options.vocabulary or texts.directory
    models = texts.models or _models(place)
    marked = None
    if models is not None and (marked := _marked_languages(texts, options)) is not None:
        options = replace(options, target_language=None)
    source, target, special = _languages(texts, options, required=models is not None)
    if models is None:
        parts = _words(texts, place)
        notes.append("no SentencePiece model: texts are tokens between spaces, as in CTranslate2's files of tokens")
    else:
        parts = _pieces(texts, models, special)
    before: tuple[Placeholder | int, ...] = (*source, *prefix)
    if marked is not None:
        before = (TARGET_LANGUAGE, *before)
    description = replace(
        parts.description,
        source_prefix=before,
        source_suffix=suffix,
        target_prefix=target,
        languages=marked,
    )
    return replace(parts, description=description), notes


def _pieces(texts: Texts, models: tuple[Path, Path], languages: set[str]) -> TokenizerParts:
    """Return a tokenizer of SentencePiece models, whose pieces have the ids of the model's tokens."""
    special = {*PADDING, "<s>", "</s>", "<unk>"} | _special(texts) | languages
    tables: list[list[str | None]] = []
    for side in (0, 1):
        tables.append([])
        for token in _once(texts.tokens(side)):
            if token in special or not token or _FILLER.fullmatch(token):
                tables[side].append(None)
            else:
                tables[side].append(token)
    return dictionary_tokenizer(tables, models, ())


def _once(tokens: Sequence[str]) -> list[str]:
    """Return tokens, of which each later occurrence is empty: CTranslate2 never takes its id for a text."""
    first = {token: index for index, token in reversed(list(enumerate(tokens)))}
    return [token if first[token] == index else "" for index, token in enumerate(tokens)]


def _special(texts: Texts) -> set[str]:
    """Return the model's own special tokens."""
    config = texts.config
    tokens = texts.tokens(1)
    ids = [each for each in (config.unk_id, config.bos_id, config.eos_id, config.pad_id) if each < len(tokens)]
    return {tokens[each] for each in ids} | {token for token in tokens if _MARKED.fullmatch(token)}


def _of_answers(texts: Texts, options: ImportOptions) -> str | None:
    """Return the target language, unless it is the token that the decoder starts from."""
    if texts.vocabularies.start is None:
        return None
    return options.target_language


def _marked_languages(texts: Texts, options: ImportOptions) -> Languages | None:
    """Return the target languages that a text may begin with, such as >>fra<<, as in OPUS-MT's models."""
    found = {match[1]: index for index, token in enumerate(texts.tokens(0)) if (match := _MARKED.fullmatch(token))}
    if not found:
        return None
    default = chosen_language(options.target_language, found, "target", texts.directory)
    return Languages({}, found, None, default, True)


def _languages(
    texts: Texts, options: ImportOptions, *, required: bool
) -> tuple[tuple[int, ...], tuple[int, ...], set[str]]:
    """Return the ids of languages before a source and an answer, and their tokens."""
    names = (options.source_language, _of_answers(texts, options))
    found: list[tuple[int, ...]] = []
    tokens = {token for token in texts.vocabularies.target if _LANGUAGE.fullmatch(token)}
    for side, name in enumerate(names):
        known = texts.tokens(side)
        ids = [known.index(form.format(name)) for form in _FORMS if name and form.format(name) in known]
        if name and not ids:
            option = ("--source-language", "--target-language")[side]
            raise InputError(f"{option} {name} is not a token of {texts.directory}: name a token, or leave it out")
        found.append(tuple(ids[:1]))
        tokens |= {known[each] for each in ids[:1]}
    if required and len(tokens) > 2 and names[1] is None and texts.vocabularies.start is not None:
        some = ", ".join(sorted(tokens)[:4])
        raise InputError(
            f"{texts.directory} has tokens of many languages ({some} ...): set --source-language and --target-language"
        )
    return found[0], found[1], tokens


def _models(place: Path) -> tuple[Path, Path] | None:
    """Return the SentencePiece models of both sides, if there are any."""
    for pair in _PAIRS:
        if all((place / name).is_file() for name in pair):
            return place / pair[0], place / pair[1]
    if any(place.glob("*.model")):
        return find_sentencepiece(place, "src", "tgt")
    return None


def _words(texts: Texts, place: Path) -> TokenizerParts:
    """Return a tokenizer for tokens between spaces."""
    lists = WordLists(_once(texts.tokens(0)), _once(texts.tokens(1)), texts.vocabularies.files)
    for tokens in (lists.source, lists.target):
        for mark, whose in _MARKS.items():
            if sum(mark in token for token in tokens) * 20 > len(tokens):
                raise CheckpointError(
                    f"{place} has no SentencePiece model, and the model's tokens are {whose}: copy the model's "
                    "SentencePiece model there, name its directory with --vocabulary, or give --no-tokenizer"
                )
    return word_tokenizer(lists, ImportOptions(), texts.config.eos_id)
