"""Checks of `DecoderState.resized` and `reorder`: each row, copied or not, must continue as if it were decoded alone.

Copies that wrongly share buffers generate the same tokens, so a test would not notice them. Therefore rows also get
other tokens (`override`) and new sentences (`place`), after which only independent copies are right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from memory_engine import TOKENS, logits_after
from txport.runtime.engine import DecoderState, Engine

# Returns the next token of a sentence that is decoded alone, from its source ids and its tokens so far.
NextToken = Callable[[Sequence[int], Sequence[int]], int]


@dataclass(frozen=True)
class Turn:
    """Several steps, after which tokens are replaced, rows are moved and finished rows are refilled.

    Attributes:
        steps: number of steps, as far as the caches have room.
        tokens: replacements of the last token, in the order of the rows; None leaves a row unchanged.
        rows: arguments of `resized`, each modulo the number of rows; empty for no move.
        longer: number of tokens by which the new caches are longer than necessary.
        refill: whether finished rows get the first source again.
        order: arguments of `reorder`, each modulo the number of rows, repeated to their number; empty for no move.
    """

    steps: int
    tokens: list[int | None]
    rows: list[int]
    longer: int
    refill: bool
    order: Sequence[int] = ()


def turns(words: st.SearchStrategy[int], most_rows: int) -> st.SearchStrategy[list[Turn]]:
    """Return a strategy for random walks of a state; `words` are ids other than eos."""
    tokens = st.lists(st.none() | words, max_size=most_rows)
    rows = st.lists(st.integers(0, most_rows - 1), max_size=most_rows)
    turn = st.builds(Turn, st.integers(1, 3), tokens, rows, st.integers(0, 40), st.booleans(), rows)
    return st.lists(turn, min_size=1, max_size=8)


# For `memory_engine`'s model, and the toy bundle.
SOURCES = st.lists(
    st.lists(st.integers(4, 11), max_size=11).map(lambda ids: [*ids, TOKENS.eos]), min_size=1, max_size=4
)
LIMITS = st.lists(st.integers(1, 60), min_size=4, max_size=4)
WALK = turns(st.integers(4, 11), 4)


def after(source: Sequence[int], made: Sequence[int]) -> int:
    """Return the next token of the model of `memory_engine`."""
    return int(logits_after(source, [TOKENS.bos, *made], 0.0).argmax())


@dataclass
class _Row:
    source: Sequence[int]
    limit: int
    made: list[int]
    finished: bool = False
    stepped: bool = True  # whether it took the last step. Otherwise it cannot continue, since its cache is undefined.


def check_moves(
    engine: Engine, sources: Sequence[Sequence[int]], limits: Sequence[int], walk: Sequence[Turn], next_token: NextToken
) -> None:
    """Take a state through a walk, and compare each token with that of the sentence alone."""
    state = engine.allocate(len(sources), max(map(len, sources)), min(4, engine.limits.target))
    rows = [_Row(source, limit, []) for source, limit in zip(sources, limits, strict=True)]
    _place(engine, state, rows, range(len(rows)))
    for turn in walk:
        if all(row.finished for row in rows):
            return
        state = _with_room(engine, state, rows)
        _step(engine, state, rows, turn.steps, next_token)
        _override(state, rows, turn.tokens)
        if turn.order:
            taken = [turn.order[index % len(turn.order)] % len(rows) for index in range(len(rows))]
            rows = _taken(rows, taken)
            state.reorder(taken)
        if turn.rows:
            taken = [index % len(rows) for index in turn.rows]
            rows = _taken(rows, taken)
            target = min(max(len(row.made) for row in rows) + 1 + turn.longer, engine.limits.target)
            state = state.resized(taken, target)
            assert state.rows == len(rows) and state.target >= target
        if turn.refill and (free := [index for index, row in enumerate(rows) if row.finished]):
            for index in free:
                rows[index] = _Row(sources[0], limits[0], [])
            _place(engine, state, rows, free)


def _taken(rows: list[_Row], indices: Sequence[int]) -> list[_Row]:
    return [replace(rows[index], made=list(rows[index].made)) for index in indices]


def _place(engine: Engine, state: DecoderState, rows: list[_Row], indices: Sequence[int]) -> None:
    placed = [rows[index] for index in indices]
    lengths = np.array([len(row.source) for row in placed], np.int64)
    ids = np.full((len(placed), lengths.max()), engine.tokens.pad, np.int64)
    for index, row in enumerate(placed):
        ids[index, : len(row.source)] = row.source
    memory = engine.encode(ids, lengths)
    state.place(list(indices), memory, list(range(len(placed))), [row.limit for row in placed])


def _with_room(engine: Engine, state: DecoderState, rows: list[_Row]) -> DecoderState:
    """Return the state, with longer caches if an unfinished row has filled them."""
    made = max(len(row.made) for row in rows if not row.finished)
    if made < state.target:
        return state
    return state.resized(range(len(rows)), min(2 * made, engine.limits.target))


def _step(engine: Engine, state: DecoderState, rows: list[_Row], steps: int, next_token: NextToken) -> None:
    count = min(steps, state.target - max(len(row.made) for row in rows if not row.finished))
    state.step(count)
    output = state.read()
    assert output.token_ids.shape == (count, len(rows))
    for row, tokens, finished in zip(rows, output.token_ids.T.tolist(), output.finished.tolist(), strict=True):
        for token in tokens:
            expected = engine.tokens.pad if row.finished else next_token(row.source, row.made)
            assert token == expected, f"after {row.made} of {row.source}"
            row.stepped = not row.finished
            if row.stepped:
                row.made.append(token)
                row.finished = token == engine.tokens.eos or len(row.made) >= row.limit
        assert finished == row.finished


def _override(state: DecoderState, rows: list[_Row], tokens: Sequence[int | None]) -> None:
    """Override tokens as for a prefix: an eos may be replaced, but a row at its limit stays finished."""
    pairs = zip(range(len(rows)), tokens, rows, strict=False)
    changes = [(i, token, len(row.made) >= row.limit) for i, token, row in pairs if token is not None and row.stepped]
    for index, token, finished in changes:
        rows[index].made[-1], rows[index].finished = token, finished
    if changes:
        state.override(*map(list, zip(*changes, strict=True)))
