"""Reference for comparisons: greedy search in PyTorch, float32, with the logits of every step.

It does not use the runtime, because the runtime and the graphs are compared with it.
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
Vectors = npt.NDArray[np.float32]
Source = Sequence[int] | Vectors  # ids, or feature vectors `[s, f]`

BATCH = 32
SEARCH_BATCH = 128  # maximum number of rows of a search; small steps are hardly faster
MAX_RANDOM_LENGTH = 64  # maximum number of tokens of a random sentence, similar to long real ones
# Lower logits are not compared: forbidden ids have very low ones, whose value does not matter.
MIN_COMPARED_LOGIT = -10000.0


@dataclass(frozen=True)
class Batch:
    """Some sentences and PyTorch's targets. Arrays are padded, `targets` are not."""

    indices: list[int]  # of the sentences
    source_ids: Ids | Vectors  # [b, s], or [b, s, f]
    source_lengths: Ids  # [b]
    targets: list[list[int]]  # without bos; with eos if the sentence ended before its limit


def sample_sources(config: Config, count: int, longest: int, text_affixes: Affixes) -> list[list[int]]:
    """Return random source ids for a model without text: `count` sentences of up to `longest` tokens with affixes."""
    random = np.random.default_rng(0)
    special = {config.pad_id, config.unk_id, config.bos_id, config.eos_id}
    ordinary = np.array([token for token in range(config.source_vocabulary) if token not in special] or [0])
    maximum = max(1, min(longest - len(text_affixes.wrap([])) + 1, MAX_RANDOM_LENGTH))
    minimum = 0 if text_affixes.wrap([]) else 1  # a source must have at least one token
    lengths = random.integers(minimum, max(minimum + 1, maximum), size=count)
    return [text_affixes.wrap(random.choice(ordinary, size=length).tolist()) for length in lengths]


def sample_vectors(config: Config, count: int, longest: int) -> list[Vectors]:
    """Return random feature vectors, N(0, 1): `count` sources of up to `longest` vectors."""
    assert config.feature_size is not None
    random = np.random.default_rng(0)
    lengths = random.integers(1, min(longest, MAX_RANDOM_LENGTH) + 1, size=count)
    return [random.standard_normal((length, config.feature_size), np.float32) for length in lengths]


def pad_sources(rows: Sequence[Source], pad_id: int) -> tuple[Ids | Vectors, Ids]:
    """Return padded ids (see `pad`), or vectors `[b, longest, f]` padded with zeros, and lengths `[b]`."""
    if not isinstance(rows[0], np.ndarray):
        return pad([list(row) for row in rows], pad_id)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    vectors = np.zeros((len(rows), int(lengths.max()), rows[0].shape[1]), dtype=np.float32)
    for padded, row in zip(vectors, rows, strict=True):
        padded[: len(row)] = row
    return vectors, lengths


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Ids, Ids]:
    """Return padded int64 ids `[b, longest]`, and lengths `[b]`."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.full((len(rows), int(lengths.max())), pad_id, dtype=np.int64)
    for padded, row in zip(ids, rows, strict=True):
        padded[: len(row)] = row
    return ids, lengths


@dataclass(frozen=True)
class Answer:
    """PyTorch's results for a batch.

    Attributes:
        batch: the sentences, with PyTorch's greedy targets.
        logits: float32 `[b, longest target, vocabulary]`, from teacher forcing without caches.
        cross: cross-attention keys and values of each layer, in the order of the encoder graph's outputs,
            float32 `[b, h, s, k]`.
    """

    batch: Batch
    logits: Logits
    cross: list[npt.NDArray[np.float32]]


@torch.inference_mode()
def answers(
    model: Transformer,
    sources: Sequence[Source],
    limits: int | Sequence[int],
    prefix: Sequence[int] = (),
    guesses: Sequence[Sequence[int]] | None = None,
    batch: int = BATCH,
) -> Iterator[Answer]:
    """Yield PyTorch's greedy targets and logits for `sources`, in batches of similar length, computed on demand.

    Args:
        model: the reference.
        sources: source ids with eos, or vectors.
        limits: maximum number of target tokens, of all or of each.
        prefix: forced beginning of every target.
        guesses: targets of another engine. A guess is accepted if PyTorch, reading it whole, chooses each of its tokens
            after those before it. By induction it is PyTorch's greedy target, found without step by step search (as in
            speculative decoding, Leviathan et al. 2023). Other sentences are searched together.
        batch: maximum number of sentences whose logits are in memory at once.
    """
    row_limits = [limits] * len(sources) if isinstance(limits, int) else limits
    searched = list(range(len(sources)))
    if guesses is not None:
        searched = []
        for indices in batches(guesses, batch):
            answer = _read(model, sources, indices, [list(guesses[index]) for index in indices])
            eos = model.config.eos_id
            is_greedy = [
                _is_greedy(target, logits, prefix, eos, row_limits[index])
                for index, target, logits in zip(indices, answer.batch.targets, answer.logits, strict=True)
            ]
            searched += [index for index, is_right in zip(indices, is_greedy, strict=True) if not is_right]
            if any(is_greedy):
                yield (
                    answer
                    if all(is_greedy)
                    else _rows(answer, [row for row, is_right in enumerate(is_greedy) if is_right])
                )
    searched_targets: dict[int, list[int]] = {}
    for indices in batches([sources[index] for index in searched], SEARCH_BATCH):
        chosen = [searched[index] for index in indices]
        targets = _greedy(model, [sources[index] for index in chosen], [row_limits[index] for index in chosen], prefix)
        searched_targets.update(zip(chosen, targets, strict=True))
    for indices in batches(list(searched_targets.values()), batch):
        chosen = [list(searched_targets)[index] for index in indices]
        yield _read(model, sources, chosen, [searched_targets[index] for index in chosen])


def batches(rows: Sequence[Source], maximum: int) -> list[list[int]]:
    """Return the indices of `rows`, sorted by length, in groups of up to `maximum`."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    return [order[start : start + maximum] for start in range(0, len(order), maximum)]


