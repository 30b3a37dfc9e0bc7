"""Tiny TrOCR, Donut and Whisper models of Hugging Face with random weights."""

from pathlib import Path
from typing import Any

import pytest
from foreign_models import shake

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

PAD, EOS, START = 1, 2, 2
VOCABULARY = 50
DECODER = {
    **{
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 48,
    },
    **{"max_position_embeddings": 40, "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 0},
    **{"decoder_start_token_id": START},
}


def vision(directory: Path, decoder: Any, *, hidden: int = 24, seed: int = 0) -> Any:
    """Write a tiny ViT encoder with this decoder and random weights."""
    sizes = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "image_size": 8,
        "patch_size": 4,
    }
    encoder = transformers.ViTConfig(hidden_size=hidden, **sizes)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = START, PAD, EOS
    model = transformers.VisionEncoderDecoderModel(config).eval()
    shake(model, seed, scale=1.6)
    model.generation_config.decoder_start_token_id = START
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = PAD, EOS
    model.save_pretrained(directory)
    return model


def trocr(directory: Path, **changes: Any) -> Any:
    return vision(directory, transformers.TrOCRConfig(**{**DECODER, "cross_attention_hidden_size": 24, **changes}))


def sinusoidal_trocr(directory: Path) -> Any:
    """Write the variant of large TrOCR models. It never generates padding, which has no position in Hugging Face."""
    options = {"use_learned_position_embeddings": False, "layernorm_embedding": False, "scale_embedding": True}
    model = trocr(directory, **options)
    model.generation_config.suppress_tokens = [PAD]
    model.save_pretrained(directory)
    return model


def mbart(directory: Path, hidden: int = 32, **changes: Any) -> Any:
    """Write a model with the decoder of Donut and Nougat."""
    fields = {"is_decoder": True, "add_cross_attention": True, "add_final_layer_norm": True, "scale_embedding": True}
    config = transformers.MBartConfig(**{**DECODER, **fields, "encoder_layers": 2, **changes})
    return vision(directory, config, hidden=hidden)


def bart(directory: Path, hidden: int = 32, **changes: Any) -> Any:
    fields = {"is_decoder": True, "add_cross_attention": True, "encoder_layers": 2}
    return vision(directory, transformers.BartConfig(**{**DECODER, **fields, **changes}), hidden=hidden)


def whisper(directory: Path, **changes: Any) -> Any:
    fields = {name: value for name, value in DECODER.items() if name != "max_position_embeddings"}
    sizes = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "num_mel_bins": 8}
    config = transformers.WhisperConfig(
        **{
            **fields,
            **sizes,
            "max_source_positions": 20,
            "max_target_positions": 40,
            **changes,
        }
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    shake(model, 3, scale=1.6, but="encoder.embed_positions")
    model.tie_weights()
    generation = transformers.GenerationConfig(
        decoder_start_token_id=START, pad_token_id=PAD, eos_token_id=EOS, suppress_tokens=[7, 9],
        begin_suppress_tokens=[11], lang_to_id={"<|en|>": 20, "<|de|>": 21}, task_to_id={"transcribe": 22},
        no_timestamps_token_id=23,
    )  # fmt: skip
    model.generation_config = generation
    model.save_pretrained(directory)
    return model
