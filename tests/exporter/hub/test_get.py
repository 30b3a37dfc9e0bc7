"""Models by name: what tx-get fetches, exports and keeps, and how commands find it."""

import json
import random
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import run
from foreign_models import pieces, sentencepiece_model, write_json
from hub_server import COMMIT, Hub, hub
from tiny_marian import tiny_marian
from toy import BUNDLE as TOY
from txport.exporter import entry as exporter
from txport.models.hub.source import open_source
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.names import Name, find_bundle, record_origin
from txport.runtime.errors import InputError
from txport.runtime.translator import Translator
from warm import warm_commands

MODEL = "someone/opus-tiny"


@dataclass
class Place:
    """A hub with repositories, and the caches of a user."""

    hub: Hub
    environment: dict[str, str]

    def run(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """A command of this environment."""
        command = [str(warm_commands() / arguments[0]), *arguments[1:]]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, input="the cat\n")
        assert done.returncode == 0 or not check, done.stderr
        return done

    def fetch(self, *arguments: str) -> Path:
        """The files of a repository, in a process with this environment."""
        script = "import sys; from txport.models.hub.source import fetch; print(fetch(*sys.argv[1:]))"
        return Path(self.run("python", "-c", script, *arguments).stdout.strip())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    root = tmp_path / "repositories"
    tiny_marian(root / MODEL, seed=3, vocabulary=60, tokenizer=True, max_position_embeddings=48)
    with hub(root) as served:
        values = {
            "HF_ENDPOINT": served.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "TXPORT_CACHE": str(tmp_path / "kept"),
            "HOME": str(tmp_path),
        }
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        path = {"PATH": "/usr/bin:/bin"}
        yield Place(served, {**values, **path})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a/b", Name("a/b")),
        ("Helsinki-NLP/opus-mt-en-de@v1.0:int8", Name("Helsinki-NLP/opus-mt-en-de", "v1.0", "int8")),
        ("a/b@refs/pr/1", Name("a/b", "refs/pr/1")),
        ("a/b:int4", None),
        ("../b", None),
        ("a/..", None),
        ("a/b@../..", None),
        ("a", None),
        ("a/b/c", None),
        ("a/b@", None),
        ("a/ b", None),
    ],
)
def test_names(text: str, name: Name | None) -> None:
    assert Name.parse(text) == name
    assert name is None or (str(name) == text and ".." not in name.directory.parts)


def test_a_model_by_its_name(place: Place) -> None:
    """From files of the cache alone; `test_two_processes_at_once` fetches them as well."""
    with pytest.raises(InputError, match=f"{MODEL} is not a directory, and tx-get has no bundle of this name"):
        find_bundle(MODEL)
    place.fetch(MODEL)
    asked = len(place.hub.requests)
    done = place.run("tx-get", MODEL, "--offline")
    assert len(place.hub.requests) == asked
    assert done.stdout == f"bundle: {Name(MODEL).directory}\n"
    assert done.stderr.endswith("passed\n")
    assert place.run("tx-get", MODEL).stdout == done.stdout
    assert len(place.hub.requests) == asked, "nothing is fetched twice"
    line = place.run("tx-translate", MODEL).stdout
    with Translator(MODEL) as translator:
        assert translator.translate(["the cat"])[0].text + "\n" == line
    assert place.run("tx-inspect", MODEL, "--check").stdout


def marian(repository: Path) -> None:
    from marian_models import write_marian

    write_marian(repository)


def marian_archive(repository: Path) -> None:
    """As OPUS-MT's releases are."""
    from marian_models import write_marian

    write_marian(repository / "files")
    shutil.make_archive(str(repository / "opus-2020"), "zip", repository / "files")
    shutil.rmtree(repository / "files")


def ctranslate2(repository: Path) -> None:
    from ctranslate2_models import write_model

    write_model(repository, quantization="int8")


