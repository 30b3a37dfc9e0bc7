"""Verification must find what is wrong, and say it."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.sample import choose_sample
from txport.exporter.verification.errors import Errors
from txport.exporter.verification.evidence import LOOP_SAMPLE
from txport.exporter.verification.report import large_errors
from txport.exporter.verification.verify import Verifier, store_report
from txport.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.models.transformer import Transformer
from txport.runtime.bundle.manifest import Manifest, list_files
from txport.runtime.console.progress import Stages
from txport.runtime.engines.native import missing
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.errors import BundleError, CheckFailed
from txport.runtime.golden import load_golden

FUSED_HERE = ("fused",) if missing() is None else ()
SILENT = Stages(enabled=False)


class Said(Stages):
    """Keeps what is said instead of showing it."""

    def __init__(self) -> None:
        super().__init__(enabled=False)
        self.sentences: list[str] = []

    def say(self, text: str) -> None:
        self.sentences.append(text)


def verify(bundle: Path, checkpoint: Path, sentences: int = 40) -> Any:
    loaded = load_checkpoint(checkpoint)
    limits = Manifest.load(bundle).limits
    sample = choose_sample(loaded, sentences, limits.source, limits.target)
    return Verifier(loaded, sample, 5, SILENT).verify_bundle(bundle, Manifest.load(bundle))


@pytest.fixture
def changed(bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that a test may spoil."""
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


def rewrite(bundle: Path) -> None:
    """Make the manifest agree with changed files, so that only verification can find the change."""
    manifest = Manifest.parse((bundle / "manifest.json").read_bytes())
    dataclasses.replace(manifest, files=list_files(bundle)).write(bundle)


def endless(checkpoint: Path, copy: Path) -> Checkpoint:
    """The checkpoint, but with an end-of-sequence that is never chosen."""
    loaded = load_checkpoint(checkpoint)
    projection = loaded.model.projection
    with torch.no_grad():
        projection.weight = torch.nn.Parameter(projection.weight.clone())  # it is the embeddings' too
        bias = torch.zeros(len(projection.weight))
        bias[loaded.config.eos_id] = -1e4
        projection.bias = torch.nn.Parameter(bias)
    config = dataclasses.replace(
        loaded.config, tie_projection=False, projection_bias=True, share_embeddings=loaded.config.share_embeddings
    )
    model = Transformer(config)
    model.load_state_dict(loaded.model.state_dict())
    save_checkpoint(copy, model.eval(), checkpoint / "tokenizer", loaded.sentences[:200], {})
    return load_checkpoint(copy)


def test_answers_that_do_not_end_are_cut_and_said(checkpoint: Path, tmp_path: Path) -> None:
    """By the length of their sources, in the bundle and in PyTorch; the model's last position is 128."""
    loaded = endless(checkpoint, tmp_path / "endless")
    said = Said()
    options = ExportOptions(lowerings=("ort",), sentences=40, singles=2)
    report = export_bundle(tmp_path / "endless", tmp_path / "bundle", options, said)
    assert report is not None and report.passed
    assert report.cut == report.sentences == 40
    words = "40 of 40 answers did not end and were truncated", "2 times the tokens of the source plus 20"
    assert any(all(each in note for each in words) for note in report.notes)
    (warning,) = [sentence for sentence in said.sentences if "fused engine" not in sentence]
    assert str(tmp_path / "endless") in warning and "do not end" in warning and "learnt" in warning
    assert report.failure.endswith("40 of 40 answers do not end: the model has hardly learnt anything yet")
    for case in load_golden(tmp_path / "bundle").cases:
        assert len(case.target_ids) == min(128, 2 * len(case.source_ids) + 20)
    assert loaded.config.max_positions == 128


def test_errors_that_are_large_for_float32_are_noted() -> None:
    (note,) = large_errors(0.26, "float32")
    assert note.startswith("logits differ by up to 0.26, much for float32")
    assert large_errors(0.1, "float32") == large_errors(0.26, "float16") == large_errors(0.26, "int8") == []


