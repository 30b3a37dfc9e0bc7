"""The sentences that a model is calibrated, verified and self-checked on, as ids."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txport.exporter.reference import Source, sample_sources, sample_vectors
from txport.exporter.sentence_files import check_reads, check_sentence_files, read_ids, read_pairs, with_text
from txport.models.checkpoint import Checkpoint
from txport.models.config import Config
from txport.runtime.bundle.schema import Limits
from txport.runtime.calls.requests import Call, ignore_warnings, length_limit
from txport.runtime.engine import FIRST_TARGET
from txport.runtime.errors import InputError
from txport.runtime.features import FeatureFile, read_features
from txport.runtime.search.requests import Request
from txport.runtime.text.affixes import Affixes, affixes
from txport.runtime.text.tokenizer import IdsOnly, TextTokenizer, Tokenizer, open_tokenizer

# Prefix of the origin of generated sentences.
RANDOM = "random"
# Most target tokens of a random text: more than the runtime's first caches hold, so that caches grow.
MAX_MADE = FIRST_TARGET + 8


@dataclass(frozen=True)
class Sample:
    """Sentences to calibrate, verify and self-check a model on.

    Attributes:
        texts: empty where ids were drawn at random.
        sources: their source ids with affixes, cut to the longest source, in the default languages; or vectors.
        limits: the most target tokens of each: as `Translator` has them, or `random_limits`.
        prefix: the forced beginning of every target.
        origin: where they come from, for reports.
        tokenizer: that made the ids.
        references: a reference translation of each; empty if there are none.
        real: whether an answer ought to end by itself: those to random texts need not.
    """

    texts: list[str]
    sources: Sequence[Source]
    limits: list[int]
    prefix: list[int]
    origin: str
    tokenizer: Tokenizer
    references: list[str]
    real: bool

    def requests(self, indices: Sequence[int] | None = None) -> list[Request]:
        """Requests for the runtime's loop: of all sentences, or those of these indices."""
        chosen = range(len(self.sources)) if indices is None else indices
        return [Request(self.sources[i], max_length=self.limits[i], prefix=self.prefix) for i in chosen]


class _Numbers(IdsOnly):
    """Return ids as texts to compare: their numbers as words, without ids that have no text."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.tokenizer)
        self._silent = {checkpoint.config.pad_id, checkpoint.config.bos_id, checkpoint.config.eos_id}

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(token) for token in ids if token not in self._silent)


def choose_sample(
    checkpoint: Checkpoint,
    count: int,
    max_source: int,
    max_target: int,
    text: Path | None = None,
    references: Path | None = None,
    ids: Path | None = None,
    reference_ids: Path | None = None,
    features: Path | None = None,
) -> Sample:
    """Up to `count` sentences: the user's, else the checkpoint's own, else random texts, or ids without a tokenizer.

    Args:
        checkpoint: the model, and its own sentences and references.
        count: maximum number of sentences.
        max_source: the most source tokens of a sentence, eos included.
        max_target: the most target tokens of an answer.
        text: a file of sentences, one a line.
        references: a file of their translations, line by line.
        ids: a file of sentences as whole source ids with spaces between them.
        reference_ids: a file of their translations as target ids.
        features: a file of vectors, perhaps with their translations, for a model that reads features.

    Raises:
        InputError: a file cannot be read, is not UTF-8 or holds no sentence, two are not of one length, or there is no
            tokenizer to use them with.
    """
    config = checkpoint.config
    around = affixes(checkpoint.tokenizer)
    check_reads(checkpoint.directory, config, checkpoint.tokenizer, text, references, ids, reference_ids, features)
    check_sentence_files(text, references, ids, reference_ids, features)
    if config.source == "features":
        return _of_features(checkpoint, count, (max_source, max_target), features)
    if ids:
        return _of_ids(checkpoint, count, (max_source, max_target), ids, reference_ids)
    pairs = read_pairs(text, references) if text else with_text(checkpoint.sentences, checkpoint.references)
    lines = [line for line, _ in pairs]
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, config.vocabularies)
    if isinstance(tokenizer, IdsOnly):
        sources = sample_sources(config, count, max_source, around)
        limits = random_limits(sources, max_target, around.target_prefix)
        origin = f"{RANDOM} ids, answers as long as these"
        return Sample([""] * count, sources, limits, around.target_prefix, origin, tokenizer, [], False)
    chosen = lines[:count] or _random_texts(tokenizer, config, count, max_source)
    if not chosen:
        raise InputError(f"{checkpoint.directory} has no sentences to verify on: give a file of them with --text")
    call = Call.of(tokenizer, Limits(1, max_source, max_target), warn=ignore_warnings)
    requests = [call.needed(line, f"sentence {number}").request for number, line in enumerate(chosen, 1)]
    sources = [list(request.source_ids) for request in requests]
    if not lines:
        limits = random_limits(sources, max_target, around.target_prefix)
        origin = f"{RANDOM} texts, answers as long as these"
        return Sample(chosen, sources, limits, around.target_prefix, origin, tokenizer, [], False)
    origin = str(text) if text else "held-out sentences of the checkpoint"
    translations = [reference for _, reference in pairs[:count] if reference is not None]
    limits = [request.max_length or max_target for request in requests]
    return Sample(chosen, sources, limits, around.target_prefix, origin, tokenizer, translations, True)


def _of_features(checkpoint: Checkpoint, count: int, most: tuple[int, int], file: Path | None) -> Sample:
    """Return the sample of a file of vectors, of the checkpoint's own, or of random vectors."""
    config = checkpoint.config
    prefix = affixes(checkpoint.tokenizer).target_prefix
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, config.vocabularies)
    if isinstance(tokenizer, IdsOnly):
        tokenizer = _Numbers(checkpoint)
    found = FeatureFile(list(checkpoint.features), checkpoint.references)
    if file is not None:
        found = read_features(file, config.feature_size)
    sources = [array[: most[0]] for array in found.arrays[:count]]
    if not sources:
        sources = sample_vectors(config, count, most[0])
        limits = random_limits(sources, most[1], prefix)
        origin = f"{RANDOM} vectors, answers as long as these"
        return Sample([""] * count, sources, limits, prefix, origin, tokenizer, [], False)
    origin = str(file) if file else "held-out vectors of the checkpoint"
    limits = [length_limit(len(source), len(prefix), most[1]) for source in sources]
    return Sample([""] * len(sources), sources, limits, prefix, origin, tokenizer, found.texts[:count], True)


