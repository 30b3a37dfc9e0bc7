"""The parts of manifest.json, field by field; `txport.runtime.bundle.manifest` puts them together."""

from dataclasses import dataclass
from typing import Literal

DType = Literal["float32", "float16", "int64", "int32", "bool"]
Dimension = Literal["batch", "source", "target"]
Role = Literal["encoder", "decoder_step"]
Lowering = Literal["standard", "ort", "scatter", "tensorscatter"]


@dataclass(frozen=True)
class MadeBy:
    """The program that wrote the bundle."""

    name: str
    version: str


@dataclass(frozen=True)
class ModelSizes:
    """What a runtime needs to size its buffers."""

    encoder_layers: int
    decoder_layers: int
    d_model: int
    heads: int
    head_dim: int
    source_vocabulary: int
    target_vocabulary: int


@dataclass(frozen=True)
class Range:
    """The sizes that a named dimension may take, and the one that engines are tuned for."""

    min: int
    opt: int
    max: int


@dataclass(frozen=True)
class Dimensions:
    """Rows of a batch, source tokens (eos included), tokens made (eos included: the cache length)."""

    batch: Range
    source: Range
    target: Range


@dataclass(frozen=True)
class Island:
    """Nodes of one graph that compute in float32 although the graph does not, and why."""

    graph: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Precision:
    """What the graphs compute in, and the exceptions to it.

    Attributes:
        type: of inputs, outputs, caches and activations.
        weights: of weights; `type`, or int8, which then multiplies activations rounded to int8 as well.
        islands: nodes that stay in float32.
    """

    type: Literal["float32", "float16"]
    weights: Literal["float32", "float16", "int8"]
    islands: tuple[Island, ...]

    @property
    def summary(self) -> str:
        """For people: "float32", or "float32, weights int8"."""
        return self.type if self.weights == self.type else f"{self.type}, weights {self.weights}"


@dataclass(frozen=True)
class Tensor:
    """An input or output of a graph. Dimensions are sizes or names; an optional output need not be bound."""

    name: str
    dtype: DType
    shape: tuple[Dimension | int, ...]
    optional: bool


@dataclass(frozen=True)
class Graph:
    """One ONNX file. Each alias is an (input, output) pair that shares one buffer."""

    name: str
    role: Role
    lowering: Lowering
    file: str
    opsets: dict[str, int]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    aliases: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256 of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Verification:
    """The result of comparing the bundle with PyTorch at export; `verification.json` has the details."""

    passed: bool
    sentences: int
    token_identical: int
    batch_identical: int
    max_logit_error: float
