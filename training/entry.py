"""Console scripts of training. Only the standard library is imported at the top, see `txport.runtime.entry`."""

from typing import NoReturn

from txport.runtime.entry import run_command


def train() -> NoReturn:
    """Run tx-train."""
    run_command("txport.training.train_command", extra="train")


def evaluate() -> NoReturn:
    """Run tx-evaluate."""
    run_command("txport.training.evaluate_command", extra="train")


def shortlist() -> NoReturn:
    """Run tx-shortlist."""
    run_command("txport.training.shortlists.command", extra="train")


def distill() -> NoReturn:
    """Run tx-distill."""
    run_command("txport.training.distill_command", extra="ort")
