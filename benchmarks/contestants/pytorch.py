"""PyTorch: txport's own Transformer in float32, step by step with caches, as it is or through torch.compile."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from txport.benchmarks.contestants.backend import Setting, Task, cut_after, padded
from txport.models.checkpoint import load_checkpoint


class PyTorchBackend:
    """The model of a checkpoint.

    Args:
        checkpoint: the directory.
        device: "cpu" or "cuda".
        compiled: run the decoder step through torch.compile with dynamic shapes; compiling is part of the warm-up.
    """

    def __init__(self, checkpoint: str, device: str, compiled: bool) -> None:
        self.device, self._device = device, torch.device(device)
        self._model = load_checkpoint(Path(checkpoint)).model.to(self._device)
        self._step: Callable[..., Tensor] = self._model.decode_step
        if compiled:
            # The length that is read from the caches is a number from a tensor.
            torch._dynamo.config.capture_scalar_outputs = True
            self._step = torch.compile(self._model.decode_step, dynamic=True)
        how = "torch.compile" if compiled else "eager"
        self.engine = f"PyTorch {torch.__version__} {how} on {device}"
        self._task: Task | None = None
        self._batches: list[tuple[list[int], Tensor, Tensor]] = []
        self._made: list[Tensor] = []

    def prepare(self, task: Task, setting: Setting) -> None:
        """Tensors of the ids, in batches of `setting["rows"]` if the task is a text; `setting["threads"]` threads."""
        torch.set_num_threads(int(setting["threads"]))
        self._task, self._batches = task, []
        for indices in task.batches(int(setting.get("rows", "1"))):
            ids, lengths = padded([task.sources[index] for index in indices], self._model.config.pad_id)
            given = torch.tensor(ids, device=self._device), torch.tensor(lengths, device=self._device)
            self._batches.append((indices, *given))

    @torch.inference_mode()
    def call(self) -> None:
        """The task, batch after batch."""
        assert self._task is not None
        self._made = [self._decode(ids, lengths, self._task) for _, ids, lengths in self._batches]

    def _decode(self, ids: Tensor, lengths: Tensor, task: Task) -> Tensor:
        """int64 `[b, s]` and `[b]` -> int64 `[b, tokens made]`."""
        model, config, batch = self._model, self._model.config, len(ids)
        memory = model.encode(ids, lengths)
        cross, caches = model.cross_key_values(memory), model.new_caches(batch, task.target)
        tokens = torch.full((batch,), config.bos_id, device=self._device)
        positions = torch.zeros_like(tokens)
        finished = torch.zeros(batch, dtype=torch.bool, device=self._device)
        made: list[Tensor] = []
        while len(made) < task.target:
            logits = self._step(tokens, positions, cross, lengths, caches)
            tokens = logits.argmax(-1)
            if len(made) < len(task.prefix):
                tokens = torch.full_like(tokens, task.prefix[len(made)])
            made.append(tokens)
            positions = positions + 1
            if not task.fixed:
                finished = finished | (tokens == config.eos_id)
                if bool(finished.all()):
                    break
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return torch.stack(made, dim=1)

    def ids(self) -> list[list[int]]:
        """Of the last call, in the order of the sentences."""
        assert self._task is not None
        found: list[list[int]] = [[] for _ in self._task.sources]
        for (indices, _, _), made in zip(self._batches, self._made, strict=True):
            for index, row in zip(indices, made.tolist(), strict=True):
                found[index] = row if self._task.fixed else cut_after(row, self._model.config.eos_id)
        return found

    def parts(self) -> dict[str, Callable[[], object]]:
        """None."""
        return {}
