"""Quality of translations: BLEU and chrF from sacreBLEU, and the share of exact matches."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from txport.models.checkpoint import load_checkpoint
from txport.models.description import read_config
from txport.runtime.bundle.archive import is_bundle
from txport.runtime.bundle.kinds import check_model
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.calls.requests import Call, Sentence, ignore_warnings
from txport.runtime.calls.search_options import ModelFacts
from txport.runtime.engine import Engine
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.options import Options
from txport.runtime.search.decoding import decode_all
from txport.runtime.text.tokenizer import Tokenizer, open_tokenizer
from txport.runtime.translator import Translator
from txport.training.quality.evaluation_sets import NO_ENGINE
from txport.training.spoken.recordings import Recording
from txport.training.torch_engine import TorchEngine

# Number of sentences of similar lengths between two progress reports: enough to refill a batch several times.
PART = 256


@dataclass(frozen=True)
class Scores:
    """Scores of the translations of one set.

    Attributes:
        sentences: number of sentences.
        exact: share of translations equal to their reference, 0 to 1.
        bleu, chrf: of the whole set, 0 to 100 (Papineni et al. 2002; Popović 2015).
        bleu_signature, chrf_signature: sacreBLEU's signatures, for comparison with other publications (Post 2018).
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
    """Compare translations with one reference for each."""
    assert len(hypotheses) == len(references) and hypotheses
    bleu = BLEU()
    chrf = CHRF()
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
class PlainTranslation:
    """Translation: its text, whether it ended with eos, and whether its source was not truncated."""

    text: str
    finished: bool = True
    complete_source: bool = True


def translate(engine: Engine, tokenizer: Tokenizer, sentences: Sequence[str]) -> list[str]:
    """Return the texts of translations; see `answers`."""
    return [answer.text for answer in answers(engine, tokenizer, sentences)]


def answers(
    engine: Engine,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    *,
    max_length: int | None = None,
    beam: int | None = None,
    rows: int | None = None,
    watch: Callable[[int], None] | None = None,
) -> list[PlainTranslation]:
    """Translate sentences, in order. Empty sentences stay empty, and too long ones are truncated.

    Requests and maximum lengths are those of the runtime's `Translator`.

    Args:
        engine: runs the model.
        tokenizer: of the model.
        sentences: any number.
        max_length: maximum number of target tokens, including eos; None for the default, which depends on the source.
        beam: number of hypotheses of a beam search; None for greedy search.
        rows: maximum number of sentences in a batch; None for the engine's maximum.
        watch: called with the number of newly finished sentences.

    Raises:
        InputError: the engine does not support this length or number of hypotheses.
    """
    model = ModelFacts(engine.tokens, engine.vocabulary)
    call = Call.of(tokenizer, engine.limits, Options(max_length=max_length, beam=beam), ignore_warnings, model)
    numbered = [(_sentence_of(call, text, number), number) for number, text in enumerate(sentences)]
    # Sentences of similar lengths share a batch, and need little padding.
    numbered.sort(key=lambda each: 0 if each[0] is None else -len(each[0].request.source_ids))
    results = [PlainTranslation("")] * len(numbered)
    for start in range(0, len(numbered), PART):
        part = numbered[start : start + PART]
        work = [(sentence, number) for sentence, number in part if sentence is not None]
        results_of_part = decode_all(engine, [sentence.request for sentence, _ in work], rows=rows)
        for (sentence, number), result in zip(work, results_of_part, strict=True):
            is_finished = result.ids[-1] == engine.tokens.eos
            results[number] = PlainTranslation(
                tokenizer.decode(result.ids), is_finished, complete_source=not sentence.truncated
            )
        if watch is not None:
            watch(len(part))
    return results


def check_inputs(model: Path, sentences: Sequence[str], name: str) -> None:
    """Refuse text for a model of feature vectors, recordings for other models, and recordings of another size.

    Args:
        model: a bundle or a checkpoint.
        sentences: texts or recordings.
        name: name of the test set, for messages.

    Raises:
        InputError: they do not fit the model.
    """
    if is_bundle(model):
        size = Manifest.load(model).model.feature_size
    else:
        size = read_config(model).feature_size
    given = {each.vectors.shape[1] if isinstance(each, Recording) else None for each in sentences}
    if other := given - {size}:
        kinds = {each: "text" if each is None else f"vectors of {each} numbers" for each in (size, *other)}
        raise InputError(f"{model} reads {kinds[size]}, but {name} has {kinds[other.pop()]}: give another test set")


def _sentence_of(call: Call, text: str, number: int) -> Sentence | None:
    """Return the request for a text or a recording."""
    if isinstance(text, Recording):
        return call.of_ids(text.vectors[: call.limits.source], number + 1)
    return call.sentence(text, f"sentence {number + 1}")


def open_model(model: Path, device: str = "auto", engine: str = "auto", threads: int = 0) -> tuple[Engine, Tokenizer]:
    """Open a bundle in txport's runtime, or a checkpoint in PyTorch. Return the engine and the tokenizer.

    Args:
        model: the directory.
        device: "auto", "cpu" or "cuda".
        engine: engine for a bundle, as for `Translator`; "auto" for a checkpoint.
        threads: threads of each operator; 0 for the number of cores.

    Raises:
        InputError: the directory is neither, or the device does not exist.
        BundleError, CheckpointError: the directory is damaged or has no tokenizer.
        MissingLibrary: a library of the device is missing.
    """
    if is_bundle(model):
        translator = Translator(model, device, engine, threads=threads)
        return translator.engine, translator.tokenizer
    check_model(model)
    if engine != "auto":
        raise InputError(NO_ENGINE.format(model, engine))
    checkpoint = load_checkpoint(model)
    if checkpoint.tokenizer.kind == "none":
        raise CheckpointError(f"{model} has no tokenizer: it can only be evaluated on ids")
    tokenizer = open_tokenizer(model, checkpoint.tokenizer, checkpoint.config.vocabularies)
    if threads:
        torch.set_num_threads(threads)
    return TorchEngine(checkpoint.model.to(_torch_device(device))), tokenizer


def _torch_device(device: str) -> str:
    available = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if device not in ("auto", *available):
        raise InputError(f"a checkpoint cannot run on {device!r}: give auto or {' or '.join(available)}")
    if device == "auto":
        return available[-1]
    return device
