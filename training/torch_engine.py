"""PyTorch engine (`txport.runtime.engine`), by which a model in training uses the runtime's search loop."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor
from txport.models.config import Config
from txport.models.transformer import KeyValue, Transformer
from txport.runtime.bundle.schema import Limits, SpecialTokens
from txport.runtime.engine import (
    FIRST_TARGET,
    DecoderState,
    Float32,
    Int64,
    Memory,
    Sources,
    StepOutput,
    of_rows,
)


class TorchEngine:
    """Engine of a model in float32, without dropout. Parameters are read on each call, so training may continue.

    Args:
        model: on any device.
        batch: maximum number of rows.
        target: maximum number of target tokens, including eos; None for the model's number of positions.
    """

    name = "torch"
    poll = 1
    ragged = False
    restricts = False
    recomputes_logits = False

    def __init__(self, model: Transformer, batch: int = 64, target: int | None = None) -> None:
        config = model.config
        self.model = model
        self.limits = Limits(
            batch,
            config.max_source_positions or config.max_positions,
            min(target or config.max_positions, config.max_positions),
        )
        self.tokens = special_tokens(config)
        self.vocabulary = config.target_vocabulary

    @property
    def device(self) -> torch.device:
        return self.model.projection.weight.device

    def encode(self, input_ids: Sources, source_lengths: Int64) -> Memory:
        """Encode padded ids or vectors: keys and values `[batch, heads, source, head_dim]`, lengths, ids or vectors."""
        ids = torch.from_numpy(input_ids).to(self.device)
        lengths = torch.from_numpy(source_lengths).to(self.device)
        with _evaluation_mode(self.model):
            return self.model.cross_key_values(self.model.encode(ids, lengths)), lengths, ids

    def first_target(self, source: int) -> int:
        """Return the initial cache length. It is short, since the time of a step grows with it."""
        return FIRST_TARGET

    def allocate(
        self, rows: int, source: int, target: int, *, logits: bool = False, top: int = 0, beams: int = 1
    ) -> "TorchState":
        """Return a new state. It always keeps logits, since this has no cost here."""
        return TorchState(self, rows, source, target)


def special_tokens(config: Config) -> SpecialTokens:
    """Return the special ids of a model."""
    return SpecialTokens(config.pad_id, config.unk_id, config.bos_id, config.eos_id)


class TorchState(DecoderState):
    """State of a batch; see `txport.runtime.engine.DecoderState`."""

    def __init__(self, engine: TorchEngine, rows: int, source: int, target: int) -> None:
        self.rows = rows
        self.source = source
        self.target = target
        self._engine = engine
        self._tokens = engine.tokens
        device = engine.device
        model = engine.model
        self._token_ids = torch.full((rows,), self._tokens.pad, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._finished = torch.ones(rows, dtype=torch.bool, device=device)
        self._limits = torch.ones(rows, dtype=torch.int64, device=device)
        # Unused rows attend to one position with zeros.
        self._lengths = torch.ones(rows, dtype=torch.int64, device=device)
        self._source_ids = torch.zeros(rows, source, dtype=torch.int64, device=device)
        self._cross = model.new_caches(rows, source)
        self._caches = model.new_caches(rows, target)
        self._logits: Tensor | None = None
        self._unread: list[Tensor] = []

    def place(
        self, rows: Sequence[int], memory: Memory, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        cross, lengths, ids = cast(tuple[list[KeyValue], Tensor, Tensor], memory)
        row_list = list(rows)
        memory_row_list = list(memory_rows)
        width = min(self.source, cross[0][0].shape[2])
        for stored, new in zip(self._cross, cross, strict=True):
            for mine, theirs in zip(stored, new, strict=True):
                mine[row_list, :, :width] = theirs[memory_row_list, :, :width]
        if ids.dim() == 2:
            self._source_ids[row_list, :width] = ids[memory_row_list, :width]
        self._lengths[row_list] = lengths[memory_row_list]
        self._token_ids[row_list] = self._tokens.bos
        self._positions[row_list] = 0
        self._finished[row_list] = False
        self._limits[row_list] = torch.tensor(list(target_limits), device=self._limits.device)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        """Compute a step like the exported decoder_step: finished rows generate padding and do not advance."""
        model = self._engine.model
        with _evaluation_mode(model):
            logits = model.decode_step(
                self._token_ids, self._positions, self._cross, self._lengths, self._caches, self._source_ids
            )
        next_ids = logits.argmax(dim=-1).masked_fill(self._finished, self._tokens.pad)
        at_end = self._positions + 1 >= self._limits
        self._finished = self._finished | (next_ids == self._tokens.eos) | at_end
        self._positions = self._positions + (~self._finished).long()
        self._token_ids = next_ids
        self._logits = logits
        self._unread.append(next_ids)

    def read(self) -> StepOutput:
        steps = self._unread
        self._unread = []
        if steps:
            ids = torch.stack(steps)
        else:
            ids = torch.zeros((0, self.rows), dtype=torch.int64)
        return StepOutput(ids.cpu().numpy(), self._finished.cpu().numpy())

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        for row, token, done in zip(rows, token_ids, finished, strict=True):
            self._token_ids[row] = token
            if bool(self._finished[row]) and not done:
                self._positions[row] += 1
            self._finished[row] = done

    def logits(self, rows: Sequence[int] | None = None) -> Float32:
        assert self._logits is not None, "no step was computed"
        return of_rows(self._logits.float().cpu().numpy(), rows)

    def reorder(self, rows: Sequence[int]) -> None:
        row_list = list(rows)
        for name in ("_token_ids", "_positions", "_finished", "_limits", "_lengths", "_source_ids"):
            setattr(self, name, getattr(self, name)[row_list])
        self._cross = [(key[row_list], value[row_list]) for key, value in self._cross]
        self._caches = [(key[row_list], value[row_list]) for key, value in self._caches]

    def resized(self, rows: Sequence[int], target: int) -> "TorchState":
        """Return a state with these rows. Indexing by a list copies, so copies of a repeated row are independent."""
        resized = TorchState(self._engine, len(rows), self.source, target)
        row_list = list(rows)
        for name in ("_token_ids", "_positions", "_finished", "_limits", "_lengths", "_source_ids"):
            setattr(resized, name, getattr(self, name)[row_list])
        resized._cross = [(key[row_list], value[row_list]) for key, value in self._cross]
        width = min(self.target, target)
        for new, old in zip(resized._caches, self._caches, strict=True):
            for theirs, mine in zip(new, old, strict=True):
                theirs[:, :, :width] = mine[row_list, :, :width]
        return resized


@contextmanager
def _evaluation_mode(model: Transformer) -> Iterator[None]:
    """Disable dropout, gradients and autocast. Restore the model's mode afterwards."""
    training = model.training
    if training:  # visiting all modules would take as long as the step of a small model
        model.eval()
    try:
        with torch.no_grad(), torch.autocast(model.projection.weight.device.type, enabled=False):
            yield
    finally:
        if training:
            model.train()
