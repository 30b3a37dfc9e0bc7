"""Command tx-train: train a model by a recipe, and write a checkpoint. PyTorch is imported only when needed."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from txport.models.config import PRESETS
from txport.runtime.bundle.kinds import check_checkpoint
from txport.runtime.console.flags import refuse_unused
from txport.runtime.console.logs import show_log
from txport.runtime.libraries import keep_memory, needs, share_cores, without_collection

if TYPE_CHECKING:
    from txport.training.recipe import Recipe

# Section of the recipe for each option that sets one of its values. Other options set values of [training].
SECTIONS = {"preset": "model", "vocabulary": "tokenizer", "source_language": "corpus", "target_language": "corpus"}


def _recipe_help(context: click.Context, _: click.Parameter, is_requested: bool) -> None:
    if is_requested:
        from txport.training.recipe import starter

        click.echo(starter(), nl=False)
        context.exit()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--recipe", required=True, help="Recipe: a .toml file, or one of demo, multi30k, eng_fra.")
@click.option(
    "--recipe-help", is_flag=True, is_eager=True, expose_value=False, callback=_recipe_help,
    help="Print a recipe with every key, as a file to copy and edit.",
)  # fmt: skip
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Checkpoint directory to write.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Directory of the recipe's corpus files. [default: $TXPORT_DATA, else the current directory]",
)
@click.option("--from", "from_checkpoint", help="Checkpoint to fine-tune. Its model and tokenizer are used.")
@click.option("--resume", is_flag=True, help="Continue the run in OUTPUT.run.")
@click.option("--force", is_flag=True, help="Replace an existing checkpoint or run.")
@click.option(
    "--set",
    "values",
    multiple=True,
    metavar="KEY=VALUE",
    help="Value of the recipe, for example training.clip_norm=0.5. Repeatable.",
)
@click.option("--preset", help=f"Model: {', '.join(PRESETS)}.")
@click.option("--vocabulary", type=int, help="Vocabulary size of each SentencePiece model.")
@click.option("--seed", type=int, help="Random seed of initial weights, batch order and dropout.")
@click.option("--max-steps", type=int, help="Maximum number of optimizer steps.")
@click.option("--max-epochs", type=int, help="Maximum number of epochs.")
@click.option("--max-minutes", type=float, help="Finish within this number of minutes, including the test.")
@click.option("--batch-tokens", type=int, help="Maximum number of tokens per batch and device.")
@click.option("--learning-rate", type=float, help="Peak learning rate.")
@click.option("--keep", help="Weights of the checkpoint: best, last, or average (of the last validations).")
@click.option("--precision", help="Precision: 32-true, bf16-mixed or 16-mixed.")
@click.option("--accelerator", help="Accelerator: auto, cpu, gpu, cuda, mps or tpu.")
@click.option("--devices", help="Devices per machine: a number (2) or indices (0,1).")
@click.option("--nodes", type=int, help="Number of machines.")
@click.option("--strategy", help="Distributed strategy: auto, ddp, fsdp ...")
@click.option("--source-language", help="Suffix of the source files of a parallel corpus.")
@click.option("--target-language", help="Suffix of the target files.")
def main(
    recipe: str, output: Path, data: Path | None, resume: bool, force: bool, values: tuple[str, ...], **shortcuts: Any
) -> None:
    """Train a Transformer and write a checkpoint.

    OUTPUT.run beside it contains logs (CSV, TensorBoard) and the state for --resume.
    """
    started = time.monotonic()
    show_log("txport")
    if resume and force:
        raise click.UsageError("--resume continues a run and --force deletes it: choose one of them")
    overrides = [
        f"{SECTIONS.get(name, 'training')}.{name}={json.dumps(value)}"
        for name, value in shortcuts.items()
        if value is not None
    ]
    share_cores()
    keep_memory()
    with without_collection(), needs("train"):
        from txport.training.corpora import check_files
        from txport.training.recipe import read
        from txport.training.run.directory import RunDirectory
        from txport.training.run.starting import Start, check_positions

        parsed_recipe = read(recipe, [*overrides, *values])
        directory = RunDirectory(output)
        # These errors are reported before PyTorch is imported.
        _refuse_unused(parsed_recipe, data)
        if resume:
            changed = {override.partition("=")[0].strip().rpartition(".")[2] for override in (*overrides, *values)}
            parsed_recipe = directory.check_resume(parsed_recipe, changed)
            directory.resume(parsed_recipe, write=False)
        elif not os.environ.get("LOCAL_RANK", "0").strip("0"):
            directory.check(force)
            if parsed_recipe.training.from_checkpoint is not None:
                checkpoint = Path(parsed_recipe.training.from_checkpoint)
                check_checkpoint(checkpoint)
                check_positions(parsed_recipe, Start.read(parsed_recipe, checkpoint).config)
        place = data or Path(os.environ.get("TXPORT_DATA", "."))
        check_files(parsed_recipe.corpus, place)
        from txport.training.loop import train
    outcome = train(parsed_recipe, output, place, resume=resume, force=force, started=started)
    if outcome is not None:
        click.echo(outcome.sentence())
        click.echo(f"tx-train: next: tx-export {output} -o {output}-bundle", err=True)


def _refuse_unused(recipe: "Recipe", data: Path | None) -> None:
    """Refuse options that have no effect with this recipe."""
    from txport.training.options import WITHOUT_FILES, kind_of_corpus

    kind = kind_of_corpus(recipe.corpus)
    refuse_unused(kind in WITHOUT_FILES, f"with a corpus of kind {kind}, which has no files", "data")
    refuse_unused(recipe.training.from_checkpoint is not None, "with the tokenizer of --from", "vocabulary")
