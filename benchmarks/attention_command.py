"""tx-attention: pictures of a model's attention. PyTorch is imported only for a checkpoint."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from txport.benchmarks.pictures.canvas import MARGIN, Canvas, Text
from txport.benchmarks.pictures.heatmaps import draw_heatmaps
from txport.benchmarks.pictures.links import draw_links
from txport.benchmarks.pictures.maps import KINDS, Map, read_maps
from txport.benchmarks.pictures.positions import draw_positions
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.console.flags import refuse_unused
from txport.runtime.console.logs import show_log
from txport.runtime.errors import InputError
from txport.runtime.files import check_writable, write_atomically
from txport.runtime.libraries import needs
from txport.runtime.options import Options

# Maximum number of weights of one picture. More would give an unreadable file of many megabytes.
MAX_WEIGHTS = 250_000


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", metavar="[BUNDLE_OR_CHECKPOINT]", required=False, type=BUNDLE)
@click.argument("text", required=False)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Picture to write: .svg, .html or .png."
)
@click.option("--target", help="Translation to draw. [default: the model's translation]")
@click.option(
    "--kind", "kinds", multiple=True, help="Attention to draw: encoder, decoder or cross. Repeatable. [default: all]"
)
@click.option("--layer", "layers", type=int, multiple=True, help="Layer to draw, from 1. Repeatable. [default: all]")
@click.option("--head", "heads", type=int, multiple=True, help="Head to draw, from 1. Repeatable. [default: all]")
@click.option("--word", help="Draw lines from this word or token to the tokens that it attends to.")
@click.option("--source-language", help="Source language. [default: the model's]")
@click.option("--target-language", help="Target language. [default: the model's]")
@click.option(
    "--positions",
    type=int,
    metavar="D_MODEL",
    help="Draw the sinusoidal position encodings of a model of this width instead.",
)
def main(
    model: Path | None, text: str | None, output: Path, target: str | None, kinds: tuple[str, ...],
    layers: tuple[int, ...], heads: tuple[int, ...], word: str | None, source_language: str | None,
    target_language: str | None, positions: int | None,
) -> None:  # fmt: skip
    """Draw the attention of a model for TEXT and its translation, as heat maps of layers by heads.

    A bundle of tx-export --with-attention does not need PyTorch. Masked positions are 0 and drawn white.
    """
    show_log()
    write = _writer(output)
    check_writable(output)
    if positions is not None:
        others = ("target", "kinds", "layers", "heads", "word", "source_language", "target_language")
        refuse_unused(True, "with --positions, which draws no model", *others)
        if model is not None:
            raise InputError("--positions does not draw a model: use it only with -o")
        canvas = draw_positions(positions)
        label = f"Sine and cosine of positions, for d_model {positions}"
    else:
        if model is None or text is None:
            raise InputError("give a bundle or a checkpoint, and a text in quotes, or --positions")
        options = Options(source_language=source_language, target_language=target_language)
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise InputError(f"there is no attention of the kind {unknown[0]!r}: give {', '.join(KINDS)}")
        maps = read_maps(model, text, target, options)
        canvas = _draw(maps, kinds, layers, heads, word)
        label = f"Attention: {maps[0].text} → {maps[1].text}"
        _caption(canvas, [str(model), maps[0].text, maps[1].text])
    write_atomically(output, write(canvas, label))


def _writer(output: Path) -> Callable[[Canvas, str], bytes]:
    """Return the function that converts a picture and its title to the bytes of the file."""
    kind = output.suffix.lower()
    if kind == ".png":
        with needs("bench"):
            from txport.benchmarks.pictures.png import png
        return lambda canvas, label: png(canvas)
    if kind == ".svg":
        return lambda canvas, label: canvas.svg(label).encode()
    if kind == ".html":
        return lambda canvas, label: canvas.page(label).encode()
    raise InputError(f"{output} is not a supported picture format: the name must end in .svg, .html or .png")


def _caption(canvas: Canvas, lines: Sequence[str]) -> None:
    """Write the model, the text and its translation below the picture."""
    for line in lines:
        canvas.add(Text(MARGIN, canvas.height + 4, line, 10))


def _draw(
    maps: Sequence[Map], kinds: Sequence[str], layers: Sequence[int], heads: Sequence[int], word: str | None
) -> Canvas:
    """Return the picture of the chosen layers and heads, which count from 1."""
    selected = [each for each in maps if each.kind in (kinds or KINDS)]
    if word is not None:
        containing = [each for each in selected if each.find(word)]
        # Without --kind, maps whose text does not contain the word are left out: a word of the source is usually not in
        # the translation.
        if not containing or (kinds and len(containing) < len(selected)):
            texts = " nor in ".join(dict.fromkeys(repr(each.text) for each in selected))
            raise InputError(f"the word {word!r} is not in {texts}: give one that is there, or a token")
        selected = containing
    for each in selected:
        for kind, numbers, count in (("layer", layers, each.weights.shape[0]), ("head", heads, each.weights.shape[1])):
            for number in numbers:
                if not 1 <= number <= count:
                    raise InputError(f"there is no {kind} {number}: {each.kind} attention has {count}, from 1 on")
    maps_of = [len(layers or each.weights) * len(heads or each.weights[0]) for each in selected]
    numbers = sum(count * each.weights[0, 0].size for count, each in zip(maps_of, selected, strict=True))
    if numbers > MAX_WEIGHTS:
        raise InputError(
            f"a picture of {numbers} weights is too large: choose by --kind, --layer or --head, or shorten the text"
        )
    from_zero = [number - 1 for number in layers], [number - 1 for number in heads]
    if word is None:
        return draw_heatmaps(selected, *from_zero)
    return draw_links(selected, *from_zero, word)
