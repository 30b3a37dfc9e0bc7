"""The reference Transformer, its configuration and its checkpoints, and importers of other toolkits' models.

The names are imported when they are first used, so that `tx-import --help` need not wait for PyTorch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txport.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from txport.models.config import PRESETS, Config, preset
    from txport.models.transformer import Transformer

__all__ = ["PRESETS", "Checkpoint", "Config", "Transformer", "load_checkpoint", "preset", "save_checkpoint"]

_MODULES = {
    "checkpoint": ("Checkpoint", "load_checkpoint", "save_checkpoint"),
    "config": ("PRESETS", "Config", "preset"),
    "transformer": ("Transformer",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"txport.models.{module}"), name)
    raise AttributeError(f"module 'txport.models' has no attribute {name!r}")
