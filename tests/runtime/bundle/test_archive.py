"""A bundle in one file: as the directory that it was packed from, and nothing else is taken for one."""

import io
import os
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import archives
import onnxruntime
import pytest
from click.testing import CliRunner
from toy import BUNDLE
from txport.runtime.bundle.archive import Archive, write_archive
from txport.runtime.bundle.manifest import INFORMATIONAL_FILES, NAME, WEIGHTS, Manifest, entry_of, hash_of
from txport.runtime.bundle.pack_command import main as pack
from txport.runtime.errors import BundleError, InputError, MissingLibrary
from txport.runtime.translator import Translator

PACKED = BUNDLE.with_suffix(".txb")
TEXTS = ["the cat sees a bird", "a bird sees the dog and the tree", ""]


@pytest.fixture
def entries() -> list[archives.Entry]:
    """The members of the toy bundle's archive."""
    return archives.entries_of(BUNDLE)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_packing_writes_the_archive_of_the_format(tmp_path: Path, entries: list[archives.Entry]) -> None:
    """The bytes follow from the files: those of another program, and of the file that earlier versions wrote."""
    output = tmp_path / "model.txb"
    result = CliRunner().invoke(pack, [str(BUNDLE), "-o", str(output)], catch_exceptions=False)
    assert result.output.startswith(f"{output}: {len(entries)} files, ")
    assert output.read_bytes() == archives.archive(entries) == PACKED.read_bytes()
    for path in BUNDLE.rglob("*"):
        assert not path.is_file() or path.stat().st_mtime > 315532800  # the times of files are not in it


def test_other_programs_read_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(PACKED) as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path / "unpacked")
    unpacked = Manifest.load(tmp_path / "unpacked")
    unpacked.check_files(tmp_path / "unpacked", hashes=lambda name: True)
    assert unpacked == Manifest.load(BUNDLE)
    if shutil.which("unzip"):
        subprocess.run(["unzip", "-tq", str(PACKED)], check=True, capture_output=True)


def test_members_are_those_of_the_directory_and_begin_at_pages() -> None:
    archive = Archive.open(PACKED)
    for name in (NAME, *Manifest.load(BUNDLE).files):
        assert (archive / name).read_bytes() == (BUNDLE / name).read_bytes()
        assert archive.span(name)[0] % 4096 == 0
        with archive.mapped(name) as view:
            assert view == (BUNDLE / name).read_bytes()


def test_translations_are_those_of_the_directory(toy: Translator) -> None:
    """From a file, and from its bytes, which older versions of ONNX Runtime do not open."""
    expected = [translation.ids for translation in toy.translate(TEXTS)]
    data = PACKED.read_bytes()
    bundles: list[Path | bytes | memoryview] = [PACKED]
    if hasattr(onnxruntime.SessionOptions(), "add_external_initializers_from_files_in_memory"):
        bundles += [data, memoryview(bytearray(data))]
    else:
        with pytest.raises(MissingLibrary, match="opens no bundle in memory: install a newer one"):
            Translator(data, engine="ort", threads=1).translate(TEXTS)
    for bundle in bundles:
        with Translator(bundle, engine="ort", threads=1) as translator:
            assert [translation.ids for translation in translator.translate(TEXTS)] == expected
            assert translator.manifest == toy.manifest


@pytest.mark.parametrize("fault", archives.REFUSED)
def test_what_tx_pack_does_not_write_is_refused(fault: str, tmp_path: Path, entries: list[archives.Entry]) -> None:
    data = archives.REFUSED[fault](entries)
    path = _written(tmp_path / "model.txb", data)
    with pytest.raises(BundleError) as refused:
        Archive.open(path)
    assert str(refused.value).startswith(str(path))
    if data:
        with pytest.raises(BundleError):
            Translator(data)


