"""A random model that generates many unknown tokens, its bundle with attention, and texts with unknown words."""

import io
import random
from pathlib import Path
from typing import Any

WORDS = "the a cat dog bird tree sees likes hears big small red blue house water".split()
UNKNOWN = ("Ω", "漢字", "Żółw", "漢Ω", "🙂")
CASED = "THE CAT"  # capital letters are unknown as well
SIZE = 60
SEED = 4


def texts(count: int) -> list[str]:
    """Return lines of known and unknown words."""
    draw = random.Random(5)
    lines = []
    for _ in range(count):
        words = [draw.choice(UNKNOWN) if draw.random() < 0.3 else draw.choice(WORDS) for _ in range(draw.randint(1, 9))]
        lines.append(" ".join(words))
    return lines


def write_models(directory: Path, **options: Any) -> None:
    """Write source.model and target.model, each of which lacks words of the other one."""
    import sentencepiece

    directory.mkdir(parents=True)
    for side, words in (("source", WORDS), ("target", [word[::-1] for word in WORDS])):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([" ".join(words)] * 5 + words),
            model_writer=out,
            **{
                "model_type": "unigram",
                "vocab_size": SIZE,
                "hard_vocab_limit": False,
                **options,
            },
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            num_threads=1,
            minloglevel=2,
        )
        (directory / f"{side}.model").write_bytes(out.getvalue())


def unknown_checkpoint(directory: Path, **options: Any) -> Any:
    """Save and return a random model of these words whose first head is an alignment head.

    Args:
        directory: directory of the checkpoint; it must not exist.
        options: options of SentencePiece's training.
    """
    import sentencepiece
    import torch
    from txport.models.checkpoint import save_checkpoint
    from txport.models.config import preset
    from txport.models.description import write_description
    from txport.models.transformer import Transformer
    from txport.runtime.bundle.schema import Generation
    from txport.runtime.bundle.tokenizer_schema import plain

    tokenizer = directory.with_name(f"{directory.name}-tokenizer")
    write_models(tokenizer, **options)
    names = [f"tokenizer/{side}.model" for side in ("source", "target")]
    write_description(tokenizer, plain(*names, 3))
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(tokenizer / f"{side}.model")).get_piece_size()
        for side in ("source", "target")
    )
    sizes = {"source_vocabulary": source, "target_vocabulary": target, "dropout": 0.0}
    apart = {"share_embeddings": False, "tie_projection": False, "projection_bias": True}
    torch.manual_seed(SEED)
    model = Transformer(preset("tiny", **sizes, **apart, max_positions=64, decoder_layers=1, alignment_heads=((0, 0),)))
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.05 * torch.randn_like(parameter))
            else:  # sharp attention to the source, so that translations depend on it
                sharp = 5.0 if "cross_attention" in name else 1.0
                parameter.copy_(sharp * torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
        model.projection.bias += torch.tensor(
            [-60.0, 1.5, -60.0] + [0.0] * (target - 3)
        )  # no <pad>, some <unk>, no <s>
    settings = Generation(beam=4, length_penalty=0.2, early_stopping=True, replace_unknowns=True)
    save_checkpoint(directory, model, tokenizer, texts(40), {}, generation=settings)
    return model


def unknown_bundle(checkpoint: Path, directory: Path) -> None:
    """Export a checkpoint. The generation settings of the model require the graphs for attention."""
    from txport.exporter.export import ExportOptions, export_bundle

    export_bundle(checkpoint, directory, ExportOptions(verify=False, sentences=8, lowerings=("ort",)))
