"""Result of an importer, and how it becomes a checkpoint."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from txport.models.checkpoint import new_checkpoint
from txport.models.config import Config
from txport.models.description import PLAIN, write_description
from txport.models.hub.source import unpack
from txport.models.importers.plan import ImportPlan
from txport.runtime.bundle.schema import Generation
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.errors import TxportError
from txport.runtime.files import file_errors


@dataclass(frozen=True)
class ImportOptions:
    """The options of `tx-import`, beyond what to import and where to.

    Attributes:
        tokenizer: import the tokenizer too; without it the model takes and returns ids.
        source_language: the default, for a model of many languages.
        target_language: likewise.
        vocabulary: directory of dictionaries or tokenizer files that are not next to the model.
        heads: number of attention heads, for a state dict that does not specify it.
        adapter: directory of a LoRA adapter, to be merged into a model of Hugging Face's.
        pickles: take weights of a repository that has them only in files of PyTorch, which are pickles.
        encoder: what makes the states that a decoder alone reads, in the user's words; None for the model's own.
    """

    tokenizer: bool = True
    source_language: str | None = None
    target_language: str | None = None
    vocabulary: Path | None = None
    heads: int | None = None
    adapter: Path | None = None
    pickles: bool = False
    encoder: str | None = None


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer to be written: its description, and the bytes of each file in the folder `tokenizer`."""

    description: TokenizerDescription
    files: Mapping[str, bytes] = field(default_factory=dict)

    def beginning_with(self, ids: tuple[int, ...], *, prompt: bool = False) -> "TokenizerParts":
        """Return the same, for answers that are forced to begin with these ids; for `prompt` see the description."""
        return replace(self, description=replace(self.description, target_prefix=ids, prompt=prompt))


@dataclass(frozen=True)
class Imported:
    """A model that was understood completely; nothing of it has been written yet.

    Attributes:
        kind: which importer understood it.
        config: its shape as ours.
        plan: its weights as ours, checked against `config`.
        tokenizer: its tokenizer.
        notes: sentences for the user: settings of its search, ids that are banned.
        generation: its own settings of its search.
    """

    kind: str
    config: Config
    plan: ImportPlan
    tokenizer: TokenizerParts
    notes: list[str]
    generation: Generation = PLAIN


def import_archive(archive: Path, importer: Callable[[Path], Imported]) -> Imported:
    """Unpack an archive into a temporary directory, which exists until the weights are written, and import that.

    Raises:
        CheckpointError: by the importer, with the archive's name.
        InputError: the archive is damaged or hostile.
    """
    scratch = TemporaryDirectory(prefix="txport-import-")
    try:
        with file_errors(Path(scratch.name), ours=False):
            unpack(archive, Path(scratch.name))
        imported = importer(Path(scratch.name))
    except TxportError as error:
        scratch.cleanup()
        raise type(error)(str(error).replace(scratch.name, str(archive))) from None
    imported.plan.source = archive
    imported.plan.keeps.append(scratch)
    return imported


def write_imported(
    imported: Imported, directory: Path, source: str, *, replace: bool, advance: Callable[[], None] = lambda: None
) -> None:
    """Write a checkpoint, whole or not at all, one tensor at a time.

    Raises:
        InputError: the directory exists, or the disk is full.
        CheckpointError: a tensor holds NaN or infinity.
    """
    training = {"made_by": "tx-import", "kind": imported.kind, "source": source, "notes": imported.notes}
    with new_checkpoint(directory, imported.config, training, imported.generation, replace=replace) as temporary:
        imported.plan.write(temporary / "model.safetensors", advance)
        (temporary / "tokenizer").mkdir()
        for name, data in imported.tokenizer.files.items():
            (temporary / "tokenizer" / name).write_bytes(data)
        write_description(temporary / "tokenizer", imported.tokenizer.description)
