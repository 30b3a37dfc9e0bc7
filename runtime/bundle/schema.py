"""The parts of manifest.json, field by field; `txport.runtime.bundle.manifest` puts them together."""

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
Role = Literal["encoder", "decoder_step"]  # what every bundle has
# For attention, scores of given translations, and the memory; and for beam search.
AttentionRole = Literal["decoder", "encoder_attention"]
OptionalRole = Literal[AttentionRole, "decoder_beams"]
Lowering = Literal["standard", "ort", "scatter", "tensorscatter"]
# Those of decoder steps, in the order in which ONNX Runtime should try them: its fused attention reads only the used
# part of a cache; `scatter` needs nothing special; `tensorscatter` needs opset 24, which it has from 1.25 on.
LOWERINGS: tuple[Lowering, ...] = ("ort", "scatter", "tensorscatter")


@dataclass(frozen=True)
class Limits:
    """The largest sizes that an engine takes: rows of a batch, source tokens and tokens made (both with eos)."""

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
    """Sizes of a runtime's buffers.

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
    """Precision of the graphs, and the exceptions to it.

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
        """Precision for people: "float32", or "float32, weights int8"."""
        if self.weights == self.type:
            return self.type
        return f"{self.type}, weights {self.weights}"


@dataclass(frozen=True)
class Tensor:
    """An input or output of a graph. Dimensions are sizes or names; an optional output need not be bound."""

    name: str
    dtype: DType
    shape: tuple[Dimension | int, ...]
    optional: bool

    def sizes(self, named: Mapping[str, int]) -> list[int]:
        """Return the shape in numbers, by the size of each named dimension."""
        return [named[each] if isinstance(each, str) else each for each in self.shape]


@dataclass(frozen=True)
class Graph:
    """One ONNX file.

    Attributes:
        name: of the graph, unique in a bundle.
        role: a `Role` or an `OptionalRole`. Graphs of unknown optional roles are ignored by older runtimes.
        lowering: how a decoder step is written; "standard" for the others.
        optional: whether a runtime can do without it.
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
        engines: what was compared: "ort" in each lowering, and "fused" where that can run the bundle.
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
        min_length: tokens to make before an answer may end.
        max_length: maximum number of tokens to make.
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
        embedding_scale: what the embedding of a token is multiplied by before its position is added.
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
    """Place and form of each tensor of the model in the file of weights.

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
    """The fields of manifest.json, and what follows from them once `txport.runtime.bundle.rules` holds.

    `alignment_heads` are those (layer, head) of cross-attention that point from a target token to its source; a bundle
    of which none are known leaves the field out. `shortlist` names the file of `txport.runtime.bundle.shortlist`.
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

    @property
    def vocabularies(self) -> Vocabularies:
        """The ids that the model has."""
        return Vocabularies(self.model.source_vocabulary, self.model.target_vocabulary, self.tokens.unk)

    @property
    def limits(self) -> Limits:
        """The largest sizes that the graphs take."""
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

    def usable_lowerings(self, asked: str | None) -> tuple[Lowering, ...]:
        """Return the lowerings to choose from, in the order of `lowerings`: `asked` alone if it is given.

        Raises:
            InputError: `asked` is not a lowering of this version.
            BundleError: the bundle lacks it.
        """
        if asked is None:
            return self.lowerings
        known = next((name for name in LOWERINGS if name == asked), None)
        if known is None:
            raise InputError(f"lowering {asked!r} is unknown: use {', '.join(LOWERINGS)}")
        if known not in self.lowerings:
            has = ", ".join(self.lowerings)
            raise BundleError(f"the bundle has no lowering {asked!r}, only {has}: choose one of these")
        return (known,)
