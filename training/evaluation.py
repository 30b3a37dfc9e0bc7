"""How good translations are: BLEU and chrF from sacreBLEU, and the share that is exactly right."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from txport.models.checkpoint import load_checkpoint
from txport.runtime.engine import Engine
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.search.greedy import decode_all
from txport.runtime.search.requests import LENGTH_OFFSET, LENGTH_RATIO, Request
from txport.runtime.text.tokenizer import Tokenizer, open_tokenizer
from txport.runtime.translator import Translator
from txport.training.torch_engine import TorchEngine

# Sentences between two reports, of similar lengths: enough to refill a batch some times.
PART = 256


@dataclass(frozen=True)
class Scores:
    """Figures of one set of translations.

    Attributes:
        sentences: how many.
        exact: the share that equals its reference, 0 to 1.
        bleu, chrf: of the whole set, 0 to 100 (Papineni et al. 2002; Popović 2015).
        bleu_signature, chrf_signature: what makes the figures comparable with others' (Post 2018).
    """

    sentences: int
    exact: float
    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def score(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Compare translations with one reference each."""
    assert len(hypotheses) == len(references) and hypotheses
    bleu, chrf = BLEU(), CHRF()
    equal = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Scores(
        len(hypotheses),
        equal / len(hypotheses),
        bleu.corpus_score(list(hypotheses), [list(references)]).score,
        chrf.corpus_score(list(hypotheses), [list(references)]).score,
        str(bleu.get_signature()),
        str(chrf.get_signature()),
    )


@dataclass(frozen=True)
class Answer:
    """A translation: its text, whether it ended by itself, and whether all of its source was read."""

    text: str
    ended: bool = True
    whole: bool = True


def translate(engine: Engine, tokenizer: Tokenizer, sentences: Sequence[str]) -> list[str]:
    """The texts of `answers`."""
    return [answer.text for answer in answers(engine, tokenizer, sentences)]


def answers(
    engine: Engine,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    *,
    max_length: int | None = None,
    rows: int | None = None,
    watch: Callable[[int], None] | None = None,
) -> list[Answer]:
    """Greedy translations, in order; empty sentences stay empty, and longer ones than the engine takes are cut.

    Without `max_length` an answer has at most `LENGTH_RATIO` x source + `LENGTH_OFFSET` tokens.

    Args:
        engine: runs the model.
        tokenizer: its tokenizer.
        sentences: any number.
        max_length: the most tokens to make, eos included; None for as many as a translation may have.
        rows: the most sentences that run together; None for as many as the engine takes.
        watch: told how many more sentences are done, every now and then.

    Raises:
        InputError: the engine does not make so many tokens.
    """
    most = engine.limits
    if max_length is not None and max_length > most.target:
        raise InputError(f"the maximum length {max_length} is above {most.target}, the most of this model")
    requests = [_request(engine, tokenizer, text, max_length) for text in sentences]
    results = [Answer("")] * len(requests)
    order = sorted(range(len(requests)), key=lambda number: -len(requests[number][0].source_ids))
    for start in range(0, len(order), PART):
        part = order[start : start + PART]
        asked = [number for number in part if requests[number][0].source_ids]
        made = decode_all(engine, [requests[number][0] for number in asked], rows=rows)
        for number, result in zip(asked, made, strict=True):
            ended, whole = result.ids[-1] == engine.tokens.eos, requests[number][1]
            results[number] = Answer(tokenizer.decode(result.ids), ended, whole)
        if watch is not None:
            watch(len(part))
    return results


def _request(engine: Engine, tokenizer: Tokenizer, text: str, max_length: int | None) -> tuple[Request, bool]:
    """What to ask for a text, without source ids if it is blank; and whether the text fits."""
    ids, around = tokenizer.encode_source(text)
    if not ids or text.isspace():
        return Request([]), True
    source, most = around.wrap(ids, engine.limits.source), engine.limits.target
    length = max_length or min(most, LENGTH_RATIO * len(source) + LENGTH_OFFSET + len(around.target_prefix))
    return Request(source, length, prefix=around.target_prefix), len(source) == len(around.wrap(ids))


def open_model(model: Path, device: str = "auto", engine: str = "auto", threads: int = 0) -> tuple[Engine, Tokenizer]:
    """What runs a directory, and its tokenizer: a bundle in txport's runtime, a checkpoint in PyTorch.

    Args:
        model: the directory.
        device: "auto", "cpu" or "cuda".
        engine: what runs a bundle, as for `Translator`; "auto" for a checkpoint.
        threads: of each operator; 0 for as many as there are cores.

    Raises:
        InputError: the directory is neither, or there is no such device.
        BundleError, CheckpointError: it is damaged or has no tokenizer.
        MissingLibrary: a library of the device is missing.
    """
    if (model / "manifest.json").exists():
        translator = Translator(model, device, engine, threads=threads)
        return translator.engine, translator.tokenizer
    if not (model / "config.json").exists():
        raise InputError(f"{model} is neither a bundle (manifest.json) nor a checkpoint (config.json)")
    if engine != "auto":
        raise InputError(f"a checkpoint has no engine {engine!r}, PyTorch runs it: leave out the engine")
    checkpoint = load_checkpoint(model)
    if checkpoint.tokenizer.kind == "none":
        raise CheckpointError(f"{model} has no tokenizer: it can only be evaluated on ids")
    tokenizer = open_tokenizer(model, checkpoint.tokenizer, checkpoint.config.vocabularies)
    if threads:
        torch.set_num_threads(threads)
    return TorchEngine(checkpoint.model.to(_torch_device(device))), tokenizer


def _torch_device(device: str) -> str:
    there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if device not in ("auto", *there):
        raise InputError(f"a checkpoint cannot run on {device!r}: give auto or {' or '.join(there)}")
    return there[-1] if device == "auto" else device
