"""tx-distill: a text and a bundle's translations of it, as pairs to train another model on.

Sequence-level knowledge distillation (Kim and Rush 2016, arXiv:1606.07947, section 3.2): a student that learns what its
teacher says, rather than what people wrote, has fewer answers to choose between, and gives up less for being small.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.errors import InputError
from txport.runtime.files import new_file
from txport.runtime.results import Translation
from txport.runtime.text.lines import ON_ERROR, open_lines, text_windows
from txport.runtime.translator import Translator

_log = logging.getLogger("txport")
# Seconds between two lines of progress.
EVERY = 30.0
# Columns are divided by tabs, and pairs by the end of a line.
_SPACES = str.maketrans("\t\n\r", "   ")


@dataclass(frozen=True)
class Filter:
    """Conditions of a pair to be learned from.

    Attributes:
        max_ratio: the longer side has at most so many times the tokens of the shorter one.
        min_score: the least mean log-probability of an answer's tokens, in nats.
    """

    max_ratio: float
    min_score: float

    def fault(self, source: int, prefix: int, result: Translation) -> str | None:
        """Why a pair is left out; None if it is kept.

        Args:
            source: tokens of the source text, without language tokens and eos.
            prefix: tokens that the answer was forced to begin with: nobody chose them.
            result: the answer, with scores.
        """
        assert result.scores is not None
        if not source:
            return "blank"
        if result.truncated or not result.finished:
            return "cut"
        target = len(result.ids) - prefix - 1
        if not target or not result.text.strip():
            return "empty"
        if max(source, target) > self.max_ratio * min(source, target):
            return f"above --max-ratio {self.max_ratio:g}"
        scores = result.scores[prefix:]
        return f"below --min-score {self.min_score:g}" if sum(scores) / len(scores) < self.min_score else None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE)
@click.option("--source", required=True, type=click.Path(path_type=Path), help="Text to translate, a sentence a line.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path),
    help="File of pairs to write, whole or not at all: source, tab, translation.",
)  # fmt: skip
@click.option(
    "--max-ratio", type=click.FloatRange(1), default=3.0, show_default=True,
    help="Leave out pairs of which one side has more than so many times the tokens of the other.",
)  # fmt: skip
@click.option(
    "--min-score", type=click.FloatRange(max=0), default=-1.0, show_default=True,
    help="Leave out translations whose tokens have a lower mean log-probability.",
)  # fmt: skip
@click.option("--source-language", help="Language of the text, for a bundle of many. [default: the bundle's]")
@click.option("--target-language", help="Language of the translations. [default: the bundle's]")
@click.option(
    "--max-length",
    type=click.IntRange(1),
    help="Most tokens to make, eos included. [default: 2 for each of the source's and 20 more]",
)
@click.option("--errors", type=click.Choice(ON_ERROR), default=ON_ERROR[0], show_default=True,
              help="For a line that is not UTF-8: stop, put U+FFFD where it is wrong, or leave it out.")  # fmt: skip
@click.option("--device", default="auto", show_default=True, help="Where to run: auto, cpu or cuda.")
@click.option("--engine", default="auto", show_default=True, help="What runs it there: auto, fused, ort or trt.")
@click.option("--threads", type=click.IntRange(0), default=0, help="Threads of each operator. [default: the cores]")
@click.option(
    "--workers", type=click.IntRange(0), default=0,
    help="Batches that run side by side on the CPU. [default: one per core, at most 4]",
)  # fmt: skip
@click.option("--batch", type=click.IntRange(1), help="Most sentences that run together. [default: the bundle's]")
def main(
    bundle: Path, source: Path, output: Path, max_ratio: float, min_score: float, errors: str, device: str,
    engine: str, threads: int, workers: int, batch: int | None, **options: Any,
) -> None:  # fmt: skip
    """Translate a text with BUNDLE and write the pairs that are good enough to train another model on.

    The file is what a recipe reads as kind = "table". Memory does not grow with the text.
    """
    logging.basicConfig(format="tx-distill: %(message)s", level=logging.WARNING)
    _log.setLevel(logging.INFO)
    translator = Translator(bundle, device, engine, threads=threads, batch=batch, workers=workers)
    allowed = Filter(max_ratio, min_score)
    found: Counter[str | None] = Counter()
    with open_lines(source) as raw, new_file(output) as file:
        windows = text_windows(raw, errors, f"{source}, line")
        for pairs in _kept(translator, windows, allowed, found, options, f"{source}, line"):
            file.writelines(f"{_cell(text)}\t{_cell(translation)}\n".encode() for text, translation in pairs)
        if not found[None]:
            raise InputError(f"{source} gives no pair: {_summary(found)}")
    click.echo(f"{output}: {_summary(found)}")


def _kept(
    translator: Translator,
    windows: Iterator[Sequence[str]],
    allowed: Filter,
    found: "Counter[str | None]",
    options: dict[str, Any],
    what: str,
) -> Iterator[list[tuple[str, str]]]:
    """The pairs of each window that pass the filter; `found` counts all, by what is wrong with them."""
    languages, said = (options["source_language"], options["target_language"]), time.monotonic()
    window: Sequence[str] = ()

    def remembered() -> Iterator[Sequence[str]]:
        nonlocal window
        for lines in windows:
            window = lines
            yield lines

    for results in translator.translate_windows(remembered(), scores=True, what=what, **options):
        pairs = []
        for text, result in zip(window, results, strict=True):
            ids, around = translator.tokenizer.encode_source(text, *languages)
            blank = not text or text.isspace()
            fault = allowed.fault(0 if blank else len(ids), len(around.target_prefix), result)
            found[fault] += 1
            if fault is None:
                pairs.append((text, result.text))
        yield pairs
        if time.monotonic() - said >= EVERY:
            said = time.monotonic()
            _log.info("%s", _summary(found))


def _summary(found: "Counter[str | None]") -> str:
    """Count of the pairs that were kept, and why others were not."""
    faults = ", ".join(f"{count:,} {fault}" for fault, count in sorted(found.items(), key=str) if fault is not None)
    return f"{found[None]:,} of {found.total():,} sentences kept{f' ({faults})' if faults else ''}"


def _cell(text: str) -> str:
    return text.translate(_SPACES).strip()
