"""Options of a model that Marian wrote into it, as fields of our config; what our model does not have is refused."""

import re
from dataclasses import dataclass
from typing import Any

from txport.models.importers.marian_files.files import ModelFiles
from txport.models.importers.settings import Settings
from txport.runtime.errors import CheckpointError

MAX_POSITIONS = 1024
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
_GELU_BY_ERF = (1, 12, 1)  # before this version, Marian's GELU was x sigmoid(1.702 x)
_KINDS = {"n": "layer", "r": "rms"}
# By operations before and after sublayers, and after the last layer, without dropout.
_NORMS = {
    ("", "an", ""): "post",
    ("", "an", "n"): "post_final",
    ("n", "a", ""): "pre_no_final",
    ("n", "a", "n"): "pre",
}
# Options and the values with which they change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-pool": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-attention-mask": ("default", None),
    "transformer-alibi-shift": (False,),
    "transformer-alibi-trainable": (False,),
    "separator-symbol": (None,),
    "right-left": (False,),
    "ulr": (False,),
    "lemma-dim-emb": (0, None),
    "lemma-dependency": (None,),
    "factors-combine": ("sum", None),
    "factors-dim-emb": (0, None),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
}


@dataclass(frozen=True)
class MarianOptions:
    """A model's options.

    Attributes:
        fields: of our config, except embeddings, special ids and biases of the projection.
        rows: of the source and the target embedding.
        one_embedding: source and target have one embedding.
        tied: the projection is the target embedding.
        decoder_layers: numbers of the decoder's layers in Marian's names; tied layers have one number.
        gelu_sigmoid: the activation is the GELU of Marian until 1.12.0, x sigmoid(1.702 x), a SiLU with a factor.
    """

    fields: dict[str, Any]
    rows: tuple[int, int]
    one_embedding: bool
    tied: bool
    decoder_layers: tuple[int, ...]
    gelu_sigmoid: bool


def read_options(files: ModelFiles) -> MarianOptions:
    """Understand the options of a model.

    Raises:
        CheckpointError: one is missing, or our model does not have it.
    """
    settings = files.config
    _refuse(settings)
    rows = settings.get("dim-vocabs", kind=list)
    if len(rows) != 2 or any(type(count) is not int or count < 1 for count in rows):
        raise CheckpointError(f"{settings.file}: dim-vocabs = {rows!r:.80}: one source and one target are supported")
    flags = {
        name: settings.get(name, False, bool)
        for name in ("tied-embeddings", "tied-embeddings-src", "tied-embeddings-all")
    }
    activation = settings.activation("transformer-ffn-activation", _ACTIVATIONS, "swish")
    gelu_sigmoid = activation == "gelu" and _version(settings) < _GELU_BY_ERF
    heads = settings.get("transformer-heads", kind=int)
    ffn = settings.get("transformer-dim-ffn", kind=int)
    decoder_ffn = settings.get("transformer-decoder-dim-ffn", 0, int)
    layers = _decoder_layers(settings)
    norm, kind, embedding_norm = _norms(settings)
    fields = {
        "d_model": settings.get("dim-emb", kind=int),
        "heads": heads,
        "ffn": ffn,
        "decoder_ffn": decoder_ffn if decoder_ffn not in (0, ffn) else None,
        "encoder_layers": settings.get("enc-depth", kind=int),
        "decoder_layers": len(layers),
        "norm": norm,
        "norm_kind": kind,
        "embedding_norm": embedding_norm,
        "activation": "silu" if gelu_sigmoid else activation,
        "positions": "learned",
        "max_positions": MAX_POSITIONS,
        "scale_embedding": True,
        "alignment_heads": _alignment_heads(settings, len(layers)),
    }
    return MarianOptions(
        fields=fields,
        rows=(rows[0], rows[1]),
        one_embedding=flags["tied-embeddings-all"] or flags["tied-embeddings-src"],
        tied=flags["tied-embeddings"] or flags["tied-embeddings-all"],
        decoder_layers=layers,
        gelu_sigmoid=gelu_sigmoid,
    )


def _version(settings: Settings) -> tuple[int, ...]:
    """Return the version of Marian that trained a model, such as v1.11.0; zeros if it is unknown."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})", str(settings.get("version", "")))
    if match is None:
        return (0, 0, 0)
    return tuple(map(int, match.groups()))


def _refuse(settings: Settings) -> None:
    kind = settings.get("type")
    autoreg = settings.get("transformer-decoder-autoreg", "self-attention")
    if kind != "transformer":
        raise CheckpointError(f"{settings.file}: type = {kind!r:.80} is not supported: only 'transformer' is")
    if autoreg == "rnn":
        cell = settings.get("dec-cell", "RNN")
        raise CheckpointError(
            f"{settings.file}: transformer-decoder-autoreg = 'rnn' with dec-cell = {cell!r:.80} "
            f"({str(cell).upper():.20} decoder) is not supported: only self-attention is"
        )
    settings.refuse(_NEUTRAL)
    for name in ("input-types", "output-approx-knn"):
        value = settings.fields.get(name)
        if value not in (None, []) and value != ["sequence", "sequence"]:
            raise CheckpointError(f"{settings.file}: {name} = {value!r:.80} is not supported")


def _norms(settings: Settings) -> tuple[str, str, bool]:
    """Return where norms stand, their kind, and whether embeddings have one."""
    names = ("preprocess", "postprocess", "postprocess-top", "postprocess-emb")
    defaults = ("", "dan", "", "d")
    orders = [settings.get(f"transformer-{name}", default) or "" for name, default in zip(names, defaults, strict=True)]
    kinds = {letter for order in orders for letter in str(order) if letter in _KINDS}
    before, after, top, embedding = (str(order).replace("d", "").replace("r", "n") for order in orders)
    norm = _NORMS.get((before, after, top))
    if norm is None or embedding not in ("", "n") or len(kinds) > 1:
        shown = ", ".join(f"transformer-{name} = {order!r:.20}" for name, order in zip(names, orders, strict=True))
        raise CheckpointError(
            f"{settings.file}: {shown} is not supported: norms must be of one kind, all before sublayers (n, da) or "
            "all after them (dan)"
        )
    return norm, _KINDS[kinds.pop()] if kinds else "layer", embedding == "n"


def _decoder_layers(settings: Settings) -> tuple[int, ...]:
    count = settings.get("dec-depth", kind=int)
    if not 0 < count < 1000:
        raise CheckpointError(f"{settings.file}: dec-depth = {count} is not a number of layers")
    tied = settings.get("transformer-tied-layers", None) or list(range(1, count + 1))
    if type(tied) is not list or len(tied) != count or any(type(each) is not int for each in tied):
        raise CheckpointError(f"{settings.file}: transformer-tied-layers = {tied!r:.80} are not {count} layers")
    return tuple(tied)


def _alignment_heads(settings: Settings, layers: int) -> tuple[tuple[int, int], ...]:
    """Return the first head of the guided layer, from which Marian takes alignments."""
    layer = settings.get("transformer-guided-alignment-layer", "last")
    number = layer
    if layer == "last":
        number = layers
    elif isinstance(layer, str) and layer.isdecimal() and len(layer) < 4:  # a text option, perhaps in quotes
        number = int(layer)
    if type(number) is not int or not 0 < number <= layers:
        raise CheckpointError(f"{settings.file}: transformer-guided-alignment-layer = {layer!r:.80} is not a layer")
    return ((number - 1, 0),)
