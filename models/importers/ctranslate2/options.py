"""Options of CTranslate2's Transformers: what our model has, and what is refused by name."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from txport.models.importers.ctranslate2.model_file import ModelFile
from txport.runtime.errors import CheckpointError

# Specifications of other kinds of models.
OTHER_MODELS = {
    "TransformerDecoderSpec": "a language model without an encoder",
    "TransformerEncoderSpec": "an encoder without a decoder",
    "WhisperSpec": "a Whisper model, whose input is speech",
    "Wav2Vec2Spec": "a wav2vec 2.0 model, whose input is speech",
    "Wav2Vec2BertSpec": "a wav2vec 2.0-BERT model, whose input is speech",
}
# `Activation` of ctranslate2.specs.common_spec, by its number. Marian's GELU, x sigmoid(1.702 x), is a scaled SiLU.
ACTIVATIONS = ("relu", "gelu_tanh", "silu", "gelu", "gelu_sigmoid")
_UNSUPPORTED_ACTIVATIONS = {5: "Tanh", 6: "Sigmoid"}
# Tensors that make another model, by the end of their name or by the part before it.
_REFUSED = (
    (r"/relative_asymmetric_position_keys", "asymmetric relative positions"),
    (r"/(rotary_scaling_(long|short)_factor)", "scaled rotary positions"),
    (r"/(q_norm|k_norm|v_norm)/", "norms of queries, keys or values"),
    (r"/memory_kv/", "merged self-attention and cross-attention"),
    (
        r"/(shared|input|post_attention|pre_feedforward|post_feedforward)_layer_norm/",
        "a norm on both sides of a sublayer",
    ),
    (r"/external_(pre|post)_encoder_attention_layer_norm/", "a norm on both sides of a sublayer"),
    (r"/project_(in|out)/", "projections between embeddings and layers"),
    (r"/weight_zero$", "AWQ weights of 4 bits"),
    (r"^encoder/embeddings_[1-9]", "several embeddings of a source token (source features)"),
)
# Attributes whose other values make another model.
_NEUTRAL: tuple[tuple[str, tuple[float, ...], str], ...] = (
    (r"/multi_query(_attention)?$", (0,), "multi-query attention"),
    (r"/alibi$", (0,), "ALiBi positions"),
    (r"/sliding_window$", (0,), "attention in a sliding window"),
    (r"/final_logit_softcapping$", (0,), "capped logits"),
    (r"/layer_scalar$", (1,), "scaled layers"),
    (r"/merged_encoder_attention$", (0,), "merged self-attention and cross-attention"),
    (r"/rotary_scaling_type$", (-1,), "scaled rotary positions"),
    (r"/relative_(left|right)_max_position$", (), "asymmetric relative positions"),
)
# Attributes that are read elsewhere, or change nothing without another one.
_READ = re.compile(
    r"(en|de)coder/(num_heads|pre_norm|activation|scale_embeddings|embeddings_merge|embeddings(_0)?/multiply_by_sqrt_depth|"
    r"alignment_layer|alignment_heads|start_from_zero_embedding|scale_outputs|scale_alibi|alibi_use_positive_positions)"
    r"|(en|de)coder/layer_\d+/(self_)?attention/(queries_scale|head_dim|num_heads_kv|rotary_dim|rotary_interleave|"
    r"rotary_base|rotary_scaling_factor|rotary_low_freq_factor|rotary_high_freq_factor|"
    r"(original_)?max_position_embeddings|relative_attention_max_distance)"
    r"|(en|de)coder/.*/layer_norm_use_residual|(en|de)coder/(layer_norm|layernorm_embedding)/layer_norm_use_residual"
    r"|with_(source|target)_[be]os|user_decoder_start_tokens"
)
_ROTARY_BASE = 10_000


@dataclass(frozen=True)
class SideOptions:
    """The options of an encoder or a decoder.

    Attributes:
        name: "encoder" or "decoder".
        layers: their number.
        heads: their number.
        head_dim: the width of a head.
        ffn: the inner width of the feed-forward layers.
        norms: whether norms stand before sublayers, and whether one follows the last layer.
        rms: RMSNorm instead of LayerNorm.
        activation: an entry of `ACTIVATIONS`.
        gated: gated feed-forward layers.
        embedding_norm: a norm on embeddings.
        positions: "table" (encodings), "computed" (OpenNMT-tf's sinusoids), "relative", "rotary" or "shaw".
        sliced: rotary positions turn the halves of a head, not neighbours.
        scale: the factor of embeddings.
    """

    name: str
    layers: int
    heads: int
    head_dim: int
    ffn: int
    norms: tuple[bool, bool]
    rms: bool
    activation: str
    gated: bool
    embedding_norm: bool
    positions: str
    sliced: bool
    scale: float


def refuse_options(model: ModelFile) -> None:
    """Check that a model has no option that our model lacks.

    Raises:
        CheckpointError: it has one; the message names it.
    """
    for name in model.tensors:
        for pattern, description in _REFUSED:
            if re.search(pattern, name):
                raise CheckpointError(f"{model.file} has {description} ({name}), which txport does not support")
    for name, value in model.attributes.items():
        if re.search(r"num_heads_kv$", name) and value != model.attributes.get(f"{name.split('/')[0]}/num_heads"):
            raise CheckpointError(f"{model.file} has grouped or multi-query attention ({name}), which is not supported")
        for pattern, neutral, description in _NEUTRAL:
            if re.search(pattern, name):
                if value not in neutral:
                    raise CheckpointError(
                        f"{model.file} has {description} ({name} = {value}), which txport does not support"
                    )
                break
        else:
            if not _READ.fullmatch(name):
                raise CheckpointError(f"{model.file} has the option {name} = {value}, which txport does not support")


def side_of(model: ModelFile, name: str) -> SideOptions:
    """Return the options of a side.

    Raises:
        CheckpointError: one is impossible, or differs among its layers.
    """
    numbers = {match[1] for each in model.tensors if (match := re.match(rf"{name}/layer_(\d+)/", each))}
    scopes = [f"{name}/layer_{index}" for index in range(len(numbers))]
    if not scopes or numbers != {str(index) for index in range(len(numbers))}:
        raise CheckpointError(f"{model.file} has no whole stack of layers from {name}/layer_0 on: copy it again")
    heads = _number(model, f"{name}/num_heads", 8)
    attention = _rows(model, f"{scopes[0]}/self_attention/linear_0/weight", 3)
    if heads < 1 or attention % heads:
        raise CheckpointError(
            f"{model.file}: {name}/num_heads = {heads} does not divide the {attention} rows of a query"
        )
    positions, sliced = _positions(model, scopes, attention // heads)
    return SideOptions(
        name=name,
        layers=len(scopes),
        heads=heads,
        head_dim=attention // heads,
        ffn=_rows(model, f"{scopes[0]}/ffn/linear_0/weight"),
        norms=(bool(model.attributes.get(f"{name}/pre_norm", 1)), f"{name}/layer_norm/gamma" in model.tensors),
        rms=f"{scopes[0]}/ffn/layer_norm/beta" not in model.tensors,
        activation=_activation(model, f"{name}/activation"),
        gated=f"{scopes[0]}/ffn/linear_0_noact/weight" in model.tensors,
        embedding_norm=f"{name}/layernorm_embedding/gamma" in model.tensors,
        positions=positions,
        sliced=sliced,
        scale=_embedding_scale(model, name),
    )


def same(model: ModelFile, sides: tuple[SideOptions, SideOptions], field: str) -> Any:
    """Return an option that our model has once for both sides.

    Raises:
        CheckpointError: they differ.
    """
    first, second = (getattr(side, field) for side in sides)
    if first != second:
        raise CheckpointError(
            f"{model.file}: {field} is {first} in the encoder and {second} in the decoder, but txport's model has one "
            "for both"
        )
    return first


def embedding_of(model: ModelFile, side: str) -> str:
    """Return the name of a side's table of embeddings.

    Raises:
        CheckpointError: there is none, or it is not a table.
    """
    name = next(
        (name for name in (f"{side}/embeddings_0", f"{side}/embeddings") if f"{name}/weight" in model.tensors), ""
    )
    if not name or len(model.tensors[f"{name}/weight"].shape) != 2:
        raise CheckpointError(f"{model.file} has no table of {side} embeddings: copy it again")
    return f"{name}/weight"


def query_factor(model: ModelFile, scope: str, side: SideOptions, d_model: int) -> float:
    """Return what query weights are multiplied by, as our scores are always divided by the root of the head width."""
    width = model.attributes.get(f"{scope}/head_dim", d_model // side.heads)
    scale = model.attributes.get(f"{scope}/queries_scale", max(1, width) ** -0.5)
    factor = float(scale) * side.head_dim**0.5
    return snapped(factor, 1.0)


def snapped(value: float, exact: float) -> float:
    """Return `exact` if a value of float32 is meant to be it."""
    if math.isclose(value, exact, rel_tol=1e-6):
        return exact
    return value


def alignment_heads(model: ModelFile, decoder: SideOptions) -> tuple[tuple[int, int], ...]:
    """Return the heads whose average aligns tokens: the first ones of a layer, which is the last one by default."""
    layer = _number(model, "decoder/alignment_layer", -1)
    heads = _number(model, "decoder/alignment_heads", 1) or decoder.heads
    if layer < 0:
        layer += decoder.layers
    if not 0 <= layer < decoder.layers or not 0 < heads <= decoder.heads:
        raise CheckpointError(
            f"{model.file}: decoder/alignment_layer and decoder/alignment_heads point outside of the {decoder.layers} "
            f"layers with {decoder.heads} heads"
        )
    return tuple((layer, head) for head in range(heads))


def distance_of(model: ModelFile, sides: Iterable[SideOptions]) -> int:
    """Return the distance from which on all relative positions are one.

    Raises:
        CheckpointError: layers differ.
    """
    names = [
        f"{side.name}/layer_{index}/self_attention/relative_attention_max_distance"
        for side in sides
        for index in range(side.layers)
    ]
    values = {_number(model, name, None) for name in names}
    if len(values) > 1:
        raise CheckpointError(f"{model.file}: layers have different relative_attention_max_distance: {sorted(values)}")
    return values.pop()


def _number(model: ModelFile, name: str, default: int | None) -> int:
    value = model.attributes.get(name, default)
    if value is None:
        raise CheckpointError(f"{model.file} lacks {name}, which such a model needs")
    if value != int(value):
        raise CheckpointError(f"{model.file}: {name} must be a whole number, not {value}")
    return int(value)


def _rows(model: ModelFile, name: str, parts: int = 1) -> int:
    """Return the rows of each of the matrices that are packed in one."""
    if name not in model.tensors:
        raise CheckpointError(f"{model.file} lacks {name}, which such a model needs")
    shape = model.tensors[name].shape
    if len(shape) != 2 or shape[0] % parts:
        raise CheckpointError(f"{model.file}: {name} has shape {shape}, but a matrix of {parts} parts is needed")
    return shape[0] // parts


def _activation(model: ModelFile, name: str) -> str:
    number = _number(model, name, 0)
    if not 0 <= number < len(ACTIVATIONS):
        activation = _UNSUPPORTED_ACTIVATIONS.get(number, number)
        raise CheckpointError(
            f"{model.file}: {name} = {activation} is not supported; there are {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[number]


def _embedding_scale(model: ModelFile, side: str) -> float:
    """Return the factor of embeddings: a flag for the root of their width, or a number; the flag is the default."""
    table = embedding_of(model, side)
    old = f"{table.removesuffix('/weight')}/multiply_by_sqrt_depth"
    name = next((name for name in (f"{side}/scale_embeddings", old) if name in model.attributes), None)
    root = math.sqrt(model.tensors[table].shape[1])
    if name is None:
        return root
    value = model.attributes[name]
    if isinstance(value, int):
        return root ** bool(value)
    return snapped(value, root)


def _positions(model: ModelFile, scopes: list[str], head_dim: int) -> tuple[str, bool]:
    """Return the kind of positions of a stack, and whether rotary ones turn halves of a head."""
    kinds = {_kind(model, f"{scope}/self_attention", head_dim) for scope in scopes}
    if len(kinds) > 1:
        raise CheckpointError(
            f"{model.file}: layers of {scopes[0].partition('/')[0]} have different kinds of positions"
        )
    kind, sliced = kinds.pop()
    side = scopes[0].partition("/")[0]
    if kind == "added" and f"{side}/position_encodings/encodings" in model.tensors:
        return "table", sliced
    return {"added": "computed"}.get(kind, kind), sliced


def _kind(model: ModelFile, scope: str, head_dim: int) -> tuple[str, bool]:
    attributes = model.attributes
    turned = attributes.get(f"{scope}/rotary_dim", -1) >= 0
    tables = {"relative": "relative_attention_bias", "shaw": "relative_position_(keys|values)"}
    kinds = ["rotary"] * turned
    kinds += [
        kind for kind, form in tables.items() if any(re.fullmatch(f"{scope}/{form}", name) for name in model.tensors)
    ]
    if len(kinds) > 1:
        raise CheckpointError(f"{model.file} has {' and '.join(kinds)} positions in {scope}, which is not supported")
    if kinds != ["rotary"]:
        return (kinds or ["added"])[0], False
    if attributes[f"{scope}/rotary_dim"] not in (0, head_dim):
        raise CheckpointError(
            f"{model.file}: {scope}/rotary_dim = {attributes[f'{scope}/rotary_dim']} turns a part of each head, which "
            "txport does not support"
        )
    base = attributes.get(f"{scope}/rotary_base", _ROTARY_BASE)
    if base != _ROTARY_BASE:
        raise CheckpointError(f"{model.file}: {scope}/rotary_base = {base:g} is not supported; only {_ROTARY_BASE} is")
    return "rotary", not attributes.get(f"{scope}/rotary_interleave", 1)
