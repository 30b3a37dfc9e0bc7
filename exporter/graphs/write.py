"""Writer of all graphs of a model."""

from collections.abc import Callable, Collection, Sequence

import onnx_ir as ir
from txport.exporter.graphs.beams import write_beams
from txport.exporter.graphs.decoder import write_step
from txport.exporter.graphs.encoder import write_encoder, write_encoder_attention
from txport.exporter.graphs.float16 import HALF_LOWERINGS
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.graphs.teacher_forcing import write_decoder
from txport.exporter.graphs.tensors import ModelTensors
from txport.models.transformer import Transformer

# Optional graphs by name and role. Graphs for attention and scores:
ATTENTION: dict[str, Callable[[Transformer, int, ModelTensors], ir.Model]] = {
    "decoder": write_decoder,
    "encoder_attention": write_encoder_attention,
}
# Graphs for beam search without copies of caches:
BEAMS: dict[str, Callable[[Transformer, int, ModelTensors], ir.Model]] = {"decoder_beams": write_beams}
# All optional graphs:
OPTIONAL = ATTENTION | BEAMS


def write_all(
    model: Transformer, lowerings: Sequence[str], length: int, optional: Collection[str], *, half: bool = False
) -> dict[str, ir.Model]:
    """Return the encoder and the decoder steps of `lowerings`, by the names of their files.

    Weights are computed from the model when they are read, so the model must not change before.

    Args:
        model: in float32.
        lowerings: names, at least one.
        length: maximum number of tokens of a source or translation.
        optional: names of optional graphs.
        half: whether the graphs will be converted to float16.
    """
    tensors = ModelTensors()
    models = {"encoder": write_encoder(model, length, tensors)}
    for name in lowerings:
        lowering = (HALF_LOWERINGS if half else LOWERINGS)[name]
        models[f"decoder_step.{name}"] = write_step(model, lowering, length, tensors)
    for name in optional:
        models[name] = OPTIONAL[name](model, length, tensors)
    return models
