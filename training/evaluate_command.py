"""tx-evaluate: how good a checkpoint or a bundle is. PyTorch is imported when there is something to translate."""

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from txport.runtime.errors import InputError
from txport.runtime.files import write_atomically
from txport.runtime.libraries import needs
from txport.runtime.text.lines import as_line
from txport.training.corpora import Pair, load_test, read_parallel
from txport.training.recipe import read

if TYPE_CHECKING:
    from txport.training.evaluation import Scores
    from txport.training.sentence_scores import Scored

_log = logging.getLogger("txport")

# Seconds between two lines of progress where no bar can be.
EVERY = 30.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", metavar="BUNDLE_OR_CHECKPOINT", type=click.Path(path_type=Path))
@click.option("--source", type=click.Path(path_type=Path), help="Sentences to translate, one a line.")
@click.option("--reference", type=click.Path(path_type=Path), help="Their translations, one a line.")
@click.option("--recipe", help="Instead of files: the test split of a recipe. [default: demo, the built-in corpus]")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Directory of the corpus files that the recipe names. [default: $TXPORT_DATA, else the current directory]",
)
@click.option("--lines", type=click.IntRange(1), help="Only the first so many sentences. [default: all]")
@click.option(
    "--max-length",
    type=click.IntRange(1),
    help="Most tokens to make, eos included. [default: twice the source's and 20]",
)
@click.option(
    "--device", default="auto", show_default=True, help="Where to run: auto, cpu or cuda; a bundle also: trt."
)
@click.option("--threads", type=click.IntRange(0), default=0, help="Threads of each operator. [default: the cores]")
@click.option(
    "--batch", type=click.IntRange(1), help="Most sentences that run together. [default: 64, or the bundle's]"
)
@click.option(
    "--show",
    type=click.IntRange(0),
    default=0,
    help="Show the so many worst translations beside source and reference, with sentence BLEU and chrF, worst first.",
)
@click.option(
    "--bleu-order", type=click.IntRange(1), default=2, show_default=True, help="The longest n-grams of sentence BLEU."
)
@click.option("--output", type=click.Path(path_type=Path), help="Write the translations to this file.")
@click.option("--json", "as_json", is_flag=True, help="Write the figures as JSON.")
def main(
    model: Path, source: Path | None, reference: Path | None, recipe: str | None, data: Path | None, lines: int | None,
    max_length: int | None, device: str, threads: int, batch: int | None, show: int, bleu_order: int,
    output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Translate a test set greedily, with the loop that ships, and compare: BLEU and chrF by sacreBLEU, exact match.

    A checkpoint runs in PyTorch, a bundle in txport's runtime.
    """
    logging.basicConfig(format="tx-evaluate: %(message)s", level=logging.WARNING)
    _log.setLevel(logging.INFO)
    pairs = _pairs(source, reference, recipe, data or Path(os.environ.get("TXPORT_DATA", ".")))
    shown = pairs[:lines]
    with needs("train"):
        from txport.training.evaluation import answers, open_model, score
        from txport.training.sentence_scores import worst
    engine, tokenizer = open_model(model, device, threads)
    with _Progress(len(shown)) as progress:
        made = answers(
            engine, tokenizer, [text for text, _ in shown], max_length=max_length, rows=batch, watch=progress.advance
        )
    if output is not None:
        write_atomically(output, b"".join(as_line(answer.text) for answer in made))
    texts = [answer.text for answer in made]
    scores = score(texts, [text for _, text in shown])
    report = Report(
        scores,
        len(pairs),
        sum(not each.ended for each in made),
        sum(not each.whole for each in made),
        bleu_order,
        worst(shown, texts, show, bleu_order),
    )
    click.echo(json.dumps(report.to_json(), indent=1) if as_json else report.table(model, max_length))


@dataclass(frozen=True)
class Report:
    """What is shown.

    Attributes:
        scores: the figures.
        lines: sentences that the test set has.
        unfinished: translations that did not end before the most tokens were made.
        cut: sentences of which the model could read a part only.
        order: of sentence BLEU.
        worst: the translations to show.
    """

    scores: "Scores"
    lines: int
    unfinished: int
    cut: int
    order: int = 2
    worst: Sequence["Scored"] = ()

    def to_json(self) -> dict[str, Any]:
        counts = {"lines": self.lines, "unfinished": self.unfinished, "cut": self.cut}
        shown = {"bleu_order": self.order, "worst": [asdict(each) for each in self.worst]} if self.worst else {}
        return {**self.scores.to_json(), **counts, **shown}

    def table(self, model: Path, max_length: int | None) -> str:
        """For people; what is as it should be is not mentioned."""
        scores, most = self.scores, max_length or "twice the source's and 20"
        of = f", the first of {self.lines}" if self.lines > scores.sentences else ""
        rows = [
            f"{model}: {_sentences(scores.sentences)}{of}",
            f"BLEU         {scores.bleu:6.2f}  {scores.bleu_signature}",
            f"chrF         {scores.chrf:6.2f}  {scores.chrf_signature}",
            f"exact match  {100 * scores.exact:6.2f}%",
        ]
        if self.unfinished:
            rows.append(f"unfinished   {_sentences(self.unfinished)}: no end within {most} tokens (see --max-length)")
        if self.cut:
            rows.append(f"cut          {_sentences(self.cut)}: longer than the model reads")
        return "\n".join([*rows, *(self._shown(each) for each in self.worst)])

    def _shown(self, each: "Scored") -> str:
        return (
            f"\nsource       {each.source}\nreference    {each.reference}\ntranslation  {each.translation}\n"
            f"BLEU-{self.order:<7} {each.bleu:.3f}, chrF {each.chrf:.1f}"
        )


def _sentences(count: int) -> str:
    return f"{count} sentence{'' if count == 1 else 's'}"


class _Progress:
    """A bar on a terminal, and in a pipe a line every half minute; on standard error."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )  # fmt: skip

        columns = (
            TextColumn("translating"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
        self._task = self._bar.add_task("", total=total)
        self._total, self._done, self._said = total, 0, time.monotonic()

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def advance(self, count: int) -> None:
        self._done += count
        self._bar.advance(self._task, count)
        if self._bar.disable and time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            _log.info("%d of %s translated", self._done, _sentences(self._total))


def _pairs(source: Path | None, reference: Path | None, recipe: str | None, data: Path) -> list[Pair]:
    if (source is None) != (reference is None):
        raise InputError("--source and --reference belong together: give both, or neither for a recipe's test split")
    if source is None or reference is None:
        whole = read(recipe or "demo")
        return load_test(whole.corpus, data, whole.tokenizer)
    if recipe is not None:
        raise InputError("--recipe and --source both say what to translate: give one of them")
    return read_parallel(source, reference)
