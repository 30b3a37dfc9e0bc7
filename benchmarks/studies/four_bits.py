"""Panels that an exact screen of four bits leaves: `python -m txport.benchmarks.studies.four_bits CHECKPOINT`.

An int8 projection's weights are 17 times a number of four bits and a remainder of -8 to 8. The product with the former
gives each logit up to norm(h) * norm(remainder) (Cauchy and Schwarz), from half of the bytes; panels of 16 outputs that
may hold the largest logit are then read whole, as the fused engine does for a single row. Inputs are what the decoder
gives the projection for random ids.
"""

from pathlib import Path

import click
import numpy as np
import torch
from txport.models.checkpoint import load_checkpoint

PANEL = 16


def panels_left(weight: np.ndarray, inputs: np.ndarray) -> float:
    """Return the mean share of panels to be read whole: float32 `[vocabulary, d]` weights, `[n, d]` inputs."""
    scale = np.abs(weight).max(axis=1) / 127
    whole = np.rint(weight / scale[:, None])
    upper = 17 * np.rint(whole / 17)
    error = np.linalg.norm(whole - upper, axis=1) * scale
    count = len(weight) // PANEL * PANEL
    shares = []
    for h in inputs:
        exact = (whole @ h) * scale
        bound = (upper @ h) * scale + np.linalg.norm(h) * error
        shares.append((bound[:count].reshape(-1, PANEL).max(axis=1) >= exact.max()).mean())
    return float(np.mean(shares))


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--tokens", default=200, show_default=True, help="Number of inputs of the projection.")
def main(checkpoint: Path, tokens: int) -> None:
    """Count the panels of a CHECKPOINT's projection."""
    model = load_checkpoint(checkpoint).model.eval()
    torch.manual_seed(0)
    found: list[torch.Tensor] = []
    hook = model.projection.register_forward_pre_hook(lambda _, given: found.append(given[0].detach()))
    ids = torch.randint(4, model.config.source_vocabulary, (8, 30))
    with torch.no_grad():
        model(ids, torch.full((8,), 30), torch.randint(4, model.config.target_vocabulary, (8, 30)))
    hook.remove()
    inputs = found[0].reshape(-1, found[0].shape[-1])[:tokens].numpy()
    share = panels_left(model.projection.weight.detach().numpy(), inputs)
    click.echo(f"{checkpoint}: {100 * share:.1f}% of the panels are read whole, after half of the bytes of all")


if __name__ == "__main__":
    main()
