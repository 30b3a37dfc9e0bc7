"""Conversion of a txport model to an equivalent model of Hugging Face: Marian for post-norm, Pegasus for pre-norm.

Their sinusoids have all sines before all cosines, while txport interleaves them. Their position tables are computed,
not loaded, so the weights are permuted instead: if the dimensions of the residual stream are permuted in all weights,
the model computes the same function.
"""

from typing import Any

import torch
import transformers
from torch import Tensor
from txport.models.config import Config
from txport.models.importers.marian import concatenated_sinusoids
from txport.models.transformer import Transformer
from txport.runtime.errors import InputError

# Parts of txport's parameter names and their replacements in Hugging Face's names, in the order of replacement.
_NAMES = {
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    ".attention": ".self_attn",
    "feed_forward_residual.norm": "final_layer_norm",
    "_residual.norm": "_layer_norm",
    "coder_norm": "coder.layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    **{"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"},
}
# Weights whose columns read the residual stream. All other parameters, except the biases of these, write to it.
_READERS = ("query", "key", "value", "inner")


def unsupported(model: Transformer) -> str | None:
    """Return the reason why no class of Hugging Face computes exactly this model, or None."""
    config = model.config
    needs = {
        f"sinusoidal positions instead of {config.positions} ones": _order(model) is not None,
        "the same sizes on both sides": (config.head_dim, config.decoder_heads, config.decoder_ffn)
        == (None, None, None),
        "plain feed-forward layers with biases": config.feed_forward == "plain" and config.feed_forward_bias,
        "LayerNorm": config.norm_kind == "layer",
        "LayerNorm before or after each sublayer only": config.norm in ("pre", "post"),
        "no copy mechanism": not config.copies,
        "no LayerNorm on embeddings": not config.embedding_norm,
        "one embedding for both sides and the projection": config.share_embeddings and config.tie_projection,
        "a LayerNorm epsilon of 1e-5": config.layer_norm_epsilon == 1e-5,
    }
    missing = [requirement for requirement, holds in needs.items() if not holds]
    if not missing:
        return None
    return f"Hugging Face has no class for this model: Marian and Pegasus have {missing[0]}"


def hugging_face_model(model: Transformer) -> Any:
    """Return a model of Hugging Face that is equivalent to `model`, in evaluation mode, with the same token ids.

    Raises:
        InputError: no class is equivalent; see `unsupported`.
    """
    if reason := unsupported(model):
        raise InputError(reason)
    config = model.config
    theirs: Any
    if config.norm == "pre":
        theirs = transformers.PegasusForConditionalGeneration(transformers.PegasusConfig(**_fields(config)))
    else:
        theirs = transformers.MarianMTModel(transformers.MarianConfig(**_fields(config)))
    weights = _weights(model)
    names = set(theirs.state_dict())
    tied = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"}
    computed = {name for name in names if "embed_positions" in name}
    assert weights.keys() <= names and names - weights.keys() <= tied | computed, "another class"
    theirs.load_state_dict(weights, strict=False)
    theirs.tie_weights()
    theirs.generation_config = generation_config(config, config.eos_id)
    return theirs.eval()


def generation_config(config: Config, eos: int | None, beam: int = 1) -> Any:
    """Return the settings of greedy or beam search. Without `eos`, a sentence ends only at its maximum length."""
    ids = {"pad_token_id": config.pad_id, "eos_token_id": eos, "decoder_start_token_id": config.bos_id}
    return transformers.GenerationConfig(  # type: ignore[no-untyped-call]
        num_beams=beam, early_stopping=beam > 1, do_sample=False, use_cache=True, **ids
    )


def _order(model: Transformer) -> Tensor | None:
    """Return the dimensions of the residual stream in Hugging Face's order; None for other kinds of positions."""
    config = model.config
    if config.positions == "sinusoidal":
        return torch.cat([torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)])
    # An imported Marian model already has tables in this order.
    theirs = concatenated_sinusoids(config.max_positions, config.d_model)
    tables = [side.positions for side in (model.source_embedding, model.target_embedding) if side is not None]
    is_concatenated = all(table is not None and torch.allclose(table, theirs, atol=1e-6) for table in tables)
    if is_concatenated:
        return torch.arange(config.d_model)
    return None


def _fields(config: Config) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    return {
        **{f"{side}_ffn_dim": config.ffn for side in sides},
        **{f"{side}_attention_heads": config.heads for side in sides},
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "vocab_size": config.target_vocabulary,
        "d_model": config.d_model,
        "activation_function": config.activation,
        "scale_embedding": config.scale_embedding,
        "max_position_embeddings": config.max_positions,
        "pad_token_id": config.pad_id,
        "eos_token_id": config.eos_id,
        "bos_token_id": config.bos_id,
        "decoder_start_token_id": config.bos_id,
        "forced_eos_token_id": None,
        "dropout": 0.0,
    }


def _weights(model: Transformer) -> dict[str, Tensor]:
    """Return txport's tensors under Hugging Face's names, with permuted dimensions of the residual stream."""
    config = model.config
    order = _order(model)
    assert order is not None
    bias = model.projection.bias if config.projection_bias else torch.zeros(config.target_vocabulary)
    shared = model.target_embedding.tokens.weight
    weights = {"model.shared.weight": shared[:, order], "final_logits_bias": bias[None]}
    tensor: Tensor
    for name, tensor in model.named_parameters():
        *modules, _ = name.split(".")
        if not name.startswith(("encoder", "decoder")):
            continue  # embeddings and projection
        if modules[-1] not in _READERS:
            tensor = tensor[order]
        elif tensor.dim() == 2:
            tensor = tensor[:, order]
        if len(modules) > 1:
            name = name.replace(".", ".layers.", 1)
        for ours, theirs in _NAMES.items():
            name = name.replace(ours, theirs)
        weights[f"model.{name}"] = tensor
    return {name: tensor.detach().contiguous() for name, tensor in weights.items()}
