"""tx-train: a recipe in, a checkpoint out. PyTorch and Lightning are imported when there is something to do."""

import json
import os
import time
from pathlib import Path
from typing import Any

import click
from txport.models.config import PRESETS
from txport.runtime.bundle.kinds import check_kind
from txport.runtime.console.logs import show_log
from txport.runtime.libraries import keep_memory, needs, share_cores, without_collection

# The recipe's section of each option that sets one of its values; options that are not listed here set [training]'s.
SECTIONS = {"preset": "model", "vocabulary": "tokenizer", "source_language": "corpus", "target_language": "corpus"}


def _recipe_help(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from txport.training.recipe import starter

        click.echo(starter(), nl=False)
        context.exit()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--recipe", required=True, help="A recipe's .toml file, or the name of one: demo, multi30k, eng_fra.")
@click.option(
    "--recipe-help", is_flag=True, is_eager=True, expose_value=False, callback=_recipe_help,
    help="Show every key of a recipe: a file to copy and change.",
)  # fmt: skip
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The checkpoint directory to write."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Directory of the corpus files that the recipe names. [default: $TXPORT_DATA, else the current directory]",
)
@click.option("--from", "from_checkpoint", help="Checkpoint to go on from: its weights, model and tokenizer.")
@click.option("--resume", is_flag=True, help="Continue the run in OUTPUT.run.")
@click.option("--force", is_flag=True, help="Replace a checkpoint or a run that exists.")
@click.option(
    "--set", "values", multiple=True, metavar="KEY=VALUE", help="Any value of the recipe: training.clip_norm=0.5"
)
@click.option("--preset", help=f"Model: {', '.join(PRESETS)}.")
@click.option("--vocabulary", type=int, help="Pieces of each SentencePiece model.")
@click.option("--seed", type=int, help="For initial weights, order of batches and dropout.")
@click.option("--max-steps", type=int, help="Stop after this many optimizer steps.")
@click.option("--max-epochs", type=int, help="Stop after this many passes over the training pairs.")
@click.option("--max-minutes", type=float, help="Have the checkpoint after this many minutes, the test included.")
@click.option("--batch-tokens", type=int, help="Most tokens of a batch on one device.")
@click.option("--learning-rate", type=float, help="Peak learning rate.")
@click.option("--keep", help="Which weights become the checkpoint: best, last, or average: of the last validations.")
@click.option("--precision", help="32-true, bf16-mixed or 16-mixed.")
@click.option("--accelerator", help="auto, cpu, gpu ...")
@click.option("--devices", help="How many devices of each machine, or which: 2, or 0,1.")
@click.option("--nodes", type=int, help="How many machines.")
@click.option("--strategy", help="How devices work together: auto, ddp, fsdp ...")
@click.option("--source-language", help="Ending of the source files of a parallel corpus.")
@click.option("--target-language", help="Ending of the target files.")
def main(
    recipe: str, output: Path, data: Path | None, resume: bool, force: bool, values: tuple[str, ...], **shortcuts: Any
) -> None:
    """Train a Transformer and write a checkpoint.

    OUTPUT.run next to it keeps logs (CSV, TensorBoard) and what --resume needs.
    """
    started = time.monotonic()
    show_log("txport")
    if resume and force:
        raise click.UsageError("--resume goes on with a run and --force throws it away: give one of them")
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
        from txport.training.run.paths import RunPaths

        loaded = read(recipe, [*overrides, *values])
        # All of this is said before PyTorch is imported.
        if resume:
            stated = {override.partition("=")[0].strip().rpartition(".")[2] for override in (*overrides, *values)}
            loaded = RunPaths(output).check_resume(loaded, stated)
        elif not os.environ.get("LOCAL_RANK", "0").strip("0"):
            RunPaths(output).check(force)
            if loaded.training.from_checkpoint is not None:
                check_kind(Path(loaded.training.from_checkpoint), "checkpoint")
        place = data or Path(os.environ.get("TXPORT_DATA", "."))
        check_files(loaded.corpus, place)
        from txport.training.loop import train
    outcome = train(loaded, output, place, resume=resume, force=force, started=started)
    if outcome is not None:
        click.echo(outcome.sentence())
        click.echo(f"tx-train: next: tx-export {output} -o {output}-bundle", err=True)
