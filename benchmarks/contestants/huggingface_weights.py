"""A txport model as one of Hugging Face's, with the same function: Marian for post-norm, Pegasus for pre-norm.

Both have the sinusoids of the paper, but all sines stand before all cosines, where txport's stand in turns. Tables of
positions are not read from files there, so the weights are brought to that order instead: the model is the same if the
dimensions of the residual stream are permuted everywhere.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from txport.models.config import Config
from txport.models.importers.marian import concatenated_sinusoids
from txport.models.transformer import Transformer
from txport.runtime.errors import InputError

_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}


def unsupported(model: Transformer) -> str | None:
    """Why there is no class of Hugging Face's with exactly this function, or None."""
    config = model.config
    needs = {
        "sinusoidal positions": _order(model) is not None,
        "LayerNorm before or after each sublayer only": config.norm in ("pre", "post"),
        "no LayerNorm on embeddings": not config.embedding_norm,
        "one embedding for both sides and the projection": config.share_embeddings and config.tie_projection,
        "a LayerNorm epsilon of 1e-5": config.layer_norm_epsilon == 1e-5,
    }
    missing = [what for what, holds in needs.items() if not holds]
    if not missing:
        return None
    return f"neither Marian nor Pegasus can be this model: they have {missing[0]}"


def hugging_face_model(model: Transformer) -> Any:
    """The same function as `model`, in evaluation mode, for greedy search with its token ids.

    Raises:
        InputError: there is no class for it; see `unsupported`.
    """
    if reason := unsupported(model):
        raise InputError(reason)
    config = model.config
    pre = config.norm == "pre"
    made = {"config": transformers.PegasusConfig, "model": transformers.PegasusForConditionalGeneration}
    if not pre:
        made = {"config": transformers.MarianConfig, "model": transformers.MarianMTModel}
    theirs: Any = made["model"](made["config"](**_fields(config)))
    state = theirs.state_dict()
    found = _state(model)
    tied = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"}
    computed = {name for name in state if "embed_positions" in name}
    assert found.keys() <= state.keys() and state.keys() - found.keys() <= tied | computed, "another class"
    theirs.load_state_dict(found, strict=False)
    theirs.tie_weights()
    theirs.generation_config = generation_config(config, config.eos_id)
    return theirs.eval()


def generation_config(config: Config, eos: int | None) -> Any:
    """Greedy search; without `eos` a sentence ends at its maximum length only."""
    ids = {"pad_token_id": config.pad_id, "eos_token_id": eos, "decoder_start_token_id": config.bos_id}
    return transformers.GenerationConfig(  # type: ignore[no-untyped-call]
        num_beams=1, do_sample=False, use_cache=True, **ids
    )


def write_hugging_face(model: Transformer, directory: Path) -> None:
    """Write the directory that `from_pretrained` reads."""
    hugging_face_model(model).save_pretrained(directory)


def _order(model: Transformer) -> Tensor | None:
    """The dimensions of the residual stream in their order: sines, then cosines; None if positions are no sinusoids."""
    config = model.config
    if config.positions == "sinusoidal":
        return torch.cat([torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)])
    # An imported Marian brings its tables along.
    theirs = concatenated_sinusoids(config.max_positions, config.d_model)
    tables = (model.source_embedding.positions, model.target_embedding.positions)
    return torch.arange(config.d_model) if all(torch.allclose(table, theirs, atol=1e-6) for table in tables) else None


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


def _state(model: Transformer) -> dict[str, Tensor]:
    """Their names, our tensors, the dimensions of the residual stream permuted."""
    config = model.config
    order = _order(model)
    assert order is not None
    bias = model.projection.bias if config.projection_bias else torch.zeros(config.target_vocabulary)
    found = {"model.shared.weight": model.source_embedding.tokens.weight[:, order], "final_logits_bias": bias[None]}

    def linear(name: str, module: Any, reads: bool, writes: bool) -> None:
        weight, bias = module.weight, module.bias
        weight = weight[:, order] if reads else weight
        found[f"{name}.weight"] = weight[order] if writes else weight
        found[f"{name}.bias"] = bias[order] if writes else bias

    def norm(name: str, module: Any) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = module.weight[order], module.bias[order]

    def attention(name: str, module: Any, residual: Any) -> None:
        for ours, theirs in _ATTENTION.items():
            linear(f"{name}.{theirs}", getattr(module, ours), ours != "output", ours == "output")
        norm(f"{name}_layer_norm", residual.norm)

    for side, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        for index, layer in enumerate(layers):
            prefix, any_layer = f"model.{side}.layers.{index}", layer  # type: tuple[str, Any]
            if side == "encoder":
                attention(f"{prefix}.self_attn", any_layer.attention, any_layer.attention_residual)
            else:
                attention(f"{prefix}.self_attn", any_layer.self_attention, any_layer.self_attention_residual)
                attention(f"{prefix}.encoder_attn", any_layer.cross_attention, any_layer.cross_attention_residual)
            linear(f"{prefix}.fc1", any_layer.feed_forward.inner, True, False)
            linear(f"{prefix}.fc2", any_layer.feed_forward.outer, False, True)
            norm(f"{prefix}.final_layer_norm", any_layer.feed_forward_residual.norm)
        if config.norm == "pre":
            norm(f"model.{side}.layer_norm", getattr(model, f"{side}_norm"))
    return {name: tensor.detach().contiguous() for name, tensor in found.items()}
