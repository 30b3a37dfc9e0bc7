"""LoRA adapters (Hu et al. 2021, arXiv:2106.09685), saved by the library peft: merged into a base model's weights.

W becomes W + scale B A. The scale is alpha / rank, or alpha / sqrt(rank) with rsLoRA (Kalajdzievski 2023,
arXiv:2312.03732); both may differ between modules.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from txport.models.checkpoint import join_names
from txport.models.importers.settings import Settings, read_json
from txport.models.importers.weights import Stored, read_tensors
from txport.runtime.errors import CheckpointError

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_PART = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.default)?(?:\.weight)?")
# Settings of other kinds of adapter, and their values for plain LoRA.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "trainable_token_indices": (None,),
    "use_qalora": (False, None),
    "alora_invocation_tokens": (None,),
    "layer_replication": (None,),
    "use_bdlora": (None, False),
    "monteclora_config": (None,),
    "kasa_config": (None,),
    # Other initialisations change the base's weights before training (PiSSA, OLoRA, CorDA, LoftQ).
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}


@dataclass(frozen=True)
class _Pair:
    """The two low-rank matrices of a module, and the scale of their product."""

    a: Tensor
    b: Tensor
    scale: float
    transposed: bool

    def rows(self, start: int, stop: int) -> Tensor:
        """Return rows of the update that is added to the weight."""
        if self.transposed:
            return self.scale * (self.b @ self.a[:, start:stop]).T
        return self.scale * (self.b[start:stop] @ self.a)


def describe_adapter(directory: Path) -> str:
    """Return a message about a directory that contains only an adapter.

    Raises:
        CheckpointError: adapter_config.json is damaged.
    """
    fields = read_json(directory / CONFIG)
    base = fields.get("base_model_name_or_path") or "the model that it was trained on"
    return (
        f"{directory} is an adapter ({fields.get('peft_type')}) of {base}, without that model's weights: import {base} "
        f"with --adapter {directory}"
    )


def with_adapter(theirs: Mapping[str, Stored], directory: Path) -> tuple[dict[str, Stored], bool]:
    """Return a base model's tensors with an adapter merged, and whether its embeddings are no longer tied.

    If the adapter changes one of several tied tables, only that table changes, as in peft's model. (peft's merge
    changes all of them, with a warning.)

    Raises:
        CheckpointError: the adapter is damaged, not LoRA, or belongs to another model.
    """
    file = directory / CONFIG
    settings = Settings(file, read_json(file, advice="or give the directory that peft's save_pretrained wrote"))
    if (kind := settings.fields.get("peft_type")) != "LORA":
        raise CheckpointError(f"{file}: peft_type {kind!r} is not supported; only LORA is")
    if settings.fields.get("use_dora"):
        raise CheckpointError(f"{file}: DoRA (use_dora) is not supported: merge the adapter with peft first")
    settings.refuse(_NEUTRAL)
    weights = next((directory / name for name in _WEIGHTS if (directory / name).is_file()), None)
    if weights is None:
        raise CheckpointError(f"{directory} has neither {' nor '.join(_WEIGHTS)}: copy its weights too")
    pairs, replaced = _parts(read_tensors(weights), settings, weights)
    tables = _tables(theirs)
    all_tensors = {**theirs, **tables}
    result = dict(all_tensors)
    for name, tensor in replaced.items():
        result[_base_name(name, all_tensors, weights)] = tensor
    for module, pair in pairs.items():
        name = _base_name(f"{module}.weight", all_tensors, weights)
        result[name] = _merge(result[name], pair, name, weights)
    if any(result[name] is not table for name, table in tables.items()):
        return result, True
    return {name: result[name] for name in theirs}, False


def _tables(theirs: Mapping[str, Stored]) -> dict[str, Stored]:
    """Return the base's embeddings and projection under all their names, even if they are tied and stored once."""
    if any(name.startswith("model.") for name in theirs):
        prefix = "model."
    else:
        prefix = ""
    if any(name.startswith("text_encoder.") for name in theirs):
        text = "text_"
    else:
        text = ""
    shared = f"{prefix}shared.weight"
    encoder, decoder = (f"{prefix}{text}{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    head = "lm_head.weight"
    # For each table, the tables that it may be tied to if missing, in order of preference.
    candidates = {
        shared: (decoder, encoder),
        encoder: (shared, decoder),
        decoder: (shared, encoder),
        head: (decoder, shared, encoder),
    }
    tables = {
        name: next((theirs[each] for each in (name, *rest) if each in theirs), None)
        for name, rest in candidates.items()
    }
    return {name: table for name, table in tables.items() if table is not None}


def _parts(stored: Mapping[str, Stored], settings: Settings, file: Path) -> tuple[dict[str, _Pair], dict[str, Stored]]:
    """Return low-rank pairs by module, and tensors that replace those of the base."""
    matrices: dict[str, dict[str, Tensor]] = {}
    replaced: dict[str, Stored] = {}
    embeddings: set[str] = set()
    for key, tensor in stored.items():
        if not key.startswith(_PREFIX):
            raise CheckpointError(f"{file} has the tensor {key[:80]!r}, which is none of a LoRA adapter")
        name = key.removeprefix(_PREFIX)
        if match := _PART.fullmatch(name):
            matrices.setdefault(match[1], {})[match[3]] = tensor.whole().detach().float()
            embeddings |= {match[1]} if match[2] else set()
        elif ".lora_" in name:
            raise CheckpointError(f"{file} has the tensor {key[:80]!r}, which plain LoRA does not have")
        else:  # modules_to_save and trained biases
            replaced[name.replace(".modules_to_save.default", "").replace(".base_layer.", ".")] = tensor
    if lacking := sorted(module for module, pair in matrices.items() if pair.keys() != {"A", "B"}):
        raise CheckpointError(f"{file} has one of the two matrices only of {join_names(lacking)}: copy it again")
    pairs = {
        module: _Pair(pair["A"], pair["B"], _scale(module, pair, settings), module in embeddings)
        for module, pair in matrices.items()
    }
    return pairs, replaced


def _scale(module: str, pair: Mapping[str, Tensor], settings: Settings) -> float:
    rank = _of_module(settings, module, "rank_pattern", "r")
    alpha = _of_module(settings, module, "alpha_pattern", "lora_alpha")
    shapes = tuple(pair["A"].shape), tuple(pair["B"].shape)
    if len(shapes[0]) != 2 or len(shapes[1]) != 2 or not shapes[0][0] == shapes[1][1] == rank:
        raise CheckpointError(f"{settings.file}: {module} has rank {rank}, but its matrices have shapes {shapes}")
    return alpha / (math.sqrt(rank) if settings.fields.get("use_rslora") is True else rank)


def _of_module(settings: Settings, module: str, patterns: str, default: str) -> float:
    """Return a setting for this module, by peft's patterns of module names, otherwise the default setting."""
    table = settings.get(patterns, None) or {}
    if not isinstance(table, dict):
        raise CheckpointError(f"{settings.file}: {patterns} must be an object, not {table!r:.80}")
    try:
        matched = next((value for key, value in table.items() if re.match(rf"(.*\.)?({key})$", module)), None)
    except re.error as error:
        raise CheckpointError(f"{settings.file}: {patterns} has a pattern that cannot be read ({error})") from None
    if matched is None:
        value = settings.get(default)
    else:
        value = matched
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1 << 24:
        raise CheckpointError(f"{settings.file}: {default} must be a positive number, not {value!r:.80}")
    return value


def _base_name(name: str, theirs: Mapping[str, Stored], file: Path) -> str:
    """Return the base's name of a tensor. A model that was saved without its head has names without `model.`."""
    for each in (name, name.removeprefix("model."), f"model.{name}"):
        if each in theirs:
            return each
    raise CheckpointError(f"{file} changes {name}, which this base model does not have: find the model that it is of")


def _merge(base: Stored, pair: _Pair, name: str, file: Path) -> Stored:
    if pair.transposed:
        shape = (pair.a.shape[1], pair.b.shape[0])
    else:
        shape = (pair.b.shape[0], pair.a.shape[1])
    if base.shape != shape:
        raise CheckpointError(f"{file}: its matrices are for {name} of shape {shape}, but the base's is {base.shape}")

    def read(start: int, stop: int) -> Tensor:
        return base.read(start, stop).detach().float() + pair.rows(start, stop)

    return replace(base, dtype=torch.float32, read=read, storage=(file, name))
