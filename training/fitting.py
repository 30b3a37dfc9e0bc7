"""Choice of unset values of a recipe by the size of the corpus, the available time, and the speed of the machine.

The rules reproduce values that worked on corpora of 3,000 to 150,000 pairs (see README.md). For larger ones they
approach the values of Vaswani et al. (2017).
"""

import logging
import math
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from txport.models.config import PRESETS, Config, preset
from txport.models.transformer import Transformer
from txport.runtime.console.words import plural
from txport.training.corpora import Pair
from txport.training.guidance.heads import default_heads
from txport.training.options import TokenizerOptions, TrainingOptions
from txport.training.recipe import Recipe, filled, require_fitted
from txport.training.scheduled_sampling import time_constant
from txport.training.speed_estimate import ProcessorShare, SpeedEstimate
from txport.training.tokenizers import most_pieces

_log = logging.getLogger("txport")

# Models from small to large, with the minimum size of a corpus for each, in characters per side.
MODELS: tuple[tuple[float, dict[str, Any]], ...] = (
    (0, {"preset": "tiny"}),
    (0, {"preset": "tiny", "d_model": 128, "ffn": 512}),
    (2e5, {"preset": "small", "d_model": 192, "ffn": 768, "decoder_layers": 2}),
    (2e5, {"preset": "small", "decoder_layers": 2}),
    (1e7, {"preset": "small"}),
    (5e7, {"preset": "base"}),
)
# A model is too large if fewer steps than this are possible in the time.
FEWEST_STEPS = 2_000
# With fewer steps, no model can learn enough.
TOO_FEW = 200
# Minimum duration of the speed measurement in seconds.
TRIAL = 1.0
# Share of `max_minutes` for steps.
FOR_STEPS = 0.8
# Factor of the peak learning rate for fine-tuning, which must not destroy the weights.
FINE_TUNING = 0.1
# Approximate number of characters per token.
CHARACTERS = 3.5


@dataclass(frozen=True)
class Size:
    """Sizes of the training pairs.

    Attributes:
        pairs: number of pairs.
        characters: total characters of the longer sides.
        different: number of distinct characters.
    """

    pairs: int
    characters: int
    different: int

    @classmethod
    def of(cls, pairs: Collection[Pair]) -> "Size":
        different: set[str] = set()
        for pair in pairs:
            different.update(*pair)
        return cls(len(pairs), sum(max(map(len, pair)) for pair in pairs), len(different))

    @property
    def tokens(self) -> float:
        """Approximate number of tokens of the longer sides, including eos."""
        return self.characters / CHARACTERS + self.pairs


def fit(
    recipe: Recipe, pairs: Collection[Pair], estimate: SpeedEstimate | None = None
) -> tuple[Recipe, dict[str, Any]]:
    """Return a recipe without unset values, and the chosen values by "section.key". Set the fields of `estimate`."""
    size = Size.of(pairs)
    options = recipe.training
    estimate = estimate or SpeedEstimate()
    tokenizer = filled(recipe.tokenizer, vocabulary=_vocabulary(size, recipe.tokenizer, pairs))
    speed = _Speed(options, require_fitted(tokenizer.vocabulary), size, estimate)
    model = _fitted_model(recipe.model, size, speed)
    if options.guided_attention != "none" and not model.get("alignment_heads"):
        model["alignment_heads"] = [list(head) for head in default_heads(_config(model).decoder_layers)]
    batch = options.batch_tokens or _batch(model, size, speed)
    steps = speed.steps(_config(model), batch)
    if options.max_minutes:
        estimate.steps = steps
    if options.max_minutes and steps < TOO_FEW and steps < (options.max_steps or math.inf):
        _log.warning(
            "training.max_minutes = %g is too short: it allows about %s, and a model needs some %d to learn",
            options.max_minutes, plural(round(steps), "step"), FEWEST_STEPS,
        )  # fmt: skip
    if "dropout" not in model and "dropout" not in PRESETS[model["preset"]]:
        model["dropout"] = 0.1
        if steps * batch <= 3 * size.tokens:  # not needed if sentences are rarely repeated
            model["dropout"] = 0.0
    cooldown = 0.5
    warmup_steps = round(min(4_000, max(20, 0.04 * steps)))
    if options.schedule == "constant":
        cooldown = 0.0
        warmup_steps = 1
    if options.cooldown is not None:
        cooldown = options.cooldown
    minutes = options.max_minutes or 10
    rate = 3e-3 * math.sqrt(128 / _config(model).d_model)
    if options.from_checkpoint is not None:
        rate *= FINE_TUNING
    training = filled(
        options,
        batch_tokens=max(batch, options.max_length),
        learning_rate=float(f"{rate:.2g}"),
        warmup_steps=warmup_steps,
        cooldown=cooldown,
        validation_sentences=round(min(500, max(50, 20 * minutes))),
        keep="last" if cooldown else "best",
        sampling_steps=_sampling_steps(options, steps),
    )
    fitted = replace(recipe, tokenizer=tokenizer, model=model, training=training)
    return fitted, _differences(recipe.to_json(), fitted.to_json())


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section, table in after.items()
        for key, value in table.items()
        if key not in before[section]
    }


