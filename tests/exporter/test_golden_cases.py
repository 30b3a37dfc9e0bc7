"""Which sentences a bundle carries for its self-check."""

from pathlib import Path

import torch
from txport.benchmarks.studies.random_checkpoint import random_checkpoint
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.golden_cases import MAX_CASES
from txport.models.checkpoint import load_checkpoint
from txport.runtime.golden import load_golden


def test_golden_cases_have_no_ids_that_are_almost_tied(tmp_path: Path) -> None:
    """A device rounds in its own way: it would be accused of ids that lead by less. Random weights have many such.

    How near is near follows from the rounding: of float16 at least a thousandth here, of float32 a millionth.
    """
    checkpoint, tokens = tmp_path / "checkpoint", {}
    random_checkpoint(checkpoint, "tiny", vocabulary=500, positions=48)
    for float16, widest in ((True, 1e-3), (False, 1e-6)):
        bundle = tmp_path / f"bundle-{float16}"
        options = ExportOptions(float16=float16, lowerings=("ort",), verify=False, sentences=32, singles=1)
        export_bundle(checkpoint, bundle, options)
        assert min(lead for leads in leads_of(checkpoint, bundle) for lead in leads[:-1]) >= widest
        tokens[float16] = sum(len(case.target_ids) for case in load_golden(bundle).cases)
    assert tokens[True] < tokens[False], "float16 leaves some out"


def test_golden_cases_of_int8_are_clear_on_any_processor(checkpoint: Path, int8_bundle: Path) -> None:
    """Log-probabilities of this model were seen 0.07 apart between x86 and arm64, whose roundings differ.

    Answers end before the first id that is not clear, and no sooner.
    """
    leads, eos = leads_of(checkpoint, int8_bundle), load_checkpoint(checkpoint).config.eos_id
    narrowest = min(lead for case in leads for lead in case[:-1])
    assert narrowest >= 0.15
    cases = load_golden(int8_bundle).cases
    left_out = [case[-1] for case, golden in zip(leads, cases, strict=True) if golden.target_ids[-1] != eos]
    assert left_out and max(left_out) < narrowest


def leads_of(checkpoint: Path, bundle: Path) -> list[list[float]]:
    """By how much PyTorch prefers each id of the golden cases, which are its own, and the id after the last."""
    loaded, leads = load_checkpoint(checkpoint), []
    cases = load_golden(bundle).cases
    assert 0 < len(cases) <= MAX_CASES
    for case in cases:
        ids = torch.tensor([[loaded.config.bos_id, *case.target_ids]])
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([case.source_ids]), torch.tensor([len(case.source_ids)]), ids)[0]
        best = logits.topk(2, dim=-1)
        assert best.indices[:-1, 0].tolist() == list(case.target_ids)
        leads.append((best.values[:, 0] - best.values[:, 1]).tolist())
    return leads
