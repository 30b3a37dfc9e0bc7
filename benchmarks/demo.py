"""A demo of txport in a few minutes: train, export, verify, evaluate and translate, with the commands for users.

    python -m txport.benchmarks.demo -o build/demo

Each command runs in a separate process, with its progress bars. Their JSON reports are collected in one table.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from txport.benchmarks.demo_summary import MAX_LISTED, DemoFigures, Translated, minutes, print_summary
from txport.runtime.bundle.manifest import WEIGHTS
from txport.runtime.errors import CheckFailed, InputError, TxportError
from txport.runtime.translator import Translator
from txport.training.recipe import read
from txport.training.run.directory import RunDirectory

# Typical first sentences and their expected translations; the first ones are shown.
SENTENCES = Path(__file__).with_name("demo_sentences.tsv")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory for all results.")
@click.option("--recipe", default="demo", show_default=True, help="Recipe to train: see tx-train --recipe.")
@click.option(
    "--sentences", type=click.IntRange(1), default=1000, show_default=True, help="Number of sentences to verify."
)
def main(output: Path, recipe: str, sentences: int) -> None:
    """Train, export, verify, translate and evaluate. Exit with 1 if the float32 bundle fails its verification."""
    console = Console()
    try:
        figures = Demo(output, recipe, sentences, console).run()
        console.print()
        print_summary(figures, console)
    except TxportError as error:
        click.echo(f"demo: {error}", err=True)
        sys.exit(error.exit_code)


class Demo:
    """One run of all stages, in order.

    Args:
        output: directory for `checkpoint`, `bundle` and `bundle-fp16`. Those of an earlier run are replaced;
            interrupted training continues.
        recipe: recipe of tx-train.
        sentences: number of sentences for verification.
        console: receives headings. The commands write to the same standard output and error.
    """

    def __init__(self, output: Path, recipe: str, sentences: int, console: Console) -> None:
        self.checkpoint, self.bundle, self.half = (output / name for name in ("checkpoint", "bundle", "bundle-fp16"))
        self.recipe = recipe
        self.count = str(sentences)
        self.console = console
        self.seconds: dict[str, float] = {}

    def run(self) -> DemoFigures:
        """Run everything.

        Raises:
            CheckFailed, InputError: a command failed and has reported the reason.
        """
        with self._stage("train"):
            self._train()
        # Both exports run at the same time, since parts of an export use only one core. The second one is quiet,
        # because a terminal has room for the bars of one.
        with ThreadPoolExecutor(1) as pool:
            half_export = pool.submit(self._export, self.half, "--fp16", hide_output=True)
            with self._stage("export and verify, float32"):
                single = self._export(self.bundle)
            with self._stage("translate"):
                translations = self._translate()
            with self._stage("export and verify, FP16"):
                half, reason = self._other(half_export)
        with self._stage("evaluate the bundle"):
            scores = json.loads(self._run("tx-evaluate", str(self.bundle), "--recipe", self.recipe, "--json"))
        return DemoFigures(
            sentences=scores["sentences"],
            exact=scores["exact"],
            bleu=scores["bleu"],
            verified={"float32": single, "FP16": half},
            failures={"FP16": reason} if reason else {},
            bundle_bytes=sum(file.stat().st_size for file in self.bundle.rglob("*") if file.is_file()),
            weight_bytes=(self.bundle / WEIGHTS).stat().st_size,
            seconds=self.seconds,
            engine=self._engine(),
            bundle=self.bundle,
            translations=translations,
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.console.rule(f"[bold]{name}", align="left")
        start = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - start
        self.console.print(f"[dim]{escape(name)}: {minutes(self.seconds[name])}", highlight=False)

    def _train(self) -> None:
        """Continue an interrupted run unless its recipe has changed, or begin a new one."""
        start_option = "--force"
        run = RunDirectory(self.checkpoint)
        if run.last.exists() and not run.end.exists():
            try:
                run.resume(read(self.recipe), write=False)
                start_option = "--resume"
            except InputError as error:
                self.console.print(f"The interrupted run cannot continue, a new one begins: {escape(str(error))}")
        self._run("tx-train", "--recipe", self.recipe, "-o", str(self.checkpoint), start_option, is_printed=True)

    def _export(self, bundle: Path, *options: str, hide_output: bool = False) -> list[dict[str, Any]]:
        common = ("-o", str(bundle), "--force", "--json", "--sentences", self.count)
        report = json.loads(self._run("tx-export", str(self.checkpoint), *common, *options, hide_output=hide_output))
        lowerings: list[dict[str, Any]] = report["verification"]["lowerings"]
        return lowerings

    def _other(self, export: "Future[list[dict[str, Any]]]") -> tuple[list[dict[str, Any]], str]:
        """Wait for the second export; return its lowerings, or none and the reason of its failure."""
        try:
            return export.result(), ""
        except CheckFailed as error:
            return [], str(error)

    def _translate(self) -> list[Translated]:
        lines = SENTENCES.read_text(encoding="utf-8").splitlines()
        sources, expected = zip(*(line.split("\t") for line in lines), strict=True)
        targets = self._run(
            "tx-translate", str(self.bundle), text="".join(f"{line}\n" for line in sources)
        ).splitlines()
        for source, target in list(zip(sources, targets, strict=True))[:MAX_LISTED]:
            self.console.print(f"{escape(source)}\n  [green]{escape(target)}", highlight=False, soft_wrap=True)
        return [Translated(*each) for each in zip(sources, expected, targets, strict=True)]

    def _engine(self) -> str:
        with Translator(self.bundle, "cpu") as translator:
            return translator.engine.name

    def _run(
        self, command: str, *arguments: str, text: str = "", is_printed: bool = False, hide_output: bool = False
    ) -> str:
        """Run a command of txport and return its standard output, or print it if `is_printed`.

        Its standard error is printed; with `hide_output` only if the command fails.
        """
        self.console.print(f"[dim]$ {escape(' '.join([command, *arguments]))}", highlight=False, soft_wrap=True)
        script = Path(sys.executable).with_name(command)
        if not script.exists():
            raise InputError(f"{script} is missing: install txport here, pip install -e '.[dev]'")
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if is_printed:
            stdout = None
        else:
            stdout = subprocess.PIPE
        if hide_output:
            stderr = subprocess.PIPE
        else:
            stderr = None
        done = subprocess.run(
            [script, *arguments], input=text, stdout=stdout, stderr=stderr, encoding="utf-8", env=environment
        )
        if done.returncode:
            click.echo(done.stderr or "", err=True, nl=False)
            kind = CheckFailed if done.returncode == CheckFailed.exit_code else InputError
            last = (done.stderr or "").strip().rpartition("\n")[2]
            raise kind(last or f"{command} ended with exit code {done.returncode}; see above")
        return done.stdout or ""


if __name__ == "__main__":
    main()
