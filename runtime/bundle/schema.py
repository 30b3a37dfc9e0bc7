"""Parts of manifest.json, field by field. `txport.runtime.bundle.manifest` combines them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from txport.runtime.bundle.strict_json import added as added
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription, Vocabularies
from txport.runtime.errors import BundleError, InputError

WEIGHTS = "onnx/weights.bin"
ParameterType = Literal["float32", "float16", "int8"]
DType = Literal["float32", "float16", "int64", "int32", "bool"]
Dimension = Literal["batch", "source", "target", "beam", "rows", "slots"]
Role = Literal["encoder", "decoder_step"]  # roles of every bundle
# Attention, scores of given translations and encoder outputs; beam search.
AttentionRole = Literal["decoder", "encoder_attention"]
OptionalRole = Literal[AttentionRole, "decoder_beams"]
Lowering = Literal["standard", "ort", "scatter", "tensorscatter"]
# Lowerings of decoder steps, in the order in which ONNX Runtime should try them. `ort` reads only the used part of a
# cache. `scatter` has no special requirements. `tensorscatter` needs opset 24: ONNX Runtime 1.25 or newer.
LOWERINGS: tuple[Lowering, ...] = ("ort", "scatter", "tensorscatter")


@dataclass(frozen=True)
class Limits:
    """Maximum sizes of an engine: rows of a batch, source tokens and generated tokens (both with eos)."""

    batch: int
    source: int
    target: int


@dataclass(frozen=True)
class SpecialTokens:
    """Ids with a meaning: padding, unknown, decoder start (`bos`) and end of sequence."""

    pad: int
    unk: int
    bos: int
    eos: int


@dataclass(frozen=True)
class MadeBy:
    """The program that wrote the bundle."""

    name: str
    version: str


@dataclass(frozen=True)
class ModelSizes:
    """Sizes that determine a runtime's buffers.

    Attributes:
        heads: of the decoder, and of the encoder unless `encoder_heads` is set.
        head_dim: of the decoder.
        copies: whether a step reads the source's ids as well.
        feature_size: numbers of a feature vector, for a model that reads vectors instead of source ids. If there are
            no encoder layers, the vectors are the states of another encoder.
    """

    encoder_layers: int
    decoder_layers: int
    d_model: int
    heads: int
    head_dim: int
    source_vocabulary: int
    target_vocabulary: int
    copies: bool = added(False)
    encoder_heads: int | None = added(None)
    feature_size: int | None = added(None)


@dataclass(frozen=True)
class Range:
    """Range of a named dimension, and the size for which engines are tuned."""

    min: int
    opt: int
    max: int


@dataclass(frozen=True)
class Dimensions:
    """Rows of a batch, source tokens and generated tokens. Both include eos; `target` is the cache length."""

    batch: Range
    source: Range
    target: Range


@dataclass(frozen=True)
class Island:
    """Nodes of one graph that compute in float32 although the graph does not, and the reason."""

    graph: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Precision:
    """Precision of the graphs, and the exceptions to it.

    Attributes:
        type: of inputs, outputs, caches and activations.
        weights: type of weights: `type`, or int8. With int8, activations are rounded to int8 for products too.
        islands: nodes that stay in float32.
    """

    type: Literal["float32", "float16"]
    weights: Literal["float32", "float16", "int8"]
    islands: tuple[Island, ...]

    @property
    def summary(self) -> str:
        """Precision for people: "float32", or "float32, weights int8"."""
        if self.weights == self.type:
            return self.type
        return f"{self.type}, weights {self.weights}"


@dataclass(frozen=True)
class Tensor:
    """Input or output of a graph. Dimensions are sizes or names; optional outputs may stay unbound."""

    name: str
    dtype: DType
    shape: tuple[Dimension | int, ...]
    optional: bool

    def sizes(self, dimensions: Mapping[str, int]) -> list[int]:
        """Return the shape as numbers, with the size of each named dimension."""
        return [dimensions[each] if isinstance(each, str) else each for each in self.shape]


@dataclass(frozen=True)
class Graph:
    """One ONNX file.

    Attributes:
        name: of the graph, unique in a bundle.
        role: a `Role` or an `OptionalRole`. Graphs of unknown optional roles are ignored by older runtimes.
        lowering: that of a decoder step; "standard" for other graphs.
        optional: whether runtimes may ignore the graph.
        file: relative to the bundle.
        opsets: version of each domain of operators.
        inputs, outputs: see `txport.runtime.bundle.interface`; outputs beyond these are optional.
        aliases: (input, output) pairs that share one buffer.
    """

    name: str
    role: str
    lowering: Lowering
    optional: bool
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
    """The result of comparing the bundle with PyTorch at export; `verification.json` has the details.

    Attributes:
        engines: the compared engines: "ort" in each lowering, and "fused" if it supports the bundle.
    """

    passed: bool
    sentences: int
    token_identical: int
    batch_identical: int
    max_logit_error: float
    engines: tuple[str, ...] = added(("ort",))


@dataclass(frozen=True)
class Generation:
    """The generation settings of the model, for the option `generation="model"`. Unset fields are None.

    Attributes:
        beam, length_penalty, early_stopping, repetition_penalty, no_repeat_ngram, bad_words, suppress, begin_suppress,
            end_ids, forced_end, renormalize, sample, temperature, top_k, top_p, min_p: see
            `txport.runtime.search.settings`.
        min_length: minimum number of new tokens.
        max_length: maximum number of new tokens.
        replace_unknowns: see `txport.runtime.options.Options`.
        unsupported: settings that this search does not have, as "name = value".
    """

    beam: int | None = added(None)
    length_penalty: float | None = added(None)
    early_stopping: bool | Literal["never"] | None = added(None)
    repetition_penalty: float | None = added(None)
    no_repeat_ngram: int | None = added(None)
    bad_words: tuple[tuple[int, ...], ...] | None = added(None)
    suppress: tuple[int, ...] | None = added(None)
    begin_suppress: tuple[int, ...] | None = added(None)
    end_ids: tuple[int, ...] | None = added(None)
    forced_end: int | None = added(None)
    renormalize: bool | None = added(None)
    sample: bool | None = added(None)
    temperature: float | None = added(None)
    top_k: int | None = added(None)
    top_p: float | None = added(None)
    min_p: float | None = added(None)
    min_length: int | None = added(None)
    max_length: int | None = added(None)
    replace_unknowns: bool | None = added(None)
    unsupported: tuple[str, ...] = added(())


@dataclass(frozen=True)
class Architecture:
    """Arithmetic of the model that does not follow from sizes and tensors.

    Attributes:
        norm: after each sublayer ("post"; "post_final" with one more at the end) or before it ("pre").
        activation: of the feed-forward layers, or of their gates; "gelu" is by erf, "gelu_tanh" by tanh.
        embedding_scale: factor of token embeddings before positions are added.
        layer_norm_epsilon: added to the variance, or to the mean square.
        norm_kind: LayerNorm, or RMSNorm, which has no bias.
    """

    norm: Literal["post", "pre", "post_final"]
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"]
    embedding_scale: float
    layer_norm_epsilon: float
    norm_kind: Literal["layer", "rms"] = added("layer")


@dataclass(frozen=True)
class Parameter:
    """One tensor, as a view of the weights file.

    Attributes:
        name: in the state dict.
        dtype: of the elements. A value of int8 is the element times its scale.
        offset: in bytes, of the first element.
        shape: of the state dict's tensor.
        strides: in elements, one for each dimension.
        scales: for int8, the offset in bytes of contiguous float32 `[shape[0]]`; otherwise None.
    """

    name: str
    dtype: ParameterType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    scales: int | None


@dataclass(frozen=True)
class Parameters:
    """Location and layout of each tensor of the model in the weights file.

    Graphs pack and fold their weights. An engine without graphs, which implements the Transformer itself, finds the
    same bytes by this table, under the names of the model's state dict (`txport.models.transformer`). Sinusoidal
    positions are stored as learned ones are; relative ones as `RelativePositions.table` has them, a row for each
    distance and a column for each head, of one layer or of all; rotary ones as `rotations` has them, for each stack.
    Weight and bias of every `query` are stored times head_dim^-0.5, as the graphs have them. Where
    `source_embedding.tokens.weight` or `projection.weight` is missing, it is the same tensor as
    `target_embedding.tokens.weight`.
    """

    architecture: Architecture
    tensors: tuple[Parameter, ...]


@dataclass(frozen=True)
class ManifestFields:
    """Fields of manifest.json, and values derived from them after `txport.runtime.bundle.rules` has checked them.

    `alignment_heads` are the (layer, head) pairs of cross-attention that point from a target token to its source;
    without such heads, the field is absent. `shortlist` names the file of `txport.runtime.bundle.shortlist`.
    `external_encoder` names the encoder whose states the bundle reads, for users; runtimes do not use it.
    """

    format_version: int
    made_by: MadeBy
    model: ModelSizes
    tokens: SpecialTokens
    dimensions: Dimensions
    precision: Precision
    graphs: tuple[Graph, ...]
    tokenizer: TokenizerDescription
    generation: Generation
    files: dict[str, FileEntry]
    verification: Verification | None
    alignment_heads: tuple[tuple[int, int], ...] = added(())
    parameters: Parameters | None = added(None)
    shortlist: str | None = added(None)
    frame_rate: float | None = added(None)
    external_encoder: str | None = added(None)

    @property
    def vocabularies(self) -> Vocabularies:
        """The vocabularies of the model."""
        return Vocabularies(self.model.source_vocabulary, self.model.target_vocabulary, self.tokens.unk)

    @property
    def limits(self) -> Limits:
        """Maximum sizes of the graphs."""
        return Limits(self.dimensions.batch.max, self.dimensions.source.max, self.dimensions.target.max)

    @property
    def encoder(self) -> Graph:
        """The encoder graph."""
        return next(graph for graph in self.graphs if graph.role == "encoder")

    def optional_graph(self, role: OptionalRole) -> Graph | None:
        """Return the graph of this role, if the bundle has one."""
        return next((graph for graph in self.graphs if graph.role == role), None)

    @property
    def lowerings(self) -> tuple[Lowering, ...]:
        """Lowerings of the decoder steps, in the order in which ONNX Runtime should try them."""
        steps = {graph.lowering for graph in self.graphs if graph.role == "decoder_step"}
        return tuple(name for name in LOWERINGS if name in steps)

    def step(self, lowering: Lowering) -> Graph:
        """Return the decoder step in one of `lowerings`."""
        return next(graph for graph in self.graphs if (graph.role, graph.lowering) == ("decoder_step", lowering))

    def usable_lowerings(self, requested: str | None) -> tuple[Lowering, ...]:
        """Return the lowerings to choose from, in the order of `lowerings`: `requested` alone if it is given.

        Raises:
            InputError: `requested` is not a lowering of this version.
            BundleError: the bundle lacks it.
        """
        if requested is None:
            return self.lowerings
        lowering = next((name for name in LOWERINGS if name == requested), None)
        if lowering is None:
            raise InputError(f"lowering {requested!r} is unknown: use {', '.join(LOWERINGS)}")
        if lowering not in self.lowerings:
            available = ", ".join(self.lowerings)
            raise BundleError(f"the bundle has no lowering {requested!r}, only {available}: choose one of these")
        return (lowering,)