def argos(repository: Path) -> None:
    from ctranslate2_models import EOS, PAD, UNK, write_model

    model = sentencepiece_model()
    names = [UNK, PAD, "<s>", EOS, *pieces(model)]
    write_model(repository / "files" / "translate-en_es" / "model", names=(names, names))
    (repository / "files" / "translate-en_es" / "sentencepiece.model").write_bytes(model)
    write_json(repository / "files" / "translate-en_es" / "metadata.json", {"from_code": "en", "to_code": "es"})
    shutil.make_archive(str(repository / "en_es"), "zip", repository / "files")
    (repository / "en_es.zip").rename(repository / "en_es.argosmodel")
    shutil.rmtree(repository / "files")


def eole(repository: Path) -> None:
    from eole_models import write_model

    write_model(repository)


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("marian-files", marian),
        ("marian-files", marian_archive),
        ("ctranslate2", ctranslate2),
        ("argos", argos),
        ("eole", eole),
    ],
)
def test_other_formats_by_name(kind: str, write: Callable[[Path], None], place: Place, tmp_path: Path) -> None:
    """The bundle is the same as that of the directory, and no pickles need to be allowed."""
    write(place.hub.root / "someone" / "model")
    tokens = ["--no-tokenizer"] if kind == "eole" else []
    for number, source in enumerate(("someone/model", str(place.hub.root / "someone" / "model"))):
        place.run("tx-import", source, "-o", str(tmp_path / f"checkpoint{number}"), *tokens)
    first, second = ((tmp_path / f"checkpoint{number}" / "model.safetensors").read_bytes() for number in (0, 1))
    assert first == second
    assert json.loads((tmp_path / "checkpoint0" / "training.json").read_bytes())["kind"] == kind
    if write in (marian_archive, argos):
        assert place.run("tx-get", "someone/model").stdout.startswith("bundle: ")
        assert place.run("tx-translate", "someone/model").stdout.endswith("\n")


def test_a_bundle_is_kept_as_it_is(place: Place, bundle: Path) -> None:
    shutil.copytree(bundle, place.hub.root / "someone/ready")
    place.run("tx-get", "someone/ready@v1")
    kept = Name("someone/ready", "v1").directory
    files = [file for file in Manifest.load(bundle).files]
    assert all((kept / file).read_bytes() == (bundle / file).read_bytes() for file in files)
    assert not any(path.is_symlink() for path in kept.rglob("*"))
    done = place.run("tx-get", "someone/ready:int8", check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "tx-get: someone/ready is a bundle in float32: tx-get someone/ready\n",
    )


def test_a_bundle_goes_to_the_hub_and_back(place: Place, bundle: Path, tmp_path: Path) -> None:
    done = place.run("tx-push", str(bundle), "someone/shared")
    assert done.stdout == f"{place.hub.url}/someone/shared/commit/{COMMIT}\n"
    place.run("tx-get", "someone/shared")
    files = {path.relative_to(bundle) for path in bundle.rglob("*") if path.is_file()}
    assert all(
        (Name("someone/shared").directory / file).read_bytes() == (bundle / file).read_bytes()
        for file in Manifest.load(bundle).files
    )
    shared = place.hub.root / "someone/shared"
    assert {path.relative_to(shared) for path in shared.rglob("*") if path.is_file()} == files
    shutil.copytree(bundle, tmp_path / "damaged")
    (tmp_path / "damaged/golden.json").write_text("{}")
    done = place.run("tx-push", str(tmp_path / "damaged"), "someone/damaged", check=False)
    assert done.returncode == 2 and "golden.json has 2 bytes instead of" in done.stderr
    assert not (place.hub.root / "someone/damaged").exists()


