"""Conversion of a txport checkpoint to a model of CTranslate2.

`python -m txport.benchmarks.contestants.ctranslate2_weights CHECKPOINT OUTPUT`

The weights are written by CTranslate2's own specification of a Transformer, in float32. Positions and norms stay those
of txport. CTranslate2 converts the weights to any compute type when it loads the model.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.converters.utils import fuse_linear
from ctranslate2.specs import attention_spec, common_spec, transformer_spec
from txport.benchmarks.contestants.ctranslate2 import token
from txport.models.checkpoint import load_checkpoint
from txport.models.config import Config
from txport.models.positions import sinusoids
from txport.models.transformer import Transformer
from txport.runtime.errors import InputError

_ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "silu": common_spec.Activation.SWISH,
    "gelu_tanh": common_spec.Activation.GELUTanh,
}
# Number of sinusoids in the converted model; more than the positions of any workload of tx-bench.
MAX_POSITIONS = 4_096


def write_ctranslate2(model: Transformer, directory: Path) -> None:
    """Write a directory for `ctranslate2.Translator`.

    Raises:
        InputError: CTranslate2 does not support this variant of the Transformer.
    """
    config = model.config
    if config.norm == "post_final":
        raise InputError("CTranslate2 has no post-norm Transformer with a final LayerNorm")
    if config.norm_kind not in ("layer", "rms"):
        raise InputError(f"CTranslate2 has LayerNorm and RMSNorm, and this model's norm_kind is {config.norm_kind!r}")
    if config.encoder.heads != config.decoder.heads:
        raise InputError("unequal heads are not supported for CTranslate2")
    if config.copies:
        raise InputError("CTranslate2 has no copy mechanism, and this model's copy_heads need one")
    layers = (config.encoder_layers, config.decoder_layers)
    spec = transformer_spec.TransformerSpec.from_config(
        layers,
        config.heads,
        with_relative_position=config.positions == "shaw",
        pre_norm=config.pre_norm,
        no_final_norm=not config.final_norm,
        activation=_ACTIVATIONS[config.activation],
        layernorm_embedding=config.embedding_norm,
        relative_attention_bias=config.positions == "relative",
        ffn_glu=config.feed_forward == "gated",
        rms_norm=config.norm_kind == "rms",
    )
    if config.positions == "rotary":
        _set_rotations(spec, config)
    _set_side(spec.encoder, spec.encoder.embeddings[0], model.source_embedding, model.encoder_norm, config)
    _set_side(spec.decoder, spec.decoder.embeddings, model.target_embedding, model.decoder_norm, config)
    layer: Any
    for spec_layer, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        _set_attention(spec_layer.self_attention, layer.attention, layer.attention_residual, fused=3)
        _set_feed_forward(spec_layer.ffn, layer)
    for spec_layer, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        _set_attention(spec_layer.self_attention, layer.self_attention, layer.self_attention_residual, fused=3)
        _set_attention(spec_layer.attention, layer.cross_attention, layer.cross_attention_residual, fused=1)
        _set_feed_forward(spec_layer.ffn, layer)
    if config.positions == "relative":
        _set_positions(spec.encoder, model.encoder_positions, config)
        _set_positions(spec.decoder, model.decoder_positions, config)
    _set_linear(spec.decoder.projection, model.projection)
    spec.register_source_vocabulary([token(each) for each in range(config.source_vocabulary)])
    spec.register_target_vocabulary([token(each) for each in range(config.target_vocabulary)])
    spec.config.unk_token, spec.config.eos_token = token(config.unk_id), token(config.eos_id)
    spec.config.bos_token = spec.config.decoder_start_token = token(config.bos_id)
    spec.config.layer_norm_epsilon = config.layer_norm_epsilon
    spec.validate()
    spec.optimize()
    directory.mkdir(parents=True)
    spec.save(str(directory))


def _set_side(spec: Any, table: Any, embedding: Any, norm: Any, config: Config) -> None:
    table.weight = _array(embedding.tokens.weight)
    spec.scale_embeddings = embedding.scale
    if embedding.positions is not None:
        spec.position_encodings.encodings = _positions(embedding.positions, config)
    if config.embedding_norm:
        _set_norm(spec.layernorm_embedding, embedding.norm)
    if config.final_norm:
        _set_norm(spec.layer_norm, norm)


def _positions(table: Any, config: Config) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the table of positions. Sinusoids, which have no maximum, are computed for at least `MAX_POSITIONS`."""
    if config.positions != "sinusoidal":
        return _array(table)
    return _array(sinusoids(max(config.max_positions, MAX_POSITIONS), config.d_model))


def _set_rotations(spec: Any, config: Config) -> None:
    """Set rotary positions of self-attention as in `txport.models.positions.rotations`: neighbours form a pair.

    `TransformerSpec.from_config` has no option for this.
    """
    for layer in (*spec.encoder.layer, *spec.decoder.layer):
        layer.self_attention = attention_spec.MultiHeadAttentionSpec(
            self_attention=True,
            rms_norm=config.norm_kind == "rms",
            rotary_dim=config.encoder.head_dim,  # the same in the decoder
            rotary_interleave=True,
            rotary_base=10000,
        )


def _set_positions(spec: Any, positions: Any, config: Config) -> None:
    """Set the relative positions. CTranslate2 has a table in each layer, so the table of a stack is set in all."""
    for index, layer in enumerate(spec.layer):
        table = positions.weight[index if config.position_tables == "layer" else 0]
        layer.self_attention.relative_attention_bias = _array(table)
        layer.self_attention.relative_attention_max_distance = np.int32(config.position_distance)


def _set_attention(spec: Any, attention: Any, residual: Any, fused: int) -> None:
    """Set the weights of attention. The first `fused` of query, key and value form one layer, the rest another one."""
    parts = [common_spec.LinearSpec() for _ in range(3)]
    for part, module in zip(parts, (attention.query, attention.key, attention.value), strict=True):
        _set_linear(part, module)
    fuse_linear(spec.linear[0], parts[:fused])
    if parts[fused:]:
        fuse_linear(spec.linear[1], parts[fused:])
    _set_linear(spec.linear[-1], attention.output)
    spec.queries_scale = np.float32((attention.query.weight.shape[0] // attention.heads) ** -0.5)
    _set_norm(spec.layer_norm, residual.norm)
    if attention.positions is not None:
        spec.relative_position_keys = _array(attention.positions.keys)
        spec.relative_position_values = _array(attention.positions.values)


def _set_feed_forward(spec: Any, layer: Any) -> None:
    if gated := getattr(layer.feed_forward, "gate", None):
        _set_linear(spec.linear_0, gated)
        _set_linear(spec.linear_0_noact, layer.feed_forward.inner)
    else:
        _set_linear(spec.linear_0, layer.feed_forward.inner)
    _set_linear(spec.linear_1, layer.feed_forward.outer)
    _set_norm(spec.layer_norm, layer.feed_forward_residual.norm)


def _set_linear(spec: Any, linear: Any) -> None:
    spec.weight = _array(linear.weight)
    if linear.bias is not None:
        spec.bias = _array(linear.bias)


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.weight)
    if getattr(norm, "bias", None) is not None:
        spec.beta = _array(norm.bias)


def _array(tensor: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(tensor.detach().numpy(), np.float32, order="C")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    write_ctranslate2(load_checkpoint(options.checkpoint).model, options.output)


if __name__ == "__main__":
    main()
