"""What the demo ends with: its figures as a table, and whether they are what txport promises."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

LEAST_EXACT = 0.98
# Shares of sentences whose every token equals PyTorch's.
LEAST_IDENTICAL = {"float32": 1.0, "FP16": 0.995}


@dataclass(frozen=True)
class LoweringFigures:
    """Of one decoder step: sentences with every token as PyTorch's, of how many, and the largest error of a logit."""

    name: str
    identical: int
    sentences: int
    max_logit_error: float


@dataclass(frozen=True)
class Verification:
    """Of one bundle."""

    lowerings: Sequence[LoweringFigures]

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> "Verification":
        """From the `verification` of tx-export --json."""
        return cls(
            [
                LoweringFigures(each["lowering"], each["token_identical"], each["sentences"], each["max_logit_error"])
                for each in report["lowerings"]
            ]
        )


@dataclass(frozen=True)
class Figures:
    """All figures of a demo.

    Attributes:
        sentences: held-out sentences that were translated.
        exact: the share of them that equals the reference, 0 to 1.
        bleu: of the whole set, 0 to 100.
        float32, float16: verification of the two bundles.
        bundle_bytes: of every file of the float32 bundle.
        weight_bytes: of its weights alone.
        seconds: for each stage, in order.
        bundle: where it is.
        translations: source and what came out.
    """

    sentences: int
    exact: float
    bleu: float
    float32: Verification
    float16: Verification
    bundle_bytes: int
    weight_bytes: int
    seconds: Mapping[str, float]
    bundle: Path
    translations: Sequence[tuple[str, str]]


def missed(figures: Figures) -> list[str]:
    """One sentence for each figure that is below its bound; none if all hold."""
    found = []
    if figures.exact < LEAST_EXACT:
        found.append(f"exact match is {figures.exact:.1%}, below {LEAST_EXACT:.0%}")
    for name, verification in (("float32", figures.float32), ("FP16", figures.float16)):
        for each in verification.lowerings:
            if each.identical < LEAST_IDENTICAL[name] * each.sentences:
                found.append(
                    f"{name}, lowering {each.name}: only {each.identical} of {each.sentences} sentences are identical"
                )
    return found


def print_summary(figures: Figures, console: Console) -> None:
    """A table of all figures, the times, the translations and the path of the bundle."""
    table = Table(title="txport demo", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("exact match", f"{figures.exact:.1%} of {figures.sentences} held-out sentences")
    table.add_row("BLEU", f"{figures.bleu:.2f}")
    for name, verification in (("float32", figures.float32), ("FP16", figures.float16)):
        table.add_section()
        table.add_row(f"verified, {name}", "sentences identical to PyTorch; largest logit error")
        for each in verification.lowerings:
            table.add_row(f"  {each.name}", f"{each.identical}/{each.sentences}; {each.max_logit_error:.1e}")
    table.add_section()
    ratio = figures.bundle_bytes / figures.weight_bytes
    table.add_row("bundle size", f"{figures.bundle_bytes / 1e6:.2f} MB, {ratio:.3f} times its weights")
    table.add_section()
    for stage, seconds in figures.seconds.items():
        table.add_row(escape(stage), _minutes(seconds))
    table.add_row("in total", _minutes(sum(figures.seconds.values())))
    table.add_section()
    for source, target in figures.translations:
        table.add_row("written\nspoken", f"{escape(source)}\n{escape(target)}")
    table.add_section()
    table.add_row("bundle", escape(str(figures.bundle)))
    console.print(table)
    console.print(
        f"Try it: echo 'It cost $12.50.' | {escape(str(_command()))} {escape(str(figures.bundle))}",
        highlight=False,
        soft_wrap=True,
    )


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def _command() -> Path:
    """tx-translate of this environment, as a user in this directory can type it."""
    script = Path(sys.executable).parent / "tx-translate"
    return script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
