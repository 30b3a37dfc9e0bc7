"""The whole of txport in a few minutes: train, export, verify, evaluate, translate, by the commands that users type.

    python -m txport.benchmarks.demo -o build/demo

Each command runs as a process of its own, with its progress bars; what it reports as JSON is gathered into one table.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape
from txport.benchmarks.demo_summary import Figures, Verification, missed, print_summary
from txport.runtime.errors import CheckFailed, InputError, TxportError

EXAMPLES = (
    "On 3/14/2025 at 5:30 pm it cost $12.50.",
    "The train from Madrid arrives at 17:05 on track 3.",
    "The camera weighs 2.5 kg and costs €1,250.",
)

T = TypeVar("T")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory for all results.")
@click.option("--recipe", default="demo", show_default=True, help="What to train: see tx-train --recipe.")
@click.option("--sentences", type=click.IntRange(1), default=1000, show_default=True, help="To verify on.")
def main(output: Path, recipe: str, sentences: int) -> None:
    """Train, export, verify, evaluate and translate; exits with 1 if a figure misses what txport promises."""
    console = Console()
    try:
        figures = Demo(output, recipe, sentences, console).run()
        console.print()
        print_summary(figures, console)
        if misses := missed(figures):
            raise CheckFailed("; ".join(misses))
    except TxportError as error:
        click.echo(f"demo: {error}", err=True)
        sys.exit(error.exit_code)


class Demo:
    """One run of all stages, in order.

    Args:
        output: gets `checkpoint`, `bundle` and `bundle-fp16`; what an earlier run left there is replaced.
        recipe: for tx-train.
        sentences: to verify on.
        console: for headings; the commands write to the same standard output and error.
    """

    def __init__(self, output: Path, recipe: str, sentences: int, console: Console) -> None:
        self.checkpoint, self.bundle, self.half = (output / name for name in ("checkpoint", "bundle", "bundle-fp16"))
        self.recipe, self.count, self.console = recipe, str(sentences), console
        self.seconds: dict[str, float] = {}

    def run(self) -> Figures:
        """Run everything.

        Raises:
            CheckFailed, InputError: a command failed; it has said why.
        """
        self._stage("train", self._train)
        single = self._stage("export and verify, float32", lambda: self._export(self.bundle))
        half = self._stage("export and verify, FP16", lambda: self._export(self.half, "--fp16"))
        scores = self._stage("evaluate the bundle", self._evaluate)
        made = self._stage("translate", self._translate)
        weights = (self.bundle / "onnx" / "weights.bin").stat().st_size
        return Figures(
            sentences=scores["sentences"],
            exact=scores["exact"],
            bleu=scores["bleu"],
            float32=Verification.from_report(single),
            float16=Verification.from_report(half),
            bundle_bytes=sum(file.stat().st_size for file in self.bundle.rglob("*") if file.is_file()),
            weight_bytes=weights,
            seconds=self.seconds,
            bundle=self.bundle,
            translations=list(zip(EXAMPLES, made, strict=True)),
        )

    def _stage(self, name: str, work: Callable[[], T]) -> T:
        self.console.rule(f"[bold]{name}", align="left")
        start = time.monotonic()
        result = work()
        self.seconds[name] = time.monotonic() - start
        return result

    def _train(self) -> None:
        self._run("tx-train", "--recipe", self.recipe, "-o", str(self.checkpoint), "--force", shown=True)

    def _export(self, bundle: Path, *options: str) -> dict[str, Any]:
        common = ("-o", str(bundle), "--force", "--json", "--sentences", self.count)
        report: dict[str, Any] = json.loads(self._run("tx-export", str(self.checkpoint), *common, *options))
        return report["verification"]  # type: ignore[no-any-return]

    def _evaluate(self) -> dict[str, Any]:
        made = self._run("tx-evaluate", str(self.bundle), "--recipe", self.recipe, "--json")
        return json.loads(made)  # type: ignore[no-any-return]

    def _translate(self) -> list[str]:
        made = self._run("tx-translate", str(self.bundle), text="".join(f"{line}\n" for line in EXAMPLES)).splitlines()
        for source, target in zip(EXAMPLES, made, strict=True):
            self.console.print(f"{escape(source)}\n  [green]{escape(target)}", highlight=False, soft_wrap=True)
        return made

    def _run(self, command: str, *arguments: str, text: str = "", shown: bool = False) -> str:
        """Run one of our commands and return its standard output, or let the user see it if `shown`."""
        self.console.print(f"[dim]$ {escape(' '.join([command, *arguments]))}", highlight=False, soft_wrap=True)
        done = subprocess.run(
            [_script(command), *arguments],
            input=text,
            stdout=None if shown else subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        if done.returncode:
            kind = CheckFailed if done.returncode == CheckFailed.exit_code else InputError
            raise kind(f"{command} ended with exit code {done.returncode}; see above")
        return done.stdout or ""


def _script(command: str) -> str:
    """The command of this environment, not another one of the same name on PATH."""
    script = Path(sys.executable).parent / command
    if not script.exists():
        raise InputError(f"{script} is missing: install txport here, pip install -e '.[dev]'")
    return str(script)


if __name__ == "__main__":
    main()
