"""How good translations are: BLEU and chrF from sacreBLEU, and the share that is exactly right."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from txport.models.checkpoint import load_checkpoint
from txport.runtime import greedy
from txport.runtime.engine import Engine
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.affixes import affixes
from txport.runtime.text.tokenizer import Tokenizer, open_tokenizer
from txport.runtime.translator import Translator
from txport.training.torch_engine import TorchEngine

# Sentences that are decoded together; more would not sort better.
WINDOW = 2_000


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


def translate(engine: Engine, tokenizer: Tokenizer, sentences: Sequence[str], prefix: Sequence[int] = ()) -> list[str]:
    """Greedy translations, in order; empty sentences stay empty, and longer ones than the engine takes are cut.

    Args:
        engine: runs the model.
        tokenizer: its tokenizer.
        sentences: any number.
        prefix: target ids that every translation is forced to begin with.
    """
    results: list[str] = []
    for start in range(0, len(sentences), WINDOW):
        encoded = [tokenizer.encode_source(text) for text in sentences[start : start + WINDOW]]
        sources = [around.around(ids, engine.limits.source) if ids else [] for ids, around in encoded]
        answers = iter(greedy.decode_all(engine, [greedy.Request(ids, prefix=prefix) for ids in sources if ids]))
        results += [tokenizer.decode(next(answers).ids) if ids else "" for ids in sources]
    return results


def translate_with(model: Path, sentences: Sequence[str]) -> list[str]:
    """Translate with what a directory holds: a bundle in txport's runtime, a checkpoint in PyTorch.

    Raises:
        InputError: the directory is neither.
        BundleError, CheckpointError: it is damaged or has no tokenizer.
    """
    if (model / "manifest.json").exists():
        return [result.text for result in Translator(model).translate(sentences)]
    if not (model / "config.json").exists():
        raise InputError(f"{model} is neither a bundle (manifest.json) nor a checkpoint (config.json)")
    checkpoint = load_checkpoint(model)
    if checkpoint.tokenizer.kind == "none":
        raise CheckpointError(f"{model} has no tokenizer: it can only be evaluated on ids")
    tokenizer = open_tokenizer(model, checkpoint.tokenizer, checkpoint.config.vocabularies)
    prefix = affixes(checkpoint.tokenizer).target_prefix
    return translate(TorchEngine(checkpoint.model), tokenizer, sentences, prefix)
