"""The committed toy bundle is what its script writes."""

from pathlib import Path

import pytest
from toy import BUNDLE
from txport.runtime.bundle.manifest import Manifest


def test_the_script_writes_the_committed_bundle(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="needs onnx: pip install 'txport[export]'")
    import make_toy_bundle
    import onnx

    for name, model in make_toy_bundle.models().items():
        assert onnx.load(BUNDLE / "onnx" / f"{name}.onnx", load_external_data=False) == model
    assert Manifest.load(BUNDLE).graphs == make_toy_bundle.records()
    make_toy_bundle.write(tmp_path)  # the tokenizer may differ from version to version of SentencePiece
    assert Manifest.load(tmp_path).files.keys() == Manifest.load(BUNDLE).files.keys()
