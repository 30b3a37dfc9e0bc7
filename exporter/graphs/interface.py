"""The contract of the graphs (`txport.runtime.bundle.interface`) for a model of ours."""

from txport.models.config import Config
from txport.runtime.bundle.interface import Interface, decoder_step, encoder
from txport.runtime.bundle.schema import ModelSizes


def model_sizes(config: Config) -> ModelSizes:
    """The sizes that a runtime needs to allocate buffers."""
    return ModelSizes(
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        d_model=config.d_model,
        heads=config.heads,
        head_dim=config.head_dim,
        source_vocabulary=config.source_vocabulary,
        target_vocabulary=config.target_vocabulary,
    )


def encoder_of(config: Config) -> Interface:
    """Inputs and outputs of the encoder graph, in float32."""
    return encoder(model_sizes(config), "float32")


def step_of(config: Config) -> Interface:
    """Inputs, outputs and aliases of a decoder step, in float32."""
    return decoder_step(model_sizes(config), "float32")
