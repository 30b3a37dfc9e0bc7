"""Bundles for the report of a GPU: `python -m txport.benchmarks.gpu.bundles -o build/gpu/bundles`.

Presets with random weights in float32 and float16, one of them with float32 islands, and the demo's bundles where
`make demo` has left them.
"""

import shutil
import tempfile
from pathlib import Path

import click
import torch
from txport.benchmarks.studies.random_checkpoint import random_checkpoint
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.checkpoint import load_checkpoint, save_checkpoint

# Vocabulary, positions and sentences to verify on, of each preset.
PRESETS = {"tiny": (1_000, 128, 32), "base": (32_000, 256, 8)}
DEMO = {"bundle": "demo-float32", "bundle-fp16": "demo-float16"}
_FACTOR = 1e6


def make_bundles(directory: Path, presets: tuple[str, ...] = tuple(PRESETS), demo: Path | None = None) -> None:
    """Write those that are not there yet; the demo's are copied if `make demo` has written them.

    Random weights in float16 meet too many near ties to be verified.
    """
    with tempfile.TemporaryDirectory(prefix="txport-gpu-") as scratch:
        for name in presets:
            vocabulary, positions, sentences = PRESETS[name]
            plain, overflowing = Path(scratch, name), Path(scratch, f"{name}-islands")
            random_checkpoint(plain, name, vocabulary=vocabulary, positions=positions)
            with_overflow(plain, overflowing)
            for checkpoint, half in ((plain, False), (plain, True), (overflowing, True)):
                bundle = directory / f"{checkpoint.name}-{'float16' if half else 'float32'}"
                if not bundle.exists():
                    click.echo(f"export {bundle}")
                    options = ExportOptions(float16=half, verify=not half, sentences=sentences, singles=2)
                    export_bundle(checkpoint, bundle, options)
    for source, name in DEMO.items():
        if demo is None or (directory / name).exists():
            continue
        if (demo / source).exists():
            shutil.copytree(demo / source, directory / name, ignore=shutil.ignore_patterns("engines"))
        else:
            click.echo(f"without {name}: {demo / source} is not there; make demo writes it")


def with_overflow(checkpoint: Path, output: Path) -> None:
    """The same function with a feed-forward layer whose inner values overflow in float16: it must become an island.

    ReLU lets a positive factor through, so the outer weights can take it back.
    """
    loaded = load_checkpoint(checkpoint)
    parameters = dict(loaded.model.named_parameters())
    layer = f"decoder.{loaded.config.decoder_layers - 1}.feed_forward"
    with torch.no_grad():
        for name in ("inner.weight", "inner.bias"):
            parameters[f"{layer}.{name}"].mul_(_FACTOR)
        parameters[f"{layer}.outer.weight"].div_(_FACTOR)
    save_checkpoint(output, loaded.model, None, [], {"weights": "random, with values that overflow in float16"})


@click.command()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The directory for the bundles.")
@click.option("--preset", "presets", multiple=True, type=click.Choice(list(PRESETS)), help="Only this; repeatable.")
@click.option("--demo", type=click.Path(path_type=Path), default=Path("build/demo"), help="Where `make demo` wrote.")
def main(output: Path, presets: tuple[str, ...], demo: Path) -> None:
    """Write the bundles that the report runs."""
    make_bundles(output, presets or tuple(PRESETS), demo)


if __name__ == "__main__":
    main()