def test_any_changed_byte_outside_the_members_is_refused() -> None:
    """Inside of them it is the hashes that differ."""
    small = [archives.Entry(b"a", b"12345"), archives.Entry(b"b/c", b""), archives.Entry(b"d", b"x" * 5000)]
    data = archives.archive(small)
    archive = Archive(memoryview(data), "it")
    inside = {i for name in ("a", "b/c", "d") for i in range(archive.span(name)[0], sum(archive.span(name)))}
    assert len(inside) == 5005
    changed = bytearray(data)
    for i in range(len(data)):
        changed[i] ^= 1 << i % 8
        if i in inside:
            Archive(memoryview(changed), "it")
        else:
            with pytest.raises(BundleError):
                Archive(memoryview(changed), "it")
        changed[i] = data[i]


def test_any_truncation_is_refused(entries: list[archives.Entry]) -> None:
    data = archives.archive(entries)
    for end in range(len(data)):
        with pytest.raises(BundleError):
            Archive(memoryview(data)[:end], "it")


def test_members_beyond_4_gib_have_zip64_fields(tmp_path: Path) -> None:
    """The file is a hole but for the headers; Python's zipfile finds the same places."""
    path = tmp_path / "model.txb"
    span = archives.write_large(path, archives.Entry(b"b", b"small"))
    archive = Archive.open(path)
    assert archive.span("a") == span
    assert (archive / "b").read_bytes() == b"small"
    with zipfile.ZipFile(path) as other:
        assert [(info.filename, info.file_size) for info in other.infolist()] == [("a", span[1]), ("b", 5)]
        assert other.read("b") == b"small"


def test_hashes_find_what_was_changed_in_members(tmp_path: Path, entries: list[archives.Entry]) -> None:
    """A checksum that is right for the changed bytes does not help; one that is wrong is not looked at."""
    at = next(i for i, entry in enumerate(entries) if entry.name == b"golden.json")
    other = archives.Entry(b"golden.json", entries[at].data.replace(b"1", b"2"))
    path = _written(tmp_path / "model.txb", archives.archive([*entries[:at], other, *entries[at + 1 :]]))
    with pytest.raises(BundleError, match=r"model\.txb/golden\.json was changed \(its SHA-256 differs\)"):
        Translator(path)
    wrong = archives.Entry(b"golden.json", entries[at].data, local={"crc": 1}, central={"crc": 1})
    _written(path, archives.archive([*entries[:at], wrong, *entries[at + 1 :]]))
    Manifest.load(path).check_files(path, hashes=lambda name: True)


def test_a_listed_file_must_be_there_and_of_its_size(tmp_path: Path, entries: list[archives.Entry]) -> None:
    path = tmp_path / "model.txb"
    _written(path, archives.archive([entry for entry in entries if entry.name != WEIGHTS.encode()]))
    with pytest.raises(BundleError, match=r"onnx/weights\.bin is missing or cannot be read"):
        Manifest.load(path)
    _written(path, archives.archive([entry for entry in entries if entry.name != NAME.encode()]))
    with pytest.raises(BundleError, match=r"model\.txb has no manifest\.json"):
        Manifest.load(path)
    short = [archives.Entry(e.name, e.data[:-1] if e.name == WEIGHTS.encode() else e.data) for e in entries]
    with pytest.raises(BundleError, match="bytes instead of"):
        Manifest.load(_written(path, archives.archive(short)))
    more = sorted([*entries, archives.Entry(b"notes.txt", b"hello")], key=lambda entry: entry.name)
    assert Manifest.load(_written(path, archives.archive(more))) == Manifest.load(BUNDLE)


def test_a_file_that_was_replaced_is_not_read_on(tmp_path: Path) -> None:
    """Graphs that are loaded later would get weights of another bundle."""
    path = tmp_path / "model.txb"
    shutil.copyfile(PACKED, path)
    archive = Archive.open(path)
    assert archive.path == path.resolve()
    _written(tmp_path / "other", PACKED.read_bytes())
    os.replace(tmp_path / "other", path)
    assert hash_of(archive / WEIGHTS) == hash_of(BUNDLE / WEIGHTS)
    with pytest.raises(BundleError, match="was replaced or changed since it was opened"):
        archive.path  # noqa: B018


