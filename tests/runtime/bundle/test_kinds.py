"""Directories of the wrong kind: what they are is said, and which command takes them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from toy import BUNDLE
from txport.runtime.bundle.kinds import Kind, check_kind, kind_of
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import BundleError, InputError

FILES: dict[Kind, tuple[str, str, object]] = {
    "bundle": ("b", "manifest.json", {"format_version": 1}),
    "checkpoint": ("c", "config.json", {"format_version": 1, "config": {}}),
    "model": ("m", "config.json", {"model_type": "marian"}),
    "ctranslate2": ("t", "model.bin", {}),
    "run": ("c.run", "recipe.json", {}),
}


@pytest.fixture
def places(tmp_path: Path) -> dict[Kind, Path]:
    """A directory of each kind."""
    for name, file, value in FILES.values():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(json.dumps(value))
    return {kind: tmp_path / name for kind, (name, _, _) in FILES.items()}


@pytest.mark.parametrize(
    ("wanted", "given", "words"),
    [
        ("bundle", "checkpoint", "is a checkpoint of txport already: tx-export makes a bundle of it"),
        ("bundle", "model", "is a Hugging Face model: tx-import makes a checkpoint of it, and tx-export a bundle"),
        ("bundle", "run", "is the directory of a training run: tx-export makes a bundle of the checkpoint beside it"),
        ("bundle", "ctranslate2", "is a model in CTranslate2's format: tx-get makes a bundle of it"),
        ("checkpoint", "ctranslate2", "is a model in CTranslate2's format: tx-import makes a checkpoint of it"),
        ("checkpoint", "bundle", "is a bundle: give the checkpoint it was exported from"),
        ("checkpoint", "model", "is a Hugging Face model: tx-import makes a checkpoint of it"),
        ("checkpoint", "run", "give the checkpoint beside it, or continue with tx-train --resume"),
        ("model", "bundle", "is a bundle: it needs no import, tx-translate runs it"),
        ("model", "checkpoint", "give it to tx-export, which makes a bundle of it"),
    ],
)
def test_another_kind_is_named(places: dict[Kind, Path], wanted: Kind, given: Kind, words: str) -> None:
    assert kind_of(places[given]) == given
    with pytest.raises(InputError, match=f"{places[given].name} .*{words}"):
        check_kind(places[given], wanted)
    if wanted == "bundle":
        with pytest.raises(BundleError, match=words):
            Manifest.load(places[given])


def test_a_package_of_argos_is_named(tmp_path: Path) -> None:
    """Its file and its directory; where a model is wanted, both may be given."""
    (tmp_path / "model").mkdir()
    file = tmp_path / "translate.ArgosModel"
    for path in (tmp_path / "metadata.json", tmp_path / "model" / "model.bin", file):
        path.write_bytes(b"{}")
    for path in (tmp_path, file):
        assert kind_of(path) == "argos"
        check_kind(path, "model")
        with pytest.raises(BundleError, match="is a package of Argos Translate: tx-get makes a bundle of it"):
            Manifest.load(path)


@pytest.mark.parametrize("wanted", ["bundle", "checkpoint", "model"])
@pytest.mark.parametrize("name", ["a.onnx", "a.GGUF", "folder/a.onnx", "folder/a.gguf"])
def test_models_that_are_not_read_are_named(tmp_path: Path, wanted: Kind, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    given = path if path.parent == tmp_path else path.parent
    format = name.rpartition(".")[2].upper()
    words = f"{given} is an? {format} model, which txport does not read: give the model that it was converted from"
    with pytest.raises(InputError, match=words):
        check_kind(given, wanted)
    if given.is_dir():
        (given / "model.pt").touch()  # weights that tx-import reads
        assert kind_of(given) is None


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("checkpoint", "is a bundle: give the checkpoint it was exported from"),
        ("model", "is a bundle: it needs no import, tx-translate runs it"),
    ],
)
def test_a_bundle_in_one_file_is_a_bundle(wanted: Kind, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_kind(BUNDLE.with_suffix(".txb"), wanted)
    check_kind(BUNDLE.with_suffix(".txb"), "bundle")


def test_the_kind_that_is_wanted_and_what_is_none_of_them_are_left_to_who_reads_them(
    places: dict[Kind, Path], tmp_path: Path
) -> None:
    for kind in ("bundle", "checkpoint", "model"):
        check_kind(places[kind], kind)
        check_kind(tmp_path, kind)
        with pytest.raises(InputError, match="nowhere does not exist"):
            check_kind(tmp_path / "nowhere", kind)
    (tmp_path / "config.json").write_text("[" * 100_000)
    check_kind(tmp_path, "checkpoint")
    check_kind(BUNDLE, "bundle")


PLACES = ("config.json", "model.bin", "tokenizer/vocab.json", "model/source/spm.model")
SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": lambda path: os.mkfifo(path),
    "link to a pipe": lambda path: _link_to_a_pipe(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


def _link_to_a_pipe(path: Path) -> None:
    folder = path.with_name("elsewhere")
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    path.symlink_to(folder / "pipe")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("special", SPECIAL)
def test_files_that_may_block_are_not_opened(tmp_path: Path, place: str, special: str) -> None:
    """To open a named pipe, or to read /dev/zero, takes forever."""
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    SPECIAL[special](path)
    kinds: tuple[Kind, ...] = ("bundle", "checkpoint", "model")
    assert kind_of(tmp_path) is None
    for kind in kinds:
        with pytest.raises(InputError, match="is a named pipe, a device or a socket: remove it"):
            check_kind(tmp_path, kind)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_sockets_of_git_and_dangling_links_are_left_alone(places: dict[Kind, Path]) -> None:
    (places["model"] / ".git").mkdir()
    os.mkfifo(places["model"] / ".git" / "daemon.ipc")
    (places["model"] / "dangling").symlink_to("nowhere")
    check_kind(places["model"], "model")
