"""The field `tokenizer` of manifest.json: how a text becomes source ids, and what every answer begins with."""

from dataclasses import dataclass
from typing import Literal

# Kinds of which there are no files.
WITHOUT_FILES = ("none", "bytes")
# The id of the byte 0 in the kind "bytes"; before it are padding, the end of sequence and the unknown id.
FIRST_BYTE = 3

# Stands among ids for the id of the language that is chosen for a sentence.
Placeholder = Literal["source_language", "target_language"]
SOURCE_LANGUAGE: Placeholder = "source_language"
TARGET_LANGUAGE: Placeholder = "target_language"


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
    """The languages that a user may choose, by name, and the ids that say so to the model.

    Attributes:
        source: ids of the source vocabulary; empty if there is nothing to choose.
        target: ids of each vocabulary in which the placeholder "target_language" stands.
        source_default: the source language of a sentence for which none is chosen.
        target_default: the same for the target language.
        in_text: a source text may begin with `>>name<<`, which chooses its target language.
    """

    source: dict[str, int]
    target: dict[str, int]
    source_default: str | None
    target_default: str | None
    in_text: bool

    def of(self, side: str) -> tuple[dict[str, int], str | None]:
        """The languages of "source" or "target", and the default."""
        return (self.source, self.source_default) if side == "source" else (self.target, self.target_default)


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
    """

    kind: Literal["sentencepiece", "tokenizers", "bytes", "none"]
    source: TokenizerFiles | None
    target: TokenizerFiles | None
    source_prefix: tuple[Placeholder | int, ...]
    source_suffix: tuple[Placeholder | int, ...]
    target_prefix: tuple[Placeholder | int, ...]
    languages: Languages | None


def ids_only(eos: int) -> TokenizerDescription:
    """Description without a tokenizer. (Source ids are then given whole; the suffix serves random samples.)"""
    return TokenizerDescription("none", None, None, (), (eos,), (), None)


def plain(source: str, target: str, eos: int) -> TokenizerDescription:
    """SentencePiece models whose own ids are the model's, and eos after each source text."""
    files = TokenizerFiles(source, None), TokenizerFiles(target, None)
    return TokenizerDescription("sentencepiece", *files, (), (eos,), (), None)
