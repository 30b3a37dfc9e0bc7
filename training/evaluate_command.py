"""Command tx-evaluate: measure the quality of checkpoints and bundles. PyTorch is imported only when needed."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.bundle.kinds import check_model, kind_of
from txport.runtime.bundle.strict_json import finite
from txport.runtime.console.flags import DEVICE, ENGINE, THREADS, refuse_unused
from txport.runtime.console.logs import show_log
from txport.runtime.console.progress import Stages
from txport.runtime.console.words import plural
from txport.runtime.engines.choice import check_words
from txport.runtime.errors import InputError
from txport.runtime.files import check_writable, write_atomically
from txport.runtime.libraries import needs, without_collection
from txport.runtime.text.lines import as_line
from txport.training.options import WITHOUT_FILES, kind_of_corpus
from txport.training.quality.evaluation_sets import NO_ENGINE, EvaluationSet, evaluation_sets
from txport.training.recipe import read

if TYPE_CHECKING:
    from txport.training.quality.comparison import Standing
    from txport.training.quality.evaluation import Scores
    from txport.training.quality.sentence_scores import Scored


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", metavar="BUNDLE_OR_CHECKPOINT...", nargs=-1, required=True, type=BUNDLE)
@click.option(
    "--source", "sources", multiple=True, type=click.Path(path_type=Path),
    help="File of sentences to translate, one per line. Repeatable. [default: the checkpoint's test "
"sentences]",
)  # fmt: skip
@click.option(
    "--reference",
    "references",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File of reference translations, one per line.",
)
@click.option(
    "--recipe", "recipes", multiple=True, help="Recipe whose test split is translated, for example demo. Repeatable."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Directory of the recipe's corpus files. [default: $TXPORT_DATA, else the current directory]",
)
@click.option("--lines", type=click.IntRange(1), help="Use only the first N sentences. [default: all]")
@click.option(
    "--max-length",
    type=click.IntRange(1),
    help="Maximum number of target tokens, including eos. [default: 2 x source tokens + 20]",
)
@click.option("--beam", type=click.IntRange(1), help="Number of beams. [default: 1, greedy search]")
@DEVICE
@ENGINE
@THREADS
@click.option(
    "--batch", type=click.IntRange(1), help="Maximum batch size in sentences. [default: 64, or the bundle's maximum]"
)
@click.option(
    "--show",
    type=click.IntRange(0),
    default=0,
    help="Show the N worst translations with source, reference, sentence BLEU and chrF.",
)
@click.option(
    "--bleu-order", type=click.IntRange(1), default=2, show_default=True, help="Maximum n-gram size of sentence BLEU."
)
@click.option("--output", type=click.Path(path_type=Path), help="Write the translations to this file.")
@click.option("--json", "as_json", is_flag=True, help="Write the figures as JSON.")
def main(
    models: tuple[Path, ...], sources: tuple[Path, ...], references: tuple[Path, ...], recipes: tuple[str, ...],
    data: Path | None, lines: int | None, max_length: int | None, beam: int | None, device: str, engine: str,
    threads: int, batch: int | None, show: int, bleu_order: int, output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Translate test sets with txport's search and print BLEU and chrF (sacreBLEU) and the share of exact matches.

    Checkpoints run in PyTorch, bundles in txport's runtime. Several models are compared with the first one by paired
    bootstrap resampling.
    """
    show_log("txport")
    refuse_unused(not show, "without --show", "bleu_order")
    refuse_unused(not recipes, "without --recipe", "data")
    _refuse_unused_data(recipes)
    if len(set(models)) < len(models):
        raise InputError("a model is given twice: name each once")
    sets = evaluation_sets(models[0], sources, references, recipes, data or Path(os.environ.get("TXPORT_DATA", ".")))
    if output is not None and len(models) * len(sets) > 1:
        raise InputError("--output takes the translations of one model on one test set: evaluate them one by one")
    check_words(device, engine)
    for model in models:
        check_model(model)
        if engine != "auto" and kind_of(model) == "checkpoint":
            raise InputError(NO_ENGINE.format(model, engine))
    if output is not None:
        check_writable(output)
    evaluation = _Evaluation(sets, lines, max_length, beam, device, engine, threads, batch, show, bleu_order)
    reports, texts = evaluation.run(models)
    if output is not None:
        write_atomically(output, b"".join(map(as_line, texts[models[0], sets[0].name])))
    if as_json:
        figures = [report.to_json() for report in reports]
        click.echo(json.dumps(finite(figures if len(figures) > 1 else figures[0]), indent=1))
    else:
        blocks = [report.table(max_length) for report in reports]
        if len(models) > 1:
            blocks += [comparison([each for each in reports if each.test_set == one.name]) for one in sets]
        click.echo("\n\n".join(blocks))


def _refuse_unused_data(recipes: Sequence[str]) -> None:
    kinds = [kind_of_corpus(read(name).corpus) for name in recipes]
    if set(kinds) <= set(WITHOUT_FILES):
        refuse_unused(bool(kinds), f"with a corpus of kind {' or '.join(kinds)}, which has no files", "data")


