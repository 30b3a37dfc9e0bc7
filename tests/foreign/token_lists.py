"""Checks of lists of words or characters as the tokenizer of an imported model."""

from pathlib import Path
from typing import Any

from foreign_models import import_here
from txport.models.checkpoint import Checkpoint
from txport.runtime.text.tokenizer import open_tokenizer


def check_lists(theirs: Path, scratch: Path, letters: bool, **options: Any) -> Checkpoint:
    """Import a model with token lists of its vocabulary sizes, with eos at the model's id and <unk> as token 7.

    Args:
        theirs: the model.
        scratch: a directory.
        letters: use lists of characters instead of words.
        options: options of the import.

    Returns:
        the checkpoint, after a check that its ids and texts are those of the lists.
    """
    plain = import_here(theirs, scratch / "plain", tokenizer=False, **options).config
    (scratch / "lists").mkdir()
    lists = []
    for side, rows in (("source", plain.source_vocabulary), ("target", plain.target_vocabulary)):
        tokens = [chr(0x4E00 + i) if letters else f"word{i}" for i in range(rows)]
        tokens[5] = " " if letters else "word5"
        tokens[7], tokens[plain.eos_id] = "<unk>", "</s>"
        (scratch / "lists" / f"{side}.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
        lists.append(tokens)
    checkpoint = import_here(theirs, scratch / "out", vocabulary=scratch / "lists", **options)
    ours: Any = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    between, (source, target) = "" if letters else " ", lists
    text = between.join([source[9], source[11], "x" if letters else "other", source[12]])
    assert ours.encode(text) == [9, 11, 7, 12, plain.eos_id]
    assert ours.decode([10, 8, plain.eos_id]) == between.join([target[10], target[8]])
    assert checkpoint.config.unk_id == 7
    return checkpoint
