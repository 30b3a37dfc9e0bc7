"""Models of tests/data/foreign, recorded by tests/data/make_foreign_models.py, and comparisons with txport's models."""

import argparse
import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from foreign_models import assert_varied, greedy, identical, padded
from safetensors import safe_open
from torch import Tensor
from txport.models.checkpoint import Checkpoint

FOLDER = Path(__file__).parents[1] / "data" / "foreign"


@dataclass(frozen=True)
class Recorded:
    """A random model of another toolkit, and the toolkit's results for several sources.

    Attributes:
        config: config in the format of the toolkit.
        weights: weights, float32.
        sources, answers: ids of the sources, and ids of its greedy search.
        beams: ids of the search that `config` specifies; empty ones are not compared.
        targets: int64 `[b, t]`, input of the decoder for the first sources.
        memory: float32 `[b, s, d]`, computed in float64, padded on the right.
        logits: float32 `[b, t, v]`, computed in float64.
    """

    config: Any
    weights: dict[str, Tensor]
    sources: list[list[int]]
    answers: list[list[int]]
    beams: list[list[int]]
    targets: Tensor
    memory: Tensor
    logits: Tensor


def recorded(name: str) -> Recorded:
    """Read FOLDER/NAME.safetensors."""

    def namespaces(value: dict[str, Any]) -> Any:
        return argparse.Namespace(**value["Namespace"]) if value.keys() == {"Namespace"} else value

    with safe_open(FOLDER / f"{name}.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}
        config = json.loads(file.metadata()["config"], object_hook=namespaces)
    weights = {
        key.removeprefix("weights."): value.float() for key, value in tensors.items() if key.startswith("weights.")
    }
    rows = zip(tensors["sources"].tolist(), tensors["lengths"].tolist(), strict=True)
    sources = [row[:length] for row, length in rows]

    def ids(name: str) -> list[list[int]]:
        return [[token for token in row if token >= 0] for row in tensors[name].tolist()] if name in tensors else []

    targets = tensors["targets"].long()
    return Recorded(
        config, weights, sources, ids("answers"), ids("beams"), targets, tensors["memory"], tensors["logits"]
    )


def assert_as_recorded(
    checkpoint: Checkpoint, theirs: Recorded, banned: tuple[int, ...] = (), within: float = 1e-5
) -> Tensor:
    """Compare encoder outputs and logits, in float64, and greedy ids; return txport's logits."""
    config = checkpoint.config
    ids, lengths = padded(theirs.sources[: len(theirs.targets)], config.pad_id)
    model = copy.deepcopy(checkpoint.model).double()
    with torch.inference_mode():
        memory = model.encode(ids, lengths)
        logits = model.decode(theirs.targets, memory, lengths, ids)
    valid = torch.arange(ids.shape[1]) < lengths[:, None]
    assert (memory - theirs.memory)[valid].abs().max() < within
    likely = theirs.logits.isfinite()
    likely[..., list(banned)] = False
    assert (logits - theirs.logits)[likely].abs().max() < within
    assert logits.std() > 0.1, "a model that says nothing proves nothing"
    assert_varied(theirs.answers, config.eos_id)
    assert identical(greedy(checkpoint, theirs.sources), theirs.answers) == len(theirs.sources)
    return logits