@dataclass(frozen=True)
class _Evaluation:
    """Settings of an evaluation. See the options of the same names."""

    sets: Sequence[EvaluationSet]
    lines: int | None
    max_length: int | None
    beam: int | None
    device: str
    engine: str
    threads: int
    batch: int | None
    show: int
    order: int

    def run(self, models: Sequence[Path]) -> "tuple[list[Report], dict[tuple[Path, str], list[str]]]":
        """Evaluate each model on each set. Return reports, and translations by model and set."""
        with needs("train"):
            from txport.training.quality.comparison import compare
        reports: dict[tuple[Path, str], Report] = {}
        texts: dict[tuple[Path, str], list[str]] = {}
        for model in models:
            for translations, report in self._reports(model):
                texts[model, report.test_set] = translations
                reports[model, report.test_set] = report
        for each in self.sets if len(models) > 1 else ():
            standings = compare(
                {str(model): texts[model, each.name] for model in models},
                [text for _, text in each.pairs[: self.lines]],
            )
            for model in models:
                key = model, each.name
                reports[key] = replace(reports[key], standing=standings[str(model)], first=models[0])
        return list(reports.values()), texts

    def _reports(self, model: Path) -> "Iterator[tuple[list[str], Report]]":
        with without_collection(), needs("train"):
            from txport.training.quality.evaluation import answers, check_inputs, open_model, score
            from txport.training.quality.sentence_scores import worst
        for each in self.sets:
            check_inputs(model, [text for text, _ in each.pairs[: self.lines]], each.name)
        engine, tokenizer = open_model(model, self.device, self.engine, self.threads)
        for each in self.sets:
            pairs = each.pairs[: self.lines]
            sentences = [text for text, _ in pairs]
            with Stages(transient=True) as stages:
                stages.stage("translating", len(pairs))
                translations = answers(
                    engine,
                    tokenizer,
                    sentences,
                    max_length=self.max_length,
                    beam=self.beam,
                    rows=self.batch,
                    watch=stages.advance,
                )
            texts = [answer.text for answer in translations]
            yield (
                texts,
                Report(
                    model=model,
                    test_set=each.name,
                    scores=score(texts, [text for _, text in pairs]),
                    lines=len(each.pairs),
                    unfinished=sum(not answer.finished for answer in translations),
                    truncated=sum(not answer.complete_source for answer in translations),
                    order=self.order,
                    worst=worst(pairs, texts, self.show, self.order),
                ),
            )


@dataclass(frozen=True)
class Report:
    """Results of one model on one test set.

    Attributes:
        model: directory of the model.
        test_set: name of the test set.
        scores: BLEU, chrF and exact matches.
        lines: number of sentences in the test set.
        unfinished: number of translations that reached the maximum length.
        truncated: number of truncated source sentences.
        order: maximum n-gram order of sentence BLEU.
        worst: the worst translations, to print.
        standing: comparison of several models; `first` is the first model.
    """

    model: Path
    test_set: str
    scores: "Scores"
    lines: int
    unfinished: int
    truncated: int
    order: int = 2
    worst: Sequence["Scored"] = ()
    standing: "Standing | None" = None
    first: Path | None = None

    def to_json(self) -> dict[str, Any]:
        names = {"model": str(self.model), "test_set": self.test_set}
        counts = {"lines": self.lines, "unfinished": self.unfinished, "cut": self.truncated}
        if self.worst:
            examples = {"bleu_order": self.order, "worst": [asdict(each) for each in self.worst]}
        else:
            examples = {}
        if self.standing:
            standing = {"bootstrap": asdict(self.standing)}
        else:
            standing = {}
        return {**names, **self.scores.to_json(), **counts, **standing, **examples}

    def table(self, max_length: int | None) -> str:
        """Return the result as text. Normal values of some figures are left out."""
        scores = self.scores
        limit = max_length or "2 x source tokens + 20"
        if self.lines > scores.sentences:
            note = f", the first of {self.lines:,}"
        else:
            note = ""
        rows = [
            f"{self.model} on {self.test_set}: {plural(scores.sentences, 'sentence')}{note}",
            f"BLEU         {scores.bleu:6.2f}  {scores.bleu_signature}",
            f"chrF         {scores.chrf:6.2f}  {scores.chrf_signature}",
            f"exact match  {100 * scores.exact:6.2f}%",
        ]
        if self.standing is not None:
            rows.insert(2, self._interval_line(self.standing))
        if self.unfinished:
            rows.append(
                f"unfinished   {plural(self.unfinished, 'sentence')}: no end within {limit} tokens (see --max-length)"
            )
        if self.truncated:
            rows.append(f"cut          {plural(self.truncated, 'sentence')}: longer than the model reads")
        return "\n".join([*rows, *(self._example(each) for each in self.worst)])

    def _interval_line(self, standing: "Standing") -> str:
        interval = f"bootstrap    ± {standing.interval:.2f} BLEU (95%)"
        if standing.p_value is None:
            return interval
        return f"{interval}; difference from {self.first}: p = {standing.p_value:.3f}"

    def _example(self, each: "Scored") -> str:
        return (
            f"\nsource       {each.source}\nreference    {each.reference}\ntranslation  {each.translation}\n"
            f"BLEU-{self.order:<7} {each.bleu:.3f}, chrF {each.chrf:.1f}"
        )


def comparison(reports: Sequence[Report]) -> str:
    """Return a table with a row for each model on one test set: BLEU, difference from the first model, and p-value."""
    first = reports[0].scores.bleu
    width = max(len(str(each.model)) for each in reports)
    rows = [f"{reports[0].test_set}", f"{'':{width}}    BLEU  difference      p    chrF    exact"]
    for number, each in enumerate(reports):
        if each.standing is None:
            p = None
        else:
            p = each.standing.p_value
        if number:
            difference = f"{each.scores.bleu - first:+.2f}"
        else:
            difference = ""
        rows.append(
            f"{each.model!s:{width}}  {each.scores.bleu:6.2f}  {difference:>10}  {'' if p is None else f'{p:.3f}':>5}  "
            f"{each.scores.chrf:6.2f}  {100 * each.scores.exact:6.2f}%"
        )
    return "\n".join(rows)
