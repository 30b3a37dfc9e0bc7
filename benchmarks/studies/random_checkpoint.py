"""A checkpoint of random weights for measurements: `python -m txport.benchmarks.studies.random_checkpoint -o DIR`."""

from pathlib import Path
from typing import Any

import click
import torch
from txport.models.checkpoint import save_checkpoint
from txport.models.config import PRESETS, preset
from txport.models.transformer import Transformer


def random_checkpoint(
    directory: Path, name: str, *, vocabulary: int, positions: int, seed: int = 0, **fields: Any
) -> None:
    """Write a checkpoint of a preset without a tokenizer. Its greedy search does not repeat a single token.

    Args:
        directory: directory to write; it must not exist.
        name: name of the preset.
        vocabulary: size of the vocabulary of both sides, which are tied.
        positions: maximum source and target length.
        seed: seed of the weights.
        fields: fields of the config that replace those of the preset.
    """
    torch.manual_seed(seed)
    sizes = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary, "max_positions": positions}
    model = Transformer(preset(name, **(sizes | fields))).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
            elif ".output." in parameter_name or ".outer." in parameter_name:
                parameter.mul_(3)  # strong branches, so that earlier tokens have more weight than the last one
    save_checkpoint(directory, model, None, [], {"weights": "random", "preset": name, "seed": seed})


@click.command()
@click.option("--preset", "name", type=click.Choice(list(PRESETS)), default="base", show_default=True)
@click.option("--vocabulary", default=32000, show_default=True)
@click.option("--positions", default=256, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(name: str, vocabulary: int, positions: int, output: Path) -> None:
    """Write a checkpoint of random weights."""
    random_checkpoint(output, name, vocabulary=vocabulary, positions=positions)


if __name__ == "__main__":
    main()
