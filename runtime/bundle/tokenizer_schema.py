"""The field `tokenizer` of manifest.json: how a text becomes source ids, and what every answer begins with."""

from dataclasses import dataclass
from typing import Literal

from txport.runtime.bundle import strict_json
from txport.runtime.bundle.strict_json import added

# Kinds of which there are no files.
WITHOUT_FILES = ("none", "bytes")
# The id of the byte 0 in the kind "bytes"; before it are padding, the end of sequence and the unknown id.
FIRST_BYTE = 3

# Stands among ids for the id of the language that is chosen for a sentence.
Placeholder = Literal["source_language", "target_language"]
SOURCE_LANGUAGE: Placeholder = "source_language"
TARGET_LANGUAGE: Placeholder = "target_language"
MARIANS_MARKER = (">>", "<<")


@dataclass(frozen=True)
class Vocabularies:
    """The ids that a model has: how many on each side, and the one that stands for unknown pieces on both."""

    source: int
    target: int
    unk: int


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of one side, by their names in the bundle.

    Attributes:
        model: a SentencePiece model, or a tokenizer.json of the `tokenizers` library.
        vocabulary: see `txport.runtime.text.vocabulary`; None where ids are the model's own.
    """

    model: str
    vocabulary: str | None


@dataclass(frozen=True)
class Languages:
    """The languages that a user may choose, by name, and the ids that select them in the model.

    Attributes:
        source: ids of the source vocabulary; empty if there is nothing to choose.
        target: ids of each vocabulary in which the placeholder "target_language" stands.
        source_default: the source language of a sentence for which none is chosen.
        target_default: the same for the target language.
        in_text: a source text may begin with a name between the two parts of `marker`, which chooses its target
            language.
        marker: what stands before and after that name. Between those of the default, Marian's, every name is a
            language, and unk stands for an unknown one; between others, text with an unknown name is left alone.
    """

    source: dict[str, int]
    target: dict[str, int]
    source_default: str | None
    target_default: str | None
    in_text: bool
    marker: tuple[str, str] = added(MARIANS_MARKER)

    def of(self, side: str) -> tuple[dict[str, int], str | None]:
        """Return the languages of "source" or "target", and the default."""
        if side == "source":
            return (self.source, self.source_default)
        return (self.target, self.target_default)


@dataclass(frozen=True)
class AddedToken:
    """A token that was added to a tokenizer: a text contains it as a whole.

    Attributes:
        content: its text.
        id: its id on both sides.
        special: answers do not show it.
        lstrip: it takes the white space before it.
        rstrip: it takes the white space after it.
        single_word: it is not a part of a longer word.
        normalized: it is searched for in the normalised text.
    """

    content: str
    id: int
    special: bool = added(False)
    lstrip: bool = added(False)
    rstrip: bool = added(False)
    single_word: bool = added(False)
    normalized: bool = added(False)


@dataclass(frozen=True)
class AddedTokens:
    """Added tokens, and how Hugging Face's tokenizer of the model treats the text around them.

    Attributes:
        tokens: the tokens, each content once.
        rules: how tokens are found: as the library `tokenizers` does, or as transformers' tokenizers in Python do.
        spaces: what becomes of white space before a token: "dropped", "kept" as a piece of its own, or kept only
            before a token that is `normalized`.
        prefix: whether the text after a token begins with a space, "always" or only the "first" part of a text.
    """

    tokens: tuple[AddedToken, ...]
    rules: Literal["tokenizers", "python"]
    spaces: Literal["dropped", "kept", "kept_before_normalized"] = added("dropped")
    prefix: Literal["always", "first"] = added("always")


@dataclass(frozen=True)
class TokenizerDescription:
    """Kind "none" takes and gives ids only; ids of the lists may be placeholders.

    Attributes:
        kind: the library of the models ("tokenizers" is for Python, and in C++ byte-level BPE alone), or "bytes": those
            of UTF-8, from the id 3 on (ByT5: Xue et al. 2021).
        source: none for the kinds "none" and "bytes".
        target: likewise; perhaps the same files as `source`.
        source_prefix: what stands before the ids of each source text.
        source_suffix: what stands after them, eos for most models.
        target_prefix: what each answer is forced to begin with, after bos and before any prefix of the user's.
        languages: none where there is nothing to choose.
        added: tokens beside those of the model files, for the kinds "sentencepiece" and "bytes"; a vocabulary has
            the codes in answers.
        prompt: target_prefix does not count in the length of a hypothesis, as in Whisper: Hugging Face has it in
            `decoder_input_ids`.
    """

    kind: Literal["sentencepiece", "tokenizers", "bytes", "none"]
    source: TokenizerFiles | None
    target: TokenizerFiles | None
    source_prefix: tuple[Placeholder | int, ...]
    source_suffix: tuple[Placeholder | int, ...]
    target_prefix: tuple[Placeholder | int, ...]
    languages: Languages | None
    added: AddedTokens | None = added(None)
    prompt: bool = strict_json.added(False)  # `added` is a field here


def ids_only(eos: int) -> TokenizerDescription:
    """Description without a tokenizer. (Source ids are then given whole; the suffix serves random samples.)"""
    return TokenizerDescription("none", None, None, (), (eos,), (), None)


def plain(source: str, target: str, eos: int) -> TokenizerDescription:
    """SentencePiece models whose own ids are the model's, and eos after each source text."""
    files = TokenizerFiles(source, None), TokenizerFiles(target, None)
    return TokenizerDescription("sentencepiece", *files, (), (eos,), (), None)
