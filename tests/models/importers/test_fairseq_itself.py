"""fairseq imports, against what fairseq's own models and its generator have made of sentences."""

from pathlib import Path

import pytest
import torch
from foreign_models import import_here
from recorded_models import assert_as_recorded, recorded
from txport.exporter.export import ExportOptions, export_bundle
from txport.runtime.bundle.schema import Generation
from txport.runtime.engines.native import missing
from txport.runtime.translator import Translator

PAD = 1


@pytest.mark.parametrize("kind", ["post_norm_two_dictionaries", "pre_norm_shared", "learned_positions", "three_heads"])
def test_same_numbers_and_ids(kind: str, tmp_path: Path) -> None:
    theirs = recorded(f"fairseq_{kind}")
    (tmp_path / "fairseq").mkdir()
    torch.save(
        {"args": None, "cfg": theirs.config, "model": theirs.weights}, tmp_path / "fairseq" / "checkpoint_best.pt"
    )
    checkpoint = import_here(tmp_path / "fairseq", tmp_path / "checkpoint", tokenizer=False)
    assert_as_recorded(checkpoint, theirs, banned=(PAD,))
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(verify=False))
    for engine in ["ort"] if missing() else ["ort", "fused"]:
        translator = Translator(tmp_path / "bundle", "cpu", engine)
        made = [result.ids for result in translator.translate_ids(theirs.sources, generation="model")]
        compared = [(ours, expected) for ours, expected in zip(made, theirs.beams, strict=True) if expected]
        assert len(compared) > 20
        assert all(ours == expected for ours, expected in compared)


def test_settings_of_its_generator(tmp_path: Path) -> None:
    theirs = recorded("fairseq_three_heads")
    theirs.config["generation"] |= {
        "beam": 6,
        "unnormalized": True,
        "max_len_a": 1.2,
        "unkpen": 0.5,
        "no_repeat_ngram_size": 3,
    }
    torch.save({"cfg": theirs.config, "model": theirs.weights}, tmp_path / "model.pt")
    checkpoint = import_here(tmp_path, tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.generation == Generation(
        beam=6,
        length_penalty=0.0,
        early_stopping=True,
        no_repeat_ngram=3,
        min_length=2,
        max_length=201,
        unsupported=("max_len_a = 1.2", "unkpen = 0.5"),
    )
