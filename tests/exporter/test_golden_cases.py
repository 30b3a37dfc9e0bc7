"""Which sentences a bundle carries for its self-check."""

from pathlib import Path

import torch
from txport.benchmarks.studies.random_checkpoint import random_checkpoint
from txport.exporter.export import GOLDEN_CASES, NEAR_TIE, ExportOptions, export_bundle
from txport.models.checkpoint import load_checkpoint
from txport.runtime.golden import load_golden


def test_golden_cases_in_float16_have_no_ids_that_are_almost_tied(tmp_path: Path) -> None:
    """A GPU rounds in its own way: it would be accused of ids that lead by less. Random weights have many such."""
    random_checkpoint(tmp_path / "checkpoint", "tiny", vocabulary=500, positions=48)
    options = ExportOptions(float16=True, lowerings=("ort",), verify=False, sentences=32, singles=1)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    loaded = load_checkpoint(tmp_path / "checkpoint")
    leads = []
    for case in load_golden(tmp_path / "bundle").cases:
        ids = torch.tensor([[loaded.config.bos_id, *case.target_ids[:-1]]])
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([case.source_ids]), torch.tensor([len(case.source_ids)]), ids)[0]
        best = logits.topk(2, dim=-1)
        assert best.indices[:, 0].tolist() == list(case.target_ids)
        leads.append(float((best.values[:, 0] - best.values[:, 1]).min()))
    assert 0 < len(leads) < GOLDEN_CASES, "some were left out"
    assert min(leads) >= NEAR_TIE - 1e-4
