"""Write a Marian model of random weights whose answers end, with a tokenizer: what servers of text can be timed with.

`python -m txport.benchmarks.studies.random_marian TEXT -o MODEL`

It is saved by Hugging Face's own code, so that `tx-import` and CTranslate2's converter read the same weights. Random
weights end no answer; here the row of the end of sequence is fitted, by least squares over states of the decoder, so
that it wins at about the 24th token. Sizes are those of OPUS-MT and of Argos Translate's packages.
"""

import io
import json
from pathlib import Path
from typing import Any

import click
import sentencepiece
import torch
import transformers
from txport.runtime.text.lines import open_lines, text_windows

SIZES: dict[str, Any] = {
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "max_position_embeddings": 512,
    "scale_embedding": True,
    "activation_function": "swish",
}
EOS = 0
UNK = 1
LENGTH = 24
SLOPE = 2.0
STEPS = 40
# Factor of all logits: with flat ones, beams end their answers at once.
PEAK = 12.0


def tokenizer(lines: list[str], vocabulary: int) -> tuple[bytes, dict[str, int]]:
    """A SentencePiece model of these lines, and a vocabulary of this size; what the text does not fill is `<n>`."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=8000, hard_vocab_limit=False, minloglevel=2
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [trained.id_to_piece(i) for i in range(3, len(trained))]
    tokens = ["</s>", "<unk>", *pieces, *(f"<{i}>" for i in range(vocabulary - len(pieces) - 3)), "<pad>"]
    return model.getvalue(), {token: i for i, token in enumerate(tokens)}


def fit_end(model: Any, sources: torch.Tensor) -> None:
    """Fit the row of the end of sequence to win where an answer is `LENGTH` tokens long, whatever its tokens.

    Args:
        model: with random weights.
        sources: int64 `[sentences, tokens]`, ending with the end of sequence.
    """
    pad = model.config.pad_token_id
    rows = model.get_decoder().embed_tokens.weight
    with torch.no_grad():
        encoded = model.get_encoder()(sources)
        fed = torch.full((len(sources), 1), pad)
        for _ in range(STEPS):
            states = model.get_decoder()(fed, encoder_hidden_states=encoded.last_hidden_state).last_hidden_state
            fed = torch.cat([fed, 2 + (states[:, -1:] @ rows[2:pad].T).argmax(-1)], 1)
        wanted = (states @ rows[2:pad].T).max(-1).values + SLOPE * (torch.arange(STEPS) - LENGTH)
        samples = states.flatten(0, 1).double()
        values = wanted.flatten().double()
        square = samples.T @ samples + 1e-2 * len(samples) * torch.eye(samples.shape[1], dtype=torch.float64)
        rows[EOS] = torch.linalg.solve(square, samples.T @ values).float()


@click.command()
@click.argument("text", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@click.option("--vocabulary", default=32000, show_default=True)
def main(text: Path, output: Path, vocabulary: int) -> None:
    """Write a model whose tokenizer is trained on TEXT."""
    with open_lines(text) as windows:
        lines = [line for window in text_windows(windows, "strict", str(text)) for line in window]
    spm, ids = tokenizer(lines, vocabulary)
    torch.manual_seed(0)
    pad = vocabulary - 1
    config = transformers.MarianConfig(
        vocab_size=vocabulary, pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=EOS, **SIZES
    )
    model: Any = transformers.MarianMTModel(config)
    model.eval()
    model.get_decoder().layers[-1].final_layer_norm.weight.data *= PEAK
    draw = torch.Generator().manual_seed(0)
    sources = torch.randint(2, pad, (24, 20), generator=draw)
    sources[:, -1] = EOS
    for _ in range(2):  # the row is of sources, too
        fit_end(model, sources)
    generation: Any = transformers.GenerationConfig
    model.generation_config = generation(
        bad_words_ids=[[pad]],
        pad_token_id=pad,
        eos_token_id=EOS,
        decoder_start_token_id=pad,
        num_beams=4,
        max_length=256,
    )
    model.save_pretrained(output)
    for side in ("source", "target"):
        (output / f"{side}.spm").write_bytes(spm)
    (output / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False))
    (output / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))


if __name__ == "__main__":
    main()
