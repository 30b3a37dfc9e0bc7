"""Training of SentencePiece models from a corpus (Kudo and Richardson 2018, arXiv:1808.06226)."""

import io
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import sentencepiece
from txport.models.description import read_score_sums, write_description
from txport.models.importers.tokenizers.pieces import without_rule_file
from txport.models.normalisation import rule_file, spaced
from txport.runtime.bundle.schema import SpecialTokens
from txport.runtime.bundle.tokenizer_schema import plain
from txport.runtime.errors import InputError
from txport.runtime.files import new_directory
from txport.runtime.text.lines import MAX_LINE_BYTES
from txport.runtime.text.tokenizer import SentencePieceTokenizer
from txport.runtime.text.unigram import library_sums
from txport.training.corpora import Pair
from txport.training.options import TokenizerOptions
from txport.training.recipe import require_fitted

# Special ids of all trained models and their bundles.
PAD = 0
UNK = 1
BOS = 2
EOS = 3
SPECIAL = 4
BYTES = 256
OURS = SpecialTokens(PAD, UNK, BOS, EOS)
# Maximum number of sentences for the choice of pieces. More need memory and change little.
MAX_SENTENCES = 2_000_000
# Constant, since sums in the unigram trainer depend on it.
THREADS = 4


def train_tokenizer(pairs: Collection[Pair], options: TokenizerOptions, directory: Path) -> None:
    """Train and write `directory`/shared.model, or source.model and target.model; the directory is never incomplete.

    Ids: padding 0, unknown 1, bos 2, eos 3. Each digit is a separate piece, so that unseen numbers can be read like
    known ones, except in word vocabularies.

    Raises:
        InputError: the directory exists, or the corpus does not have enough different pieces for the vocabulary.
    """
    sides = _sides(pairs, options)
    models = {name: _train(sentences, options, name) for name, sentences in sides.items()}
    with new_directory(directory) as temporary:
        for name, model in models.items():
            (temporary / f"{name}.model").write_bytes(model)
        if (sums := library_sums()) != "float64":  # which checkpoints without a description have
            first, *others = (f"tokenizer/{name}.model" for name in models)
            write_description(temporary, replace(plain(first, (others or [first])[0], EOS), score_sums=sums))


def most_pieces(pairs: Collection[Pair], options: TokenizerOptions) -> int:
    """Return the number of pieces of a corpus for algorithms word and char, on the side that has more."""
    return max(_pieces(sentences, options) for sentences in _sides(pairs, options).values())


def load_tokenizer(directory: Path) -> SentencePieceTokenizer:
    """Load a tokenizer that `train_tokenizer` has written."""
    sums = read_score_sums(directory)
    shared = directory / "shared.model"
    if shared.exists():
        return SentencePieceTokenizer(shared, eos=EOS, sums=sums)
    return SentencePieceTokenizer(directory / "source.model", directory / "target.model", eos=EOS, sums=sums)


def padded_vocabulary(pieces: int) -> int:
    """Return the size of an embedding for this number of pieces: the next multiple of 8, for matrix units."""
    return (pieces + 7) // 8 * 8


@dataclass(frozen=True)
class _Sentences(Iterable[str]):
    """Sentences of some sides of the pairs, which can be iterated repeatedly."""

    pairs: Collection[Pair]
    sides: slice

    def __iter__(self) -> Iterator[str]:
        return (sentence for pair in self.pairs for sentence in pair[self.sides])


def _sides(pairs: Collection[Pair], options: TokenizerOptions) -> dict[str, _Sentences]:
    """Return the sentences for each model, by its name."""
    if options.joint:
        sides = {"shared": slice(2)}
    else:
        sides = {"source": slice(1), "target": slice(1, 2)}
    return {name: _Sentences(pairs, side) for name, side in sides.items()}


def _pieces(sentences: Iterable[str], options: TokenizerOptions) -> int:
    """Return the number of different words or characters that are frequent enough, plus the special pieces."""
    if options.space_punctuation:
        texts = (spaced(text, lower_case=options.lower_case) for text in sentences)
    else:
        normaliser = sentencepiece.SentencePieceNormalizer(rule_name=_rule(options), remove_extra_whitespaces=True)
        texts = (normaliser.normalize(text) for text in sentences)
    counts = Counter(piece for text in texts for piece in (text.split(" ") if options.algorithm == "word" else text))
    frequent = sum(count >= options.minimum_count for count in counts.values())
    return SPECIAL + (BYTES if options.byte_fallback else 0) + frequent


def _rule(options: TokenizerOptions) -> str:
    if options.lower_case:
        return "nmt_nfkc_cf"
    return "nmt_nfkc"


@contextmanager
def _normalisation(options: TokenizerOptions) -> Iterator[dict[str, str]]:
    """Yield the options for SentencePiece's trainer that specify the normalisation."""
    if not options.space_punctuation:
        yield {"normalization_rule_name": _rule(options)}
        return
    with rule_file(lower_case=options.lower_case) as rules:
        yield {"normalization_rule_tsv": str(rules)}


def _train(sentences: Iterable[str], options: TokenizerOptions, name: str) -> bytes:
    model = io.BytesIO()
    vocabulary = require_fitted(options.vocabulary)
    if options.algorithm == "word":  # SentencePiece has no minimum count, but uses the most frequent words
        vocabulary = min(vocabulary, _pieces(sentences, options))
    try:
        with _normalisation(options) as rule:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=model,
                model_type=options.algorithm,
                vocab_size=vocabulary,
                # With few words, the vocabulary is smaller than options.vocabulary, instead of an error (BPE raises
                # one).
                hard_vocab_limit=False,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                split_digits=True,
                byte_fallback=options.byte_fallback,
                character_coverage=options.character_coverage,
                input_sentence_size=MAX_SENTENCES,
                max_sentence_length=MAX_LINE_BYTES,  # in bytes; the default leaves out sentences of more than 4,192
                shuffle_input_sentence=True,
                num_threads=THREADS,
                minloglevel=2,
                **rule,
            )
    except RuntimeError as error:
        reason = str(error).split("] ")[-1].strip()
        raise InputError(
            f"the {name} tokenizer cannot have {options.vocabulary} pieces ({reason}): "
            "set a smaller tokenizer.vocabulary, or give more text"
        ) from None
    logging.getLogger("txport").debug("trained the %s tokenizer", name)
    if options.space_punctuation:
        return without_rule_file(model.getvalue())
    return model.getvalue()