def test_no_time_left_is_a_failure(bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    """And not a report on fewer sentences: what is compared is the same on every machine."""
    loaded, limits = load_checkpoint(checkpoint), Manifest.load(bundle).limits
    sample = choose_sample(loaded, 40, limits.source, limits.target)
    with pytest.raises(CheckFailed, match="has compared 32 of 40 sentences in 1e-09 minutes: give more by --verify"):
        Verifier(loaded, sample, 1, SILENT, minutes=1e-9).verify_bundle(bundle, Manifest.load(bundle))
    options = ExportOptions(lowerings=("ort",), minutes=1e-9, sentences=40, singles=1, force=True)
    with pytest.raises(CheckFailed, match="give more by --verify-minutes"):
        export_bundle(checkpoint, tmp_path / "bundle", options)
    assert not list(tmp_path.iterdir())


def test_a_good_bundle_passes(bundle: Path, checkpoint: Path) -> None:
    report = verify(bundle, checkpoint)
    assert report.passed
    assert report.weights is not None and report.weights.numbers > 10_000
    assert {each.lowering for each in report.lowerings} == {"ort", "scatter", "tensorscatter", *FUSED_HERE}
    assert report.engines == ("ort", *FUSED_HERE)
    for each in report.lowerings:
        assert each.token_identical == each.sentences == 40
        assert each.loop_identical == each.loop_sentences == (40 if each.lowering in ("ort", "fused") else LOOP_SAMPLE)
        assert each.batch_identical == each.padded_identical == each.single_sentences == 5
        assert each.finite and each.max_logit_error < 1e-3 and each.max_encoder_error < 1e-3
        assert 0 < each.mean_logit_error < each.max_logit_error


def change_tensor(bundle: Path, graph: str, name: str, change: Any) -> None:
    tensor = ir.load(bundle / "onnx" / f"{graph}.onnx").graph.initializers[name].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    array = change(tensor.numpy().copy())
    with (bundle / "onnx" / "weights.bin").open("r+b") as file:
        file.seek(tensor.offset or 0)
        file.write(array.tobytes())
    rewrite(bundle)


def test_a_wrong_weight_is_found(changed: Path, checkpoint: Path) -> None:
    """The rows of the output projection moved by one: each token is taken for another."""
    step = ir.load(changed / "onnx" / "decoder_step.scatter.onnx")
    gemm = next(node for node in step.graph if node.outputs[0].name == "logits")
    weight = gemm.inputs[1].name
    change_tensor(changed, "decoder_step.scatter", weight, lambda array: np.roll(array, 1, axis=0))
    report = verify(changed, checkpoint)
    assert not report.passed
    assert report.token_identical < report.sentences
    for each in report.lowerings:
        assert each.failures and each.divergences
        assert all(divergence.margin > 0 for divergence in each.divergences)
        assert each.max_logit_error > 0.1


def test_a_weight_that_no_sentence_needs_is_found(changed: Path, checkpoint: Path) -> None:
    """At a position that none of the sentences reaches."""

    def change(array: np.ndarray) -> np.ndarray:
        array[-1, 0] += 0.01
        return array

    change_tensor(changed, "encoder", "embedding.positions", change)
    report = verify(changed, checkpoint)
    assert not report.passed
    assert not any(each.failures for each in report.lowerings)
    assert "1 of 8,192 weights of source_embedding.positions are not the checkpoint's: the first is" in report.failure


def test_banned_ids_are_no_errors_but_must_be_finite() -> None:
    """A logit near -30,000 has other roundings than its neighbours, and says nothing."""
    errors = Errors()
    errors.add(np.array([1.0, -30000.0]), np.array([1.5, -30008.0]))
    assert errors.largest == errors.mean == 0.5 and errors.finite
    errors.add(np.array([1.0, -np.inf]), np.array([1.0, -30008.0]))
    assert not errors.finite


def test_nan_is_found(changed: Path, checkpoint: Path) -> None:
    def poison(array: np.ndarray) -> np.ndarray:
        array.reshape(-1)[0] = np.nan
        return array

    change_tensor(changed, "decoder_step.scatter", "layers.0.self_qkv.weight", poison)
    report = verify(changed, checkpoint)
    assert not report.passed
    for each in report.lowerings:
        if each.lowering == "fused":
            assert "weights that are not" in each.failures[0] and "numbers" in each.failures[0]
        else:
            assert "NaN or infinity in logits or encoder outputs" in each.failures


@pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")
def test_what_the_fused_engine_alone_refuses_fails(int8_bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    """It would then run on ONNX Runtime, several times slower, for a reason that nobody meant."""
    bundle = shutil.copytree(int8_bundle, tmp_path / "bundle")

    def least(array: np.ndarray) -> np.ndarray:
        """One level off where it is least already: nothing but the fused engine is to notice."""
        flat = array.reshape(-1)
        flat[flat.argmin()] = -128
        return array

    change_tensor(bundle, "decoder_step.ort", "layers.0.self_output.weight.int8", least)
    report = verify(bundle, checkpoint)
    assert not report.passed and "-128" in report.failure
    assert [each.lowering for each in report.lowerings if each.failures] == ["fused"]


def test_one_bad_lowering_is_enough(changed: Path, checkpoint: Path) -> None:
    """A mask that is dropped, as a runtime might: the step then reads slots that were never written."""
    file = changed / "onnx" / "decoder_step.tensorscatter.onnx"
    model = onnx.load(file, load_external_data=False)
    attention = next(node for node in model.graph.node if node.op_type == "Attention")
    del attention.input[3:]
    onnx.save(model, file)
    rewrite(changed)
    report = verify(changed, checkpoint)
    assert not report.passed
    assert [each.lowering for each in report.lowerings if each.failures] == ["tensorscatter"]


class DependsOnTheBatch(OrtEngine):
    """An engine whose answers change when a sentence is alone or all are padded, as ragged batches do elsewhere."""

    def encode(self, input_ids: Any, source_lengths: Any) -> Any:
        memory = super().encode(input_ids, source_lengths)
        if len(input_ids) == 1 or source_lengths.max() < input_ids.shape[1]:
            memory["cross_value_0"][:] *= 1 + input_ids.shape[1]
        return memory


def test_an_engine_that_depends_on_the_batch_is_found(
    bundle: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txport.exporter.verification.verify.OrtEngine", DependsOnTheBatch)
    report = verify(bundle, checkpoint)
    assert not report.passed
    for each in report.lowerings:
        if each.lowering == "fused":
            assert not each.failures, "it is another engine"
            continue
        assert each.token_identical == each.sentences, "in one batch all is well"
        assert each.batch_identical < each.single_sentences
        assert each.padded_identical < each.single_sentences
        assert any("alone" in failure for failure in each.failures)
        assert any("padding" in failure for failure in each.failures)


def test_report_is_stored_whole(changed: Path, checkpoint: Path) -> None:
    report = verify(changed, checkpoint, sentences=20)
    (changed / "engines").mkdir()
    (changed / "engines" / "kept").write_text("made on the device")
    store_report(changed, report)
    assert "weights are the checkpoint's." in (changed / "README.md").read_text()
    manifest = Manifest.load(changed)
    manifest.check_files(changed, hashes=lambda name: True)
    assert manifest.verification is not None and manifest.verification.sentences == 20
    assert (changed / "engines" / "kept").exists()
    assert [path.name for path in changed.parent.iterdir()] == ["bundle"]


def test_a_bundle_of_another_model_is_refused(bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    text = (other / "config.json").read_text()
    assert '"decoder_layers": 2' in text
    with pytest.raises(BundleError, match="was not exported from .*: its heads is 4, not 8"):
        (other / "config.json").write_text(text.replace('"heads": 4', '"heads": 8'))
        verify(bundle, other)
