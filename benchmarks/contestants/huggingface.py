"""Hugging Face transformers: the same model with `generate`."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from txport.benchmarks.contestants.backend import Setting, Task
from txport.benchmarks.contestants.huggingface_weights import generation_config, hugging_face_model
from txport.benchmarks.contestants.pytorch import TorchBackend
from txport.models.checkpoint import load_checkpoint
from txport.models.config import Config


class Generator(TorchBackend):
    """A model with Hugging Face's `generate`. Subclasses set `engine`."""

    def __init__(self, model: Any, config: Config, device: str) -> None:
        super().__init__(config, device)
        self._model = model

    def prepare(self, task: Task, setting: Setting) -> None:
        """Prepare as `TorchBackend.prepare` does. In a fixed task, no token is eos."""
        if task.prefix:
            raise ValueError("models with a forced prefix are not supported here")
        super().prepare(task, setting)
        if task.fixed:
            eos = None
        else:
            eos = self.config.eos_id
        self._model.generation_config = generation_config(self.config, eos, task.beam)

    def decode(self, ids: Tensor, lengths: Tensor, task: Task) -> Tensor:
        """Decode by `generate` and remove bos from its output."""
        mask = (torch.arange(ids.shape[1], device=self.device) < lengths[:, None]).long()
        output: Tensor = self._model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=task.target)
        return output[:, 1:]


class HuggingFaceBackend(Generator):
    """The model of a checkpoint as a model of Hugging Face.

    Args:
        checkpoint: directory of the checkpoint.
        device: "cpu" or "cuda".
    """

    def __init__(self, checkpoint: str, device: str) -> None:
        model = load_checkpoint(Path(checkpoint)).model
        super().__init__(hugging_face_model(model).to(device), model.config, device)
        versions = f"transformers {transformers.__version__}, PyTorch {torch.__version__}"
        self.engine = f"{versions}, eager on {device}"
