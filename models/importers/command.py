"""Command tx-import: convert a model of another toolkit to a checkpoint."""

from pathlib import Path

import click
from txport.models.hub.source import check_repository
from txport.models.importers import IMPORTERS
from txport.models.importers.settings import WEIGHTS, model_kind, without_weights
from txport.runtime.bundle.kinds import check_kind
from txport.runtime.console.flags import refuse_unused
from txport.runtime.console.progress import Stages
from txport.runtime.console.words import printable
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.files import check_target, check_writable
from txport.runtime.libraries import needs, without_collection

# Endings of files from which the kind of a directory can be detected.
_ENDINGS = (".json", ".npz", ".bin", ".argosmodel", ".zip", ".pt", ".pth", ".safetensors")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Checkpoint directory to write.")
@click.option("--from", "kind", type=click.Choice(list(IMPORTERS)), help="Format of SOURCE. [default: detected]")
@click.option("--no-tokenizer", is_flag=True, help="Import without a tokenizer. The model then reads and returns ids.")
@click.option("--source-language", help="Default source language of the checkpoint.")
@click.option("--target-language", help="Default target language of the checkpoint.")
@click.option(
    "--vocabulary",
    type=click.Path(path_type=Path),
    help="Directory of dictionaries, word lists, character lists or SentencePiece models. [default: the "
    "directory of SOURCE]",
)
@click.option(
    "--heads",
    type=click.IntRange(1),
    help="Number of attention heads, for formats that do not store it: annotated, d2l.",
)
@click.option(
    "--adapter",
    type=click.Path(path_type=Path),
    help="LoRA adapter of peft to merge into SOURCE, a Hugging Face model.",
)
@click.option(
    "--allow-pickle",
    is_flag=True,
    help="Accept weights in PyTorch's pickle format (.bin).",
)
@click.option(
    "--encoder",
    metavar="NAME|DIRECTORY",
    help="Name of the encoder whose states the decoder reads, for whisper and vision. Checkpoint, manifest and model "
    "card contain it. [default: SOURCE]",
)
@click.option(
    "--timestamps", is_flag=True, help="Let outputs of whisper contain its tokens of times, such as <|0.00|>."
)
@click.option("--force", is_flag=True, help="Replace an existing checkpoint.")
def main(
    source: str,
    output: Path,
    kind: str | None,
    no_tokenizer: bool,
    source_language: str | None,
    target_language: str | None,
    vocabulary: Path | None,
    heads: int | None,
    adapter: Path | None,
    allow_pickle: bool,
    encoder: str | None,
    timestamps: bool,
    force: bool,
) -> None:
    """Import SOURCE as a checkpoint for tx-export. SOURCE is a directory, a file or a model id of the Hugging Face hub.

    No code of SOURCE is executed. Settings that txport does not support are refused. If the generation settings of the
    model differ from greedy search, a note is printed to standard error.
    """
    if Path(source).exists():
        check_kind(Path(source), "model")
    else:
        check_repository(source)
    refuse_unused(no_tokenizer, "with --no-tokenizer", "vocabulary")
    check_target(output, force, "config.json")
    check_writable(output)
    _check(source, kind, vocabulary, adapter, heads)
    with without_collection(), needs("import"):  # imported late, so that --help does not load PyTorch
        from txport.models.importers.choice import import_model
        from txport.models.importers.imported import ImportOptions, write_imported

    options = ImportOptions(
        not no_tokenizer,
        source_language,
        target_language,
        vocabulary,
        heads,
        adapter,
        allow_pickle,
        encoder,
        timestamps,
    )
    imported = import_model(source, kind, options)
    if imported.kind != "whisper":  # whose prompt is ids
        refuse_unused(no_tokenizer, "with --no-tokenizer", "source_language")
        refuse_unused(timestamps, f"with a model of {imported.kind}", "timestamps")
    if encoder is not None and not imported.config.reads_states:
        raise InputError(f"--encoder {encoder} has no effect: {source} ({imported.kind}) has an encoder; leave it out")
    for note in imported.notes:
        click.echo(f"tx-import: {printable(note)}", err=True)
    with Stages() as stages:
        stages.stage("import", len(imported.plan.parts))
        write_imported(imported, output, source, replace=force, advance=stages.advance)
    click.echo(f"checkpoint: {output} (imported from {imported.kind})")
    click.echo(f"tx-import: next: tx-export {output} -o {output}-bundle", err=True)


def _check(source: str, kind: str | None, vocabulary: Path | None, adapter: Path | None, heads: int | None) -> None:
    """Check paths and options before PyTorch is imported, or a model downloaded."""
    for option, path in (("--adapter", adapter), ("--vocabulary", vocabulary)):
        if path is not None and not path.is_dir():
            raise InputError(f"{option} {path} is not a directory: give one that exists")
    if kind is None and Path(source).is_dir():
        _check_directory(Path(source))
    if heads is not None and kind not in (None, "annotated", "d2l"):
        raise InputError(f"--heads {heads} is for annotated and d2l: {source}, of {kind}, specifies it itself")


def _check_directory(directory: Path) -> None:
    """Refuse a directory without any model file, or whose model_type is not supported."""
    if not any(file.suffix in _ENDINGS for file in directory.iterdir()):
        raise CheckpointError(f"{directory}: its kind was not recognised: set it with --from ({', '.join(IMPORTERS)})")
    config = directory / "config.json"
    of_others = [directory / "model.bin", *directory.glob("model.*.safetensors")]  # CTranslate2's and eole's
    if config.is_file() and not any(file.is_file() for file in of_others):
        model_kind(config)
        if not any((directory / f"{name}{ending}").is_file() for name in WEIGHTS for ending in ("", ".index.json")):
            raise without_weights(directory)
