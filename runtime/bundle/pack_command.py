"""tx-pack: write a bundle as one file."""

from pathlib import Path

import click
from txport.runtime.bundle.archive import Archive, write_archive
from txport.runtime.bundle.argument import BUNDLE_DIRECTORY
from txport.runtime.bundle.manifest import NAME, Manifest
from txport.runtime.errors import BundleError, InputError
from txport.runtime.files import new_file


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE_DIRECTORY)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write, for example model.txb."
)
def main(bundle: Path, output: Path) -> None:
    """Write BUNDLE as one file, an uncompressed zip archive that every command accepts as a bundle.

    All files are compared with their hashes first. TensorRT engines are not included, since they depend on the machine.
    An existing file of tx-pack is replaced. To convert it back to a directory, run unzip.
    """
    manifest = Manifest.load(bundle)
    manifest.check_files(bundle, hashes=lambda name: True)
    names = [NAME, *manifest.present_files(bundle)]
    if output.is_file():
        try:
            Archive.open(output)
        except BundleError:
            raise InputError(f"{output} exists and is not a bundle in one file: choose another path") from None
    with new_file(output) as file:
        write_archive(file, bundle, names)
    click.echo(f"{output}: {len(names)} files, {output.stat().st_size:,} bytes")
