"""Command tx-get: export a named model as a cached bundle."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from txport.models.hub.source import check_repository, open_source
from txport.runtime.bundle.kinds import check_kind
from txport.runtime.bundle.manifest import NAME, Manifest
from txport.runtime.bundle.names import Name, record_origin, source_of
from txport.runtime.bundle.schema import LOWERINGS
from txport.runtime.console.words import printable
from txport.runtime.errors import CheckFailed, CheckpointError, InputError
from txport.runtime.files import make_directory, new_directory, scratch_directory
from txport.runtime.libraries import needs, share_cores, without_collection
from txport.runtime.system import Lock


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
@click.option(
    "--source",
    help="Source of the model instead of the repository NAME: a directory, a .zip, .tar or .argosmodel file, or "
    "another repository.",
)
@click.option("--offline", is_flag=True, help="Do not use the network. Use files of earlier downloads.")
@click.option(
    "--allow-pickle",
    is_flag=True,
    help="Accept weights in PyTorch's pickle format (.bin).",
)
@click.option("--force", is_flag=True, help="Download again and replace the cached bundle.")
def main(name: str, source: str | None, offline: bool, allow_pickle: bool, force: bool) -> None:
    """Download the model NAME, export and verify it, and cache the bundle.

    Every command accepts NAME as a bundle afterwards. NAME is a repository of the Hugging Face hub, OWNER/MODEL, or
    OWNER/MODEL@REVISION:PRECISION with a branch, tag or commit, and float32, float16 or int8. The repository contains a
    model that tx-import supports, or a bundle. No code of the repository is executed.
    """
    parsed = Name.parse(name)
    if parsed is None:
        raise InputError(f"{name} is not a model name: use OWNER/MODEL, OWNER/MODEL@REVISION or OWNER/MODEL:int8")
    if source is not None:
        _check_source(source)
    target = parsed.directory
    make_directory(target.parent)
    with _alone(target.parent):
        if force or not target.exists():
            repository = source or parsed.model
            with open_source(repository, parsed.revision, offline=offline, pickles=allow_pickle) as files:
                if (files / NAME).is_file():
                    _keep(files, parsed, force)
                else:
                    _export(files, parsed, source or name, force)
                record_origin(target, repository, parsed.revision, files)
        elif source is not None and source_of(target) not in (None, source):
            raise InputError(
                f"--source {source} has no effect: {name} is cached from {source_of(target)}; replace it with --force"
            )
    click.echo(f"bundle: {target}")


def _check_source(source: str) -> None:
    """Refuse a source that does not exist or contains no model, before anything is imported or downloaded."""
    path = Path(source)
    if not path.exists():
        check_repository(source)
    elif not (path / NAME).is_file():
        check_kind(path, "model", CheckpointError)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Wait until no other process creates a bundle in the directory."""
    while (lock := Lock(directory)).held_by_another:
        lock.close()
        time.sleep(0.1)
    try:
        yield
    finally:
        lock.close()


def _keep(bundle: Path, name: Name, force: bool) -> None:
    """Copy a downloaded bundle to the cache."""
    manifest = Manifest.parse((bundle / NAME).read_bytes(), str(bundle / NAME))
    kind = manifest.precision.weights
    if kind != name.precision:
        raise InputError(f"{name.model} is a bundle in {kind}: tx-get {Name(name.model, name.revision, kind)}")
    with new_directory(name.directory, force, marker=NAME) as directory:
        for file in (NAME, *manifest.present_files(bundle)):
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(bundle / file, directory / file)  # follows links, as in the hub's cache
            except FileNotFoundError:
                raise InputError(f"{name.model} lacks {file}, which its {NAME} lists: upload it again") from None
        Manifest.load(directory).check_files(directory, hashes=lambda file: True)


def _export(model: Path, name: Name, source: str, force: bool) -> None:
    with without_collection(), needs("import"), needs("export"):
        share_cores()
        from rich.console import Console
        from txport.exporter.export import ExportOptions, export_bundle
        from txport.exporter.verification.table import print_report
        from txport.models.importers.choice import import_model
        from txport.models.importers.imported import ImportOptions, write_imported
        from txport.runtime.console.progress import Stages
    with scratch_directory() as scratch, Stages() as stages:
        imported = import_model(str(model), None, ImportOptions(encoder=name.model))
        for note in imported.notes:
            click.echo(f"tx-get: {printable(note)}", err=True)
        write_imported(imported, scratch / "checkpoint", source, replace=False)
        int8 = name.precision == "int8"
        lowerings = ("ort",) if int8 else tuple(LOWERINGS)
        options = ExportOptions(float16=name.precision == "float16", int8=int8, lowerings=lowerings, force=force)
        report = export_bundle(scratch / "checkpoint", name.directory, options, stages)
    assert report is not None
    print_report(report, Console(stderr=True))
    if not report.passed:
        raise CheckFailed(f"{name.directory} was kept because of --force, but {report.failure}")
