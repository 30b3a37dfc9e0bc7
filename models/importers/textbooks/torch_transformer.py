"""Models based on PyTorch's `torch.nn.Transformer`: a state dict, and torch.json with the missing settings.

`models/README.md` documents torch.json. Sources end with eos. Padding is at the end and masked. The decoder starts
with bos.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from txport.models.config import Config
from txport.models.importers.imported import Imported, ImportOptions, TokenizerParts
from txport.models.importers.layers import LayerNames, map_layers
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import Settings
from txport.models.importers.tokenizers.sentencepiece_models import own_sentencepiece
from txport.models.importers.weights import plain_name, read_tensors
from txport.models.positions import sinusoids
from txport.runtime.bundle.strict_json import decode, read
from txport.runtime.bundle.tokenizer_schema import ids_only
from txport.runtime.errors import CheckpointError

DESCRIPTION = "torch.json"
_SINUSOID_TOLERANCE = 1e-3  # for float32 rounding at the end of a long table, and float16
# Fields with the same name in torch.json and our config.
_SHARED_FIELDS = (
    *("heads", "max_positions", "activation", "scale_embedding", "layer_norm_epsilon"),
    *("pad_id", "unk_id", "bos_id", "eos_id"),
)
_LAYERS = LayerNames(
    stacks=("encoder.layers", "decoder.layers"),
    attentions=("self_attn", "multihead_attn"),
    feed_forward=("linear1", "linear2"),
    encoder_norms=("norm1", "norm2"),
    decoder_norms=("norm1", "norm2", "norm3"),
    no_bias=("attention", "feed_forward", "norm"),
)


@dataclass(frozen=True)
class Names:
    """Names in the state dict."""

    transformer: str
    source_embedding: str
    target_embedding: str
    source_positions: str | None
    target_positions: str | None
    projection: str


@dataclass(frozen=True)
class TorchDescription:
    """Contents of torch.json."""

    weights: str
    heads: int
    norm_first: bool
    activation: Literal["relu", "gelu", "silu"]
    layer_norm_epsilon: float
    scale_embedding: bool
    max_positions: int
    pad_id: int
    unk_id: int
    bos_id: int
    eos_id: int
    names: Names


def import_torch(directory: Path, options: ImportOptions) -> Imported:
    """Read a directory with torch.json and a state dict.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
    """
    file = directory / DESCRIPTION
    value = read(file, "it contains settings that a state dict lacks; see models/README.md", CheckpointError)
    description = decode(TorchDescription, value, str(file), CheckpointError)
    weights = directory / description.weights
    plan = ImportPlan(read_tensors(weights), weights)
    names = _names(description.names, list(plan.theirs))
    description = replace(description, names=names)
    if names.transformer:
        prefix = f"{names.transformer}."
    else:
        prefix = ""
    weight = f"{names.projection}.weight"
    bias = f"{names.projection}.bias"
    embeddings = plan.embeddings(names.source_embedding, names.target_embedding, weight)
    if plan.has(bias):
        plan.take("projection.bias", bias)
    ours = _config(file, description, plan, prefix, projection_bias=plan.has(bias), **embeddings)
    _positions(plan, description, ours)
    map_layers(plan, ours, _LAYERS, prefix)
    for side in ("encoder", "decoder") if ours.norm != "post" else ():
        plan.affine(f"{side}_norm", f"{prefix}{side}.norm", optional_bias=True)
    plan.check(ours)
    if options.tokenizer:
        tokenizer = own_sentencepiece(directory, options, ours)
    else:
        tokenizer = TokenizerParts(ids_only(ours.eos_id))
    return Imported("torch", ours, plan, tokenizer, [])


def _names(names: Names, stored: Sequence[str]) -> Names:
    """Return the names as in the file of weights. torch.json may omit the prefixes of wrappers, or add them."""
    first = {name.partition(".")[0] for name in stored}
    if len(first) == 1:
        outer = f"{first.pop()}."
    else:
        outer = ""

    def stored_prefix(name: str | None) -> str | None:
        if name is None:
            return None
        plain = plain_name(name).removeprefix("module.")
        candidates = (name, plain, f"{outer}{plain}".rstrip("."))
        return next((each for each in candidates if any(stored_name.startswith(each) for stored_name in stored)), name)

    return Names(**{name: stored_prefix(value) for name, value in vars(names).items()})  # type: ignore[arg-type]


def _config(file: Path, description: TorchDescription, plan: ImportPlan, prefix: str, **fields: Any) -> Config:
    advice = f"name the nn.Transformer in {DESCRIPTION} (names)"
    layers = {side: plan.count(f"{prefix}{side}.layers.", advice) for side in ("encoder", "decoder")}
    final_norms = [plan.has(f"{prefix}{side}.norm.weight") for side in ("encoder", "decoder")]
    if final_norms[0] != final_norms[1] or (description.norm_first and not final_norms[0]):
        raise CheckpointError(
            f"{plan.source}: either both stacks must have a final norm, or neither may have one and norm_first must "
            "be false"
        )
    if description.norm_first:
        norm = "pre"
    elif final_norms[0]:
        norm = "post_final"
    else:
        norm = "post"
    inner = plan.stored(f"{prefix}encoder.layers.0.linear1.weight").shape
    learned = description.names.source_positions is not None or description.names.target_positions is not None
    return Settings(file, {}).config(
        d_model=inner[-1],
        ffn=inner[0],
        encoder_layers=layers["encoder"],
        decoder_layers=layers["decoder"],
        norm=norm,
        positions="learned" if learned else "sinusoidal",
        **{name: getattr(description, name) for name in _SHARED_FIELDS},
        **fields,
    )


def _positions(plan: ImportPlan, description: TorchDescription, ours: Config) -> None:
    if ours.positions == "sinusoidal":
        _leave_out_sinusoids(plan, ours)
        return
    for side, name in (("source", description.names.source_positions), ("target", description.names.target_positions)):
        if name is None:
            plan.put(f"{side}_embedding.positions", sinusoids(ours.max_positions, ours.d_model))
            continue
        stored = plan.stored(name)
        if stored.shape[-1] != ours.d_model or math.prod(stored.shape) < ours.max_positions * ours.d_model:
            raise CheckpointError(f"{plan.source}: {name} has shape {stored.shape}, too small for max_positions")
        table = stored.whole().detach().reshape(-1, ours.d_model)[: ours.max_positions].float()
        plan.put(f"{side}_embedding.positions", table, name)


def _leave_out_sinusoids(plan: ImportPlan, ours: Config) -> None:
    """Ignore buffers that contain our sinusoids, from models that store them."""
    for name, stored in plan.theirs.items():
        rows = math.prod(stored.shape[:-1])
        # A table [rows, d_model], possibly with further dimensions of 1, such as [1, rows, d_model].
        is_table = stored.shape[-1:] == (ours.d_model,) and set(stored.shape[:-1]) <= {rows, 1}
        if stored.dtype is None or not is_table:
            continue
        first = stored.read(0, 1).detach().flatten()[: ours.d_model].float()
        if rows < 2 or (first - sinusoids(1, ours.d_model)[0]).abs().max() > _SINUSOID_TOLERANCE:
            continue
        table = stored.whole().detach().reshape(rows, ours.d_model).float()
        if (table - sinusoids(rows, ours.d_model)).abs().max() < _SINUSOID_TOLERANCE:
            plan.ignore(name)
