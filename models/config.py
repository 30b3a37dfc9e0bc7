"""Configuration of an encoder-decoder Transformer: a frozen dataclass and its presets."""

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from txport.runtime.bundle.schema import ModelSizes
from txport.runtime.bundle.strict_json import decode, encode
from txport.runtime.bundle.tokenizer_schema import Vocabularies
from txport.runtime.errors import InputError

# Logit of forbidden ids: finite in float16, and far below the logits of allowed ids.
BANNED = -30000.0
NORMS = ("post", "pre", "post_final", "pre_no_final")
NORM_KINDS = ("layer", "rms", "power", "batch")
SOURCES = ("ids", "features")
POSITIONS = ("sinusoidal", "learned", "relative", "rotary", "shaw")
POSITION_TABLES = ("stack", "layer")
FEED_FORWARDS = ("plain", "gated")
LARGEST = 1 << 24  # far above real sizes; the product of two fits 64 bits
# Maxima of sizes that take memory before any weight is read: modules of layers, and tables of sinusoids.
_MAXIMA = {"encoder_layers": 1024, "decoder_layers": 1024, "max_positions": 1 << 17, "max_source_positions": 1 << 17}
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
INITIALISATIONS = ("scaled", "annotated", "d2l")

_CHOICES = {
    "source": SOURCES,
    "norm": NORMS,
    "norm_kind": NORM_KINDS,
    "positions": POSITIONS,
    "position_tables": POSITION_TABLES,
    "activation": ACTIVATIONS,
    "feed_forward": FEED_FORWARDS,
    "initialisation": INITIALISATIONS,
}

Heads: TypeAlias = tuple[tuple[int, int], ...]  # (layer, head), counted from 0


def _option(default: Any, help: str, *, optional_in_files: bool = False) -> Any:
    """Return a dataclass field. With `optional_in_files`, older files may lack it: they are read with the default."""
    return field(default=default, metadata={"help": help, "added": optional_in_files})


@dataclass(frozen=True)
class Side:
    """Sizes of the encoder or decoder: layers, attention heads, width of a head, width of the feed-forward layer."""

    layers: int
    heads: int
    head_dim: int
    ffn: int