def _vocabulary(size: Size, options: TokenizerOptions, pairs: Collection[Pair]) -> int:
    """Return a vocabulary size that grows with the corpus: 1,000 for 3,000 short pairs, 32,000 for millions.

    So all pieces are frequent. For algorithms word and char, all words or characters are used, up to a limit.
    """
    if options.algorithm in ("word", "char"):
        return min(32_000, max(16, most_pieces(pairs, options)))
    pieces = min(32_000, 4_000 * (size.characters / 1.2e6) ** 0.38)
    characters = size.different + 8
    if options.byte_fallback:
        characters += 256
    return int(8 * math.ceil(max(pieces, 1.25 * characters) / 8))


def _config(model: dict[str, Any]) -> Config:
    return preset(model["preset"], **{name: value for name, value in model.items() if name != "preset"})


def _fitted_model(model_options: dict[str, Any], size: Size, speed: "_Speed") -> dict[str, Any]:
    """Return the largest model that the corpus and the time allow. Pre-norm, since its training is robust."""
    norm = {"norm": "pre"}
    if "preset" in model_options and "norm" in PRESETS[model_options["preset"]]:
        return dict(model_options)
    if "preset" in model_options:
        return {**norm, **model_options}
    sizes = {"d_model", "heads", "ffn", "encoder_layers", "decoder_layers"} & model_options.keys()
    if sizes:  # the values of the recipe must match the fitted ones
        return {"preset": "small", **norm, **model_options}
    suitable = [model for min_characters, model in MODELS if size.characters >= min_characters]
    for model in reversed(suitable):
        if speed.steps(_config(model), 1_024) >= FEWEST_STEPS:
            break
    return {**model, **norm, **model_options}


def _batch(model: dict[str, Any], size: Size, speed: "_Speed") -> int:
    """Return the batch size in tokens: larger for larger corpora, if there is time for many steps."""
    for batch in (8_192, 4_096, 2_048):
        if size.tokens >= 500 * batch and speed.steps(_config(model), batch) >= 10_000:
            return batch
    return 1_024


def _sampling_steps(options: TrainingOptions, steps: float) -> float | None:
    """Return a time constant with which half of the inputs are predictions in the middle of the sampling steps."""
    kind = options.scheduled_sampling
    if kind == "none":
        return None
    return float(f"{time_constant(kind, max(1.0, (steps - options.sampling_start) / 2)):.3g}")


class _Speed:
    """Number of steps of a run, by the limit that ends it. The machine is measured only if its speed may matter."""

    def __init__(self, options: TrainingOptions, vocabulary: int, size: Size, estimate: SpeedEstimate) -> None:
        self._options = options
        self._vocabulary = vocabulary
        self._size = size
        self._estimate = estimate
        self._flops: float | None = None

    def steps(self, config: Config, batch: int) -> float:
        options = self._options
        limits = list[float]()
        if options.max_steps is not None:
            limits.append(max(1, options.max_steps))
        if options.max_epochs:
            limits.append(options.max_epochs * max(1.0, self._size.tokens / batch))
        if options.max_minutes:
            seconds = _flops(config, self._vocabulary, batch) / (self._measured_flops() * _efficiency(config.d_model))
            limits.append(FOR_STEPS * 60 * options.max_minutes / seconds)
        if options.max_steps is None:
            return min(limits) / options.accumulate
        return min(limits)

    def _measured_flops(self) -> float:
        if self._flops is None:
            self._flops, share = _measure(self._options, self._vocabulary)
            self._estimate.look_at(share)
        return self._flops


def _flops(config: Config, vocabulary: int, batch: int) -> float:
    """Return the operations of a step: six for each weight and token (Kaplan et al. 2020, 2.1), with the projection."""
    width = config.d_model
    inner = config.ffn
    encoder = config.encoder_layers * (4 * width**2 + 2 * width * inner)
    decoder = config.decoder_layers * (8 * width**2 + 2 * width * inner)
    return 6.0 * batch * (encoder + decoder + vocabulary * width)


def _efficiency(width: int) -> float:
    """Return the speed of small products, relative to those of the measured model (on two cores)."""
    return float(min(1.0, (width / 256) ** 0.65))


def _measure(options: TrainingOptions, vocabulary: int) -> tuple[float, float]:
    """Measure a few steps of the preset small on the training device, while other processes may use it too.

    Returns:
        floating point operations per second, and this thread's share of its processor time (`ProcessorShare`; 1 on a
        GPU).
    """
    gpu = torch.cuda.is_available() and options.accelerator in ("auto", "gpu", "cuda")
    device = torch.device("cuda" if gpu else "cpu")
    config = preset("small", source_vocabulary=vocabulary, target_vocabulary=vocabulary)
    model = Transformer(config).to(device)
    ids = torch.randint(4, vocabulary, (64, 17), device=device)
    lengths = torch.full((64,), 16, device=device)

    def step() -> None:
        logits = model(ids[:, :-1], lengths, ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        float(loss.detach())
        if gpu:
            torch.cuda.synchronize()

    step()  # the first step takes longer
    start = time.monotonic()
    share = ProcessorShare()
    steps = 0
    while steps < 2 or time.monotonic() - start < TRIAL:
        step()
        steps += 1
    flops = steps * _flops(config, vocabulary, 1_024) / (time.monotonic() - start)
    return flops, 1.0 if gpu else share.measured()
