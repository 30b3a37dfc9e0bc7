"""tx-evaluate: how good a checkpoint or a bundle is. PyTorch is imported when there is something to translate."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from txport.runtime.errors import InputError
from txport.runtime.files import write_atomically
from txport.runtime.libraries import needs
from txport.runtime.text.lines import as_line
from txport.training.corpora import Pair, load_test, read_parallel
from txport.training.recipe import read

if TYPE_CHECKING:
    from txport.training.evaluation import Scores


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", metavar="BUNDLE_OR_CHECKPOINT", type=click.Path(path_type=Path))
@click.option("--source", type=click.Path(path_type=Path), help="Sentences to translate, one a line.")
@click.option("--reference", type=click.Path(path_type=Path), help="Their translations, one a line.")
@click.option("--recipe", help="Instead of files: the test split of a recipe. [default: demo, the built-in corpus]")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Directory of the corpus files that the recipe names. [default: $TXPORT_DATA, else the current directory]",
)
@click.option("--output", type=click.Path(path_type=Path), help="Write the translations to this file.")
@click.option("--json", "as_json", is_flag=True, help="Write the figures as JSON.")
def main(
    model: Path, source: Path | None, reference: Path | None, recipe: str | None, data: Path | None,
    output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Translate a test set greedily, with the loop that ships, and compare: BLEU and chrF by sacreBLEU, exact match.

    A checkpoint runs in PyTorch, a bundle in txport's runtime.
    """
    pairs = _pairs(source, reference, recipe, data or Path(os.environ.get("TXPORT_DATA", ".")))
    with needs("train"):
        from txport.training.evaluation import score, translate_with
    hypotheses = translate_with(model, [text for text, _ in pairs])
    if output is not None:
        write_atomically(output, b"".join(map(as_line, hypotheses)))
    scores = score(hypotheses, [text for _, text in pairs])
    click.echo(json.dumps(scores.to_json(), indent=1) if as_json else _table(model, scores))


def _pairs(source: Path | None, reference: Path | None, recipe: str | None, data: Path) -> list[Pair]:
    if (source is None) != (reference is None):
        raise InputError("--source and --reference belong together: give both, or neither for a recipe's test split")
    if source is None or reference is None:
        return load_test(read(recipe or "demo").corpus, data)
    if recipe is not None:
        raise InputError("--recipe and --source both say what to translate: give one of them")
    return read_parallel(source, reference)


def _table(model: Path, scores: "Scores") -> str:
    return "\n".join(
        [
            f"{model}: {scores.sentences} sentences",
            f"BLEU         {scores.bleu:6.2f}  {scores.bleu_signature}",
            f"chrF         {scores.chrf:6.2f}  {scores.chrf_signature}",
            f"exact match  {100 * scores.exact:6.2f}%",
        ]
    )
