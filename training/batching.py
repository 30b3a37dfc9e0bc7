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
    order = np.lexsort((rng.random(len(lengths)), lengths))
    batches: list[Rows] = []
    start = 0
    # Sorted by length, a batch's longest row is its last.
    for end in range(1, len(order) + 1):
        rows = end + 1 - start
        if end == len(order) or rows * lengths[order[end]] > most_tokens or rows > (most_rows or rows):
            batches.append(order[start:end])
            start = end
    while len(batches) % multiple:
        largest = max(range(len(batches)), key=lambda number: len(batches[number]))
        whole = batches[largest]
        halves = [whole[: len(whole) // 2], whole[len(whole) // 2 :]] if len(whole) > 1 else [whole, whole]
        batches[largest : largest + 1] = halves
    return [batches[number] for number in rng.permutation(len(batches))]


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
        self.skip = 0  # batches of the next epoch consumed before an interruption
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Make the batches of this epoch. Lightning calls it."""
        rng = np.random.default_rng([self._seed, epoch if self._shuffle else 0])
        batches = token_batches(self._lengths, self._most_tokens, self._world, rng, self._most_rows)
        self._batches = batches[self._rank :: self._world]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        start, self.skip = self.skip, 0
        for batch in self._batches[start:]:
            yield batch.tolist()


class Loader(DataLoader[TrainingBatch]):
    """A loader whose place in the epoch is saved with a checkpoint, so that a resumed run sees what it would have seen.

    No worker processes: a batch is some slices of arrays in memory, copied faster than a process could hand it over.
    """

    def __init__(self, examples: Examples, batches: TokenBatches) -> None:
        # batch_size=None: each item of the sampler is a whole batch.
        super().__init__(examples, sampler=batches, batch_size=None)
        self.batches = batches
        self._consumed = 0

    def __iter__(self) -> Any:
        self._consumed = self.batches.skip
        for batch in super().__iter__():
            self._consumed += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Called by Lightning when it saves."""
        return {"consumed": self._consumed if self._consumed < len(self.batches) else 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called by Lightning when it resumes, before it takes batches."""
        self.batches.skip = int(state["consumed"])