@dataclass(frozen=True)
class Config:
    """Sizes and options of a model. The defaults are "base" of Vaswani et al. (2017).

    The text of each field is its help text on command lines.

    Raises:
        InputError: a value is not possible; the message names the field.
    """

    source_vocabulary: int = _option(32000, "rows of the source embedding, a multiple of 8 is fastest")
    source: str = _option(
        "ids",
        "input of the encoder: token ids (ids), or feature vectors such as frames of a spectrogram (features)",
        optional_in_files=True,
    )
    feature_size: int | None = _option(
        None,
        "numbers of a feature vector, or, without encoder layers, width of the encoder states",
        optional_in_files=True,
    )
    frame_rate: float | None = _option(
        None, "feature vectors per second, for times in alignments; none: unknown", optional_in_files=True
    )
    external_encoder: str | None = _option(
        None, "name of the encoder whose states the model reads, for users; none: it is unknown", optional_in_files=True
    )
    target_vocabulary: int = _option(32000, "rows of the target embedding and of the output projection")
    d_model: int = _option(512, "width of the residual stream")
    heads: int = _option(8, "attention heads")
    head_dim: int | None = _option(None, "width of a head; none: d_model / heads", optional_in_files=True)
    ffn: int = _option(2048, "inner width of the feed-forward layers")
    decoder_heads: int | None = _option(
        None, "attention heads of the decoder; none: as in the encoder", optional_in_files=True
    )
    decoder_ffn: int | None = _option(
        None, "inner width of the decoder's feed-forward layers; none: as in the encoder", optional_in_files=True
    )
    encoder_layers: int = _option(6, "encoder layers; 0 with features: the vectors are the states of another encoder")
    decoder_layers: int = _option(6, "decoder layers")
    norm: str = _option(
        "post",
        "a norm after each sublayer (post; post_final with one more at the end) or before it (pre; pre_no_final "
        "without one at the end)",
    )
    norm_kind: str = _option(
        "layer",
        "LayerNorm (layer), RMSNorm (rms), PowerNorm (power: by running quadratic means) or BatchNorm (batch)",
        optional_in_files=True,
    )
    positions: str = _option(
        "sinusoidal",
        "sinusoidal or learned (added to embeddings), relative (added to attention scores, as in T5), rotary "
        "(rotations of queries and keys, as in RoFormer), or shaw (vectors added to keys and values)",
    )
    max_positions: int = _option(512, "longest source or target, in tokens")
    max_source_positions: int | None = _option(
        None, "longest source, in tokens or feature vectors; none: max_positions", optional_in_files=True
    )
    position_buckets: int = _option(32, "relative positions: number of biases of each head", optional_in_files=True)
    position_distance: int = _option(
        128,
        "relative positions: distances from this one on share a bias; shaw: they share a vector",
        optional_in_files=True,
    )
    position_tables: str = _option(
        "stack",
        "relative positions: one table for all layers of a stack, or one for each (layer)",
        optional_in_files=True,
    )
    activation: str = _option("relu", "relu, gelu (by erf), gelu_tanh (its approximation) or silu")
    feed_forward: str = _option(
        "plain",
        "feed-forward layers: plain, or gated (Shazeer 2020): activation(gate x) * (inner x)",
        optional_in_files=True,
    )
    feed_forward_bias: bool = _option(True, "biases in the feed-forward layers", optional_in_files=True)
    share_embeddings: bool = _option(True, "one embedding for source and target; needs one vocabulary")
    tie_projection: bool = _option(True, "the output projection is the target embedding")
    projection_bias: bool = _option(False, "add a bias to the logits")
    scale_embedding: bool = _option(True, "multiply embeddings by sqrt(d_model)")
    embedding_norm: bool = _option(False, "a norm on the sum of embedding and position (as BART has)")
    dropout: float = _option(0.1, "dropout on embeddings and on each sublayer's output")
    attention_dropout: float = _option(0.0, "dropout on attention weights", optional_in_files=True)
    activation_dropout: float | None = _option(
        None, "dropout inside the feed-forward layers; none: the same as dropout", optional_in_files=True
    )
    attention_bias: bool = _option(
        True, "biases in the query, key, value and output projections of attention", optional_in_files=True
    )
    layer_norm_epsilon: float = _option(1e-5, "added to the variance, or mean square, in every norm")
    initialisation: str = _option(
        "scaled",
        "weights of a new model: Xavier, with embeddings from N(0, 1/d_model) (scaled), or as in the textbooks "
        "(annotated, d2l)",
        optional_in_files=True,
    )
    alignment_heads: Heads = _option(
        (),
        "(layer, head) pairs of cross-attention, counted from 0, from which alignments are computed",
        optional_in_files=True,
    )
    copy_heads: Heads = _option(
        (),
        "(layer, head) pairs of cross-attention whose average copies words of the source; none: no copying",
        optional_in_files=True,
    )
    pad_id: int = _option(0, "id of padding")
    unk_id: int = _option(1, "id of unknown pieces")
    bos_id: int = _option(2, "id that the decoder starts from")
    eos_id: int = _option(3, "id that ends a sentence")

    @property
    def pre_norm(self) -> bool:
        """True if norms precede sublayers."""
        return self.norm in ("pre", "pre_no_final")

    @property
    def final_norm(self) -> bool:
        """True if a norm follows the last layer of each stack, in addition to the norms of its sublayers."""
        return self.norm in ("pre", "post_final")

    @property
    def encoder(self) -> Side:
        return self._side(self.encoder_layers, self.heads, self.ffn)

    @property
    def decoder(self) -> Side:
        return self._side(self.decoder_layers, self.decoder_heads or self.heads, self.decoder_ffn or self.ffn)

    def _side(self, layers: int, heads: int, ffn: int) -> Side:
        return Side(layers, heads, self.d_model // heads if self.head_dim is None else self.head_dim, ffn)

    @property
    def sizes(self) -> ModelSizes:
        """Sizes that determine the graphs of the model."""
        encoder = self.encoder
        decoder = self.decoder
        return ModelSizes(
            encoder_layers=encoder.layers,
            decoder_layers=decoder.layers,
            d_model=self.d_model,
            heads=decoder.heads,
            head_dim=decoder.head_dim,
            source_vocabulary=self._source_ids,
            target_vocabulary=self.target_vocabulary,
            copies=self.copies,
            encoder_heads=None if self.reads_states or encoder.heads == decoder.heads else encoder.heads,
            feature_size=self.feature_size,
        )

    @property
    def vocabularies(self) -> Vocabularies:
        return Vocabularies(self._source_ids, self.target_vocabulary, self.unk_id)

    @property
    def _source_ids(self) -> int:
        """Size of the source vocabulary. A model of feature vectors has none: that of the target is used."""
        if self.source == "features":
            return self.target_vocabulary
        return self.source_vocabulary

    @property
    def reads_states(self) -> bool:
        """True if the model has no encoder, and its input is the states of another encoder."""
        return self.encoder_layers == 0

    @property
    def memory_size(self) -> int:
        """Width of the states that cross-attention attends to."""
        if self.reads_states:
            assert self.feature_size is not None
            return self.feature_size
        return self.d_model

    @property
    def copies(self) -> bool:
        """True if the model has a copy mechanism, see `txport.models.copying`."""
        return bool(self.copy_heads)

    def __post_init__(self) -> None:
        self._check_sizes()
        for name, choices in _CHOICES.items():
            _require(getattr(self, name) in choices, name, getattr(self, name), f"must be one of {', '.join(choices)}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            rate = getattr(self, name)
            _require(rate is None or 0 <= rate < 1, name, rate, "must be at least 0 and less than 1")
        _require(
            0 < self.layer_norm_epsilon < 1, "layer_norm_epsilon", self.layer_norm_epsilon, "must be between 0 and 1"
        )
        self._check_heads()
        self._check_source()
        if self.share_embeddings and self.source == "ids":
            same = self.source_vocabulary == self.target_vocabulary
            _require(same, "share_embeddings", True, "needs source_vocabulary and target_vocabulary to be equal")
        if self.copies:
            same = self.source_vocabulary == self.target_vocabulary
            _require(same, "copy_heads", encode(self.copy_heads), "needs one vocabulary for source and target")
        smallest = min(self._source_ids, self.target_vocabulary)
        for name in ("pad_id", "unk_id", "bos_id", "eos_id"):
            _require(0 <= getattr(self, name) < smallest, name, getattr(self, name), f"must be an id below {smallest}")

    def _check_sizes(self) -> None:
        optional = ("head_dim", "decoder_heads", "decoder_ffn", "feature_size", "max_source_positions")
        size_fields = (
            "source_vocabulary",
            "target_vocabulary",
            "max_positions",
            "position_buckets",
            "position_distance",
        )
        for name in (*size_fields, "d_model", "heads", "ffn", "encoder_layers", "decoder_layers", *optional):
            size = getattr(self, name)
            minimum = int(name != "encoder_layers" or self.source != "features")
            maximum = _MAXIMA.get(name, LARGEST)
            is_valid = (size is None and name in optional) or minimum <= size <= maximum
            _require(is_valid, name, size, f"must be at least {minimum} and at most {maximum}")
        _require(self.d_model % 2 == 0, "d_model", self.d_model, "must be even")
        for heads in (self.heads, self.decoder_heads or self.heads) if self.head_dim is None else ():
            _require(self.d_model % heads == 0, "d_model", self.d_model, f"must be divisible by heads ({heads})")
        for width in {self.encoder.head_dim, self.decoder.head_dim} if self.positions == "rotary" else ():
            _require(width % 2 == 0, "head_dim", width, "must be even for rotary positions")
        if self.positions == "relative":
            buckets = self.position_buckets
            minimum = self.position_buckets // 2 + 1
            _require(buckets >= 4 and buckets % 2 == 0, "position_buckets", buckets, "must be even and at least 4")
            _require(
                self.position_distance >= minimum,
                "position_distance",
                self.position_distance,
                f"must be {minimum} or more",
            )

    def _check_source(self) -> None:
        features = self.source == "features"
        is_set = self.feature_size is not None
        _require(is_set or not features, "feature_size", None, "must be set for source = 'features'")
        _require(features or not is_set, "feature_size", self.feature_size, "needs source = 'features'")
        rate = self.frame_rate
        _require(rate is None or features, "frame_rate", rate, "needs source = 'features'")
        _require(rate is None or 0 < rate < math.inf, "frame_rate", rate, "must be greater than 0")
        name = self.external_encoder
        states = features and self.encoder_layers == 0
        _require(name is None or states, "external_encoder", name, "needs source = 'features' and encoder_layers = 0")
        _require(name is None or name.strip() != "", "external_encoder", name, "must not be empty")
        _require(not (features and self.copies), "copy_heads", encode(self.copy_heads), "needs source = 'ids'")

    def _check_heads(self) -> None:
        layers = self.decoder.layers
        count = self.decoder.heads
        sizes = f"the model's {layers} decoder layers of {count} heads, counted from 0"
        for name in ("alignment_heads", "copy_heads"):
            heads: Heads = getattr(self, name)
            for number, (layer, head) in enumerate(heads):
                exists = 0 <= layer < layers and 0 <= head < count
                _require(exists, name, [[layer, head]], f"is outside {sizes}")
                _require((layer, head) not in heads[:number], name, [[layer, head]], "is there twice")

    def to_json(self) -> dict[str, Any]:
        encoded: dict[str, Any] = encode(self)
        return encoded


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise InputError(f"model config: {name} = {value!r} {rule}")


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 64, "heads": 4, "ffn": 256, "encoder_layers": 2, "decoder_layers": 2},
    "small": {"d_model": 256, "heads": 4, "ffn": 1024, "encoder_layers": 3, "decoder_layers": 3},
    # Vaswani et al. (2017), Table 3.
    "base": {"d_model": 512, "heads": 8, "ffn": 2048, "encoder_layers": 6, "decoder_layers": 6},
    "big": {"d_model": 1024, "heads": 16, "ffn": 4096, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.3},
    # Kasai et al., "Deep Encoder, Shallow Decoder" (2021): similar quality to 6-6, and decoding steps are much faster.
    "deep_shallow": {"d_model": 512, "heads": 8, "ffn": 2048, "encoder_layers": 12, "decoder_layers": 1},
    # The smallest T5 (Raffel et al. 2020), but without scaling the input of the projection.
    "t5_small": {
        **{"d_model": 512, "heads": 8, "head_dim": 64, "ffn": 2048, "encoder_layers": 6, "decoder_layers": 6},
        **{"norm": "pre", "norm_kind": "rms", "layer_norm_epsilon": 1e-6, "positions": "relative"},
        **{"attention_bias": False, "feed_forward_bias": False, "scale_embedding": False},
    },
    # The annotated Transformer (Rush 2018; Huang et al. 2022): `make_model` with its defaults.
    "annotated": {
        **{"d_model": 512, "heads": 8, "ffn": 2048, "encoder_layers": 6, "decoder_layers": 6, "norm": "pre"},
        **{"share_embeddings": False, "tie_projection": False, "projection_bias": True, "layer_norm_epsilon": 1e-6},
        **{"dropout": 0.1, "attention_dropout": 0.1, "initialisation": "annotated"},
    },
    # "Dive into Deep Learning" (Zhang et al. 2023, chapter 11.7): the sizes of its English-French example.
    "d2l": {
        **{"d_model": 32, "heads": 4, "ffn": 64, "encoder_layers": 2, "decoder_layers": 2, "norm": "post"},
        **{"share_embeddings": False, "tie_projection": False, "projection_bias": True, "attention_bias": False},
        **{"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.0, "initialisation": "d2l"},
    },
}


def preset(name: str, **overrides: Any) -> Config:
    """Return a preset config with some fields replaced.

    Raises:
        InputError: an unknown preset or field, or a value that has the wrong type or is not possible.
    """
    if name not in list(PRESETS):
        raise InputError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}")
    return decode(Config, encode({**PRESETS[name], **overrides}), "model config", InputError, by_hand=True)
