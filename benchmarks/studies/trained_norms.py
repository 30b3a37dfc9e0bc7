"""What norms and scheduled sampling do for a training.

`python -m txport.benchmarks.studies.trained_norms -o build/norms`

Models of one recipe, which differ in `model.norm`, `model.norm_kind` and `training.scheduled_sampling` only, are
trained for the same number of steps, one after the other. A machine's speed drifts meanwhile, so the time of a step is
measured afterwards: all models are loaded, and each makes one step on the same batch in turn. Timed: loss, gradient and
Adam on the CPU, with scheduled sampling where it replaces the most tokens. Not timed: making batches, logs, validation.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click
import torch
from txport.benchmarks.machine.description import describe
from txport.benchmarks.report.plots import save
from txport.benchmarks.report.schema import Percentiles, Ratio
from txport.benchmarks.report.statistics import percentiles, ratio
from txport.benchmarks.report.tables import markdown_table
from txport.benchmarks.studies.trained_norms_plot import draw
from txport.benchmarks.studies.trainings import Trained, spread, trained
from txport.benchmarks.studies.turns import in_turns
from txport.models.checkpoint import load_checkpoint
from txport.runtime.entry import run_command
from txport.runtime.files import write_atomically
from txport.training.batching import Loader, TokenBatches
from txport.training.examples import Examples, TrainingBatch
from txport.training.recipe import chosen, read
from txport.training.run.clock import Clock
from txport.training.run.lightning_module import TranslationModule
from txport.training.tokenizers import load_tokenizer
from txport.training.torch_engine import special_tokens

# By the word for the command line: the name for people, and the values of `model.norm` and `model.norm_kind`.
NORMS = {
    "post": ("post-norm", "post", "layer"),
    "pre": ("pre-norm", "pre", "layer"),
    "power": ("PowerNorm", "pre", "power"),
    "rms": ("RMSNorm", "pre", "rms"),
    "batch": ("BatchNorm", "pre", "batch"),
}
SCHEDULES = ("linear", "exponential", "inverse_sigmoid")
VALIDATIONS = 10  # about so many points has a curve
BATCHES, WARM_UP = 40, 2


@dataclass
class Contestant:
    """A norm, with or without scheduled sampling, and what is known of it.

    Attributes:
        norm: a key of `NORMS`.
        scheduled_sampling: as in a recipe.
        runs: a training of each seed.
        losses: of each seed, cross-entropy of the held-out sentences in nats a token, given the true tokens before it.
        step_ms: milliseconds of a training step.
        step_ratio: the same over the first contestant's, round by round.
    """

    norm: str
    scheduled_sampling: str
    runs: list[Trained] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    step_ms: Percentiles | None = None
    step_ratio: Ratio | None = None

    def overrides(self, steps: int, seed: int) -> list[str]:
        """Of the recipe, for `txport.training.recipe.read`."""
        _, norm, kind = NORMS[self.norm]
        # The last validation is after the last step.
        every = next(each for each in range(-(-steps // VALIDATIONS), steps + 1) if steps % each == 0)
        training = {"max_steps": steps, "validate_every": every, "seed": seed, "keep": "last"}
        return [
            f"model.norm={norm}", f"model.norm_kind={kind}", f"training.scheduled_sampling={self.scheduled_sampling}",
            *(f"training.{key}={value}" for key, value in training.items()),
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {
            "norm": NORMS[self.norm][0],
            "scheduled_sampling": self.scheduled_sampling,
            "runs": [
                {"checkpoint": run.run.checkpoint.name, "loss": loss, "test": asdict(run.test), "losses": run.losses}
                for run, loss in zip(self.runs, self.losses, strict=True)
            ],
            "step_ms": self.step_ms and asdict(self.step_ms),
            "step_ratio": self.step_ratio and asdict(self.step_ratio),
        }


class Step:
    """A trained model, to judge it and to time its training step, which moves no weight."""

    def __init__(self, run: Trained) -> None:
        checkpoint, options = load_checkpoint(run.run.checkpoint), run.run.stored().training
        tokenizer = load_tokenizer(run.run.tokenizer)
        self.module = TranslationModule(checkpoint.model, options, tokenizer, [], Clock(None), lambda done, total: None)
        self._optimizer = self.module.configure_optimizers()  # with a learning rate of 0
        self._true_token = 1.0 if options.scheduled_sampling == "none" else options.sampling_least
        pairs = list(zip(checkpoint.sentences, checkpoint.references, strict=True))
        examples = Examples.of(pairs, tokenizer, options.max_length, special_tokens(checkpoint.config))
        order = TokenBatches(examples.lengths, chosen(options.batch_tokens), most_rows=options.batch_pairs)
        # Held out, so that they are good for both.
        self.batches: list[TrainingBatch] = list(Loader(examples, order))

    def loss(self) -> float:
        """Of all batches, as `Contestant.losses` has it."""
        self.module.eval()
        pad, total, tokens = self.module.model.config.pad_id, 0.0, 0
        with torch.no_grad():
            for batch in self.batches:
                count = int((batch.target_ids[:, 1:] != pad).sum())
                total, tokens = total + count * float(self.module.loss(batch, 0.0)), tokens + count
        return total / tokens

    def run(self, batch: TrainingBatch) -> None:
        self.module.train()
        self._optimizer.zero_grad()
        loss = self.module.loss(batch, self.module.options.label_smoothing, self._true_token)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.module.options.clip_norm)
        self._optimizer.step()


def measure_steps(contestants: Sequence[Contestant], rounds: int) -> None:
    """Fill in `step_ms` and `step_ratio`, by the models of the first seed."""
    steps = [Step(contestant.runs[0]) for contestant in contestants]
    # All have the same batches: what a corpus holds out does not depend on the seed of the training.
    batches = [iter(list(islice(cycle(step.batches[:BATCHES]), WARM_UP + rounds))) for step in steps]
    calls = [lambda step=step, own=own: step.run(next(own)) for step, own in zip(steps, batches, strict=True)]
    times = in_turns(calls, rounds, WARM_UP).T.tolist()
    for contestant, own in zip(contestants, times, strict=True):
        contestant.step_ms, contestant.step_ratio = percentiles(own), ratio(own, times[0])


def table(contestants: Sequence[Contestant]) -> list[str]:
    """The lines of the table, in Markdown."""
    heads = [
        "norm",
        "scheduled sampling",
        "loss",
        "exact match",
        "BLEU",
        "ms a step",
        f"over {NORMS[contestants[0].norm][0]}'s",
    ]
    rows = []
    for each in contestants:
        assert each.step_ms and each.step_ratio
        tests = [run.test for run in each.runs]
        rows.append([
            NORMS[each.norm][0], each.scheduled_sampling, spread(each.losses, "{:.3f}".format),
            spread([test.exact for test in tests], "{:.1%}".format),
            spread([test.bleu for test in tests], "{:.1f}".format),
            f"{each.step_ms.p50:.0f}", f"{each.step_ratio.p50:.2f}",
        ])  # fmt: skip
    return markdown_table(heads, rows, left=heads[:2])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory for all results.")
@click.option("--recipe", default="demo", show_default=True, help="What to train: see tx-train --recipe.")
@click.option("--data", type=click.Path(path_type=Path), default=Path(), help="As of tx-train.")
@click.option("--set", "values", multiple=True, metavar="KEY=VALUE", help="Any other value of the recipe.")
@click.option(
    "--norm",
    "norms",
    multiple=True,
    type=click.Choice(list(NORMS)),
    default=("post", "pre", "power"),
    show_default=True,
)
@click.option(
    "--sampling", type=click.Choice(SCHEDULES), default="inverse_sigmoid", show_default=True,
    help="The schedule of those with scheduled sampling.",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(1), default=2000, show_default=True, help="Of each training.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Trainings of each.")
@click.option("--rounds", type=click.IntRange(1), default=40, show_default=True, help="Steps of each that are timed.")
def main(
    output: Path, recipe: str, data: Path, values: tuple[str, ...], norms: tuple[str, ...], sampling: str, steps: int,
    seeds: int, rounds: int,
) -> None:  # fmt: skip
    """Train with each norm, without and with scheduled sampling, and compare loss, exact match, BLEU and time.

    Writes trained_norms.md, .json, .png and .svg into OUTPUT. Trainings that are there are not made again, and one that
    was interrupted goes on.
    """
    contestants = [Contestant(norm, kind) for kind in ("none", sampling) for norm in dict.fromkeys(norms)]
    for seed in range(1, seeds + 1):
        for each in contestants:
            place = output / f"{each.norm}-{each.scheduled_sampling}-{seed}"
            each.runs.append(trained(read(recipe, [*values, *each.overrides(steps, seed)]), place, data))
            each.losses.append(Step(each.runs[-1]).loss())
            click.echo(f"{place}: loss {each.losses[-1]:.3f}, exact match {each.runs[-1].test.exact:.1%}", err=True)
    measure_steps(contestants, rounds)
    machine = describe(None)
    settings = {"recipe": recipe, "set": list(values), "steps": steps, "seeds": seeds, "rounds": rounds}
    report = {**settings, "machine": asdict(machine), "contestants": [each.to_json() for each in contestants]}
    write_atomically(output / "trained_norms.json", (json.dumps(report, indent=1) + "\n").encode())
    facts = f"{steps} steps of the recipe {recipe}, seeds: {seeds}; {machine.processor}, {machine.cores} cores"
    text = "\n".join([*table(contestants), "", f"{facts}, load average {machine.load_average:.1f}.", ""])
    write_atomically(output / "trained_norms.md", text.encode())
    save(draw(report), output, "trained_norms")
    click.echo(text, nl=False)


if __name__ == "__main__":
    run_command("txport.benchmarks.studies.trained_norms", extra="train")
