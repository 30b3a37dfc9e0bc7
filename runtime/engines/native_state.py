"""Objects in the memory of the native library: handles, and the state of a running batch."""

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import byref, c_int64, c_void_p
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from txport.runtime.engine import Engine, Float32, Float64, Int64, StepOutput, Top
from txport.runtime.errors import BundleError, EngineError, InputError, MissingLibrary, ResourceError, TxportError

# Maximum number of steps of one call of the library.
MAX_STEPS = 64

# The error codes of txport.h. Any other code is a bug in the library.
_ERRORS: dict[int, type[TxportError]] = {1: InputError, 2: BundleError, 5: ResourceError, 9: MissingLibrary}


def check(library: ctypes.CDLL, code: int) -> None:
    """Raise the error of a call that returned this code. The library keeps the message for each thread."""
    if code:
        raise _ERRORS.get(code, EngineError)(library.txport_message().decode())


def address(array: npt.NDArray[Any]) -> int:
    """Return the address of the first element; faster than `array.ctypes.data`."""
    address: int = array.__array_interface__["data"][0]
    return address


def int64(values: Sequence[int] | Int64) -> Int64:
    """Return the values as a contiguous array. An array that is contiguous is not copied."""
    return np.ascontiguousarray(values, np.int64)


def same_length(**arrays: npt.NDArray[Any]) -> int:
    """Return the length of parallel arrays. They must have one length, because the library receives only one."""
    (first, length), *remaining = ((name, len(array)) for name, array in arrays.items())
    for name, other in remaining:
        if other != length:
            raise InputError(f"{name} has {other} elements and {first} {length}: each needs one for the other")
    return length


class Handle:
    """An object of the library, which is freed together with this Python object."""

    def __init__(self, value: c_void_p, free: Callable[[c_void_p], None]) -> None:
        self.value = value
        self._free = free

    def __del__(self) -> None:
        self._free(self.value)


class LibraryEngine(Engine, Protocol):
    """An engine of the native library.

    Attributes:
        library: the library.
        handle: handle of the engine.
    """

    library: ctypes.CDLL
    handle: Handle


class NativeState:
    """One running batch in the library's memory; see `txport.runtime.engine.DecoderState`.

    Args:
        library: the library.
        handle: handle of the state.
        sizes: number of rows, source length of cross-attention and length of the caches, in tokens.
        vocabulary: number of logits of a row.
    """

    def __init__(self, library: ctypes.CDLL, handle: Handle, sizes: tuple[int, int, int], vocabulary: int) -> None:
        self.library = library
        self.handle = handle
        self._vocabulary = vocabulary
        self.rows, self.source, self.target = sizes
        self._unread: deque[int] = deque()  # calls of `txport_state_step` for each group of steps

    def place(
        self, rows: Sequence[int], memory: Handle, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]`, bos at position 0, not finished."""
        row_array = int64(rows)
        memory_row_array = int64(memory_rows)
        limits = int64(target_limits)
        count = same_length(rows=row_array, memory_rows=memory_row_array, target_limits=limits)
        arguments = count, address(row_array), memory.value, address(memory_row_array), address(limits)
        check(self.library, self.library.txport_state_place(self.handle.value, *arguments))

    def restrict(self, rows: Sequence[int], words: Sequence[Int64]) -> None:
        """Restrict each row to its ids in `words`; see `RestrictingState.restrict`."""
        row_array = int64(rows)
        ends = np.cumsum([len(each) for each in words], dtype=np.int64)
        ids = int64(np.concatenate(words))
        arguments = same_length(rows=row_array, words=ends), address(row_array), address(ends), address(ids)
        check(self.library, self.library.txport_state_restrict(self.handle.value, *arguments))

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens, in calls of at most `MAX_STEPS` steps."""
        calls = 0
        try:
            for done in range(0, max(count, 1), MAX_STEPS):
                part = min(count - done, MAX_STEPS)
                check(self.library, self.library.txport_state_step(self.handle.value, part))
                calls += 1
        finally:  # if a call fails, the steps of the calls before it must still be read
            if calls > 0:
                self._unread.append(calls)

    def read(self) -> StepOutput:
        """Return the tokens of the first unread group of steps."""
        if not self._unread:
            raise InputError("there is nothing to read: step first")
        groups = []
        steps = c_int64()
        finished = np.empty(self.rows, np.bool_)
        for _ in range(self._unread.popleft()):
            part = np.empty((MAX_STEPS, self.rows), np.int64)
            arguments = address(part), MAX_STEPS, byref(steps), address(finished)
            check(self.library, self.library.txport_state_read(self.handle.value, *arguments))
            groups.append(part[: steps.value])
        return StepOutput(groups[0] if len(groups) == 1 else np.concatenate(groups), finished)

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token and the flag of these rows; see `DecoderState.override`."""
        row_array = int64(rows)
        tokens = int64(token_ids)
        flags = np.ascontiguousarray(finished, np.bool_)
        count = same_length(rows=row_array, token_ids=tokens, finished=flags)
        arguments = count, address(row_array), address(tokens), address(flags)
        check(self.library, self.library.txport_state_override(self.handle.value, *arguments))

    def logits(self, rows: Sequence[int] | None = None) -> Float32:
        """Return float32 `[len(rows), target_vocabulary]` of the last step; see `DecoderState.logits`."""
        row_array = int64(range(self.rows) if rows is None else rows)
        logits = np.empty((len(row_array), self._vocabulary), np.float32)
        arguments = len(row_array), address(row_array), address(logits)
        check(self.library, self.library.txport_state_logits(self.handle.value, *arguments))
        return logits

    def log_probabilities(self, rows: Sequence[int], token_ids: Sequence[int]) -> Float64:
        """Return log-probabilities of tokens at the last step; see `DecoderState.log_probabilities`."""
        row_array = int64(rows)
        tokens = int64(token_ids)
        count = same_length(rows=row_array, token_ids=tokens)
        result = np.empty(count, np.float64)
        arguments = count, address(row_array), address(tokens), address(result)
        check(self.library, self.library.txport_state_log_probabilities(self.handle.value, *arguments))
        return result

    def top(self, k: int) -> Top:
        """Return the `k` most likely tokens of each row at the last step; see `DecoderState.top`."""
        width = max(k, 0)  # the library refuses values out of range
        best = Top(
            np.empty((self.rows, width), np.int64), np.empty((self.rows, width), np.float32), np.empty(self.rows)
        )
        arguments = k, address(best.token_ids), address(best.logits), address(best.normaliser)
        check(self.library, self.library.txport_state_top(self.handle.value, *arguments))
        return best

    def reorder(self, rows: Sequence[int]) -> None:
        """Let row i continue the hypothesis of row `rows[i]`; see `DecoderState.reorder`."""
        row_array = int64(rows)
        check(self.library, self.library.txport_state_reorder(self.handle.value, len(row_array), address(row_array)))

    def resized(self, rows: Sequence[int], target: int) -> "NativeState":
        """Return a new state of these rows, which may repeat; see `DecoderState.resized`."""
        row_array = int64(rows)
        state = c_void_p()
        library = self.library
        arguments = len(row_array), address(row_array), target, byref(state)
        check(library, library.txport_state_moved(self.handle.value, *arguments))
        handle = Handle(state, library.txport_state_free)
        return NativeState(library, handle, (len(row_array), self.source, target), self._vocabulary)