def test_a_bundle_that_was_changed_is_not_kept(place: Place, bundle: Path) -> None:
    for name, file in (("changed", "onnx/weights.bin"), ("short", "golden.json")):
        shutil.copytree(bundle, place.hub.root / "someone" / name)
        damaged = place.hub.root / "someone" / name / file
        data = damaged.read_bytes()
        damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if name == "changed" else data[:-1])
        done = place.run("tx-get", f"someone/{name}", check=False)
        assert done.returncode == 2 and file in done.stderr and done.stderr.count("\n") == 1
        assert not Name(f"someone/{name}").directory.exists()
    shutil.copytree(bundle, place.hub.root / "someone/lacks")
    (place.hub.root / "someone/lacks/golden.json").unlink()
    done = place.run("tx-get", "someone/lacks", check=False)
    assert done.stderr == "tx-get: someone/lacks lacks golden.json, which its manifest.json lists: upload it again\n"


def test_a_download_that_is_cut_goes_on(place: Place) -> None:
    data = random.Random(1).randbytes(25_000_000)
    (place.hub.root / "someone/large").mkdir()
    (place.hub.root / "someone/large/model.safetensors").write_bytes(data)
    ends = iter([15_000_000])
    place.hub.cut = lambda name: next(ends, None)
    assert (place.fetch("someone/large") / "model.safetensors").read_bytes() == data
    whole, rest = place.hub.ranges("someone/large/model.safetensors")
    assert whole is None and rest is not None and 0 < int(rest[6:-1]) <= 15_000_000


def test_a_download_that_fails_is_told_and_the_next_one_fetches_the_rest(place: Place, bundle: Path) -> None:
    name = "someone/ready"
    shutil.copytree(bundle, place.hub.root / name)
    weights = f"{name}/onnx/weights.bin"
    place.hub.cut = lambda file: 1 if file == weights else None
    done = place.run("tx-get", name, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"tx-get: {name} is not a local file, and its download from the hub failed: ")
    assert not Name(name).directory.exists()
    place.hub.cut = lambda file: None
    place.hub.requests.clear()
    place.run("tx-get", name)
    assert place.hub.ranges(weights) == [None]
    assert place.hub.ranges(f"{name}/config.json") == []


@pytest.mark.parametrize(
    ("full", "name"),
    [
        ("HF_HOME", MODEL),
        ("TMPDIR", MODEL),
        ("TXPORT_CACHE", MODEL),
        ("HF_HOME", "someone/ready"),
        ("TXPORT_CACHE", "someone/ready"),
        ("TMPDIR", "someone/ready"),
    ],
)
def test_a_full_disk(place: Place, bundle: Path, full: str, name: str, small_disk: Path, tmp_path: Path) -> None:
    """Where files are fetched to, where a model is imported or an archive unpacked, and where a bundle is kept."""
    shutil.copytree(bundle, place.hub.root / "someone/ready")
    archive = shutil.make_archive(str(tmp_path / "ready"), "zip", bundle)
    source = ["--source", archive] if (full, name) == ("TMPDIR", "someone/ready") else []
    place.environment[full] = str(small_disk)
    done = place.run("tx-get", name, *source, check=False)
    left = [path for path in small_disk.rglob("*") if path.is_file()]
    assert done.returncode == 2 and "the disk is full" in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("tx-get: ") and "arning" not in done.stderr
    assert full == "HF_HOME" or left == []  # the hub goes on with what it has
    assert not Name(name).directory.exists()