def _of_ids(checkpoint: Checkpoint, count: int, most: tuple[int, int], file: Path, references: Path | None) -> Sample:
    """Return the sample of a file of source ids, and of one of target ids."""
    config = checkpoint.config
    around = affixes(checkpoint.tokenizer)
    lines, answers = read_ids(file, references, config, most[0])
    chosen = [i for i, row in enumerate(lines) if row][:count]
    sources = [lines[i] for i in chosen]
    numbers = _Numbers(checkpoint)
    limits = [length_limit(len(source), len(around.target_prefix), most[1]) for source in sources]
    if answers:
        expected = [numbers.decode(answers[i]) for i in chosen]
    else:
        expected = []
    return Sample([""] * len(sources), sources, limits, around.target_prefix, str(file), numbers, expected, True)


def spread(lengths: Sequence[int]) -> list[int]:
    """Order all indices so that every beginning has short and long sentences as the whole has.

    By length, ranks are taken in the order of their reversed bits (van der Corput 1935): the middle, the quarters, the
    eighths.
    """
    by_length = sorted(range(len(lengths)), key=lambda index: lengths[index])
    bits = max(1, (len(lengths) - 1).bit_length())
    ranks = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return [by_length[rank] for rank in ranks if rank < len(by_length)]


def random_limits(sources: Sequence[Source], max_target: int, prefix: Sequence[int]) -> list[int]:
    """Limit of a random source's answer: its own length, at most `MAX_MADE`, at least two after a forced beginning.

    Few answers to random texts end by themselves: most would run to the model's last position and prove little.
    """
    least = len(prefix) + 2
    return [min(max_target, max(least, min(len(source), MAX_MADE))) for source in sources]


def _random_texts(tokenizer: TextTokenizer, config: Config, count: int, longest: int) -> list[str]:
    """Texts of random pieces, for a model with a tokenizer but without sentences."""
    # More than `count`, since ids without a piece (for example languages) have no text.
    sampled = sample_sources(config, 3 * count, longest, Affixes([], [], []))
    texts = (_text_of(tokenizer, ids) for ids in sampled)
    return list(itertools.islice((text for text in texts if tokenizer.encode_source(text)[0]), count))


def _text_of(tokenizer: TextTokenizer, ids: Sequence[int]) -> str:
    """A text of about as many tokens: the tokenizer splits pieces that it would not choose itself into several."""
    text = " ".join(tokenizer.source_text(ids).split())
    count = len(tokenizer.encode_source(text)[0])
    if count <= len(ids):
        return text
    return text[: max(1, len(text) * len(ids) // count)].strip()
