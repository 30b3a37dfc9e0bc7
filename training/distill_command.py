"""Command tx-distill: translate a text with a bundle, and write pairs for training another model.

Sequence-level knowledge distillation (Kim and Rush 2016, arXiv:1606.07947, section 3.2): a student that learns a
teacher's translations instead of human ones has fewer alternatives to model, and loses less quality by its small size.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.console.flags import refuse_unused
from txport.runtime.console.logs import show_log
from txport.runtime.corpus.command import PART_FLAGS, of_parts, run
from txport.runtime.corpus.rows import Fault, Output, Rows
from txport.runtime.corpus.translation import bundle_settings, translated
from txport.runtime.errors import InputError
from txport.runtime.files import new_file
from txport.runtime.options import Options
from txport.runtime.results import Translation
from txport.runtime.text.lines import ON_ERROR, open_lines, text_windows
from txport.runtime.translate_command import engine_of, of_engine
from txport.runtime.translator import Translator

# Columns are separated by tabs, and pairs by line ends, so these become spaces.
_SPACES = str.maketrans("\t\n\r", "   ")


@dataclass(frozen=True)
class Filter:
    """Conditions for pairs that are written.

    Attributes:
        max_ratio: maximum ratio of the lengths of both sides, in tokens.
        min_score: minimum mean log-probability of the translation's tokens, in nats.
    """

    max_ratio: float
    min_score: float

    def fault(self, source: int, prefix: int, result: Translation) -> str | None:
        """Return the reason for dropping a pair, or None.

        Args:
            source: number of tokens of the source text, without language tokens and eos.
            prefix: number of forced tokens at the beginning of the translation, which are not counted.
            result: the translation, with scores.
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
        if sum(scores) / len(scores) < self.min_score:
            return f"below --min-score {self.min_score:g}"
        return None


class Distill:
    """Corpus task that writes only pairs of sufficient quality (see `txport.runtime.corpus.loop.RowOperation`).

    Args:
        bundle: the teacher.
        open: function that opens it; called for the first row.
        options: options of the translation.
        allowed: conditions for pairs.
    """

    def __init__(self, bundle: Path, open: Callable[[], Translator], options: Options, allowed: Filter) -> None:
        self._open = open
        self._options = options
        self._allowed = allowed
        self.kinds = {"source": "text", "target": "text", "score": "number"}
        shown = {**asdict(allowed), **{name: getattr(options, name) for name in OPTIONS}}
        self.settings = {**bundle_settings(bundle), **{name: str(value) for name, value in shown.items()}}
        self.tokens = 0
        self.counts: Counter[str] = Counter()

    @cached_property
    def _translator(self) -> Translator:
        return self._open()

    def outputs(self, windows: Iterator[Rows]) -> Iterator[Output]:
        """Yield the pairs of each window, with the mean log-probability of the translations' tokens."""
        for rows, results in translated(self._translator, windows, self._options):
            columns: dict[str, list[Any]] = {name: [] for name in self.kinds}
            for text, result in zip(rows.texts, results, strict=True):
                self.tokens += len(result.ids)
                fault = "no text" if isinstance(text, Fault) else self._fault(text, result)
                self.counts[fault or KEPT] += 1
                if fault is None:
                    scores = result.scores or [0.0]
                    pair = text.translate(_SPACES).strip(), result.text.translate(_SPACES).strip()
                    for column, value in zip(
                        columns.values(), (*pair, round(sum(scores) / len(scores), 6)), strict=True
                    ):
                        column.append(value)
            yield Output(None, columns)

    def _fault(self, text: str, result: Translation) -> str | None:
        if not text or text.isspace():
            return self._allowed.fault(0, 0, result)
        languages = self._options.source_language, self._options.target_language
        ids, around = self._translator.tokenizer.encode_source(text, *languages)
        return self._allowed.fault(len(ids), len(around.target_prefix), result)


# Fields of `Options` that this command supports.
OPTIONS = ("source_language", "target_language", "max_length")
KEPT = "kept"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE)
@click.option(
    "--source",
    "sources",
    required=True,
    multiple=True,
    metavar="FILE",
    help="Text to translate, one sentence per line. With --to also JSONL, Parquet, directories and URLs.",
)
@click.option(
    "-o", "--output", required=True,
    help="File to write, with source, tab and translation in each line. With --to, a directory.",
)  # fmt: skip
@click.option(
    "--max-ratio", type=click.FloatRange(1), default=3.0, show_default=True,
    help="Drop pairs whose length ratio in tokens exceeds this.",
)  # fmt: skip
@click.option(
    "--min-score", type=click.FloatRange(max=0), default=-1.0, show_default=True,
    help="Drop translations with a lower mean log-probability per token.",
)  # fmt: skip
@click.option("--source-language", help="Source language of a multilingual bundle. [default: the bundle's]")
@click.option("--target-language", help="Target language of a multilingual bundle. [default: the bundle's]")
@click.option(
    "--max-length",
    type=click.IntRange(1),
    help="Maximum number of target tokens, including eos. [default: 2 x source tokens + 20]",
)
@click.option("--errors", type=click.Choice(ON_ERROR), default=ON_ERROR[0], show_default=True,
              help="What to do with a line that is not UTF-8: stop (strict), insert U+FFFD (replace), or drop it "
"(skip).")  # fmt: skip
@of_parts
@of_engine
def main(
    bundle: Path, sources: Sequence[str], output: str, max_ratio: float, min_score: float, errors: str, **options: Any
) -> None:
    """Translate a text with BUNDLE and write the pairs that are good enough to train another model on.

    A recipe reads the file as kind = "table". With --to the output is a directory of parts as of tx-translate-corpus,
    which a recipe reads as kind = "shards". Memory use does not depend on the size of the text.
    """
    show_log("txport.corpus")
    chosen = engine_of(options)
    flags = {name: options.pop(name) for name in PART_FLAGS}
    task = Distill(
        bundle, lambda: Translator(bundle, **chosen), Options(scores=True, **options), Filter(max_ratio, min_score)
    )
    refuse_unused(flags["check"], "with --check", "resume")
    if flags["write"] in ("jsonl", "parquet"):
        click.echo(run(task, sources, output, flags, keep=(), errors=errors))
    elif flags["write"] is None and len(sources) == 1 and not (flags["resume"] or flags["check"]):
        refuse_unused(True, "without --to jsonl or --to parquet", *PART_FLAGS)
        _write_table(task, Path(sources[0]), Path(output), errors)
    else:
        raise InputError("pairs in parts, or of several files, are JSONL or Parquet: choose --to jsonl or --to parquet")


def _write_table(task: Distill, source: Path, output: Path, errors: str) -> None:
    with open_lines(source) as raw, new_file(output) as file:
        windows = (Rows(list(texts), None) for texts in text_windows(raw, errors, f"{source}, line"))
        for pairs in task.outputs(windows):
            rows = zip(pairs.columns["source"], pairs.columns["target"], strict=True)
            file.writelines(f"{text}\t{translation}\n".encode() for text, translation in rows)
        if not task.counts[KEPT]:
            raise InputError(f"{source} gives no pair: {_summary(task.counts)}")
    click.echo(f"{output}: {_summary(task.counts)}")


def _summary(found: "Counter[str]") -> str:
    """Return numbers of written pairs, and of other pairs by reason."""
    faults = ", ".join(f"{count:,} {fault}" for fault, count in sorted(found.items()) if fault != KEPT)
    return f"{found[KEPT]:,} of {found.total():,} sentences kept{f' ({faults})' if faults else ''}"
