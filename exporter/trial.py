"""The sentences that a model is calibrated, verified and self-checked on, as ids."""

from dataclasses import dataclass
from pathlib import Path

from txport.exporter.reference import sample_sources
from txport.models.checkpoint import Checkpoint
from txport.runtime.errors import InputError
from txport.runtime.tokenizer import SentencePieceTokenizer


@dataclass(frozen=True)
class Trial:
    """Texts (empty where ids were drawn at random) and their source ids, eos included, cut to the longest source."""

    texts: list[str]
    sources: list[list[int]]
    origin: str


def choose_trial(checkpoint: Checkpoint, count: int, max_source: int, text: Path | None = None) -> Trial:
    """Up to `count` sentences: from `text`, else the checkpoint's own, else random ids for a model without text.

    Raises:
        InputError: `text` cannot be read, is not UTF-8 or holds no sentence, or there is no tokenizer to use it with.
    """
    config = checkpoint.config
    lines = _read(text) if text else [line for line in checkpoint.sentences if line.strip()]
    if checkpoint.source_tokenizer is None and text:
        raise InputError(f"{text} cannot be used: {checkpoint.directory} has no tokenizer; leave --text out.")
    if checkpoint.source_tokenizer is None or not lines:
        sources = sample_sources(config.source_vocabulary, count, max_source - 1, config.eos_id)
        return Trial([""] * count, sources, "random ids")
    tokenizer = SentencePieceTokenizer(checkpoint.source_tokenizer, checkpoint.target_tokenizer, eos=config.eos_id)
    chosen = lines[:count]
    sources = [[*tokenizer.encode(line)[:-1][: max_source - 1], config.eos_id] for line in chosen]
    return Trial(chosen, sources, str(text) if text else "held-out sentences of the checkpoint")


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
