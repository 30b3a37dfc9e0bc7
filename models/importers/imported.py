"""Result of an importer, and its conversion to a checkpoint."""

import dataclasses
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
from txport.runtime.text.unigram import library_sums


@dataclass(frozen=True)
class ImportOptions:
    """Options of `tx-import`, except source and output.

    Attributes:
        tokenizer: whether to import the tokenizer. Without it the model reads and writes ids.
        source_language: default source language of a multilingual model.
        target_language: default target language of a multilingual model.
        vocabulary: directory of dictionaries or tokenizer files that are not beside the model.
        heads: number of attention heads, for a state dict that does not specify it.
        adapter: directory of a LoRA adapter to merge into a Hugging Face model.
        pickles: accept repositories whose weights exist only as PyTorch files, which are pickles.
        encoder: name of the external encoder, for a model of encoder states; None: the name of the source.
        timestamps: whether outputs of Whisper contain tokens of times.
    """

    tokenizer: bool = True
    source_language: str | None = None
    target_language: str | None = None
    vocabulary: Path | None = None
    heads: int | None = None
    adapter: Path | None = None
    pickles: bool = False
    encoder: str | None = None
    timestamps: bool = False


@dataclass(frozen=True)
class TokenizerParts:
    """Tokenizer that is not written yet: its description, and the contents of each file in the folder `tokenizer`."""

    description: TokenizerDescription
    files: Mapping[str, bytes] = field(default_factory=dict)

    def beginning_with(self, ids: tuple[int, ...], *, prompt: bool = False) -> "TokenizerParts":
        """Return the tokenizer for outputs that begin with forced ids. For `prompt` see `TokenizerDescription`."""
        return replace(self, description=replace(self.description, target_prefix=ids, prompt=prompt))


@dataclass(frozen=True)
class Imported:
    """Imported model, completely checked but not written yet.

    Attributes:
        kind: name of its importer.
        config: our config of it.
        plan: its weights mapped to ours, checked against `config`.
        tokenizer: its tokenizer.
        notes: sentences for the user, about search settings and banned ids for example.
        generation: its search settings.
    """

    kind: str
    config: Config
    plan: ImportPlan
    tokenizer: TokenizerParts
    notes: list[str]
    generation: Generation = PLAIN


def import_archive(archive: Path, importer: Callable[[Path], Imported]) -> Imported:
    """Import a model in an archive. It is unpacked to a temporary directory, which is kept until weights are written.

    Raises:
        CheckpointError: from the importer, with the archive's name in the message.
        InputError: the archive is damaged or malicious.
    """
    scratch = TemporaryDirectory(prefix="txport-import-")
    try:
        with file_errors(Path(scratch.name), ours=False):
            unpack(archive, Path(scratch.name))
        imported = importer(Path(scratch.name))
    except TxportError as error:
        scratch.cleanup()
        # The user gave an archive, and has never seen the temporary directory.
        raise type(error)(str(error).replace(scratch.name, str(archive))) from None
    imported.plan.source = archive
    imported.plan.keeps.append(scratch)  # weights are mapped from it until they are written
    return imported


def write_imported(
    imported: Imported, directory: Path, source: str, *, replace: bool, advance: Callable[[], None] = lambda: None
) -> None:
    """Write a checkpoint, one tensor at a time. After an error there is no incomplete checkpoint.

    Raises:
        InputError: the directory exists, or the disk is full.
        CheckpointError: a tensor contains NaN or infinity.
    """
    training = {"made_by": "tx-import", "kind": imported.kind, "source": source, "notes": imported.notes}
    with new_checkpoint(directory, imported.config, training, imported.generation, replace=replace) as temporary:
        imported.plan.write(temporary / "model.safetensors", advance)
        (temporary / "tokenizer").mkdir()
        for name, data in imported.tokenizer.files.items():
            (temporary / "tokenizer" / name).write_bytes(data)
        description = imported.tokenizer.description
        if description.kind == "sentencepiece":
            description = dataclasses.replace(description, score_sums=library_sums())
        write_description(temporary / "tokenizer", description)
