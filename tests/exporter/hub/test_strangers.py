"""What tx-get, tx-import and tx-push take from strangers, and what they give to them."""

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hub_server import COMMIT, Hub, hub
from tiny_marian import tiny_marian
from toy import BUNDLE
from txport.models.hub import source as sources
from txport.models.hub.source import open_source
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.names import Name, find_bundle, origin_of, record_origin
from txport.runtime.errors import InputError, MissingLibrary
from warm import warm_commands

REPOSITORY = "someone/model"


@dataclass
class Served:
    """A hub, and a user's caches."""

    hub: Hub
    environment: dict[str, str]

    def fetch(self, **options: bool) -> "subprocess.CompletedProcess[str]":
        """Fetch the repository, in a process with this environment."""
        script = f"from txport.models.hub.source import fetch; print(fetch({REPOSITORY!r}, **{options!r}))"
        return subprocess.run(
            [warm_commands() / "python", "-c", script], env=self.environment, capture_output=True, text=True
        )


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with hub(tmp_path / "repositories") as server:
        places = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        yield Served(server, {**os.environ, **places})


def test_only_listed_files_are_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from txport.exporter.hub.push_command import main

    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    (bundle / ".env").write_text("HF_TOKEN=secret")
    (bundle / "notes.txt").write_text("private")
    (bundle / "engines/made").mkdir(parents=True)
    (bundle / "engines/made/build.json").write_text("{}")
    given: dict[str, Any] = {}

    def upload(**options: Any) -> SimpleNamespace:
        given.update(options)
        return SimpleNamespace(commit_url="done")

    monkeypatch.setattr(huggingface_hub, "create_repo", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "upload_folder", upload)
    done = CliRunner().invoke(main, [str(bundle), REPOSITORY])
    assert done.exit_code == 0, done.output
    paths = [path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()]
    kept = huggingface_hub.utils.filter_repo_objects(paths, allow_patterns=given["allow_patterns"])
    assert set(kept) == {"manifest.json", *Manifest.load(bundle).files}


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_that_would_fill_the_disk_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MIN_UNPACKED", 1 << 20)
    zeros, archive = bytes(3 << 20), tmp_path / f"model.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("model/weights", zeros)
    else:
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as tar:
            info = tarfile.TarInfo("model/weights")
            info.size = len(zeros)
            tar.addfile(info, io.BytesIO(zeros))
        archive.write_bytes(gzip.compress(plain.getvalue()))
    with pytest.raises(InputError, match="would unpack to more than 1,048,576 bytes"):
        with open_source(str(archive), "main", offline=False):
            raise AssertionError("it was unpacked")
    monkeypatch.setattr(sources, "MIN_UNPACKED", 4 << 20)
    with open_source(str(archive), "main", offline=False) as directory:
        assert (directory / "weights").read_bytes() == zeros


@pytest.mark.parametrize(
    "names", [("x" * 300,), ("a", "a/b"), ("a/b", "a")], ids=["long", "file first", "folder first"]
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_names_that_cannot_be_files_are_one_sentence(kind: str, names: tuple[str, ...], tmp_path: Path) -> None:
    archive = tmp_path / f"model.{kind}"
    with zipfile.ZipFile(archive, "w") if kind == "zip" else tarfile.open(archive, "w") as file:
        for name in names:
            if isinstance(file, zipfile.ZipFile):
                file.writestr(name, b"x")
            else:
                file.addfile(tarfile.TarInfo(name))
    with pytest.raises(InputError, match=rf"has {names[-1][:80]}, which cannot be a file .*pack it again"):
        with open_source(str(archive), "main", offline=False):
            raise AssertionError("it was unpacked")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.DIRTYPE])
