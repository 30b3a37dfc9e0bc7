"""tx-pack: a bundle becomes one file."""

from pathlib import Path

import click
from txport.runtime.bundle.archive import Archive, write_archive
from txport.runtime.bundle.argument import BUNDLE_DIRECTORY
from txport.runtime.bundle.manifest import NAME, Manifest
from txport.runtime.errors import BundleError, InputError
from txport.runtime.files import new_file


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE_DIRECTORY)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write, as model.txb.")
def main(bundle: Path, output: Path) -> None:
    """Write BUNDLE as one file, which every command takes in its place: a zip archive without compression.

    Every file is compared with its hash before. TensorRT engines stay where they are: they are of one machine. A file
    of tx-pack that is there already is replaced. unzip makes a directory of it again.
    """
    manifest = Manifest.load(bundle)
    for name in manifest.files:
        manifest.check_file(bundle, name, contents=True)
    if output.is_file():
        try:
            Archive.open(output)
        except BundleError:
            raise InputError(f"{output} exists and is not a bundle in one file: choose another path") from None
    with new_file(output) as file:
        write_archive(file, bundle, [NAME, *manifest.files])
    click.echo(f"{output}: {len(manifest.files) + 1} files, {output.stat().st_size:,} bytes")
