"""PyTorch: txport's Transformer in float32, decoded step by step with caches, eager or with torch.compile."""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from txport.benchmarks.contestants.backend import Backend, Setting, Task, cut_after, padded
from txport.models.checkpoint import load_checkpoint
from txport.models.config import Config


class TorchBackend(Backend):
    """A model that decodes PyTorch tensors, batch after batch; subclasses set `engine`.

    Args:
        config: config of the model, with its special ids.
        device: "cpu" or "cuda".
    """

    def __init__(self, config: Config, device: str) -> None:
        self.config = config
        self.device = device
        self._task: Task | None = None
        self._batches: list[tuple[list[int], Tensor, Tensor]] = []
        self._results: list[Tensor] = []

    @abstractmethod
    def decode(self, ids: Tensor, lengths: Tensor, task: Task) -> Tensor:
        """Decode one batch: int64 `[b, s]` padded ids and `[b]` lengths -> int64 `[b, new tokens]` without bos."""

    def prepare(self, task: Task, setting: Setting) -> None:
        """Convert ids to tensors, in batches of `setting["rows"]` for a text, and set `setting["threads"]` threads."""
        if "threads" in setting:
            torch.set_num_threads(int(setting["threads"]))
        self._task = task
        self._batches = []
        for indices in task.batches(int(setting.get("rows", "1"))):
            ids, lengths = padded([task.sources[index] for index in indices], self.config.pad_id)
            batch = torch.tensor(ids, device=self.device), torch.tensor(lengths, device=self.device)
            self._batches.append((indices, *batch))

    @torch.inference_mode()
    def call(self) -> None:
        """Run the task, one batch after another."""
        assert self._task is not None
        self._results = [self.decode(ids, lengths, self._task) for _, ids, lengths in self._batches]
        if self.device == "cuda":  # calls return before the GPU has finished
            torch.cuda.synchronize()

    def ids(self) -> list[list[int]]:
        """Return the ids of the last call, in the order of the sentences."""
        assert self._task is not None
        answers: list[list[int]] = [[] for _ in self._task.sources]
        for (indices, _, _), result in zip(self._batches, self._results, strict=True):
            for index, row in zip(indices, result.tolist(), strict=True):
                answers[index] = row if self._task.fixed else cut_after(row, self.config.eos_id)
        return answers


class PyTorchBackend(TorchBackend):
    """The model of a checkpoint.

    Args:
        checkpoint: directory of the checkpoint.
        device: "cpu" or "cuda".
        compiled: run the decoder step with torch.compile and dynamic shapes. It compiles during the warm-up.
    """

    def __init__(self, checkpoint: str, device: str, compiled: bool) -> None:
        self._model = load_checkpoint(Path(checkpoint)).model.to(device)
        super().__init__(self._model.config, device)
        self._step: Callable[..., Tensor] = self._model.decode_step
        if compiled:
            # The used length of the caches is read from a tensor, which torch.compile does not support by default.
            torch._dynamo.config.capture_scalar_outputs = True
            self._step = torch.compile(self._model.decode_step, dynamic=True)
        self.engine = f"PyTorch {torch.__version__} {'torch.compile' if compiled else 'eager'} on {device}"

    def prepare(self, task: Task, setting: Setting) -> None:
        """Prepare as `TorchBackend.prepare` does."""
        task.greedy_only()
        super().prepare(task, setting)

    def decode(self, ids: Tensor, lengths: Tensor, task: Task) -> Tensor:
        """Run greedy search step by step until every row has eos or `task.target` tokens."""
        model = self._model
        config = self.config
        batch = len(ids)
        memory = model.encode(ids, lengths)
        cross = model.cross_key_values(memory)
        caches = model.new_caches(batch, task.target)
        tokens = torch.full((batch,), config.bos_id, device=self.device)
        positions = torch.zeros_like(tokens)
        finished = torch.zeros_like(tokens, dtype=torch.bool)
        steps: list[Tensor] = []
        while len(steps) < task.target:
            logits = self._step(tokens, positions, cross, lengths, caches)
            tokens = logits.argmax(-1)
            if len(steps) < len(task.prefix):
                tokens = torch.full_like(tokens, task.prefix[len(steps)])
            steps.append(tokens)
            positions = positions + 1
            if not task.fixed:
                finished = finished | (tokens == config.eos_id)
                # Reading this flag makes the host wait for the GPU, so fixed workloads do without it.
                if bool(finished.all()):
                    break
        return torch.stack(steps, dim=1)
