"""Random Hugging Face models with tokenizers, and their own translations: python hugging_face_models.py FOLDER.

FOLDER/sentences.txt, and for each of marian, byt5 and m2m100 the saved model and NAME.txt, the texts of `generate()`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from foreign_models import WORDS, pieces, sentencepiece_model, shake, write_json
from tiny_marian import tiny_marian

TOKENS = 12
SENTENCES = [" ".join(WORDS[(first + 5 * i) % len(WORDS)] for i in range(2 + first % 6)) for first in range(40)]
SIZES = {
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "d_model": 16, "max_position_embeddings": 40},
}


def byt5(directory: Path) -> Any:
    """Write ByT5, a T5 model over bytes."""
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "feed_forward_proj": "gated-gelu"}
    config = transformers.T5Config(vocab_size=384, decoder_start_token_id=0, tie_word_embeddings=False, **sizes)
    model = transformers.T5ForConditionalGeneration(config).eval()
    shake(model, 3, scale=1.3)
    for name, weight in model.named_parameters():
        weight.data *= 8**-0.5 if name.endswith(".q.weight") else 1.0  # T5 does not scale attention
    model.shared.weight.data *= 0.3
    model.lm_head.weight.data[3:100] = model.lm_head.weight.data[126:] = 0  # only letters remain likely
    transformers.ByT5Tokenizer().save_pretrained(directory)
    return model


def m2m100(directory: Path) -> Any:
    """Write a multilingual model with the target language French."""
    spm = sentencepiece_model()
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces(spm))]
    directory.mkdir()
    (directory / "sentencepiece.bpe.model").write_bytes(spm)
    write_json(directory / "vocab.json", {token: i for i, token in enumerate(tokens)})
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer"})
    tokenizer = transformers.M2M100Tokenizer.from_pretrained(str(directory))
    config = transformers.M2M100Config(vocab_size=len(tokens) + 108, decoder_start_token_id=2, **SIZES)
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    shake(model, 4, scale=1.6)
    model.lm_head.weight.data[[1, 3, *range(len(tokens), len(tokens) + 108)]] = 0  # only words remain likely
    model.generation_config.forced_bos_token_id = tokenizer.get_lang_id("fr")
    return model


def models(folder: Path) -> Iterator[tuple[str, Any]]:
    yield "marian", tiny_marian(folder / "marian", tokenizer=True)
    for make in (byt5, m2m100):
        yield make.__name__, make(folder / make.__name__)


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "sentences.txt").write_text("\n".join(SENTENCES) + "\n")
    for name, model in models(folder):
        model.generation_config.max_length = TOKENS
        model.save_pretrained(folder / name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / name))
        texts = []
        for sentence in SENTENCES:
            with torch.inference_mode():
                ids = model.generate(**tokenizer(sentence, return_tensors="pt"))
            texts.append(tokenizer.decode(ids[0], skip_special_tokens=True).removeprefix("__fr__").strip())
        assert len(set(texts)) > 10, texts
        (folder / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
