"""Manifests that must be accepted and refused, and bundles that are not what their manifest says."""

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patches import fits, manifests, sign, text
from toy import BUNDLE
from txport.runtime.bundle.manifest import INFORMATIONAL_FILES, WEIGHTS, Manifest, list_files
from txport.runtime.bundle.schema import FileEntry
from txport.runtime.bundle.strict_json import encode, finite
from txport.runtime.errors import BundleError

TOY = (BUNDLE / "manifest.json").read_bytes()


@pytest.mark.parametrize("name", manifests().good)
def test_good_manifests_are_accepted(name: str) -> None:
    data = manifests().data(name)
    manifest = Manifest.parse(data)
    value = json.loads(data)
    if (value["verification"] or {}).pop("fused", False):  # as it was once written
        value["verification"]["engines"] = ["ort", "fused"]
    assert encode(manifest) == value, "nothing is lost or made up"


@pytest.mark.parametrize("name", manifests().bad)
def test_bad_manifests_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(BundleError) as caught:
        Manifest.parse(manifests().data(name), "somewhere/manifest.json")
    assert fits(str(caught.value), "somewhere/manifest.json", manifests().bad[name])


def test_patches_are_written_as_bundles_are() -> None:
    assert manifests().data("toy") == TOY


@given(st.integers(0, len(TOY) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(position: int, difference: int) -> None:
    changed = TOY[:position] + bytes([TOY[position] ^ difference]) + TOY[position + 1 :]
    with pytest.raises(BundleError):
        Manifest.parse(changed)


@given(st.integers(0, len(TOY) - 1))
def test_any_truncation_is_noticed(length: int) -> None:
    with pytest.raises(BundleError):
        Manifest.parse(TOY[:length])


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: json.dumps({text: text}).encode()))
def test_rubbish_is_refused_as_a_bundle(data: bytes) -> None:
    with pytest.raises(BundleError):
        Manifest.parse(data)


SIZES = st.integers(-4, 1100) | st.sampled_from([2**31, 2**62, 2**63 - 1, -(2**63)])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("offset scales shape strides".split()), SIZES), max_size=3)
)
def test_no_table_of_parameters_leads_out_of_the_file(changes: list[tuple[int, str, int]]) -> None:
    """It is refused in one sentence, or every element and scale that it names is one of the file's."""
    value = manifests().value("parameters")
    for index, field, size in changes:
        tensors = value["parameters"]["tensors"]
        tensor = tensors[index % len(tensors)]
        if field in ("offset", "scales"):
            tensor[field] = size
        else:
            tensor[field][size % len(tensor[field])] = size
    try:
        manifest = Manifest.parse(sign(text(value | {"sha256": "0" * 64})))
    except BundleError as error:
        assert str(error).startswith("manifest.json: parameter") and "\n" not in str(error)
        return
    assert manifest.parameters is not None
    whole = np.zeros(manifest.files[WEIGHTS].bytes, np.uint8)
    for each in manifest.parameters.tensors:
        dtype = np.dtype(each.dtype)
        strides = [stride * dtype.itemsize for stride in each.strides]
        assert np.ndarray(each.shape, dtype, whole, each.offset, strides).size > 0, "numpy checks the bounds"
        if each.scales is not None:
            assert len(np.frombuffer(whole, np.float32, each.shape[0], each.scales)) == each.shape[0]


def test_write_and_load(damaged: Path) -> None:
    manifest = Manifest.load(damaged)
    written = manifest.write(damaged)
    assert written == manifest
    assert Manifest.load(damaged) == manifest
    assert manifest.files == list_files(damaged)
    assert (damaged / "manifest.json").read_bytes() == TOY


def test_what_would_be_refused_is_not_written(damaged: Path) -> None:
    manifest = Manifest.load(damaged)
    manifest.files["../x"] = FileEntry(1, "0" * 64)
    with pytest.raises(BundleError, match=r"\.\./x"):
        manifest.write(damaged)
    assert (damaged / "manifest.json").read_bytes() == TOY


def test_engines_are_not_part_of_the_bundle(damaged: Path) -> None:
    (damaged / "engines").mkdir()
    (damaged / "engines" / "x").write_text("x")
    assert list_files(damaged) == Manifest.load(damaged).files


@pytest.mark.parametrize("name", sorted(Manifest.parse(TOY).files))
def test_every_file_is_checked(damaged: Path, name: str) -> None:
    manifest = Manifest.load(damaged)
    path = damaged / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    manifest.check_files(damaged)  # the size alone is right
    with pytest.raises(BundleError, match="was changed") as caught:
        manifest.check_files(damaged, hashes=lambda name: True)
    assert str(path) in str(caught.value)
    path.write_bytes(data[:-1])
    with pytest.raises(BundleError, match=f"has {len(data) - 1} bytes instead of {len(data)}"):
        Manifest.load(damaged)
    path.unlink()
    with pytest.raises(BundleError, match="is missing"):
        Manifest.load(damaged)
    path.mkdir()
    with pytest.raises(BundleError, match="is not a file"):
        Manifest.load(damaged)


def test_links_must_stay_inside(damaged: Path, tmp_path: Path) -> None:
    weights, inside, outside = damaged / "onnx/weights.bin", damaged / "onnx/real.bin", tmp_path / "outside.bin"
    shutil.copy(weights, outside)
    weights.rename(inside)
    weights.symlink_to("real.bin")
    Manifest.load(damaged)
    weights.unlink()
    weights.symlink_to(outside)
    with pytest.raises(BundleError, match="leaves the bundle"):
        Manifest.load(damaged)
    weights.unlink()
    weights.symlink_to("weights.bin")
    with pytest.raises(BundleError, match="is missing or cannot be read"):
        Manifest.load(damaged)


def test_a_link_to_the_bundle_is_fine(damaged: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(damaged)
    assert Manifest.load(tmp_path / "link") == Manifest.load(damaged)


def test_what_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not exist"):
        Manifest.load(tmp_path / "nowhere")
    with pytest.raises(BundleError, match="has no manifest.json"):
        Manifest.load(tmp_path)
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(BundleError, match="cannot be read"):
        Manifest.load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(BundleError, match=r"manifest\.json is not a file"):
        Manifest.load(tmp_path)


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    with pytest.raises(BundleError, match="larger than"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("name", INFORMATIONAL_FILES)
def test_a_file_that_only_people_read_may_be_missing_but_not_changed(bundle: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    (copy / name).unlink()
    Manifest.load(copy).check_files(copy, hashes=lambda file: True)
    (copy / name).write_text("other")
    with pytest.raises(BundleError, match=name):
        Manifest.load(copy)


def test_numbers_that_are_not_finite_are_null() -> None:
    value = {"a": [1.5, math.nan, (2, -math.inf)], "b": {"c": math.inf, "d": True, "e": None, "f": "x"}}
    assert finite(value) == {"a": [1.5, None, [2, None]], "b": {"c": None, "d": True, "e": None, "f": "x"}}
    assert finite([b"x", math.nan], convert=len) == [1, None]


def test_many_tensors_are_checked_in_linear_time() -> None:
    """Each was compared with all before it: 20,000 took 7 s, and a manifest of 16 MB a quarter of an hour."""
    from txport.runtime.bundle.rules import _repeated

    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    names = [Name(f"tensor {number}") for number in range(5_000)]
    assert _repeated([*names, Name("tensor 7")]) == "tensor 7" and _repeated(names) is None
    assert compared < 2 * len(names), "all pairs would be 12 million"
