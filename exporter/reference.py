"""The reference: greedy search in PyTorch, float32, with the logits of every step.

Written without the runtime, because the runtime and the graphs are compared with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from txport.models.config import Config
from txport.models.transformer import Transformer
from txport.runtime.text.affixes import Affixes

Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

BATCH = 32
MOST_SAMPLED = 64  # tokens of a random sentence: about as long as real ones get
# The lowest logit that counts: those of ids that a model must never choose are far below, by how much does not matter.
LEAST = -10000.0


@dataclass(frozen=True)
class Batch:
    """Some sentences and PyTorch's targets. Arrays are padded; `targets` are not."""

    indices: list[int]  # which sentences these are
    source_ids: Ids  # [b, s]
    source_lengths: Ids  # [b]
    targets: list[list[int]]  # without bos; with eos where the sentence ended before its limit


def sample_sources(config: Config, count: int, longest: int, around: Affixes) -> list[list[int]]:
    """Random source ids for a model without text: `count` sentences of at most `longest` tokens, affixes included."""
    random = np.random.default_rng(0)
    special = {config.pad_id, config.unk_id, config.bos_id, config.eos_id}
    ordinary = np.array([token for token in range(config.source_vocabulary) if token not in special] or [0])
    most = max(1, min(longest - len(around.around([])) + 1, MOST_SAMPLED))
    least = 0 if around.around([]) else 1  # a source of no tokens at all is not a sentence
    lengths = random.integers(least, max(least + 1, most), size=count)
    return [around.around(random.choice(ordinary, size=length).tolist()) for length in lengths]


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Ids, Ids]:
    """int64 ids `[b, longest]` and lengths `[b]`."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.full((len(rows), int(lengths.max())), pad_id, dtype=np.int64)
    for padded, row in zip(ids, rows, strict=True):
        padded[: len(row)] = row
    return ids, lengths


@dataclass(frozen=True)
class Answer:
    """What PyTorch computes for a batch.

    Attributes:
        batch: the sentences, with PyTorch's greedy targets.
        logits: float32 `[b, longest target, vocabulary]`, by the whole decoder at once and no cache.
        cross: cross-attention keys and values of each layer, in the order of the encoder graph's outputs,
            float32 `[b, h, s, k]`.
    """

    batch: Batch
    logits: Logits
    cross: list[npt.NDArray[np.float32]]


@torch.inference_mode()
def answers(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    limits: int | Sequence[int],
    prefix: Sequence[int] = (),
    guesses: Sequence[Sequence[int]] | None = None,
) -> Iterator[Answer]:
    """Greedy search over `sources` and its logits, in batches of `BATCH` sorted by length, computed lazily.

    Args:
        model: the reference.
        sources: source ids, eos included.
        limits: the most target tokens, of all or of each.
        prefix: the forced beginning of every target.
        guesses: targets of another engine. Those of a batch are accepted only if PyTorch, reading them whole, chooses
            each of their tokens after the ones before it: by induction they are then its own greedy targets, without
            a search step by step (the argument of speculative decoding, Leviathan et al. 2023). The sentences are
            sorted by their lengths, so that those of a batch end at about the same step.
    """
    every_limit = [limits] * len(sources) if isinstance(limits, int) else limits
    for indices in batches(guesses or sources):
        ids, lengths = pad([sources[index] for index in indices], model.config.pad_id)
        most = [every_limit[index] for index in indices]
        memory = model.encode(torch.from_numpy(ids), torch.from_numpy(lengths))
        cross = [tensor.numpy() for pair in model.cross_key_values(memory) for tensor in pair]
        targets, logits = None, None
        if guesses is not None:
            targets = [list(guesses[index]) for index in indices]
            logits = _teacher_forced(model, memory, lengths, targets)
            if not _are_greedy(targets, logits, prefix, model.config.eos_id, most):
                targets = None
        if targets is None or logits is None:
            targets = _greedy(model, memory, lengths, most, prefix)
            logits = _teacher_forced(model, memory, lengths, targets)
        yield Answer(Batch(indices, ids, lengths, targets), logits, cross)


def batches(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """The indices of `rows`, sorted by length, `BATCH` at a time."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    return [order[start : start + BATCH] for start in range(0, len(order), BATCH)]


def _greedy(
    model: Transformer, memory: torch.Tensor, source_lengths: Ids, limits: Sequence[int], prefix: Sequence[int]
) -> list[list[int]]:
    config, lengths = model.config, torch.from_numpy(source_lengths)
    cross = model.cross_key_values(memory)
    most = torch.tensor(limits)
    caches = model.new_caches(len(lengths), max(limits))
    token = torch.full((len(lengths),), config.bos_id)
    alive = torch.ones(len(lengths), dtype=torch.bool)
    targets: list[list[int]] = [[] for _ in range(len(lengths))]
    for position in range(max(limits)):
        token = model.decode_step(token, torch.full_like(token, position), cross, lengths, caches).argmax(-1)
        if position < len(prefix):
            token = torch.full_like(token, prefix[position])
        for row in torch.nonzero(alive)[:, 0].tolist():
            targets[row].append(int(token[row]))
        alive &= (token != config.eos_id) & (position + 1 < most)
        if not bool(alive.any()):
            break
    return targets


def _are_greedy(
    targets: Sequence[Sequence[int]], logits: Logits, prefix: Sequence[int], eos: int, limits: Sequence[int]
) -> bool:
    """Whether each target is what greedy search with these logits `[b, t, v]` gives, to its end."""
    best = logits.argmax(-1)
    for row, (target, most) in enumerate(zip(targets, limits, strict=True)):
        ended = 0 < len(target) <= most and (target[-1] == eos or len(target) == most)
        forced = list(target[: len(prefix)]) == list(prefix[: len(target)])
        chosen = all(best[row, step] == target[step] for step in range(len(prefix), len(target)))
        if not (ended and forced and chosen) or eos in target[:-1]:
            return False
    return True


def _teacher_forced(
    model: Transformer, memory: torch.Tensor, source_lengths: Ids, targets: Sequence[Sequence[int]]
) -> Logits:
    inputs, _ = pad([[model.config.bos_id, *target[:-1]] for target in targets], model.config.pad_id)
    logits = model.decode(torch.from_numpy(inputs), memory, torch.from_numpy(source_lengths))
    return logits.numpy()
