"""SentencePiece models trained from a corpus (Kudo and Richardson 2018, arXiv:1808.06226)."""

import io
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece
from txport.runtime.engine import SpecialTokens
from txport.runtime.errors import InputError
from txport.runtime.files import new_directory
from txport.runtime.text.tokenizer import SentencePieceTokenizer
from txport.training.corpora import Pair
from txport.training.recipe import TokenizerOptions, chosen

# The ids that models and bundles agree on.
PAD, UNK, BOS, EOS = 0, 1, 2, 3
OURS = SpecialTokens(PAD, UNK, BOS, EOS)
# Sentences that the pieces are chosen from, at most; more cost memory and change little.
MOST_SENTENCES = 2_000_000
# A fixed number: the unigram trainer's sums depend on it.
THREADS = 4


def train_tokenizer(pairs: Sequence[Pair], options: TokenizerOptions, directory: Path) -> None:
    """Train and write `directory`/shared.model, or source.model and target.model; the directory appears when whole.

    Pad is 0, unknown 1, begin of sentence 2, end of sentence 3. Each digit is a piece of its own, so that numbers that
    were never seen are read like those that were.

    Raises:
        InputError: the directory exists, or the corpus has not enough different pieces for the vocabulary.
    """
    sides: dict[str, Iterable[str]]
    if options.joint:
        sides = {"shared": (side for pair in pairs for side in pair)}
    else:
        sides = {"source": (source for source, _ in pairs), "target": (target for _, target in pairs)}
    models = {name: _train(iter(sentences), options, name) for name, sentences in sides.items()}
    with new_directory(directory) as temporary:
        for name, model in models.items():
            (temporary / f"{name}.model").write_bytes(model)


def load_tokenizer(directory: Path) -> SentencePieceTokenizer:
    """The tokenizer that `train_tokenizer` wrote."""
    shared = directory / "shared.model"
    if shared.exists():
        return SentencePieceTokenizer(shared, eos=EOS)
    return SentencePieceTokenizer(directory / "source.model", directory / "target.model", eos=EOS)


def padded_vocabulary(pieces: int) -> int:
    """Rows of an embedding for so many pieces: the next multiple of 8, which matrix units like."""
    return (pieces + 7) // 8 * 8


def _train(sentences: Iterator[str], options: TokenizerOptions, name: str) -> bytes:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            model_type=options.algorithm,
            vocab_size=chosen(options.vocabulary),
            # A corpus of few words gives fewer pieces than options.vocabulary, no error (unigram; BPE raises one).
            hard_vocab_limit=False,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            split_digits=True,
            byte_fallback=options.byte_fallback,
            character_coverage=options.character_coverage,
            normalization_rule_name="nmt_nfkc_cf" if options.lower_case else "nmt_nfkc",
            input_sentence_size=MOST_SENTENCES,
            shuffle_input_sentence=True,
            num_threads=THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).split("] ")[-1].strip()
        raise InputError(
            f"the {name} tokenizer cannot have {options.vocabulary} pieces ({reason}): "
            "set a smaller tokenizer.vocabulary, or give more text"
        ) from None
    logging.getLogger("txport").debug("trained the %s tokenizer", name)
    return model.getvalue()
