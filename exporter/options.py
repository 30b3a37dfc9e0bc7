"""Checks of tx-export's options that need neither the model nor PyTorch."""

from collections.abc import Sequence
from pathlib import Path

from txport.runtime.bundle.schema import LOWERINGS
from txport.runtime.errors import InputError
from txport.runtime.text.lines import check_file


def check_options(lowerings: Sequence[str], *, float16: bool, int8: bool, max_batch: int) -> None:
    """Check options that every model has; see `txport.exporter.export.ExportOptions`.

    Raises:
        InputError: a value is not possible, or two exclude each other.
    """
    if max_batch < 1:
        raise InputError(f"--max-batch {max_batch} is not possible: give 1 or more")
    if unknown := [name for name in lowerings if name not in LOWERINGS]:
        raise InputError(f"--lowering {', '.join(unknown)} is unknown; there are {', '.join(LOWERINGS)}")
    if not lowerings:
        raise InputError(f"--lowering is empty; choose from {', '.join(LOWERINGS)}")
    if int8 and float16:
        raise InputError("--int8 and --fp16 exclude each other: int8 is for CPUs, FP16 for GPUs")
    if int8 and tuple(lowerings) != ("ort",):
        raise InputError("--int8 is for CPUs through ONNX Runtime: leave --lowering out, or give --lowering ort")


def check_sentence_files(
    text: Path | None, references: Path | None, ids: Path | None, reference_ids: Path | None, features: Path | None
) -> None:
    """Check that the files of sentences can be read and belong together, without reading them.

    Raises:
        InputError: a file cannot be read, or lacks the file that it belongs to.
    """
    if reference_ids and not ids:
        raise InputError(f"{reference_ids} needs the sentences that it translates: give them with --ids")
    if references and not text:
        raise InputError(f"{references} needs the sentences that it translates: give them with --text")
    if ids and text:
        raise InputError("--ids and --text exclude each other: give the sentences in one form")
    if features and (text or ids):
        raise InputError("--features excludes --text and --ids: a model reads either vectors or text")
    for file in (text, references, ids, reference_ids, features):
        if file is not None:
            check_file(file)
