"""Damaged files of tokenizers and weights whose errors are not those of an ordinary damaged file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from txport.models.importers.tokenizers.byte_level import byte_level_tokenizer
from txport.models.importers.tokenizers.pieces import pieces_of
from txport.models.importers.tokenizers.t5 import json_sentencepiece
from txport.models.importers.weights import read_directory
from txport.runtime.bundle.protobuf import field
from txport.runtime.errors import CheckpointError, InputError
from txport.training.recipe import read

DEPTH = 100_000
READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "byte-level": ("tokenizer.json", "[", lambda folder: byte_level_tokenizer(folder, 10)),
    "t5": ("tokenizer.json", "[", json_sentencepiece),
    "index": ("model.safetensors.index.json", "[", read_directory),
    "recipe": ("recipe.toml", "a = [", lambda folder: read(str(folder / "recipe.toml"))),
}


@pytest.mark.parametrize("name", READERS)
def test_deep_files_are_one_sentence(name: str, tmp_path: Path) -> None:
    file, start, reader = READERS[name]
    (tmp_path / file).write_text(start + "[" * DEPTH)
    with pytest.raises((CheckpointError, InputError), match=rf"{file} is not"):
        reader(tmp_path)


def test_pieces_that_are_not_utf8_are_one_sentence() -> None:
    hostile = json.loads((Path(__file__).parents[3] / "data/hostile_pieces.json").read_bytes())
    model = bytes.fromhex(hostile["model"]) + field(1, field(1, b"\xc3") + b"\x15\0\0\x80\xbf")
    with pytest.raises(CheckpointError, match=r"x\.model has a piece that is not UTF-8: copy it again"):
        pieces_of(model, "x.model")
