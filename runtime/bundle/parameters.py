"""The field `parameters` of manifest.json: where each tensor of the model lies in the file of weights, in which form.

Graphs pack and fold their weights. An engine without graphs, which implements the Transformer itself, finds the
same bytes by this table, under the names of the model's state dict (`txport.models.transformer`). Sinusoidal
positions are stored as learned ones are; relative ones as `RelativePositions.table` has them, a row for each distance
and a column for each head, of one layer or of all; rotary ones as `rotations` has them, for each stack. Weight and
bias of every `query` are stored times head_dim^-0.5, as the graphs have them. Where `source_embedding.tokens.weight`
or `projection.weight` is missing, it is the same tensor as `target_embedding.tokens.weight`.
"""

from dataclasses import dataclass, field
from typing import Literal

WEIGHTS = "onnx/weights.bin"
ParameterType = Literal["float32", "float16", "int8"]


@dataclass(frozen=True)
class Architecture:
    """Arithmetic of the model that does not follow from sizes and tensors.

    Attributes:
        norm: after each sublayer ("post"; "post_final" with one more at the end) or before it ("pre").
        activation: of the feed-forward layers, or of their gates; "gelu" is by erf, "gelu_tanh" by tanh.
        embedding_scale: what the embedding of a token is multiplied by before its position is added.
        layer_norm_epsilon: added to the variance, or to the mean square.
        norm_kind: LayerNorm, or RMSNorm, which has no bias.
    """

    norm: Literal["post", "pre", "post_final"]
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"]
    embedding_scale: float
    layer_norm_epsilon: float
    norm_kind: Literal["layer", "rms"] = field(default="layer", metadata={"added": True})


@dataclass(frozen=True)
class Parameter:
    """One tensor, as a view of the file of weights.

    Attributes:
        name: in the state dict.
        dtype: of the elements; int8 stands for element times scale.
        offset: in bytes, of the first element.
        shape: of the state dict's tensor.
        strides: in elements, one for each dimension.
        scales: of int8 the offset in bytes of float32 `[shape[0]]`, contiguous; otherwise None.
    """

    name: str
    dtype: ParameterType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    scales: int | None


@dataclass(frozen=True)
class Parameters:
    """All of them."""

    architecture: Architecture
    tensors: tuple[Parameter, ...]