def test_a_file_of_another_time_or_another_place_is_another_one(tmp_path: Path) -> None:
    path, other = tmp_path / "model.txb", tmp_path / "other"
    shutil.copyfile(PACKED, path)
    archive, opened = Archive.open(path), path.stat()
    os.utime(path, ns=(opened.st_atime_ns, opened.st_mtime_ns + 1_000_000_000))  # as if it were written again
    with pytest.raises(BundleError, match="was replaced or changed since it was opened"):
        archive.path  # noqa: B018
    os.utime(path, ns=(opened.st_atime_ns, opened.st_mtime_ns))
    assert archive.path == path.resolve()
    shutil.copyfile(PACKED, other)
    os.utime(other, ns=(opened.st_atime_ns, opened.st_mtime_ns))
    os.replace(other, path)
    with pytest.raises(BundleError, match="was replaced or changed since it was opened"):
        archive.path  # noqa: B018


def test_a_link_is_followed(tmp_path: Path) -> None:
    """As the hub's cache has nothing else."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "model.txb").symlink_to(PACKED)
    with Translator(tmp_path / "links" / "model.txb", engine="ort", threads=1) as translator:
        assert translator.translate(TEXTS[:1])[0].text


def test_the_output_may_replace_a_bundle_only(tmp_path: Path) -> None:
    output = _written(tmp_path / "thesis.txt", b"years of work")
    run = CliRunner()
    refused = run.invoke(pack, [str(BUNDLE), "-o", str(output)])
    assert isinstance(refused.exception, InputError)
    assert str(refused.exception) == f"{output} exists and is not a bundle in one file: choose another path"
    assert output.read_bytes() == b"years of work"
    again = tmp_path / "model.txb"
    for _ in range(2):
        run.invoke(pack, [str(BUNDLE), "-o", str(again)], catch_exceptions=False)
    refused = run.invoke(pack, [str(BUNDLE), "-o", str(tmp_path)])
    assert isinstance(refused.exception, InputError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.txb", "thesis.txt"]


def test_a_damaged_bundle_is_not_packed(damaged: Path, tmp_path: Path) -> None:
    data = bytearray((damaged / WEIGHTS).read_bytes())
    data[100] ^= 1
    (damaged / WEIGHTS).write_bytes(data)
    refused = CliRunner().invoke(pack, [str(damaged), "-o", str(tmp_path / "model.txb")])
    assert isinstance(refused.exception, BundleError)
    assert "SHA-256 differs" in str(refused.exception)
    assert not (tmp_path / "model.txb").exists()


@pytest.mark.parametrize("name", INFORMATIONAL_FILES)
def test_a_file_that_only_people_read_may_be_missing(name: str, damaged: Path, tmp_path: Path) -> None:
    """The bundle is packed without it, and the archive is valid."""
    (damaged / name).write_text("{}")
    manifest = Manifest.load(damaged)
    manifest = replace(manifest, files={**manifest.files, name: entry_of(damaged / name)}).write(damaged)
    (damaged / name).unlink()
    packed = tmp_path / "model.txb"
    done = CliRunner().invoke(pack, [str(damaged), "-o", str(packed)], catch_exceptions=False)
    assert done.output == f"{packed}: {len(manifest.files)} files, {packed.stat().st_size:,} bytes\n"
    Manifest.load(packed).check_files(packed, hashes=lambda file: True)
    assert Manifest.load(packed) == manifest
    with zipfile.ZipFile(packed) as archive:
        assert set(archive.namelist()) == {NAME, *manifest.files} - {name}


def test_a_bundle_in_one_file_is_not_packed_again(tmp_path: Path) -> None:
    refused = CliRunner().invoke(pack, [str(PACKED), "-o", str(tmp_path / "model.txb")])
    assert isinstance(refused.exception, InputError)
    assert str(refused.exception).endswith(f"needs a directory: unzip {PACKED} -d DIRECTORY")


def test_writing_takes_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b", "a.b", "a", "ac"):
        (tmp_path / name).write_bytes(name.encode())
    first, second = io.BytesIO(), io.BytesIO()
    write_archive(first, tmp_path, ["b", "a.b", "a", "ac"])
    write_archive(second, tmp_path, ["a", "ac", "b", "a.b"])
    assert first.getvalue() == second.getvalue()
