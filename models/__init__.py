"""The reference Transformer, its configuration and its checkpoints."""

from txport.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.models.config import PRESETS, Config, preset
from txport.models.transformer import Transformer

__all__ = ["PRESETS", "Checkpoint", "Config", "Transformer", "load_checkpoint", "preset", "save_checkpoint"]
