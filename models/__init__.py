"""Reference Transformer, its configuration and checkpoints, and importers for models of other toolkits.

Names are imported on first use, so that `tx-import --help` does not load PyTorch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txport.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from txport.models.config import PRESETS, Config, preset
    from txport.models.transformer import Transformer

__all__ = ["PRESETS", "Checkpoint", "Config", "Transformer", "load_checkpoint", "preset", "save_checkpoint"]

_MODULES = {"PRESETS": "config", "Config": "config", "preset": "config", "Transformer": "transformer"}


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module(f"txport.models.{_MODULES.get(name, 'checkpoint')}"), name)
    raise AttributeError(f"module 'txport.models' has no attribute {name!r}")
