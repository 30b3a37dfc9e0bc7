"""Hugging Face transformers: `generate` of the same model, greedy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from txport.benchmarks.contestants.backend import Setting, Task, cut_after, padded
from txport.benchmarks.contestants.huggingface_weights import generation_config, hugging_face_model
from txport.models.checkpoint import load_checkpoint
from txport.models.config import Config


class Generator:
    """Anything with Hugging Face's `generate`; who makes one sets `engine`."""

    engine: str

    def __init__(self, model: Any, config: Config, device: torch.device) -> None:
        self._model, self._config, self._device = model, config, device
        self.device = device.type
        self._task: Task | None = None
        self._batches: list[tuple[list[int], dict[str, Tensor]]] = []
        self._made: list[Tensor] = []

    def prepare(self, task: Task, setting: Setting) -> None:
        """Tensors of the ids, in batches of `setting["rows"]` if the task is a text; `setting["threads"]` if given."""
        if "threads" in setting:
            torch.set_num_threads(int(setting["threads"]))
        if task.prefix:
            raise ValueError("answers that are forced to begin with certain ids are not compared")
        self._task, self._batches = task, []
        self._model.generation_config = generation_config(self._config, None if task.fixed else self._config.eos_id)
        for indices in task.batches(int(setting.get("rows", "1"))):
            ids, lengths = padded([task.sources[index] for index in indices], self._config.pad_id)
            mask = [[1] * length + [0] * (len(ids[0]) - length) for length in lengths]
            inputs = {"input_ids": ids, "attention_mask": mask}
            tensors = {name: torch.tensor(value, device=self._device) for name, value in inputs.items()}
            self._batches.append((indices, tensors))

    @torch.inference_mode()
    def call(self) -> None:
        """The task, batch after batch."""
        assert self._task is not None
        most = self._task.target
        self._made = [self._model.generate(**inputs, max_new_tokens=most) for _, inputs in self._batches]
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def ids(self) -> list[list[int]]:
        """Of the last call, in the order of the sentences."""
        assert self._task is not None
        found: list[list[int]] = [[] for _ in self._task.sources]
        for (indices, _), made in zip(self._batches, self._made, strict=True):
            for index, row in zip(indices, made[:, 1:].tolist(), strict=True):
                found[index] = row if self._task.fixed else cut_after(row, self._config.eos_id)
        return found

    def parts(self) -> dict[str, Callable[[], object]]:
        """None."""
        return {}


class HuggingFaceBackend(Generator):
    """The model of a checkpoint as one of Hugging Face's.

    Args:
        checkpoint: the directory.
        device: "cpu" or "cuda".
    """

    def __init__(self, checkpoint: str, device: str) -> None:
        model = load_checkpoint(Path(checkpoint)).model
        super().__init__(hugging_face_model(model).to(device), model.config, torch.device(device))
        versions = f"transformers {transformers.__version__}, PyTorch {torch.__version__}"
        self.engine = f"{versions}, eager on {device}"
