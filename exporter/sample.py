"""Sample of sentences, as ids, for calibration, verification and golden cases."""

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
# Maximum number of target tokens of a random text: larger than the runtime's first caches, so that caches grow.
MAX_GENERATED = FIRST_TARGET + 8


@dataclass(frozen=True)
class Sample:
    """Sentences for calibration, verification and golden cases.

    Attributes:
        texts: empty for random ids.
        sources: source ids with affixes, truncated to the maximum, in the default languages; or feature vectors.
        limits: maximum number of target tokens of each, as in `Translator`, or from `random_limits`.
        prefix: forced beginning of every target.
        origin: description of their source, for reports.
        tokenizer: the tokenizer of the ids.
        references: a reference translation of each; empty if there are none.
        is_real: whether outputs should end with eos. Outputs for random texts often do not.
    """

    texts: list[str]
    sources: Sequence[Source]
    limits: list[int]
    prefix: list[int]
    origin: str
    tokenizer: Tokenizer
    references: list[str]
    is_real: bool

    def requests(self, indices: Sequence[int] | None = None) -> list[Request]:
        """Return requests for the runtime's search loop: for all sentences, or for these indices."""
        selected = range(len(self.sources)) if indices is None else indices
        return [Request(self.sources[i], max_length=self.limits[i], prefix=self.prefix) for i in selected]


class _Numbers(IdsOnly):
    """Tokenizer that decodes ids to their numbers as words, for comparisons. Ids without text are left out."""

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
    """Return up to `count` sentences: the user's, else the checkpoint's, else random texts (ids without a tokenizer).

    Args:
        checkpoint: the model, with sentences and references.
        count: maximum number of sentences.
        max_source: maximum number of source tokens, including eos.
        max_target: maximum number of target tokens.
        text: file of sentences, one on each line.
        references: file of their translations, line by line.
        ids: file of source ids with spaces between them, one sentence on each line.
        reference_ids: file of target ids of their translations.
        features: file of feature vectors, optionally with translations.

    Raises:
        InputError: a file cannot be read, is not UTF-8 or has no sentence, lengths of files differ, or text is given
            for a model without a tokenizer.
    """
    config = checkpoint.config
    text_affixes = affixes(checkpoint.tokenizer)
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
        sources = sample_sources(config, count, max_source, text_affixes)
        limits = random_limits(sources, max_target, text_affixes.target_prefix)
        origin = f"{RANDOM} ids, answers as long as these"
        return Sample([""] * count, sources, limits, text_affixes.target_prefix, origin, tokenizer, [], False)
    texts = lines[:count] or _random_texts(tokenizer, config, count, max_source)
    if not texts:
        raise InputError(f"{checkpoint.directory} has no sentences to verify on: give a file of them with --text")
    call = Call.of(tokenizer, Limits(1, max_source, max_target), warn=ignore_warnings)
    requests = [call.required_sentence(line, f"sentence {number}").request for number, line in enumerate(texts, 1)]
    sources = [list(request.source_ids) for request in requests]
    if not lines:
        limits = random_limits(sources, max_target, text_affixes.target_prefix)
        origin = f"{RANDOM} texts, answers as long as these"
        return Sample(texts, sources, limits, text_affixes.target_prefix, origin, tokenizer, [], False)
    origin = str(text) if text else "held-out sentences of the checkpoint"
    translations = [reference for _, reference in pairs[:count] if reference is not None]
    limits = [request.max_length or max_target for request in requests]
    return Sample(texts, sources, limits, text_affixes.target_prefix, origin, tokenizer, translations, True)


def _of_features(checkpoint: Checkpoint, count: int, maxima: tuple[int, int], file: Path | None) -> Sample:
    """Return a sample of feature vectors: from a file, from the checkpoint, or random ones."""
    config = checkpoint.config
    prefix = affixes(checkpoint.tokenizer).target_prefix
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, config.vocabularies)
    if isinstance(tokenizer, IdsOnly):
        tokenizer = _Numbers(checkpoint)
    feature_file = FeatureFile(list(checkpoint.features), checkpoint.references)
    if file is not None:
        feature_file = read_features(file, config.feature_size)
    sources = [array[: maxima[0]] for array in feature_file.arrays[:count]]
    if not sources:
        sources = sample_vectors(config, count, maxima[0])
        limits = random_limits(sources, maxima[1], prefix)
        origin = f"{RANDOM} vectors, answers as long as these"
        return Sample([""] * count, sources, limits, prefix, origin, tokenizer, [], False)
    origin = str(file) if file else "held-out vectors of the checkpoint"
    limits = [length_limit(len(source), len(prefix), maxima[1]) for source in sources]
    return Sample([""] * len(sources), sources, limits, prefix, origin, tokenizer, feature_file.texts[:count], True)


def _of_ids(checkpoint: Checkpoint, count: int, maxima: tuple[int, int], file: Path, references: Path | None) -> Sample:
    """Return a sample from a file of source ids and a file of target ids."""
    config = checkpoint.config
    text_affixes = affixes(checkpoint.tokenizer)
    lines, answers = read_ids(file, references, config, maxima[0])
    selected = [i for i, row in enumerate(lines) if row][:count]
    sources = [lines[i] for i in selected]
    numbers = _Numbers(checkpoint)
    limits = [length_limit(len(source), len(text_affixes.target_prefix), maxima[1]) for source in sources]
    if answers:
        expected = [numbers.decode(answers[i]) for i in selected]
    else:
        expected = []
    return Sample([""] * len(sources), sources, limits, text_affixes.target_prefix, str(file), numbers, expected, True)


def spread(lengths: Sequence[int]) -> list[int]:
    """Order all indices so that the first n have a similar distribution of lengths as all, for every n.

    Sentences are sorted by length, and selected by bit-reversed ranks (van der Corput 1935): the middle, the quarters,
    the eighths, and so on.
    """
    by_length = sorted(range(len(lengths)), key=lambda index: lengths[index])
    bits = max(1, (len(lengths) - 1).bit_length())
    ranks = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return [by_length[rank] for rank in ranks if rank < len(by_length)]


def random_limits(sources: Sequence[Source], max_target: int, prefix: Sequence[int]) -> list[int]:
    """Return maximum target lengths for random sources: the source's length, limited by `prefix` and `MAX_GENERATED`.

    At least two tokens follow the prefix. Outputs for random texts rarely end with eos. Without a limit they would
    be very long, and show little more.
    """
    minimum = len(prefix) + 2
    return [min(max_target, max(minimum, min(len(source), MAX_GENERATED))) for source in sources]


def _random_texts(tokenizer: TextTokenizer, config: Config, count: int, longest: int) -> list[str]:
    """Return texts of random pieces, for a model with a tokenizer but without sentences."""
    # Sample more than `count`, since ids without a piece, such as languages, have no text.
    sampled = sample_sources(config, 3 * count, longest, Affixes([], [], []))
    texts = (_text_of(tokenizer, ids) for ids in sampled)
    return list(itertools.islice((text for text in texts if tokenizer.encode_source(text)[0]), count))


def _text_of(tokenizer: TextTokenizer, ids: Sequence[int]) -> str:
    """Return a text of about as many tokens. Pieces that the tokenizer itself never chooses become several tokens."""
    text = " ".join(tokenizer.source_text(ids).split())
    count = len(tokenizer.encode_source(text)[0])
    if count <= len(ids):
        return text
    return text[: max(1, len(text) * len(ids) // count)].strip()
