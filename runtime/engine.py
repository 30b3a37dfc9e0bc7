"""What a library must offer to run a bundle: encode, then step a fixed set of rows whose buffers it owns.

The greedy loop (`txport.runtime.greedy`) is written once over these protocols and knows no library; an engine knows no
search. Nothing here says where buffers live: an engine on a GPU keeps them there, and `read` is the only point at which
the host waits for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]

# The shortest caches that a batch begins with: enough for most sentences.
FIRST_TARGET = 32

# What `Engine.encode` returned; only the engine that made it can look inside.
Memory = Any


@dataclass(frozen=True)
class Limits:
    """The largest sizes that an engine takes: rows of a batch, source tokens and tokens made (both with eos)."""

    batch: int
    source: int
    target: int


@dataclass(frozen=True)
class SpecialTokens:
    """Ids with a meaning: padding, unknown, decoder start (`bos`) and end of sequence."""

    pad: int
    unk: int
    bos: int
    eos: int


@dataclass(frozen=True)
class StepOutput:
    """What the host learns when it looks at a state.

    Attributes:
        token_ids: int64 `[steps, rows]`, what each step since the last look made; pad for rows that had finished.
        finished: bool `[rows]`, after the last of these steps.
    """

    token_ids: Int64
    finished: Bool


class DecoderState(Protocol):
    """The buffers of one running batch: ids, positions, flags, caches and cross-attention keys and values.

    Rows are independent: each has its own position, so a finished row can be refilled while the others go on. A row
    that was never placed is finished and makes pad.
    """

    rows: int
    source: int  # width of the cross-attention buffers, in tokens
    target: int  # length of the self-attention caches, in tokens

    def place(
        self, rows: Sequence[int], memory: Memory, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]`, bos at position 0, not finished.

        A state that takes all rows of `memory` may go on with its buffers, and later placements write over them.
        """

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens; may return before the device is done."""

    def read(self) -> StepOutput:
        """Wait for the steps since the last `read` and return what they made."""

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token that was made for these rows (forced prefix, suppressed eos) and their flag.

        Taking back a `finished` also advances the row's position by one, which the step had not done.
        """

    def logits(self) -> Float32:
        """float32 `[rows, target_vocabulary]` of the last step. Only on a state allocated with `logits=True`."""

    def moved(self, rows: Sequence[int], target: int) -> "DecoderState":
        """A new state of these rows alone, in this order, with caches of `target` tokens; this one is then invalid."""


class Engine(Protocol):
    """A bundle (or a model) made ready to run by one library on one device."""

    name: str
    limits: Limits
    tokens: SpecialTokens
    poll: int  # steps that are worth making before the host looks; 1 where looking costs nothing

    def encode(self, input_ids: Int64, source_lengths: Int64) -> Memory:
        """Run the encoder on int64 `[batch, source]` ids, padded with pad, of int64 `[batch]` lengths."""

    def first_target(self, source: int) -> int:
        """The length of the first caches of a batch of sources of up to `source` tokens.

        They double when a row stands at their end. `FIRST_TARGET` where a step costs more with longer ones.
        """

    def allocate(self, rows: int, source: int, target: int, *, logits: bool = False) -> DecoderState:
        """Buffers for `rows` sentences of up to `source` tokens that make up to `target` tokens, all rows finished."""