def test_offline_and_unknown_names(place: Place) -> None:
    done = place.run("tx-get", MODEL, "--offline", check=False)
    assert done.stderr == (
        f"tx-get: {MODEL} is not a local file, and is not cached at main, while huggingface_hub is offline\n"
    )
    (place.hub.root / "someone" / "closed").mkdir()
    (place.hub.root / "someone" / "closed" / "gated").touch()
    for name, words in (
        ("someone/else", "the hub has no such repository, or it is private: check the name"),
        (f"{MODEL}@v2", "has no revision v2: name a branch, tag or commit that it has"),
        ("someone/closed", "is gated: accept its terms on its page there, and log in"),
    ):
        done = place.run("tx-get", name, check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr, done.stderr


def test_two_processes_at_once(place: Place) -> None:
    command = [str(warm_commands() / "tx-get"), MODEL]
    both = [subprocess.Popen(command, env=place.environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(error.endswith("passed\n") for error in errors) == 1, "one exports, the other finds it"


def test_another_source_of_a_cached_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXPORT_CACHE", str(tmp_path / "cache"))
    target = Name(MODEL).directory
    shutil.copytree(TOY, target)
    for source in ("first", "second"):
        shutil.copytree(TOY, tmp_path / source)
    record_origin(target, str(tmp_path / "first"), "main", tmp_path / "first")
    assert run(exporter, "tx-get", MODEL, "--source", tmp_path / "first").stdout == f"bundle: {target}\n"
    done = run(exporter, "tx-get", MODEL, "--source", tmp_path / "second")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"tx-get: --source {tmp_path / 'second'} has no effect: {MODEL} is cached from {tmp_path / 'first'}; "
        "replace it with --force\n"
    )


@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
def test_archives(ending: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    archive = Path(
        shutil.make_archive(str(tmp_path / "packed"), {"zip": "zip", "tar.gz": "gztar"}[ending], tmp_path, "model")
    )
    with open_source(str(archive), "main", offline=True) as files:
        assert [file.name for file in files.iterdir()] == ["config.json"]
    archive.write_bytes(archive.read_bytes()[:40])
    with (
        pytest.raises(InputError, match=f"packed.{ending} is neither a .zip nor a .tar file, or is damaged"),
        open_source(str(archive), "main", offline=True),
    ):
        pass


@pytest.mark.parametrize("ending", ["npz", "bin", "pt", "pth", "safetensors"])
def test_files_of_weights_are_not_unpacked(ending: str, tmp_path: Path) -> None:
    """NumPy's and PyTorch's are zip files."""
    file = tmp_path / f"model.{ending}"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("special:model.yml.npy", b"")
    with open_source(str(file), "main", offline=True) as files:
        assert files == file


@pytest.mark.parametrize("ending", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_damaged_archives_are_one_sentence(ending: str, tmp_path: Path) -> None:
    """Wherever a byte is wrong; an archive in which that does not matter is read."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}" * 500 + "".join(map(str, range(400))))
    kind = {"zip": "zip", "tar": "tar", "tar.gz": "gztar", "tar.bz2": "bztar", "tar.xz": "xztar"}[ending]
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), kind, tmp_path, "model"))
    whole, refused = archive.read_bytes(), 0
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        archive.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            with open_source(str(archive), "main", offline=True):
                pass
        except InputError as error:
            assert f"packed.{ending} " in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > 3


def test_an_encrypted_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("config.json", "{}")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[6] |= 1  # the flag, in both of a file's headers
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with (
        pytest.raises(InputError, match=r"a\.zip is encrypted"),
        open_source(str(tmp_path / "a.zip"), "main", offline=True),
    ):
        pass


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", "..\\out", "C:\\out"])
@pytest.mark.parametrize("ending", ["zip", "tar"])
def test_archives_that_would_write_elsewhere_are_refused(ending: str, name: str, tmp_path: Path) -> None:
    archive = tmp_path / f"hostile.{ending}"
    (tmp_path / "data").write_text("x")
    if ending == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(name, "x")
    else:
        with tarfile.open(archive, "w") as tar:
            tar.add(tmp_path / "data", name)
            tar.getmembers()[0].name = name
    if ending == "tar" and name.startswith("/"):
        pytest.skip("tar's own writer takes the leading slash away")
    with pytest.raises(InputError, match="lies outside of it"), open_source(str(archive), "main", offline=True):
        pass


def test_links_in_archives_are_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("config.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "links.tar", "w") as tar:
        tar.addfile(link)
    with (
        pytest.raises(InputError, match="neither a file nor a directory"),
        open_source(str(tmp_path / "links.tar"), "main", offline=True),
    ):
        pass


def test_the_commit_is_pinned(place: Place) -> None:
    assert place.fetch(MODEL, COMMIT).name == COMMIT
    assert {path.suffix for path in place.fetch(MODEL).iterdir()} >= {".json", ".safetensors", ".spm"}
