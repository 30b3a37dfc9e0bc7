"""config.json and vocab.json of an eole model.

config.json contains only the fields that a user set, for the model, its encoder, its decoder and its embeddings. A
field of the encoder or the decoder precedes the model's; defaults are those of eole 0.6 (eole/config/models.py).
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from txport.models.importers.settings import Settings, read_json
from txport.runtime.errors import CheckpointError

_SPECIALS = {"pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
STACKS = ("encoder", "decoder")
INTERLEAVED = "SinusoidalInterleaved"
SINUSOIDS = (INTERLEAVED, "SinusoidalConcat")
ACTIVATIONS = {
    **{"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_tanh", "silu": "silu", "quick_gelu": "silu"},
    **{"gated-gelu": "gelu", "gated-gelu-tanh": "gelu_tanh", "gated-silu": "silu"},
}
NORM_KINDS = {"standard": "layer", "standardFP32": "layer", "rms": "rms", "gemma-rms": "rms"}
# Values of the model that leave the encoder and the decoder their own.
_UNSET = [(name, -1) for name in ("hidden_size", "word_vec_size", "layers", "transformer_ff")]
# Architectures without a text encoder and a text decoder of Transformers.
_OTHER_MODELS = {
    "transformer_lm": "a language model without an encoder",
    "vision_transformer_lm": "a language model that reads images",
    "whisper": "a Whisper model, whose input is speech",
    "transformer_encoder": "an encoder without a decoder",
    "transformer_encoder_scorer": "an encoder that scores texts",
    "rnn": "a recurrent model",
    "cnn": "a convolutional model",
}
# Values of fields that make the same model; the first is the default.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("parallel_residual", "ffn_layernorm", "query_norm", "key_norm", "value_norm"), (False,)),
    **dict.fromkeys(("q_gating", "coverage_attn", "add_estimator", "left_pad", "bidirectional_encoder"), (False, None)),
    **dict.fromkeys(("num_experts", "sliding_window", "num_mtp_heads"), (0, None)),
    **dict.fromkeys(("layer_types", "interpolate_mode", "global_head_dim", "global_heads_kv"), (None,)),
    "encoder_layer_style": ("standard",),
    "final_encoder_layer_norm": (True,),
    "generator_function": ("softmax",),
    "LM_type": ("causal",),
}
_NEUTRAL_EMBEDDINGS: dict[str, tuple[Any, ...]] = {
    "embedding_type": ("standard",),
    "embedding_layer_norm": (False,),
    "token_type_vocab_size": (0,),
}
NEUTRAL_ROTARY: dict[str, tuple[Any, ...]] = {
    "rotary_theta": (10000,),
    **dict.fromkeys(("scaling_type", "xdrope_section"), (None,)),
    **dict.fromkeys(("interleave_local", "tmax_index", "partial_rotary_factor"), (0,)),
    "multidimensional_rope": (False,),
}
# Read above and below, or without effect where the fields of _NEUTRAL have those values.
_KNOWN = {
    *("architecture", "encoder", "decoder", "embeddings", "hidden_size", "word_vec_size", "layers", "transformer_ff"),
    *("share_decoder_embeddings", "share_embeddings", "generator_bias", "encoder_type", "decoder_type", "heads"),
    *("relative_positions_buckets", "mlp_activation_fn", "layer_norm", "norm_eps", "add_qkvbias", "add_key_bias"),
    *("add_final_linear_bias", "heads_kv", "head_dim", "attn_scaling", "add_ffnbias", "position_encoding_type"),
    *("n_positions", "rope_config", "alignment_layer", "alignment_heads", "full_context_alignment", "lambda_align"),
    *("src_word_vec_size", "tgt_word_vec_size", "position_encoding", "position_shift", "normalize", "dim_per_head"),
    *(
        "freeze_word_vecs_enc",
        "freeze_word_vecs_dec",
        "max_position_embeddings",
        "moe_transformer_ff",
        "moe_softmax_after",
    ),
    *("shared_layer_norm", "qk_norm_post_rope", "num_shared_experts", "shared_expert_gate", "first_k_dense_replace"),
    *("num_experts_per_tok", "moe_renormalize", "with_cross_attn", "lambda_coverage", "global_attention", "aan_useffn"),
    *(
        "global_attention_function",
        "mtp_lambda",
        "mtp_emb_norm",
        "input_feed",
        "adapter_bias",
        "projector_activation_fn",
    ),
    *(
        "spatial_merge_size",
        "estimator_type",
        "huggingface_model",
        "eole_version",
        "linear_conv_kernel_dim",
        "model_type",
    ),
    *("linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads"),
}
_KNOWN_ROTARY = {
    *("rotary_interleave", "rotary_dim", "rotary_dim_global", "alpha", "scaling_factor", "low_freq_factor"),
    *("high_freq_factor", "original_max_position_embeddings", "rotary_theta_local"),
}


class EoleModel:
    """The fields of config.json that decide a model.

    Args:
        file: config.json.
        fields: its content.

    Attributes:
        file: for messages.
        settings: fields of the whole model.
        sides: fields of the encoder and the decoder, completed by the model's.
        embeddings: likewise.
        rotary: fields of rotary positions.

    Raises:
        CheckpointError: it is not an encoder-decoder Transformer, or a field has a value that is not supported.
    """

    def __init__(self, file: Path, fields: dict[str, Any]) -> None:
        self.file = file
        training = Settings(file, fields).optional("training", dict) or {}
        Settings(file, training).refuse({"quant_type": ("", None), "quant_layers": ([], None, "")})
        model = Settings(file, fields).get("model", kind=dict)
        self.settings = Settings(file, {name: value for name, value in model.items() if (name, value) not in _UNSET})
        self._refuse_other_models()
        parts = [self._part(name) for name in (*STACKS, "embeddings")]
        encoder, decoder, self.embeddings = parts
        self.sides = (encoder, decoder)
        for part in (self.settings, *parts):
            self._refuse_unknown(part.fields.keys() - _NEUTRAL.keys() - _NEUTRAL_EMBEDDINGS.keys() - _KNOWN)
            part.refuse(_NEUTRAL)
        self.embeddings.refuse(_NEUTRAL_EMBEDDINGS)
        rotary = encoder.optional("rope_config", dict) or {}
        self.rotary = Settings(file, rotary)
        if (decoder.optional("rope_config", dict) or {}) != rotary:
            raise CheckpointError(f"{file}: encoder and decoder have different rope_config, which is not supported")
        self._refuse_unknown(rotary.keys() - NEUTRAL_ROTARY.keys() - _KNOWN_ROTARY)

    def _part(self, name: str) -> Settings:
        return Settings(self.file, {**self.settings.fields, **(self.settings.optional(name, dict) or {})})

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        if unknown := sorted(names):
            raise CheckpointError(f"{self.file}: {unknown[0]} is a field of a version of eole that is not supported")

    def _refuse_other_models(self) -> None:
        architecture = self.settings.get("architecture", "custom", kind=str)
        if architecture in _OTHER_MODELS:
            raise CheckpointError(f"{self.file} describes {_OTHER_MODELS[architecture]}: it is not supported")
        if architecture not in ("transformer", "custom"):
            raise CheckpointError(f"{self.file}: architecture = {architecture!r} is not supported; transformer is")
        for name in STACKS:
            part = self._part(name)
            if architecture == "custom" and self.settings.optional(name, dict) is None:
                raise CheckpointError(
                    f"{self.file} has no {name}: only models with an encoder and a decoder are supported"
                )
            kind = part.get(f"{name}_type", "transformer" if architecture == "transformer" else "rnn")
            if kind != "transformer":
                raise CheckpointError(f"{self.file}: {name}_type = {kind!r} is not supported; only 'transformer' is")

    def same(self, name: str, default: Any, kind: type | None = None) -> Any:
        """Return a field that our model has once for both sides."""
        values = [side.get(name, default, kind) for side in self.sides]
        if values[0] != values[1]:
            raise CheckpointError(
                f"{self.file}: {name} is {values[0]!r} in the encoder and {values[1]!r} in the decoder, but txport's "
                "model has one value for both"
            )
        return values[0]

    @property
    def positions(self) -> str:
        """The kind of positions, as eole names it."""
        return str(self.embeddings.get("position_encoding_type", INTERLEAVED))

    @property
    def shift(self) -> int:
        """The row of the first learned position."""
        shift: int = self.embeddings.optional("position_shift", int) or 0
        if shift < 0:
            raise CheckpointError(f"{self.file}: position_shift must be at least 0, not {shift}")
        return shift


def query_factor(side: Settings, head_dim: int) -> float:
    """Return what multiplies queries, so that dividing by the root of `head_dim` makes eole's scores."""
    scaling = side.get("attn_scaling", None)
    if scaling is None:
        return 1.0
    if type(scaling) not in (int, float) or not 0 < scaling < math.inf:
        raise CheckpointError(f"{side.file}: attn_scaling must be a number greater than 0, not {scaling!r:.80}")
    return math.sqrt(head_dim / scaling)


