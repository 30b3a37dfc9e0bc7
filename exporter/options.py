"""Options of an export, and their checks that do not need weights or PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txport.exporter.verification.options import MINUTES, SENTENCES, SINGLES
from txport.models.config import Config
from txport.runtime.bundle.schema import LOWERINGS, Dimensions, Range
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.errors import InputError
from txport.runtime.text.affixes import affixes

# Maximum number of sinusoidal positions of a bundle.
MAX_SINUSOIDS = 1 << 16


@dataclass(frozen=True)
class ExportOptions:
    """Options of `tx-export`. A limit of None is the maximum of the model. Only sinusoids allow more.

    Attributes:
        float16: convert to float16, except nodes that calibration keeps in float32 (islands).
        int8: convert weights to int8, except layers that lose too much quality; only for the lowering `ort`.
        lowerings: names of the decoder steps to write.
        max_source: maximum number of source tokens, including eos.
        max_target: maximum number of target tokens, including eos.
        max_batch: maximum batch size in rows.
        beams: add the beam search graph that does not copy caches.
        attention: add the graphs for attention, alignments, scores of reference translations and embeddings.
        verify: compare with PyTorch before the bundle is renamed into place.
        sentences: maximum number of sentences to verify.
        minutes: time limit of the comparison.
        singles: number of sentences that also run alone and with padding.
        text: file of sentences to use instead of those of the checkpoint.
        references: file of their translations.
        ids: file of source ids to use instead of text.
        reference_ids: file of target ids, the translations of `ids`.
        features: file of feature vectors, for a model of these.
        force: replace an existing bundle, and keep one that fails verification.
    """

    float16: bool = False
    int8: bool = False
    lowerings: tuple[str, ...] = LOWERINGS
    max_source: int | None = None
    max_target: int | None = None
    max_batch: int = 64
    beams: bool = False
    attention: bool = False
    verify: bool = True
    sentences: int = SENTENCES
    minutes: float = MINUTES
    singles: int = SINGLES
    text: Path | None = None
    references: Path | None = None
    ids: Path | None = None
    reference_ids: Path | None = None
    features: Path | None = None
    force: bool = False


def check_options(lowerings: Sequence[str], *, float16: bool, int8: bool, max_batch: int) -> None:
    """Check options that do not depend on the model; see `ExportOptions`.

    Raises:
        InputError: a value is not possible, or two options exclude each other.
    """
    if max_batch < 1:
        raise InputError(f"--max-batch {max_batch} is not possible: give 1 or more")
    if unknown := [name for name in lowerings if name not in LOWERINGS]:
        raise InputError(f"--lowering {', '.join(unknown)} is unknown; there are {', '.join(LOWERINGS)}")
    if not lowerings:
        raise InputError(f"--lowering is empty; choose from {', '.join(LOWERINGS)}")
    if int8 and float16:
        raise InputError("--int8 and --fp16 exclude each other: int8 is for CPUs, FP16 for GPUs")
    if int8 and tuple(lowerings) != ("ort",):
        raise InputError("--int8 is for CPUs through ONNX Runtime: leave --lowering out, or give --lowering ort")


def dimensions_of(
    config: Config, tokenizer: TokenizerDescription, max_source: int | None, max_target: int | None, max_batch: int
) -> Dimensions:
    """Return the maximum sizes of a bundle.

    Args:
        config: of the model.
        tokenizer: of the model.
        max_source, max_target: maximum number of tokens, including eos; None for the model's maximum.
        max_batch: maximum number of rows.

    Raises:
        InputError: the model does not have this number of positions.
    """
    text_affixes = affixes(tokenizer)
    of_source = config.max_source_positions or config.max_positions
    source = of_source if max_source is None else max_source
    target = config.max_positions if max_target is None else max_target
    least_source = max(2, len(text_affixes.wrap([])) + 1)
    if config.source == "features":
        least_source = 1
    for name, value, minimum, default, fixed in (
        ("--max-source", source, least_source, of_source, not config.reads_states),
        ("--max-target", target, len(text_affixes.target_prefix) + 2, config.max_positions, True),
    ):
        kind = "positions"
        maximum = max(default, MAX_SINUSOIDS)
        if config.positions == "learned" and fixed:
            kind = "learned positions"
            maximum = default
        if not minimum <= value <= maximum:
            raise InputError(f"{name} {value} is not possible: this model has {kind} for {minimum} to {maximum} tokens")
    opt = min(8, max_batch), min(32, source), min(64, target)
    return Dimensions(Range(1, opt[0], max_batch), Range(1, opt[1], source), Range(1, opt[2], target))
