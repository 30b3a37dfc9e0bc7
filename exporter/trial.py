"""The sentences that a model is calibrated, verified and self-checked on, as ids."""

import itertools
from dataclasses import dataclass
from pathlib import Path

from txport.exporter.reference import sample_sources
from txport.models.checkpoint import Checkpoint
from txport.models.config import Config
from txport.runtime.affixes import Affixes, affixes
from txport.runtime.errors import InputError
from txport.runtime.tokenizer import IdsOnly, TextTokenizer, open_tokenizer


@dataclass(frozen=True)
class Trial:
    """What a model is tried on.

    Attributes:
        texts: Empty where ids were drawn at random.
        sources: Their source ids, whole and cut to the longest source, in the default languages.
        prefix: What every answer is forced to begin with.
        origin: Where they come from, for reports.
    """

    texts: list[str]
    sources: list[list[int]]
    prefix: list[int]
    origin: str


def choose_trial(checkpoint: Checkpoint, count: int, max_source: int, text: Path | None = None) -> Trial:
    """Up to `count` sentences: from `text`, else the checkpoint's own, else random texts, or ids without a tokenizer.

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
        return Trial([""] * count, sources, around.target_prefix, "random ids")
    chosen = lines[:count] or _random_texts(tokenizer, config, count, max_source)
    if not chosen:
        raise InputError(f"{checkpoint.directory} has no sentences to try it on: give a file of them with --text.")
    encoded = [tokenizer.encode_source(line) for line in chosen]
    sources = [around.around(ids, max_source) for ids, around in encoded]
    origin = str(text) if text else ("held-out sentences of the checkpoint" if lines else "random texts")
    return Trial(chosen, sources, around.target_prefix, origin)


def _random_texts(tokenizer: TextTokenizer, config: Config, count: int, longest: int) -> list[str]:
    """Texts of random pieces, for a model that came with a tokenizer but without sentences."""
    # More than are asked for, since ids without a piece (languages, say) leave nothing.
    sampled = sample_sources(config, 3 * count, longest, Affixes([], [], []))
    texts = (" ".join(tokenizer.source_text(ids).split()) for ids in sampled)
    return list(itertools.islice((text for text in texts if tokenizer.encode_source(text)[0]), count))


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