def biases(side: Settings) -> tuple[bool, bool, bool, bool]:
    """Return whether the query, key, value and output projections of attention have biases."""
    inner = side.get("add_qkvbias", False, kind=bool)
    key = side.optional("add_key_bias", bool)
    if key is None:
        key = inner
    return inner, key, inner, side.get("add_final_linear_bias", inner, kind=bool)


class EoleVocabulary:
    """vocab.json.

    Attributes:
        source, target: tokens by id.
        specials: the tokens of padding, unknown words, start and end.
        start: the token that the decoder starts from.

    Raises:
        CheckpointError: a part is missing or has another type, or a token is missing or there twice.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._settings = Settings(file, read_json(file))
        self.source = self._tokens("src")
        self.target = self._tokens("tgt")
        specials = {**_SPECIALS, **(self._settings.optional("specials", dict) or {})}
        self.specials = {name: Settings(file, specials).get(name, kind=str) for name in _SPECIALS}
        self.start = self._settings.get("decoder_start_token", _SPECIALS["bos_token"], kind=str)
        for name in ("pad_token", "eos_token", "unk_token"):
            token = self.specials[name]
            if self.source.count(token) != 1 or self.id_of(token) != self.source.index(token):
                raise CheckpointError(f"{file}: {name} = {token!r} must have the same id in src and tgt")

    def _tokens(self, side: str) -> list[str]:
        tokens: list[str] = self._settings.get(side, kind=list)
        if wrong := [token for token in tokens if not isinstance(token, str)]:
            raise CheckpointError(f"{self.file}: {side} has a token that is not text: {wrong[0]!r:.80}")
        if len(set(tokens)) != len(tokens):
            raise CheckpointError(f"{self.file}: {side} has a token twice")
        return tokens

    def id_of(self, token: str) -> int:
        if token not in self.target:
            raise CheckpointError(f"{self.file}: the token {token!r} is not in tgt")
        return self.target.index(token)
