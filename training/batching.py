"""Batches by token count: pairs of similar length are grouped to keep padding small; for any number of devices."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Sampler
from txport.training.examples import Examples, Lengths, TrainingBatch

# Numbers of the rows of a batch: an array, not a list, of which each number would take 36 bytes.
Rows = npt.NDArray[np.int64]


def token_batches(
    lengths: Lengths, most_tokens: int, multiple: int, rng: np.random.Generator, most_rows: int | None = None
) -> list[Rows]:
    """Part all rows into batches of at most `most_tokens` tokens, padding included, in random order.

    Rows are sorted by length, equal lengths at random, and cut; then the batches are shuffled. Each row is in exactly
    one batch.

    Args:
        lengths: int64 `[rows]`, none above `most_tokens`.
        most_tokens: rows times the longest of them stays within this.
        multiple: the number of batches is a multiple of it: the largest are halved until that is so. Only where no
            batch has two rows do some appear twice.
        rng: decides all that is random.
        most_rows: of a batch; None for any number.
    """
    assert len(lengths) and lengths.max() <= most_tokens
    # By both sides would leave less padding, but batches so alike cost 0.05 nats after 800 steps of Multi30k.
    order = np.lexsort((rng.random(len(lengths)), lengths))
    batches: list[Rows] = []
    start = 0
    # Sorted by length, a batch's longest row is its last.
    for end in range(1, len(order) + 1):
        rows = end + 1 - start
        if end == len(order) or rows * lengths[order[end]] > most_tokens or rows > (most_rows or rows):
            batches.append(order[start:end])
            start = end
    batches = _multiple(batches, multiple)
    return [batches[number] for number in rng.permutation(len(batches))]


def _multiple(batches: list[Rows], multiple: int) -> list[Rows]:
    """The batches, the largest of them halved until their number is a multiple."""
    batches = list(batches)
    while len(batches) % multiple:
        largest = max(range(len(batches)), key=lambda number: len(batches[number]))
        whole = batches[largest]
        if len(whole) > 1:
            halves = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
        else:
            halves = [whole, whole]
        batches[largest : largest + 1] = halves
    return batches


class TokenBatches(Sampler[list[int]]):
    """Yields lists of rows: those of one device, as many on each.

    Args:
        lengths: int64 `[rows]`.
        most_tokens: see `token_batches`.
        seed: with the epoch, decides the batches; the same on all devices.
        rank, world: this device and how many there are.
        shuffle: another order for each epoch; False for validation.
        most_rows: see `token_batches`.
    """

    def __init__(
        self,
        lengths: Lengths,
        most_tokens: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        most_rows: int | None = None,
    ) -> None:
        self._lengths = lengths
        self._most_tokens = most_tokens
        self._most_rows = most_rows
        self._seed = seed
        self._rank = rank
        self._world = world
        self._shuffle = shuffle
        self._batches: list[Rows] = []
        # What was consumed of the next epoch before an interruption: by each device batches, and of how many devices.
        self.phases: list[tuple[int, int]] = []
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Make the batches of this epoch. Lightning calls it."""
        if self._shuffle:
            self._epoch = epoch
        else:
            self._epoch = 0
        self._make()

    def _make(self) -> None:
        """The batches that are left of the epoch, which other numbers of devices may have begun."""
        rng = np.random.default_rng([self._seed, self._epoch])
        worlds = [world for _, world in self.phases] + [self._world]
        batches = token_batches(self._lengths, self._most_tokens, worlds[0], rng, self._most_rows)
        for consumed, world in self.phases:
            batches = _multiple(batches, world)[consumed * world :]
        self._batches = _multiple(batches, self._world)[self._rank :: self._world]

    def go_on(self, phases: list[tuple[int, int]]) -> None:
        """Begin the next epoch where it was left."""
        self.phases = phases
        self._make()

    def __len__(self) -> int:
        return sum(consumed for consumed, _ in self.phases) + len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._batches
        if self.phases:  # the epoch after it is whole again
            self.go_on([])
        for batch in batches:
            yield batch.tolist()

    def after(self, consumed: int, phases: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the phases of an epoch after each device has consumed this number of further batches."""
        if phases and phases[-1][1] == self._world:
            return [*phases[:-1], (phases[-1][0] + consumed, self._world)]
        return [*phases, (consumed, self._world)]


class Loader(DataLoader[TrainingBatch]):
    """A loader whose place in the epoch is saved with a checkpoint, so that a resumed run sees what it would have seen.

    No worker processes: a batch is some slices of arrays in memory, copied faster than a process could hand it over.
    """

    def __init__(self, examples: Examples, batches: TokenBatches) -> None:
        # batch_size=None: each item of the sampler is a whole batch.
        super().__init__(examples, sampler=batches, batch_size=None)
        self.batches = batches
        self._begin()

    def _begin(self) -> None:
        self._before = self.batches.phases
        self._left = len(self.batches)
        self._consumed = 0

    def __iter__(self) -> Any:
        self._begin()
        for batch in super().__iter__():
            self._consumed += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Called by Lightning when it saves: batches consumed of the epoch by each device, and by how many devices."""
        before = sum(consumed for consumed, _ in self._before)
        whole = before + self._consumed >= self._left
        if self._consumed == 0:
            phases = self._before
        else:
            phases = self.batches.after(self._consumed, self._before)
        return {"phases": [] if whole else [list(phase) for phase in phases]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called by Lightning when it resumes, before it takes batches."""
        self.batches.go_on([(int(consumed), int(world)) for consumed, world in state["phases"]])
        self._begin()  # a run that is saved before it takes any has come as far as this
