"""Records tests/data/checkpoints: the small trained models whose translations many tests depend on.

    python tests/data/make_checkpoints.py NAME...

Training gives different weights on different processors, and a model trained for seconds then gives other translations,
some of them empty. Recorded weights give the same translations everywhere. Those of all models but the first two are
rounded to bfloat16, so that git stores half as much. All have the tokenizer and the sentences of `tiny`.
"""

import functools
import io
import itertools
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from txport.models.checkpoint import save_checkpoint
from txport.models.config import preset
from txport.models.padding import padding_left_out
from txport.models.transformer import Transformer
from txport.training.spoken import corpus as spoken

CHECKPOINTS = Path(__file__).with_name("checkpoints")
T5 = {
    **{"norm_kind": "rms", "layer_norm_epsilon": 1e-6, "head_dim": 24, "scale_embedding": False},
    **{"positions": "relative", "position_buckets": 16, "position_distance": 40},
    **{"attention_bias": False, "feed_forward_bias": False},
}
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {},
    # Encoder and decoder have heads of different widths, so rotary positions of their own.
    "rotary": {"positions": "rotary", "heads": 2, "decoder_heads": 4},
    "t5": T5,
    "umt5": {**T5, "position_tables": "layer", "feed_forward": "gated", "activation": "gelu_tanh"},
    "sides": {"heads": 2, "decoder_heads": 4, "head_dim": 16, "decoder_ffn": 48, "encoder_layers": 3},
    "rms": {"norm_kind": "rms"},
    # Folded where a norm is left, at the end before a tied projection. Int8 rounds what a folded norm would have read,
    # the more as PowerNorm learns: after 250 steps it is refused.
    "power": {"norm_kind": "power", "steps": 100},
    # Folded where none is left at all.
    "batch": {"norm_kind": "batch", "tie_projection": False, "share_embeddings": False},
    "copying": {"copy_heads": ((1, 0), (1, 2))},
}
VOCABULARY = 256
STEPS = 150
BATCH = 48
LONGEST = 100


def train_checkpoint(directory: Path, *, steps: int = STEPS, **fields: Any) -> None:
    """Train the preset `tiny` on the built-in corpus for a moment and write a checkpoint, with held-out sentences.

    It has learned enough that outputs end and follow the source.

    Args:
        directory: must not exist.
        steps: of the training.
        fields: of the config, in place of the preset's.
    """
    pairs, held_out = _sentences("train", STEPS * 10), _sentences("test", 1200)
    tokenizer = directory.with_name(f"{directory.name}-tokenizer")
    tokenizer.mkdir(parents=True)
    (tokenizer / "shared.model").write_bytes(_train_tokenizer([text for pair in pairs for text in pair]))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer / "shared.model"))
    ids = [[torch.tensor([*processor.encode(text), 3]) for text in pair] for pair in pairs]
    model = _train([pair for pair in ids if max(map(len, pair)) < LONGEST], steps, fields)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    written, references = zip(*held_out, strict=True)
    save_checkpoint(directory, model, tokenizer, written, {"made_by": "tests"}, references=references)


@functools.cache
def _sentences(split: str, count: int) -> list[tuple[str, str]]:
    return list(itertools.islice(spoken.sentences(7, split), count))


def _train_tokenizer(lines: list[str]) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=VOCABULARY,
        character_coverage=1.0,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    return model.getvalue()


def _train(pairs: list[list[Tensor]], steps: int, fields: dict[str, Any]) -> Transformer:
    # One thread: at this size others only wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train_here(pairs, steps, fields)
    finally:
        torch.set_num_threads(threads)


def _train_here(pairs: list[list[Tensor]], steps: int, fields: dict[str, Any]) -> Transformer:
    torch.manual_seed(0)
    sizes = {
        "source_vocabulary": VOCABULARY,
        "target_vocabulary": VOCABULARY,
        "max_positions": 128,
        "norm": "pre",
        **fields,
    }
    model = Transformer(preset("tiny", dropout=0.0, **sizes))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    pairs = sorted(pairs, key=lambda pair: len(pair[1]))
    for step in range(steps):
        start = step * 7919 % (len(pairs) - BATCH)
        batch = pairs[start : start + BATCH]
        source = pad_sequence([source for source, _ in batch], batch_first=True)
        target = pad_sequence([target for _, target in batch], batch_first=True)
        shifted = F.pad(target[:, :-1], (1, 0), value=2)
        lengths = [torch.tensor([len(side) for side in sides]) for sides in zip(*batch, strict=True)]
        with padding_left_out(model, *lengths):
            logits = model(source, lengths[0], shifted)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main(*names: str) -> None:
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            train_checkpoint(Path(scratch) / name, **MODELS[name])
            shutil.rmtree(CHECKPOINTS / name, ignore_errors=True)
            shutil.copytree(Path(scratch) / name, CHECKPOINTS / name)
        for shared in ("tokenizer", "sentences.txt", "references.txt", "training.json") if name != "tiny" else ():
            path = CHECKPOINTS / name / shared
            shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
