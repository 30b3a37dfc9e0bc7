"""Check of a bundle without PyTorch: the golden cases on the engine of a device, in batches, alone and refilled."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Verification
from txport.runtime.engines.choice import FUSED, why_not_fused
from txport.runtime.golden import Difference, Golden, check, check_translator, load_golden
from txport.runtime.translator import Translator

_FEW_ROWS = 3  # few, so that every row is refilled many times
_ORDERS = 2


@dataclass(frozen=True)
class GoldenReport:
    """Result of the check. `*_identical` are numbers of cases whose tokens all equal those of PyTorch at export.

    Attributes:
        engine: name of the engine.
        batch_identical: cases identical in a batch and alone.
        refill_identical: cases identical in rows that are refilled, in several orders.
        differences: descriptions of the first differences.
    """

    passed: bool
    engine: str
    cases: int
    batch_identical: int
    refill_identical: int
    differences: list[str]


def verify_golden(bundle: Path, device: str, engine: str = "auto") -> GoldenReport:
    """Run the golden cases, which the export verified with PyTorch.

    Args:
        bundle: directory of a bundle that was already checked.
        device, engine: as for `txport.runtime.engines.choice.choose`.

    Raises:
        TxportError: the device or the bundle cannot be used.
    """
    translator = Translator(bundle, device, engine)
    golden = load_golden(bundle)
    alone = check_translator(translator, golden)
    refilled = _refilled(translator, golden)
    words = [
        f"case {each.case}, {each.what}: expected {each.expected}, found {each.actual}" for each in (*alone, *refilled)
    ]
    count = len(golden.cases)
    return GoldenReport(
        passed=not words,
        engine=translator.engine.name,
        cases=count,
        batch_identical=count - len({each.case for each in alone}),
        refill_identical=count - len({each.case for each in refilled}),
        differences=words[:20],
    )


def awaits_fused(manifest: Manifest) -> bool:
    """Return whether the installed fused engine could run the bundle if the bundle had been verified with it."""
    verification = manifest.verification
    if verification is None or FUSED in verification.engines:
        return False
    return why_not_fused(_with_fused(manifest, verification)) is None


def admit_fused(bundle: Path, manifest: Manifest) -> None:
    """Record in the manifest, atomically, that the bundle was verified with the fused engine, to allow its use."""
    assert manifest.verification is not None
    _with_fused(manifest, manifest.verification).write(bundle)


def _with_fused(manifest: Manifest, verification: Verification) -> Manifest:
    return replace(manifest, verification=replace(verification, engines=(*verification.engines, FUSED)))


def _refilled(translator: Translator, golden: Golden) -> list[Difference]:
    """Run the cases with few rows, in shuffled orders, so that each row gets many sentences."""
    prefix = translator.tokenizer.affixes().target_prefix
    order = list(range(len(golden.cases)))
    differences = []
    for seed in range(_ORDERS):
        random.Random(seed).shuffle(order)
        differences += check(translator.engine, golden, prefix, rows=_FEW_ROWS, order=order)
    return differences