def _read(model: Transformer, sources: Sequence[Source], indices: list[int], targets: list[list[int]]) -> Answer:
    """Return PyTorch's results for the sources `indices` with these targets, by teacher forcing."""
    ids, lengths = pad_sources([sources[index] for index in indices], model.config.pad_id)
    batch = Batch(indices, ids, lengths, targets)
    memory, logits = teacher_forcing(model, batch)
    cross = [tensor.numpy() for pair in model.cross_key_values(memory) for tensor in pair]
    return Answer(batch, logits.numpy(), cross)


def teacher_forcing(model: Transformer, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the encoder's output `[b, s, d]`, and the logits `[b, t, v]` of the targets, by teacher forcing."""
    source = torch.from_numpy(batch.source_ids)
    lengths = torch.from_numpy(batch.source_lengths)
    memory = model.encode(source, lengths)
    inputs, _ = pad([[model.config.bos_id, *target[:-1]] for target in batch.targets], model.config.pad_id)
    return memory, model.decode(torch.from_numpy(inputs), memory, lengths, source_ids=source)


def _rows(answer: Answer, rows: list[int]) -> Answer:
    """Return some rows of a batch."""
    batch = answer.batch
    targets = [batch.targets[row] for row in rows]
    longest = max(map(len, targets))
    part = Batch([batch.indices[row] for row in rows], batch.source_ids[rows], batch.source_lengths[rows], targets)
    return Answer(part, answer.logits[rows, :longest], [tensor[rows] for tensor in answer.cross])


def _greedy(
    model: Transformer, sources: Sequence[Source], limits: Sequence[int], prefix: Sequence[int]
) -> list[list[int]]:
    """Search greedily, step by step, and return the target ids."""
    config = model.config
    ids, lengths = map(torch.from_numpy, pad_sources(sources, config.pad_id))
    cross = model.cross_key_values(model.encode(ids, lengths))
    row_limits = torch.tensor(limits)
    caches = model.new_caches(len(lengths), max(limits))
    token = torch.full((len(lengths),), config.bos_id)
    alive = torch.ones(len(lengths), dtype=torch.bool)
    targets: list[list[int]] = [[] for _ in range(len(lengths))]
    for position in range(max(limits)):
        token = model.decode_step(token, torch.full_like(token, position), cross, lengths, caches, ids).argmax(-1)
        if position < len(prefix):
            token = torch.full_like(token, prefix[position])
        for row in torch.nonzero(alive)[:, 0].tolist():
            targets[row].append(int(token[row]))
        forced = position < len(prefix)  # eos in the prefix does not end a sentence
        alive &= ((token != config.eos_id) | forced) & (position + 1 < row_limits)
        if not bool(alive.any()):
            break
    return targets


def _is_greedy(target: Sequence[int], logits: Logits, prefix: Sequence[int], eos: int, limit: int) -> bool:
    """Return whether a target is the complete result of greedy search with these logits `[t, v]`."""
    generated = target[len(prefix) :]
    is_complete = len(target) == limit or (len(generated) > 0 and generated[-1] == eos)
    is_finished = 0 < len(target) <= limit and is_complete and eos not in generated[:-1]
    forced = list(target[: len(prefix)]) == list(prefix[: len(target)])
    return is_finished and forced and bool((logits[: len(target)].argmax(-1) == target)[len(prefix) :].all())
