"""Weights, gradients and optimizer state in shards over devices: FSDP (Zhao et al. 2023, arXiv:2304.11277).

Lightning supports it only on GPUs (its issues 21778, 21804 and 21812). On CPUs it passes no device, which PyTorch does
not accept. It also copies gathered weights "to the CPU", where they already are, and so saves memory that is freed.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, OptimStateKeyType, StateDictType
from torch.distributed.fsdp.api import FullOptimStateDictConfig
from torch.nn import Module
from torch.optim import Optimizer


class Sharded(FSDPStrategy):
    """Lightning's FSDP strategy with support for CPUs."""

    @property
    def _on_cpu(self) -> bool:
        return self.root_device.type == "cpu"

    def _setup_model(self, model: Module) -> Module:
        if not self._on_cpu:
            return super()._setup_model(model)
        return FullyShardedDataParallel(
            model,
            sharding_strategy=self.sharding_strategy,
            mixed_precision=self.mixed_precision_config,
            device_id=torch.device("cpu"),
            **self.kwargs,
        )

    def lightning_module_state_dict(self) -> dict[str, Any]:
        if not self._on_cpu:
            return super().lightning_module_state_dict()
        with self._gather_weights():
            return self.wrapped.state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        if not self._on_cpu:
            return super().optimizer_state(optimizer)
        with self._gather_weights():
            state = FullyShardedDataParallel.optim_state_dict(self.wrapped, getattr(optimizer, "_optimizer", optimizer))
            return FullyShardedDataParallel.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_ID, self.wrapped)

    def clip(self, norm: float) -> None:
        """Clip gradients by their norm over all shards."""
        self.wrapped.clip_grad_norm_(norm)

    @property
    def wrapped(self) -> FullyShardedDataParallel:
        """FSDP module in training, which has a shard of each parameter."""
        assert isinstance(self.model, FullyShardedDataParallel)
        return self.model

    def _gather_weights(self) -> AbstractContextManager[Any]:
        return FullyShardedDataParallel.state_dict_type(
            self.wrapped,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=False, rank0_only=False),
            FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=False),
        )


@contextmanager
def whole_weights(trainer: Trainer) -> Iterator[None]:
    """Gather all weights on each device, for reading, while the context is active."""
    if not isinstance(trainer.strategy, Sharded):
        yield
        return
    with FullyShardedDataParallel.summon_full_params(trainer.strategy.wrapped, writeback=False):
        yield
