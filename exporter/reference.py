"""What PyTorch says in float32: the ids that greedy search must give, and the logits on the way.

Written without the runtime: this is the side that the runtime and the graphs are compared with.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from txport.models.config import Config
from txport.models.transformer import Transformer
from txport.runtime.affixes import Affixes

BATCH = 32
MOST_SAMPLED = 64  # tokens of a random sentence: about as long as real ones get
# Ids that a model must never choose have logits far below this one; how far is no matter of accuracy.
BANNED = -10000.0


@dataclass(frozen=True)
class Batch:
    """Some sentences with what PyTorch makes of them. Arrays are padded; `targets` are not."""

    indices: list[int]  # which sentences these are
    source_ids: npt.NDArray[np.int64]  # [b, s]
    source_lengths: npt.NDArray[np.int64]  # [b]
    targets: list[list[int]]  # without bos; with eos where the sentence ended before its limit


def sample_sources(config: Config, count: int, longest: int, around: Affixes) -> list[list[int]]:
    """Random source ids for a model without text: `count` sentences of at most `longest` tokens, affixes included."""
    random = np.random.default_rng(0)
    special = {config.pad_id, config.unk_id, config.bos_id, config.eos_id}
    ordinary = np.array([token for token in range(config.source_vocabulary) if token not in special] or [0])
    most = max(1, min(longest - len(around.around([])) + 1, MOST_SAMPLED))
    least = 0 if around.around([]) else 1  # a source of no tokens at all is none
    lengths = random.integers(least, max(least + 1, most), size=count)
    return [around.around(random.choice(ordinary, size=length).tolist()) for length in lengths]


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """int64 ids `[b, longest]` and lengths `[b]`."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.full((len(rows), int(lengths.max())), pad_id, dtype=np.int64)
    for row, given in zip(ids, rows, strict=True):
        row[: len(given)] = given
    return ids, lengths


@torch.inference_mode()
def greedy_batches(
    model: Transformer, sources: Sequence[Sequence[int]], max_target: int, prefix: Sequence[int] = ()
) -> Iterator[Batch]:
    """Greedy search over `sources`, sorted by length, in batches of `BATCH`; every target begins with `prefix`.

    Yields:
        Batches; each is computed when it is asked for.
    """
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    for start in range(0, len(order), BATCH):
        indices = order[start : start + BATCH]
        ids, lengths = pad([sources[index] for index in indices], model.config.pad_id)
        yield Batch(indices, ids, lengths, _greedy(model, ids, lengths, max_target, prefix))


def _greedy(
    model: Transformer,
    source_ids: npt.NDArray[np.int64],
    source_lengths: npt.NDArray[np.int64],
    max_target: int,
    prefix: Sequence[int],
) -> list[list[int]]:
    config, lengths = model.config, torch.from_numpy(source_lengths)
    cross = model.cross_key_values(model.encode(torch.from_numpy(source_ids), lengths))
    caches = model.new_caches(len(lengths), max_target)
    token = torch.full((len(lengths),), config.bos_id)
    alive = torch.ones(len(lengths), dtype=torch.bool)
    targets: list[list[int]] = [[] for _ in range(len(lengths))]
    for position in range(max_target):
        token = model.decode_step(token, torch.full_like(token, position), cross, lengths, caches).argmax(-1)
        if position < len(prefix):
            token = torch.full_like(token, prefix[position])
        for row in torch.nonzero(alive)[:, 0].tolist():
            targets[row].append(int(token[row]))
        alive &= token != config.eos_id
        if not bool(alive.any()):
            break
    return targets


@torch.inference_mode()
def teacher_forced_logits(model: Transformer, batch: Batch) -> npt.NDArray[np.float32]:
    """float32 `[b, longest target, vocabulary]`: logits at each step, by the whole decoder at once and no cache."""
    config = model.config
    inputs, _ = pad([[config.bos_id, *target[:-1]] for target in batch.targets], config.pad_id)
    source = torch.from_numpy(batch.source_ids), torch.from_numpy(batch.source_lengths)
    return model(*source, torch.from_numpy(inputs)).numpy()  # type: ignore[no-any-return]


@torch.inference_mode()
def cross_key_values(model: Transformer, batch: Batch) -> list[npt.NDArray[np.float32]]:
    """Cross-attention keys and values of every layer, in the order of the encoder graph's outputs, `[b, h, s, k]`."""
    memory = model.encode(torch.from_numpy(batch.source_ids), torch.from_numpy(batch.source_lengths))
    return [tensor.numpy() for pair in model.cross_key_values(memory) for tensor in pair]
