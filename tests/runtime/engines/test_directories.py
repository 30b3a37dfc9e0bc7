"""Records of builds that must be accepted and refused, and which engines run where."""

import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from patches import DATA, Value, fits, records
from toy import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import FileEntry
from txport.runtime.bundle.strict_json import encode
from txport.runtime.device.gpu import Gpu
from txport.runtime.engines import choice
from txport.runtime.engines.build_record import BuildRecord, LibraryVersion
from txport.runtime.engines.directories import best, candidates, untrusted, user_engines
from txport.runtime.errors import BundleError
from txport.runtime.system import POSIX

CHOICES = json.loads((DATA / "engines" / "choices.json").read_bytes())


@pytest.mark.parametrize("name", records().good)
def test_good_records_are_accepted(name: str) -> None:
    data = records().data(name)
    assert encode(BuildRecord.parse(data)) == json.loads(data), "nothing is lost or made up"


@pytest.mark.parametrize("name", records().bad)
def test_bad_records_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(BundleError) as caught:
        BuildRecord.parse(records().data(name), "somewhere/build.json")
    assert fits(str(caught.value), "somewhere/build.json", records().bad[name])


@pytest.mark.parametrize("case", CHOICES["cases"], ids=[case["name"] for case in CHOICES["cases"]])
def test_the_choice_among_engines(case: Value, tmp_path: Path) -> None:
    for name, patch in case["builds"].items():
        (tmp_path / "engines" / name).mkdir(parents=True)
        (tmp_path / "engines" / name / "build.json").write_text(json.dumps(records().patched(patch)))
    files = {name: FileEntry(1, digest) for name, digest in CHOICES["files"].items()}
    manifest = dataclasses.replace(Manifest.load(BUNDLE), files=files)
    where = tmp_path, manifest, Gpu(**case["gpu"], driver="13.0"), LibraryVersion(**case["library"])
    assert dict(candidates(*where, trust_engines=True).refused) == case["reasons"]
    if case["chosen"] is not None:
        assert best(*where, trust_engines=True).directory.name == case["chosen"]
        return
    with pytest.raises(BundleError) as caught:
        best(*where, trust_engines=True)
    message = str(caught.value)
    assert f"run tx-build {tmp_path} here" in message and case["gpu"]["name"] in message and "\n" not in message
    assert all(f"engines/{name}: {reason}" in message for name, reason in case["reasons"].items())
    assert ("there is none" in message) == (not case["reasons"])


H200 = Gpu("NVIDIA H200", "9.0", 132, "13.0")
LIBRARY = LibraryVersion("tensorrt", "8.6.0")


def _fitting(folder: Path, manifest: Manifest, **changes: object) -> BuildRecord:
    """The record of engines for `H200`, written into a folder of engines."""
    files = {name: entry.sha256 for name, entry in manifest.files.items() if name.startswith("onnx/")}
    record = BuildRecord.parse(records().data("tensorrt_8_6"))
    record = dataclasses.replace(record, bundle=files, library=LIBRARY, **changes)  # type: ignore[arg-type]
    (folder / "made").mkdir(parents=True)
    record.write(folder / "made")
    return record


def test_engines_of_a_bundle_run_only_if_they_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their author writes their record, so it says what he likes: that they fit, and that they run code of the host."""
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    manifest = Manifest.load(bundle)
    _fitting(bundle / "engines", manifest, version_compatible=True)
    assert candidates(bundle, manifest, H200, LIBRARY).fitting == ()
    words = re.escape(f"{bundle / 'engines'} are native code of a third party and are not used: run tx-build")
    with pytest.raises(BundleError, match=f"there is none.*{words}.*or trust them with --trust-engines"):
        best(bundle, manifest, H200, LIBRARY)
    assert best(bundle, manifest, H200, LIBRARY, trust_engines=True).directory == bundle / "engines/made"
    monkeypatch.setattr(choice, "find_gpu", lambda: H200)
    monkeypatch.setattr(choice, "cuda_provider", lambda: None)
    chosen = choice.choose(manifest, bundle=bundle)
    assert chosen.engine == "ort" and "are not used: run tx-build" in chosen.reason
    assert [record.getMessage() for record in caplog.records] == [untrusted(bundle)]


def test_engines_of_this_user_run_if_nobody_else_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXPORT_CACHE", str(tmp_path / "cache"))
    manifest = Manifest.load(BUNDLE)
    folder = user_engines(manifest)
    assert folder.is_relative_to(tmp_path / "cache/engines")
    record = _fitting(folder, manifest)
    folder.chmod(0o700)
    assert best(BUNDLE, manifest, H200, LIBRARY).record == record
    if POSIX:
        folder.chmod(0o770)
        with pytest.raises(BundleError, match="other users can write the TensorRT engines in .*: remove it, and run"):
            best(BUNDLE, manifest, H200, LIBRARY)


def test_the_folder_is_of_the_graphs_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a bundle that tx-verify wrote a report into keeps its engines, and C++ finds the same ones."""
    monkeypatch.setenv("TXPORT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    manifest = Manifest.load(BUNDLE)
    lines = [f"{name} {entry.sha256}\n" for name, entry in manifest.files.items() if name.split("/")[0] == "onnx"]
    digest = hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
    assert user_engines(manifest) == Path("/cache/txport/engines", digest)
    other = {**manifest.files, "verification.json": FileEntry(1, "0" * 64)}
    assert user_engines(dataclasses.replace(manifest, files=other)) == user_engines(manifest)
    other = {**manifest.files, "onnx/weights.bin": FileEntry(1, "0" * 64)}
    assert user_engines(dataclasses.replace(manifest, files=other)) != user_engines(manifest)


def test_an_engine_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    record = records().value("tensorrt_8_6")
    contents = {"encoder.plan": b"first", "decoder_step.plan": b"second"}
    for engine in record["engines"]:
        data = contents[engine["file"]]
        (tmp_path / engine["file"]).write_bytes(data)
        engine |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    BuildRecord.parse(json.dumps(record).encode()).write(tmp_path)
    read = BuildRecord.load(tmp_path)
    read.check_files(tmp_path)
    for fault, data in (("was changed", b"thIrd."), ("has 3 bytes instead of 6", b"new")):
        (tmp_path / "decoder_step.plan").write_bytes(data)
        with pytest.raises(BundleError, match=fault):
            read.check_files(tmp_path)
    (tmp_path / "decoder_step.plan").unlink()
    with pytest.raises(BundleError, match="is missing"):
        read.check_files(tmp_path)
