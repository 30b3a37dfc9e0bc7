"""The field `tokenizer` of manifest.json: how a text becomes source ids, and how every translation begins."""

from dataclasses import dataclass
from typing import Literal

from txport.runtime.bundle import strict_json
from txport.runtime.bundle.strict_json import added

# Kinds without files.
WITHOUT_FILES = ("none", "bytes")
# Id of byte 0 in the kind "bytes"; the ids before it are padding, end of sequence and unknown.
FIRST_BYTE = 3

# Placeholders among ids for the id of the sentence's language.
Placeholder = Literal["source_language", "target_language"]
# How SentencePiece adds scores in unigram models: in float64 up to version 0.2.1, in float32 from 0.2.2 on.
ScoreSums = Literal["float64", "float32"]
SOURCE_LANGUAGE: Placeholder = "source_language"
TARGET_LANGUAGE: Placeholder = "target_language"
MARIANS_MARKER = (">>", "<<")


@dataclass(frozen=True)
class Vocabularies:
    """Vocabulary sizes of both sides, and the id of unknown pieces on both."""

    source: int
    target: int
    unk: int


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of one side, by their names in the bundle.

    Attributes:
        model: a SentencePiece model, or a tokenizer.json of the `tokenizers` library.
        vocabulary: see `txport.runtime.text.vocabulary`; None if ids are the model's own.
    """

    model: str
    vocabulary: str | None


@dataclass(frozen=True)
class Languages:
    """The languages that a user may choose, by name, and the ids that select them in the model.

    Attributes:
        source: ids of the source vocabulary; empty if the source language is fixed.
        target: ids of each vocabulary whose lists contain the placeholder "target_language".
        source_default: the source language unless another one is chosen.
        target_default: the same for the target language.
        in_text: a source text may begin with a name between the two parts of `marker`, which chooses its target
            language.
        marker: the text before and after that name. With the default, Marian's, every name between them is a language,
            and an unknown one becomes unk. With other markers, text with an unknown name stays unchanged.
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
    """Token that was added to a tokenizer and is never split.

    Attributes:
        content: its text.
        id: its id on both sides.
        special: whether translations omit it.
        lstrip: whether it absorbs the white space before it.
        rstrip: whether it absorbs the white space after it.
        single_word: whether it is never found inside a longer word.
        normalized: whether it is searched for in the normalised text.
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
        spaces: treatment of white space before a token: "dropped", "kept" as a separate piece, or kept only
            before a token that is `normalized`.
        prefix: whether the text after a token begins with a space, "always" or only the "first" part of a text.
    """

    tokens: tuple[AddedToken, ...]
    rules: Literal["tokenizers", "python"]
    spaces: Literal["dropped", "kept", "kept_before_normalized"] = added("dropped")
    prefix: Literal["always", "first"] = added("always")


@dataclass(frozen=True)
class TokenizerDescription:
    """Description of a tokenizer. Kind "none" has ids only. Ids of the lists may be placeholders.

    Attributes:
        kind: the library of the models ("tokenizers" is for Python, and in C++ byte-level BPE alone), or "bytes": those
            of UTF-8, from the id 3 on (ByT5: Xue et al. 2021).
        source: none for the kinds "none" and "bytes".
        target: likewise; perhaps the same files as `source`.
        source_prefix: ids before those of each source text.
        source_suffix: ids after them, eos for most models.
        target_prefix: ids with which each translation begins, after bos and before any prefix of the user.
        languages: choice of languages; None if both are fixed.
        added: tokens beside those of the model files, for the kinds "sentencepiece" and "bytes"; a vocabulary has
            the codes in answers.
        prompt: target_prefix does not count in the length of a hypothesis, as in Whisper: Hugging Face has it in
            `decoder_input_ids`.
        score_sums: the arithmetic of SentencePiece's unigram models at import or training, which decides among
            segmentations of equal score. Runtimes follow it, whatever version they have.
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
    score_sums: ScoreSums = strict_json.added("float64")


def ids_only(eos: int) -> TokenizerDescription:
    """Description without a tokenizer. Users then pass complete source ids; the suffix is for random samples."""
    return TokenizerDescription("none", None, None, (), (eos,), (), None)


def plain(source: str, target: str, eos: int) -> TokenizerDescription:
    """SentencePiece models whose own ids are the model's, and eos after each source text."""
    files = TokenizerFiles(source, None), TokenizerFiles(target, None)
    return TokenizerDescription("sentencepiece", *files, (), (eos,), (), None)
