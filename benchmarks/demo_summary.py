"""The end of the demo: a table of its figures, and a check against the usual figures."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

MIN_EXACT = 0.97
# Number of typical first sentences that are printed and must be right, and the required share of all of them.
MAX_LISTED = 8
MIN_RIGHT = 0.95
# Exact match of a model whose training was cut short, as on a busy machine. On an idle one it is 0.95 or more.
WEAK = 0.9


@dataclass(frozen=True)
class Translated:
    """A typical first sentence, its expected translation and its translation."""

    source: str
    expected: str
    target: str


@dataclass(frozen=True)
class DemoFigures:
    """All figures of a demo.

    Attributes:
        sentences: held-out sentences that were translated.
        exact: share of them that equals the reference, 0 to 1.
        bleu: BLEU of the whole set, 0 to 100.
        verified: the `lowerings` of tx-export's reports, for the bundles "float32" and "FP16".
        failures: reason of each failed verification, by the same names.
        bundle_bytes: size of all files of the float32 bundle.
        weight_bytes: size of its weights.
        seconds: time of each stage, in order.
        engine: engine that runs the bundle on the CPU.
        bundle: directory of the float32 bundle.
        translations: translations of typical first sentences.
    """

    sentences: int
    exact: float
    bleu: float
    verified: Mapping[str, Sequence[Mapping[str, Any]]]
    failures: Mapping[str, str]
    bundle_bytes: int
    weight_bytes: int
    seconds: Mapping[str, float]
    engine: str
    bundle: Path
    translations: Sequence[Translated]

    @property
    def correct(self) -> int:
        """Number of translations that equal the expected ones."""
        return sum(each.target == each.expected for each in self.translations)


def missed(figures: DemoFigures) -> list[str]:
    """Return a sentence for each figure that is lower than usual. Training depends on the processor."""
    misses = []
    if figures.exact < MIN_EXACT:
        misses.append(f"exact match is {figures.exact:.1%}; it is usually at least {MIN_EXACT:.0%}")
    for example in figures.translations[:MAX_LISTED]:
        if example.target != example.expected:
            misses.append(f"{example.source!r} became {example.target!r}, not {example.expected!r}")
    if figures.correct < MIN_RIGHT * len(figures.translations):
        misses.append(f"only {figures.correct} of {len(figures.translations)} everyday sentences are right")
    return misses


def minutes(seconds: float) -> str:
    """Return a time in minutes and seconds, such as "4:10 min"."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def print_summary(figures: DemoFigures, console: Console) -> None:
    """Print a table of all figures, the times, the translations and the path of the bundle."""
    table = Table(title="txport demo", title_justify="left", show_header=False)
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    table.add_row("exact match", f"{figures.exact:.1%} of {figures.sentences} held-out sentences")
    table.add_row("BLEU", f"{figures.bleu:.2f}")
    table.add_row("everyday sentences", f"{figures.correct} of {len(figures.translations)} right")
    for name, lowerings in figures.verified.items():
        table.add_section()
        table.add_row(f"verified, {name}", "sentences identical to PyTorch; largest logit error")
        if name in figures.failures:
            table.add_row("  failed", escape(figures.failures[name]))
        for each in lowerings:
            counts = f"{each['token_identical']}/{each['sentences']}"
            table.add_row(f"  {each['lowering']}", f"{counts}; {each['max_logit_error']:.1e}")
    table.add_section()
    ratio = figures.bundle_bytes / figures.weight_bytes
    table.add_row("bundle size", f"{figures.bundle_bytes / 1e6:.2f} MB, {ratio:.3f} times its weights")
    table.add_row("engine", escape(figures.engine))
    table.add_section()
    for stage, seconds in (*figures.seconds.items(), ("in total", sum(figures.seconds.values()))):
        table.add_row(escape(stage), minutes(seconds))
    table.add_section()
    for example in figures.translations[:MAX_LISTED]:
        table.add_row("written\nspoken", f"{escape(example.source)}\n{escape(example.target)}")
    table.add_section()
    table.add_row("bundle", escape(str(figures.bundle)))
    console.print(table)
    misses = missed(figures)
    if figures.exact < WEAK:
        misses.append("The model learned too little, as on a busy machine: run `make demo` again when it is idle.")
    for sentence in misses:
        console.print(f"[yellow]{escape(sentence)}", highlight=False, soft_wrap=True)
    script = Path(sys.executable).parent / "tx-translate"
    if script.is_relative_to(Path.cwd()):  # a path that a user in this directory can type
        script = script.relative_to(Path.cwd())
    command = f"{script} {figures.bundle}"
    console.print(f"Try it: echo 'See you at 5 pm.' | {escape(command)}", highlight=False, soft_wrap=True)
