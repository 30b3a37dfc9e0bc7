"""Which sentences a bundle carries for its self-check."""

from pathlib import Path

import pytest
import torch
from txport.benchmarks.studies.random_checkpoint import random_checkpoint
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.golden_cases import MOST
from txport.models.checkpoint import load_checkpoint
from txport.runtime.golden import load_golden


@pytest.mark.parametrize(("float16", "widest"), [(True, 1e-3), (False, 1e-6)])
def test_golden_cases_have_no_ids_that_are_almost_tied(tmp_path: Path, float16: bool, widest: float) -> None:
    """A device rounds in its own way: it would be accused of ids that lead by less. Random weights have many such.

    How near is near follows from the rounding: of float16 at least a thousandth here, of float32 a millionth.
    """
    random_checkpoint(tmp_path / "checkpoint", "tiny", vocabulary=500, positions=48)
    options = ExportOptions(float16=float16, lowerings=("ort",), verify=False, sentences=32, singles=1)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    assert narrowest_lead(tmp_path / "checkpoint", tmp_path / "bundle") >= widest


def test_golden_cases_of_int8_are_clear_on_any_processor(checkpoint: Path, int8_bundle: Path) -> None:
    """Log-probabilities of this model were seen 0.07 apart between x86 and arm64, whose roundings differ."""
    assert narrowest_lead(checkpoint, int8_bundle) >= 0.15


def narrowest_lead(checkpoint: Path, bundle: Path) -> float:
    """Compare the golden cases with PyTorch: the least by which it prefers their ids."""
    loaded, cases, leads = load_checkpoint(checkpoint), load_golden(bundle).cases, []
    for case in cases:
        ids = torch.tensor([[loaded.config.bos_id, *case.target_ids[:-1]]])
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([case.source_ids]), torch.tensor([len(case.source_ids)]), ids)[0]
        best = logits.topk(2, dim=-1)
        assert best.indices[:, 0].tolist() == list(case.target_ids)
        leads.append(float((best.values[:, 0] - best.values[:, 1]).min()))
    assert 0 < len(cases) <= MOST
    return min(leads)
