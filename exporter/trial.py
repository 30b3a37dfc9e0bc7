"""The sentences that a model is calibrated, verified and self-checked on, as ids."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txport.exporter.reference import sample_sources
from txport.models.checkpoint import Checkpoint
from txport.models.config import Config
from txport.runtime.affixes import Affixes, affixes
from txport.runtime.errors import InputError
from txport.runtime.greedy import FIRST_TARGET
from txport.runtime.tokenizer import IdsOnly, TextTokenizer, open_tokenizer

# Tokens of an answer to a random text: more than the runtime's first caches hold, so that they grow.
MOST_MADE = FIRST_TARGET + 8


@dataclass(frozen=True)
class Trial:
    """What a model is tried on.

    Attributes:
        texts: Empty where ids were drawn at random.
        sources: Their source ids, whole and cut to the longest source, in the default languages.
        limits: The most tokens that the answer to each is made of.
        prefix: What every answer is forced to begin with.
        origin: Where they come from, for reports.
    """

    texts: list[str]
    sources: list[list[int]]
    limits: list[int]
    prefix: list[int]
    origin: str


def choose_trial(
    checkpoint: Checkpoint, count: int, max_source: int, max_target: int, text: Path | None = None
) -> Trial:
    """Up to `count` sentences: from `text`, else the checkpoint's own, else random texts, or ids without a tokenizer.

    Answers are whole: they may be of `max_target` tokens. Those to random texts are as `random_limits` says.

    Raises:
        InputError: `text` cannot be read, is not UTF-8 or holds no sentence, or there is no tokenizer to use it with.
    """
    config, around = checkpoint.config, affixes(checkpoint.tokenizer)
    lines = _read(text) if text else [line for line in checkpoint.sentences if line.strip()]
    if checkpoint.tokenizer.kind == "none" and text:
        raise InputError(f"{text} cannot be used: {checkpoint.directory} has no tokenizer; leave --text out.")
    sizes = config.source_vocabulary, config.target_vocabulary
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, config.unk_id, *sizes)
    if isinstance(tokenizer, IdsOnly):
        sources = sample_sources(config, count, max_source, around)
        limits = random_limits(sources, max_target, around)
        return Trial([""] * count, sources, limits, around.target_prefix, "random ids, answers as long as these")
    chosen = lines[:count] or _random_texts(tokenizer, config, count, max_source)
    if not chosen:
        raise InputError(f"{checkpoint.directory} has no sentences to try it on: give a file of them with --text.")
    encoded = [tokenizer.encode_source(line) for line in chosen]
    sources = [around.around(ids, max_source) for ids, around in encoded]
    if not lines:
        limits = random_limits(sources, max_target, around)
        return Trial(chosen, sources, limits, around.target_prefix, "random texts, answers as long as these")
    origin = str(text) if text else "held-out sentences of the checkpoint"
    return Trial(chosen, sources, [max_target] * len(sources), around.target_prefix, origin)


def random_limits(sources: Sequence[Sequence[int]], max_target: int, around: Affixes) -> list[int]:
    """As many tokens as the source has, `MOST_MADE` at most; two at least after a forced beginning.

    Nothing ends the answer to a random text: many would go on to the model's last position, and prove little by it.
    """
    least = len(around.target_prefix) + 2
    return [min(max_target, max(least, min(len(source), MOST_MADE))) for source in sources]


def _random_texts(tokenizer: TextTokenizer, config: Config, count: int, longest: int) -> list[str]:
    """Texts of random pieces, for a model that came with a tokenizer but without sentences."""
    # More than are asked for, since ids without a piece (languages, say) leave nothing.
    sampled = sample_sources(config, 3 * count, longest, Affixes([], [], []))
    texts = (_text_of(tokenizer, ids) for ids in sampled)
    return list(itertools.islice((text for text in texts if tokenizer.encode_source(text)[0]), count))


def _text_of(tokenizer: TextTokenizer, ids: Sequence[int]) -> str:
    """A text of about as many tokens: pieces that the tokenizer would not choose by itself come apart into several."""
    text = " ".join(tokenizer.source_text(ids).split())
    found = len(tokenizer.encode_source(text)[0])
    return text if found <= len(ids) else text[: max(1, len(text) * len(ids) // found)].strip()


def _read(file: Path) -> list[str]:
    try:
        lines = file.read_bytes().decode("utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); give a file of sentences, one a line.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 ({error}); convert it first.") from None
    if not (found := [line for line in lines if line.strip()]):
        raise InputError(f"{file} holds no sentence; give a file of sentences, one a line.")
    return found
