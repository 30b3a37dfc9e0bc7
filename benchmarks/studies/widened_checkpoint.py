"""A checkpoint of a preset's size that makes what a small trained one makes, to measure real text with.

A model of random weights never ends its sentences, and training one of the size of "base" takes a GPU. A small trained
one grown by function-preserving steps (Chen et al. 2016, "Net2Net") costs what the large one costs, and its answers
have real lengths: features, heads and inner units are repeated, further layers add nothing, further ids never win.

    python -m txport.benchmarks.studies.widened_checkpoint SMALL -o LARGE
"""

import shutil
import tempfile
from pathlib import Path

import click
import torch
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor, nn
from txport.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.models.config import PRESETS, Config, preset
from txport.models.transformer import Attention, FeedForward, Transformer
from txport.runtime.errors import InputError

MODEL = "shared.model"
# Fields of the config that the small one decides.
KEPT = (
    "max_positions", "layer_norm_epsilon", "activation", "scale_embedding", "pad_id", "unk_id", "bos_id", "eos_id"
)  # fmt: skip


def widened_checkpoint(small: Path, output: Path, name: str, vocabulary: int) -> None:
    """Write a checkpoint whose greedy answers are those of `small`.

    Args:
        small: a checkpoint with norm "pre", one vocabulary for all and a SentencePiece model.
        output: must not exist.
        name: of the preset; each of its sizes is a multiple of the small one's, and it has at least as many layers.
        vocabulary: at least the small one's.

    Raises:
        InputError: the one cannot be grown to the other.
    """
    checkpoint = load_checkpoint(small)
    small_config = checkpoint.config
    model = widened(
        checkpoint.model,
        preset(
            name,
            source_vocabulary=vocabulary,
            target_vocabulary=vocabulary,
            norm="pre",
            positions="learned",
            **{field: getattr(small_config, field) for field in KEPT},
        ),
    )
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = _tokenizer(checkpoint, vocabulary, Path(scratch) / "tokenizer")
        training = {"weights": f"those of {small.name}, widened", "preset": name}
        save_checkpoint(output, model, tokenizer, checkpoint.sentences, training, references=checkpoint.references)


def widened(small: Transformer, config: Config) -> Transformer:
    """A model of this config, with learned positions, whose greedy answers are those of `small`.

    Raises:
        InputError: the one cannot be grown to the other.
    """
    old = small.config
    if old.norm != "pre" or not old.share_embeddings or not old.tie_projection or old.projection_bias:
        raise InputError("only a model with norm 'pre' and one tied embedding can be widened: train one of that kind")
    multiple = config.d_model % old.d_model == 0 and config.ffn % old.ffn == 0
    if not multiple or config.head_dim != old.head_dim:
        raise InputError(
            f"{config.d_model} features in {config.heads} heads are not a multiple of this model's {old.d_model} in "
            f"{old.heads}, head by head: choose another preset"
        )
    deeper = config.encoder_layers >= old.encoder_layers and config.decoder_layers >= old.decoder_layers
    if not deeper or config.target_vocabulary < old.target_vocabulary:
        raise InputError("this model has more layers or more ids than the preset: choose a larger one")
    large = Transformer(config).eval()
    with torch.no_grad():
        _grow(small, large)
    return large


def _grow(small: Transformer, large: Transformer) -> None:
    times = large.config.d_model // small.config.d_model
    old, new = small.source_embedding.tokens.weight, large.source_embedding.tokens.weight
    # What is looked up must stay as it is, repeated; scaled by sqrt(d_model) it would grow by sqrt(times).
    shrink = times**-0.5 if small.config.scale_embedding else 1.0
    new.copy_((old[small.config.pad_id] * shrink).repeat(times))  # never trained to win
    new[: len(old)] = (old * shrink).repeat(1, times)
    for one, other in (
        (small.source_embedding, large.source_embedding),
        (small.target_embedding, large.target_embedding),
    ):
        other.positions.copy_(one.positions.repeat(1, times))
    for first, second in ((small.encoder, large.encoder), (small.decoder, large.decoder)):
        for index, layer in enumerate(second):
            _grow_layer(first[index] if index < len(first) else None, layer)
    _grow_module(small.encoder_norm, large.encoder_norm)
    _grow_module(small.decoder_norm, large.decoder_norm)


def _grow_layer(small: nn.Module | None, large: nn.Module) -> None:
    if small is not None:
        _grow_module(small, large)
        return
    for module in large.modules():  # a sublayer that gives zeros adds nothing
        if isinstance(module, Attention):
            module.output.weight.zero_()
        if isinstance(module, FeedForward):
            module.outer.weight.zero_()


def _grow_module(small: nn.Module, large: nn.Module) -> None:
    """Repeat inputs and outputs; what is summed over repeated inputs is divided by their number."""
    for (name, old), (_, new) in zip(small.named_parameters(), large.named_parameters(), strict=True):
        assert old.dim() <= 2, name
        new.copy_(_repeated(old, new))


def _repeated(old: Tensor, new: Tensor) -> Tensor:
    times = [b // a for a, b in zip(old.shape, new.shape, strict=True)]
    return old.repeat(*times) / (times[1] if len(times) == 2 else 1)


def _tokenizer(checkpoint: Checkpoint, vocabulary: int, directory: Path) -> Path:
    """The small one's tokenizer, with pieces that no text holds for the further ids."""
    shutil.copytree(checkpoint.directory / "tokenizer", directory)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((directory / MODEL).read_bytes())
    for index in range(len(model.pieces), vocabulary):
        model.pieces.add(piece=f"<further{index}>", score=0.0, type=model.SentencePiece.UNUSED)
    (directory / MODEL).write_bytes(model.SerializeToString())
    return directory


@click.command()
@click.argument("small", type=click.Path(path_type=Path, exists=True))
@click.option("--preset", "name", type=click.Choice(list(PRESETS)), default="base", show_default=True)
@click.option("--vocabulary", default=32000, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(small: Path, name: str, vocabulary: int, output: Path) -> None:
    """Write a checkpoint of a preset's size that makes what SMALL makes."""
    widened_checkpoint(small, output, name, vocabulary)


if __name__ == "__main__":
    main()
