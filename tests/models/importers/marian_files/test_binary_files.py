"""Imports of Marian's binary files, against `.npz` files, marian-conv and Marian itself, and damaged files."""

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from foreign_models import MADE, assert_refused, greedy, import_here
from marian_models import INPUTS, greedy_ids_of_marian, rows_of_ids, save_binary, write_marian
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.models.importers.marian_files.binary import read_binary
from txport.runtime.errors import CheckpointError


def binary(directory: Path, kind: int) -> list[int]:
    """Replace model.npz by model.bin; return where its fields end."""
    with np.load(directory / "model.npz") as archive:
        arrays = {name: archive[name] for name in archive.files if not name.startswith("special:")}
    arrays["Wemb_QuantMultA"] = np.ones((1, 1), np.float32)
    ends = save_binary(directory / "model.bin", arrays, write_marian(directory), kind)
    (directory / "model.npz").unlink()
    (directory / "decoder.yml").write_text("models: [model.bin]\nvocabs: [vocab.yml, vocab.yml]\n")
    return ends


@pytest.mark.parametrize(
    ("kind", "archived"), [(0x404, False), (0x10001, True), (0x10002, False), (0x4101, False), (0x4102, False)]
)
def test_binary_models(kind: int, archived: bool, tmp_path: Path) -> None:
    """Float weights are the same. Rounded ones differ by half a step, and vectors not at all."""
    write_marian(tmp_path / "npz")
    write_marian(tmp_path / "bin")
    binary(tmp_path / "bin", kind)
    source = tmp_path / "bin"
    if archived:
        source = tmp_path / "bin.zip"
        with zipfile.ZipFile(source, "w") as archive:
            for file in sorted((tmp_path / "bin").iterdir()):
                archive.write(file, file.name)
    checkpoint = import_here(source, tmp_path / "ours")
    expected = import_here(tmp_path / "npz", tmp_path / "plain").model.state_dict()
    for name, tensor in checkpoint.model.state_dict().items():
        step = 0.0
        is_table = "embedding.tokens" in name or name == "projection.weight"
        is_matrix = tensor.dim() == 2 and "positions" not in name
        if kind != 0x404 and is_matrix and (kind < 0x10000 or not is_table):
            step = 1 / 1024 if kind & 0xFF == 2 else float(expected[name].abs().max()) / 127
        difference = float((tensor - expected[name]).abs().max())
        assert difference <= 0.51 * step and (step == 0 or difference > 0.2 * step), name
    notes = import_model(str(source), None, ImportOptions()).notes
    assert any("dequantised" in note for note in notes) == (kind != 0x404)


@pytest.mark.parametrize("kind", ["float32", "intgemm8", "intgemm16"])
def test_binary_models_of_marian_conv(kind: str, tmp_path: Path) -> None:
    """The files of marian-conv have the same weights as those of the tests' writer."""
    marian = pytest.importorskip("_pymarian", reason="needs Marian: pip install pymarian")
    options = write_marian(tmp_path)
    npz, theirs, ours = (tmp_path / name for name in ("model.npz", "theirs.bin", "ours.bin"))
    assert marian.main(["convert", "-f", str(npz), "-t", str(theirs), "-g", kind]) == 0
    with np.load(npz) as archive:
        arrays = {name: archive[name] for name in archive.files if not name.startswith("special:")}
    save_binary(ours, arrays, options, {"float32": 0x404, "intgemm8": 0x10001, "intgemm16": 0x10002}[kind])
    tensors = read_binary(theirs).tensors
    assert {*tensors} == {*arrays}
    for name, stored in read_binary(ours).tensors.items():
        torch.testing.assert_close(tensors[name].whole().float(), stored.whole().float(), rtol=0, atol=1e-6)


def test_binary_models_translate_as_dequantised(tmp_path: Path) -> None:
    """Marian itself computes with the rounded weights in float32; with a .bin, it would round activations as well."""
    marian = pytest.importorskip("_pymarian", reason="needs Marian: pip install pymarian")
    write_marian(tmp_path)
    npz, file, vocabulary = (tmp_path / name for name in ("model.npz", "model.bin", "vocab.yml"))
    assert marian.main(["convert", "-f", str(npz), "-t", str(file), "-g", "intgemm8"]) == 0
    rounded = read_binary(file).tensors
    with np.load(npz) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, stored in rounded.items():
        arrays[name] = np.ascontiguousarray(stored.whole().float().numpy().reshape(arrays[name].shape))
    np.savez(tmp_path / "dequantised.npz", **arrays)
    made = greedy(import_here(file, tmp_path / "ours"), [[*row, 0] for row in rows_of_ids(INPUTS)])
    expected = greedy_ids_of_marian(tmp_path / "dequantised.npz", vocabulary, rows_of_ids(INPUTS))
    for ours, theirs, row in zip(made, expected, rows_of_ids(INPUTS), strict=True):
        length = min(MADE, 3 * (len(row) + 1))
        assert [each for each in ours[:length] if each] == theirs[:length]


def test_damaged_binary_models(tmp_path: Path) -> None:
    """Files that end at or before any field's end, and files with any byte of their start changed."""
    write_marian(tmp_path)
    ends = binary(tmp_path, 0x10001)
    file = tmp_path / "model.bin"
    whole = file.read_bytes()
    for end in ends[:-1]:
        for length in (end - 1, end):
            file.write_bytes(whole[:length])
            with pytest.raises(CheckpointError, match=r"model\.bin is incomplete: it ends within .*; copy it again"):
                read_binary(file)
    file.write_bytes(whole + b"\0")
    assert_refused(tmp_path, "model.bin is damaged", "1 bytes after")
    draw = np.random.default_rng(0)
    for position in [*range(64), *draw.integers(64, ends[-1], 300)]:
        changed = bytearray(whole)
        changed[position] ^= int(draw.integers(1, 256))
        file.write_bytes(changed)
        try:
            for stored in read_binary(file).tensors.values():
                assert stored.whole().numel() * 4 <= 8 * len(whole)
        except CheckpointError as error:
            assert "model.bin" in str(error) and "\n" not in str(error), error


@pytest.mark.parametrize(
    ("code", "words"), [(0x11001, "intgemm8avx2"), (0x1801, "packed8avx2"), (0x777, "the unknown type 0x777")]
)
def test_binary_models_for_one_processor(code: int, words: str, tmp_path: Path) -> None:
    write_marian(tmp_path)
    binary(tmp_path, 0x10001)
    file = tmp_path / "model.bin"
    file.write_bytes(file.read_bytes().replace(struct.pack("<Q", 0x10001), struct.pack("<Q", code)))
    assert_refused(tmp_path, "model.bin", words)
    file.write_bytes(struct.pack("<Q", 2) + file.read_bytes()[8:])
    with pytest.raises(CheckpointError, match=r"model\.bin is encrypted"):
        read_binary(file)
