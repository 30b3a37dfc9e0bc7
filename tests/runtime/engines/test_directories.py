"""Records of builds that must be accepted and refused, and which engines run where."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from patches import DATA, Value, fits, records
from toy import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import FileEntry
from txport.runtime.bundle.strict_json import encode
from txport.runtime.device.gpu import Gpu
from txport.runtime.engines.build_record import BuildRecord, LibraryVersion
from txport.runtime.engines.directories import best, candidates
from txport.runtime.errors import BundleError

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
    assert dict(candidates(*where).refused) == case["reasons"]
    if case["chosen"] is not None:
        assert best(*where).directory.name == case["chosen"]
        return
    with pytest.raises(BundleError) as caught:
        best(*where)
    message = str(caught.value)
    assert f"run tx-build {tmp_path} here" in message and case["gpu"]["name"] in message and "\n" not in message
    assert all(f"engines/{name}: {reason}" in message for name, reason in case["reasons"].items())
    assert ("there is none" in message) == (not case["reasons"])


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