@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_headers_of_small_archives_do_not_fill_the_memory(
    kind: bytes, compress: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MIN_UNPACKED", 1 << 20)
    monkeypatch.setattr(sources, "MAX_HEADERS", 1 << 16)
    info = tarfile.TarInfo("model/x")
    info.type, size = kind, 16 << 20
    if kind == tarfile.DIRTYPE:  # many empty members
        plain = info.tobuf(tarfile.GNU_FORMAT) * (size // 512)
    else:
        info.size = size
        plain = info.tobuf(tarfile.GNU_FORMAT) + bytes(size)
    archive = tmp_path / "model.tar.x"
    archive.write_bytes(compress(plain + bytes(1024)))
    with pytest.raises(InputError, match=r"would unpack to more than 1,\d{3},\d{3} bytes"):
        with open_source(str(archive), "main", offline=False):
            raise AssertionError("it was unpacked")


def test_only_listed_files_of_a_bundle_are_fetched(served: Served, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "repositories" / REPOSITORY))
    (bundle / "large.bin").write_bytes(bytes(1000))
    done = served.fetch()
    assert done.returncode == 0, done.stderr
    fetched = Path(done.stdout.strip())
    assert (fetched / "onnx/weights.bin").is_file() and not (fetched / "large.bin").exists()
    assert not [path for _, path, _ in served.hub.requests if "large.bin" in path]


def test_pickles_of_the_hub_are_taken_only_if_they_are_allowed(served: Served, tmp_path: Path) -> None:
    repository = tmp_path / "repositories" / REPOSITORY
    tiny_marian(repository, seed=3, vocabulary=60, tokenizer=True, max_position_embeddings=48)
    (repository / "model.safetensors").rename(repository / "pytorch_model.bin")
    words = "in files of PyTorch only, which are pickles: use --allow-pickle"
    assert words in served.fetch().stderr and not [path for _, path, _ in served.hub.requests if "/data/" in path]
    allowed = served.fetch(pickles=True)
    assert Path(allowed.stdout.strip(), "pytorch_model.bin").is_file(), allowed.stderr
    assert words in served.fetch(offline=True).stderr


def test_weights_of_ctranslate2_and_marian_are_no_pickles(served: Served, tmp_path: Path) -> None:
    repository = tmp_path / "repositories" / REPOSITORY
    repository.mkdir(parents=True)
    names = ("model.bin", "config.json", "shared_vocabulary.json", "source_vocabulary.txt", "en_es.argosmodel")
    names = (*names, "model.enes.intgemm.alphas.bin", "decoder.yml")
    for name in names:
        (repository / name).write_bytes((6).to_bytes(4, "little") if name == "model.bin" else (1).to_bytes(8, "little"))
    done = served.fetch()
    assert done.returncode == 0, done.stderr
    assert {each.name for each in Path(done.stdout.strip()).iterdir()} == set(names)


@pytest.mark.parametrize("name", ["model.bin", "model.intgemm.bin"])
def test_pickles_with_names_of_other_formats(name: str, served: Served, tmp_path: Path) -> None:
    """An index of Hugging Face's could name them as shards."""
    repository = tmp_path / "repositories" / REPOSITORY
    repository.mkdir(parents=True)
    (repository / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    (repository / name).write_bytes(b"PK\x03\x04")
    assert "in files of PyTorch only, which are pickles: use --allow-pickle" in served.fetch().stderr
    assert served.fetch(pickles=True).returncode == 0


def test_a_kept_bundle_goes_before_a_directory_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXPORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    planted = Path(REPOSITORY)
    planted.mkdir(parents=True)
    assert find_bundle(REPOSITORY) == planted, "there is no other"
    kept = Name(REPOSITORY).directory
    kept.mkdir(parents=True)
    assert find_bundle(REPOSITORY) == kept
    assert find_bundle(f"./{REPOSITORY}") == planted


def test_the_origin_of_a_bundle_is_kept_beside_it(tmp_path: Path) -> None:
    bundle = tmp_path / "float32"
    assert origin_of(bundle) is None
    record_origin(bundle, REPOSITORY, "main", tmp_path / COMMIT)
    assert origin_of(bundle) == f"{REPOSITORY} at {COMMIT}"
    record_origin(bundle, "model.zip", "main", tmp_path / "unpacked")
    assert origin_of(bundle) == "model.zip at main"
    for text in ("[" * 100_000, "{}", "[]"):
        bundle.with_name("float32.origin.json").write_text(text)
        assert origin_of(bundle) is None
    assert json.loads(bundle.with_name("float32.origin.json").read_text()) == []


def test_tx_get_names_what_models_and_bundles_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingLibrary) as error:
        sources.fetch("owner/name")
    command = "pip install 'txport[import,export]'; for finished bundles 'txport[hub]' is enough"
    assert str(error.value).endswith(f"is not installed: {command}")
