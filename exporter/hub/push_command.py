"""Command tx-push: upload a bundle to a repository of the Hugging Face hub."""

from glob import escape
from pathlib import Path

import click
from txport.models.hub.source import HUB_ID
from txport.runtime.bundle.argument import BUNDLE_DIRECTORY
from txport.runtime.bundle.manifest import NAME, Manifest
from txport.runtime.errors import InputError
from txport.runtime.libraries import needs

CARD = "README.md"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE_DIRECTORY)
@click.argument("repository")
@click.option("--private", is_flag=True, help="Create the repository as private if it does not exist.")
@click.option("--revision", help="Branch to upload to. [default: main]")
def main(bundle: Path, repository: str, private: bool, revision: str | None) -> None:
    """Upload BUNDLE, a directory or a name, to REPOSITORY (OWNER/NAME), with its README.md as the model card.

    Only files of the manifest are uploaded, after a check of their hashes. Log in with the command hf, or set HF_TOKEN.
    """
    if HUB_ID.fullmatch(repository) is None:
        raise InputError(f"{repository} is not OWNER/NAME: name your account or organisation, and the repository")
    with needs("hub"):
        import huggingface_hub as hub
    manifest = Manifest.load(bundle)
    manifest.check_files(bundle, hashes=lambda file: True)
    files = [escape(file) for file in dict.fromkeys((NAME, CARD, *manifest.files))]  # other files may be private
    try:
        hub.create_repo(repository, private=private, exist_ok=True)
        done = hub.upload_folder(repo_id=repository, folder_path=bundle, revision=revision, allow_patterns=files)
    except Exception as error:  # network and hub errors come from several libraries
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{bundle} was not uploaded to {repository}: {reason}") from None
    click.echo(f"{done.commit_url}")
