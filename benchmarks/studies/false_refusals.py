"""False refusals of verification: `python -m txport.benchmarks.studies.false_refusals DIRECTORY [CHECKPOINT ...]`.

Small models of many kinds are trained (`variants`), exported in each format and verified on 200 and 1,000 sentences.
None of them has a fault, so each refusal is false unless tokens or BLEU justify it. DIRECTORY keeps the checkpoints and
`results.jsonl`, a line for each model and format. A study that was interrupted continues where it stopped.
"""

import json
import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from txport.benchmarks.report.tables import markdown_table
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.sample import choose_sample
from txport.exporter.verification.options import SINGLES
from txport.exporter.verification.report import VerificationReport
from txport.exporter.verification.verify import Verifier
from txport.models.checkpoint import load_checkpoint
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.strict_json import encode
from txport.runtime.console.progress import Stages
from txport.runtime.errors import TxportError
from txport.training.loop import train
from txport.training.recipe import read
from txport.training.run.interruption import Interrupted

RESULTS = "results.jsonl"
FORMATS = ("float32", "float16", "int8")
SENTENCES = (200, 1_000)
CONFIDENCE = 0.95
# Widths, number of models of each width, and steps of a short and a long training.
WIDTHS = ((32, 14, 100, 600), (64, 16, 100, 500), (128, 14, 60, 300), (256, 4, 40, 150), (512, 3, 30, 60))
DEMOS = 5
CORPUS = (
    *("corpus.train=8000", "corpus.validation=100", "corpus.test=1000", "tokenizer.vocabulary=600"),
    "training.max_minutes=6",  # for this time, the test set has 300 sentences
)
# Values of the settings that vary between models.
KINDS: dict[str, tuple[Any, ...]] = {
    "norm": ("pre", "post", "post_final"),
    "norm_kind": ("layer", "rms", "power"),
    "positions": ("rotary", "relative", "learned", "sinusoidal"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu"),
    "feed_forward": ("plain", "gated"),
    "copy_heads": ([], [[1, 0]]),
    "encoder_layers": (2, 3, 1),
}


@dataclass(frozen=True)
class Variant:
    """A model to train: its name, and its changes of the recipe of the demo."""

    name: str
    overrides: tuple[str, ...]


def variants() -> list[Variant]:
    """Return all models, with random settings of a fixed seed, in an order in which any part has all widths."""
    draw, placed = random.Random(51), []
    for width, count, short, long in WIDTHS:
        columns = {name: _in_turn(draw, values, count) for name, values in KINDS.items()}
        for number in range(count):
            fields = {name: column[number] for name, column in columns.items()}
            fields |= {"d_model": width, "ffn": 4 * width, "heads": 4 if width < 256 else 8}
            if number % 2:
                steps = short
            else:
                steps = long
            if width < 256:
                rate = 3e-3
            else:
                rate = 1e-3
            training: dict[str, float] = {
                "max_steps": steps,
                "warmup_steps": steps // 3,
                "seed": number + 1,
                "batch_tokens": 512,
            }
            training |= {"learning_rate": rate, "validation_sentences": 20, "validate_every": 100_000}
            settings = [f"model.{name}={json.dumps(value)}" for name, value in fields.items()]
            settings += [f"training.{name}={value}" for name, value in training.items()]
            placed.append(((number + 1) / count, width, Variant(f"{width}-{number + 1}", (*CORPUS, *settings))))
    ordered = [variant for *_, variant in sorted(placed, key=lambda each: each[:2])]
    return ordered + [Variant(f"demo-{seed}", (f"training.seed={seed}",)) for seed in range(1, DEMOS + 1)]


def _in_turn(draw: random.Random, values: Sequence[Any], count: int) -> list[Any]:
    """Return `count` values in random order, all with equal frequency."""
    column = [values[number % len(values)] for number in range(count)]
    draw.shuffle(column)
    return column


def trained(variant: Variant, directory: Path) -> Path:
    """Return the checkpoint of a variant. It is trained if it does not exist."""
    checkpoint = directory / variant.name
    if not checkpoint.exists():
        train(read("demo", variant.overrides), checkpoint, directory, force=True)
        shutil.rmtree(f"{checkpoint}.run")
    return checkpoint


def verified(
    checkpoint: Path, weights: str, counts: Sequence[int], lowerings: tuple[str, ...] = ("ort",)
) -> list[dict[str, Any]]:
    """Export a checkpoint in a format and verify the bundle on each number of sentences.

    The first verification is that of the export. The fused engine is verified in addition to these lowerings.
    """
    with tempfile.TemporaryDirectory() as scratch:
        bundle, loaded = Path(scratch) / "bundle", load_checkpoint(checkpoint)
        options = ExportOptions(
            float16=weights == "float16",
            int8=weights == "int8",
            lowerings=("ort",) if weights == "int8" else lowerings,
            sentences=counts[0],
            force=True,
        )
        first = export_bundle(checkpoint, bundle, options)
        assert first is not None
        reports, manifest = [first], Manifest.load(bundle)
        for count in counts[1:]:
            sample = choose_sample(loaded, count, manifest.limits.source, manifest.limits.target)
            verifier = Verifier(loaded, sample, SINGLES, Stages(enabled=False))
            reports.append(verifier.verify_bundle(bundle, manifest))
    return [_figures(report) for report in reports]


def _figures(report: VerificationReport) -> dict[str, Any]:
    """Return the figures of a report that are needed for the results."""
    return {
        "sentences": report.sentences,
        "passed": report.passed,
        "failure": None if report.passed else report.failure,
        "lowerings": {
            each.lowering: {
                "average": report.rounding.ratio(each.errors),
                "lead": each.errors.lead / report.rounding.errors.lead if report.rounding.errors.lead else 0.0,
                "token_identical": each.token_identical,
                "examined": each.examined,
                "failures": each.failures,
                "quality": encode(each.quality),
                "quality_lost": each.quality is not None and each.quality.failure is not None,
            }
            for each in report.lowerings
        },
    }


def is_justified(run: dict[str, Any]) -> bool:
    """Return whether translations have lost quality, so that a refusal is correct."""
    return any(each["quality_lost"] for each in run["lowerings"].values())


def study(
    directory: Path,
    models: Iterable[tuple[str, Callable[[], Path]]],
    counts: Sequence[int] = SENTENCES,
    lowerings: tuple[str, ...] = ("ort",),
) -> Iterator[dict[str, Any]]:
    """Verify each model in each format, and append a line to the results.

    Args:
        directory: directory of the results.
        models: name of each model, and a function that returns its checkpoint, which is not called for finished models.
        counts: numbers of sentences.
        lowerings: lowerings to verify, in addition to the fused engine.

    Yields:
        each new line.
    """
    file = directory / RESULTS
    finished = {(each["model"], each["format"]) for each in read_results(directory)}
    for name, checkpoint_of in models:
        for weights in FORMATS:
            if (name, weights) in finished:
                continue
            start = time.monotonic()
            line: dict[str, Any] = {"model": name, "format": weights}
            try:
                checkpoint = checkpoint_of()
                line |= {"config": load_checkpoint(checkpoint).config.to_json()}
                line |= {"runs": verified(checkpoint, weights, counts, lowerings)}
            except Interrupted:
                raise
            except TxportError as error:
                line |= {"error": str(error), "runs": []}
            line["seconds"] = round(time.monotonic() - start, 1)
            with file.open("a", encoding="utf-8") as output:
                output.write(json.dumps(line) + "\n")
            yield line


def read_results(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of an earlier study without an incomplete last line."""
    file, lines = directory / RESULTS, []
    for text in file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []:
        if text.endswith("\n"):
            lines.append(json.loads(text))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return lines


def interval(events: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact confidence interval of a probability (Clopper and Pearson 1934, "The use of confidence limits").

    Without events, its upper end is near 3 / trials, the rule of three.
    """

    def at_most(count: int, probability: float) -> float:
        """Return the probability of `count` events or fewer."""
        terms = (
            math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
            + k * math.log(probability) + (trials - k) * math.log1p(-probability)
            for k in range(count + 1)
        )  # fmt: skip
        return math.fsum(map(math.exp, terms))

    def solve(falls_to: float, count: int) -> float:
        """Return the probability of an event at which `count` events or fewer have the probability `falls_to`."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(count, middle) > falls_to else (low, middle)
        return high

    # If no trial or every trial has the event, the whole tail is on one side.
    tail = (1 - confidence) / (1 if events in (0, trials) else 2)
    if events:
        lower = solve(1 - tail, events - 1)
    else:
        lower = 0.0
    if events < trials:
        upper = solve(tail, events)
    else:
        upper = 1.0
    return lower, upper


def tables(lines: Sequence[dict[str, Any]]) -> str:
    """Return all results as Markdown: a row for each format and number of sentences, and rates of false refusals."""
    rows = []
    runs = [(line, run) for line in lines for run in line["runs"]]
    for weights in FORMATS:
        for number in sorted({index for line in lines for index in range(len(line["runs"]))}):
            runs_of_format = [line["runs"][number] for line in lines if line["format"] == weights and line["runs"]]
            if runs_of_format:
                rows.append(_row(weights, runs_of_format))
    refused = {(line["model"], line["format"]) for line, run in runs if _is_false(run)}
    models = {line["model"] for line, _ in runs}
    sentences = sum(run["sentences"] * len(run["lowerings"]) for _, run in runs)
    heads = ("Bundles", "False refusals", "Average error, multiple of PyTorch's", "Examined, most in one bundle")
    text = markdown_table(heads, rows, text_columns=("Bundles",))
    text += ["", _rate("models", len({model for model, _ in refused}), len(models))]
    text += [_rate("sentences", sum(_is_false(run) for _, run in runs), sentences)]
    text += [f"{line['model']}, {line['format']}: {line['error']}" for line in lines if "error" in line]
    text += [
        f"{line['model']}, {line['format']}, {run['sentences']} sentences{_explanation(run)}: {run['failure']}"
        for line, run in runs
        if not run["passed"]
    ]
    return "\n".join(text)


def _is_false(run: dict[str, Any]) -> bool:
    return not run["passed"] and not is_justified(run)


def _explanation(run: dict[str, Any]) -> str:
    if is_justified(run):
        return " (quality is lost)"
    return ""


def _row(weights: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    averages = [each["average"] for run in runs for each in run["lowerings"].values()]
    examined = max(each["examined"] for run in runs for each in run["lowerings"].values())
    return [
        f"{weights}, {runs[0]['sentences']:,} sentences",
        f"{sum(map(_is_false, runs))} of {len(runs)}",
        f"{min(averages):.2f} to {max(averages):.2f}",
        str(examined),
    ]


def _rate(name: str, events: int, trials: int) -> str:
    lower, upper = interval(events, trials)
    return f"{name}: {events} of {trials:,} refused falsely; {CONFIDENCE:.0%} interval {lower:.2g} to {upper:.2g}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("checkpoints", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--models", type=click.IntRange(0), help="Number of models to train. [default: all]")
@click.option("--lowering", default="ort", show_default=True, help="Decoder steps to verify, separated by commas.")
def main(directory: Path, checkpoints: tuple[Path, ...], models: int | None, lowering: str) -> None:
    """Verify bundles of CHECKPOINTS and of models that are trained in DIRECTORY; print false refusals."""
    directory.mkdir(parents=True, exist_ok=True)
    models_to_study: list[tuple[str, Callable[[], Path]]] = [(path.name, partial(Path, path)) for path in checkpoints]
    models_to_study += [(each.name, partial(trained, each, directory)) for each in variants()[:models]]
    for line in study(directory, models_to_study, lowerings=tuple(lowering.split(","))):
        results = "; ".join(run["failure"] or f"{run['sentences']} sentences pass" for run in line["runs"])
        click.echo(f"{line['model']}, {line['format']}, {line['seconds']} s: {line.get('error') or results}", err=True)
    click.echo(tables(read_results(directory)))


if __name__ == "__main__":
    main()
