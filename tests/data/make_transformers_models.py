"""Records tests/data/foreign/transformers_4: tiny random models as transformers 4 saves them, and what they answer.

Version 5 writes other fields in config.json, other ties and no table twice. An environment of its own runs this, beside
a txport[export] (say, that of txport's own by a .pth file):

    pip install transformers==4.57.6
    PYTHONPATH=tests/helpers:tests/foreign:tests/data python tests/data/make_transformers_models.py [NAME ...]

Weights, sentences and numbers are as those of make_foreign_models.py.
"""

import shutil
import sys
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from foreign_models import MADE, assert_varied, padded, random_sources, shake, until_end
from make_foreign_models import FOLDER, record, rounded
from torch import Tensor

OURS = FOLDER / "transformers_4"
T5 = {
    **{"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2},
    **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0},
    **{"pad_token_id": 0, "eos_token_id": 1},
}
BART = {
    **{"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 40},
    **{"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_layers": 2, "decoder_layers": 1},
    "forced_eos_token_id": None,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# Family, what differs from its defaults, and whether the file is one of PyTorch, which has every name of a tensor.
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "t5": ("T5", T5, False),
    "t5_bin": ("T5", {**T5, "num_decoder_layers": 2}, True),
    "t5_1_1": ("T5", {**T5, **GATED}, False),
    "mt5": ("MT5", {**T5, **GATED}, False),
    "mt5_tied": ("MT5", {**T5, "tie_word_embeddings": True}, False),
    "umt5": ("UMT5", {**T5, **GATED}, False),
    "pegasus": ("Pegasus", BART, False),
    "bart": ("Bart", {**BART, "decoder_layers": 2, "scale_embedding": True}, False),
    "mbart": ("MBart", {**BART, "decoder_start_token_id": 2}, False),
    "m2m100": ("M2M100", {**BART, "decoder_start_token_id": 2}, False),
}


def made(family: str, fields: dict[str, Any], seed: int) -> Any:
    """A model with random weights, of which many answers end."""
    model = getattr(transformers, f"{family}ForConditionalGeneration")(
        getattr(transformers, f"{family}Config")(vocab_size=60, **fields)
    ).eval()
    eos = model.config.eos_token_id
    if "T5" in family:
        shake(model, seed, scale=1.3)
        for name, weight in model.named_parameters():
            weight.data *= model.config.d_kv**-0.5 if name.endswith(".q.weight") else 1.0
        model.shared.weight.data *= 0.3  # else a tied model would say each token again
        tied = model.config.tie_word_embeddings
        model.decoder.final_layer_norm.weight.data *= 4.0 if tied else 1.0
        (model.shared if tied else model.lm_head).weight.data[eos] *= 3.0
    else:
        shake(model, seed, scale=1.6)
        model.get_input_embeddings().weight.data[eos] *= 2.0
    rounded(model)
    model.tie_weights()
    return model


def numbers(model: Any, sources: Sequence[list[int]], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Memory and logits, teacher forced, of sources that are padded."""
    ids, lengths = padded(sources, model.config.pad_token_id)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=mask, decoder_input_ids=targets.long(), use_cache=False)
    return output.encoder_last_hidden_state, output.logits


def greedy_of(model: Any, sources: Sequence[list[int]]) -> list[list[int]]:
    ids, lengths = padded(sources, model.config.pad_token_id)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    with torch.inference_mode():
        rows = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=MADE, do_sample=False, num_beams=1)
    return until_end(rows.tolist(), model.config.eos_token_id)


def main() -> None:
    assert transformers.__version__.startswith("4."), "version 5 writes other files"
    for name in sys.argv[1:] or MODELS:
        family, fields, of_pytorch = MODELS[name]
        for seed in range(100):
            model = made(family, fields, seed)
            config = model.config
            sources = random_sources(range(4, 60), [config.eos_token_id])
            answers = greedy_of(model, sources)
            shutil.rmtree(OURS / name, ignore_errors=True)
            model.save_pretrained(OURS / name, safe_serialization=not of_pytorch)
            first = config.decoder_start_token_id
            package = f"transformers {transformers.__version__}"
            try:
                assert_varied(answers, config.eos_token_id)
                record(
                    f"transformers_4/{name}/recorded.safetensors",
                    package,
                    model,
                    {},
                    sources,
                    answers,
                    lambda rows, targets, model=model: numbers(model, rows, targets),
                    (config.pad_token_id, first),
                    weights=False,
                )
            except AssertionError:
                continue
            print(f"{name}: seed {seed}")
            break
        else:
            raise SystemExit(f"{name}: no seed makes answers of many lengths that no rounding changes")


if __name__ == "__main__":
    main()
