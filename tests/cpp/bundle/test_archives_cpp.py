"""A bundle in one file: C++ refuses what Python refuses, with the same sentence, and translates what it does."""

import os
import subprocess
from pathlib import Path

import archives
import pytest
from parity import by_cpp, by_python
from toy import BUNDLE
from txport.runtime.errors import BundleError
from txport.runtime.translator import Translator

BUILD = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere"))
PACKED = BUNDLE.with_suffix(".txb")

pytestmark = pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")


def _error(path: Path) -> str:
    done = subprocess.run([BUILD / "txport-translate", path], input=b"", capture_output=True, timeout=500)
    assert done.returncode == 2, done.stderr
    return done.stderr.decode().removeprefix("txport-translate: ").removesuffix("\n")


@pytest.mark.parametrize("fault", archives.REFUSED)
def test_faults_are_refused_alike(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "model.txb"
    path.write_bytes(archives.REFUSED[fault](archives.entries_of(BUNDLE)))
    with pytest.raises(BundleError) as refused:
        Translator(path)
    assert _error(path) == str(refused.value)


def test_what_the_manifest_says_is_checked_alike(tmp_path: Path) -> None:
    """A member that is missing, or has another size or content, and no manifest at all."""
    path = tmp_path / "model.txb"
    entries = archives.entries_of(BUNDLE)
    for i, entry in enumerate(entries):
        if entry.name == b"onnx/weights.bin":
            continue  # its hash is for tx-inspect --check
        longer = archives.Entry(entry.name, entry.data + b" ")
        changed = archives.Entry(entry.name, entry.data[:-1] + bytes([entry.data[-1] ^ 1]))
        # Of what is no JSON each language's parser says it in its own words.
        for others in ([], [longer]) if entry.name == b"manifest.json" else ([], [longer], [changed]):
            path.write_bytes(archives.archive([*entries[:i], *others, *entries[i + 1 :]]))
            with pytest.raises(BundleError) as refused:
                Translator(path)
            assert _error(path) == str(refused.value)


def test_members_beyond_4_gib_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.txb"
    archives.write_large(path, archives.Entry(b"b", b"small"))
    assert _error(path) == f"{path} has no manifest.json: it is not a bundle, or an incomplete copy of one"


def test_translations_are_those_of_the_directory_in_both() -> None:
    texts = ["the cat sees a bird", "", "a dog and a tree"]
    where = {"engine": "ort"}
    expected = by_python(BUNDLE, texts, where, 2)
    assert by_python(PACKED, texts, where, 2) == expected
    assert by_cpp(BUILD / "txport-translate", PACKED, texts, where, 2) == expected


OTHERS = {
    "checkpoint": ("config.json", '{"format_version": 1}'),
    "model": ("config.json", '{"model_type": "marian"}'),
    "architectures": ("config.json", '{"architectures": ["MarianMTModel"]}'),
    "mine.run": ("recipe.json", "{}"),
    "recipe": ("recipe.json", "{}"),
    "list": ("config.json", "[1]"),
    "damaged": ("config.json", "{"),
    "empty": ("other", ""),
    "ctranslate2": ("model.bin", ""),
}


@pytest.mark.parametrize("name", OTHERS)
def test_directories_of_other_kinds_are_named_alike(name: str, tmp_path: Path) -> None:
    directory = tmp_path / name
    directory.mkdir()
    file, content = OTHERS[name]
    (directory / file).write_text(content)
    with pytest.raises(BundleError) as refused:
        Translator(directory)
    assert _error(directory) == str(refused.value)
    known = {
        "checkpoint": "a checkpoint",
        "model": "Hugging Face",
        "architectures": "Hugging Face",
        "mine.run": "a train",
        "ctranslate2": "CTranslate2's format",
    }
    assert known.get(name, "has no manifest.json") in str(refused.value)


def test_packages_of_argos_are_named_alike(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    file = tmp_path / "translate.ArgosModel"
    for path in (tmp_path / "metadata.json", tmp_path / "model" / "model.bin", file):
        path.write_bytes(b"{}")
    for path in (tmp_path, file):
        with pytest.raises(BundleError, match="is a package of Argos Translate") as refused:
            Translator(path)
        assert _error(path) == str(refused.value)
