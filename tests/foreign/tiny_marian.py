"""A tiny Marian model with random weights, saved by Hugging Face's own code, perhaps with a tokenizer."""

from pathlib import Path
from typing import Any

import torch
from foreign_models import pieces, sentencepiece_model, shake, write_json

EOS = 0
SIZES = {
    "d_model": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": 40,
    "activation_function": "swish",
    "scale_embedding": True,
}


def tiny_marian(
    directory: Path,
    seed: int = 0,
    vocabulary: int = 61,
    tokenizer: bool = False,
    eos_bias: float = 4.0,
    **changes: Any,
) -> Any:
    """Save a Marian model with random weights by `save_pretrained`. Pad is the last id of both sides."""
    import transformers

    fields = {**SIZES, **changes}
    last = min(vocabulary, fields.get("decoder_vocab_size", vocabulary)) - 1
    config = transformers.MarianConfig(
        vocab_size=vocabulary, pad_token_id=last, decoder_start_token_id=last, eos_token_id=EOS, **fields
    )
    model = transformers.MarianMTModel(config).eval()
    shake(model, seed, scale=2.0)
    generator = torch.Generator().manual_seed(seed)
    model.final_logits_bias = 0.3 * torch.randn(model.final_logits_bias.shape, generator=generator)
    model.final_logits_bias[0, EOS] = eos_bias
    for table in {model.get_encoder().embed_tokens, model.get_decoder().embed_tokens}:
        table.weight.data *= 1 if config.scale_embedding else 4  # otherwise positions would dominate embeddings
        table.weight.data[last] = 0
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig(
        bad_words_ids=[[last]],
        pad_token_id=last,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        decoder_start_token_id=last,
        num_beams=4,
    )
    model.save_pretrained(directory)
    if tokenizer:
        _add_tokenizer(directory, vocabulary)
    return model


def _add_tokenizer(directory: Path, vocabulary: int) -> None:
    model = sentencepiece_model()
    for side in ("source", "target"):
        (directory / f"{side}.spm").write_bytes(model)
    kept = sorted(pieces(model), reverse=True)[: vocabulary - 5]
    tokens = ["</s>", "<unk>", *kept, ">>fra<<", ">>deu<<", "<pad>"]
    assert len(tokens) == vocabulary
    write_json(directory / "vocab.json", {token: i for i, token in enumerate(tokens)})
    write_json(directory / "tokenizer_config.json", {"source_lang": "en", "target_lang": "fr"})
