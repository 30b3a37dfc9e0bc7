"""The demo: its verdict on figures, its table, and all its stages with a recipe of seconds."""

import dataclasses
import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from txport.benchmarks.demo import EXAMPLES, Demo
from txport.benchmarks.demo_summary import DemoFigures, LoweringFigures, missed, print_summary


def verified(float32: tuple[int, ...], half: tuple[int, ...]) -> dict[str, list[LoweringFigures]]:
    """By the numbers of identical sentences of each lowering."""
    names = ("ort", "scatter", "tensorscatter")
    return {
        precision: [LoweringFigures(*each, 1000, 3.2e-5) for each in zip(names, identical, strict=True)]
        for precision, identical in (("float32", float32), ("FP16", half))
    }


ALL, MOST = (1000, 1000, 1000), (1000, 995, 998)
GOOD = DemoFigures(
    sentences=1000,
    exact=0.98,
    bleu=99.123,
    verified=verified(ALL, MOST),
    bundle_bytes=10_500_000,
    weight_bytes=10_000_000,
    seconds={"train": 250.4, "translate": 1.0},
    bundle=Path("build/demo/bundle"),
    translations=[("It cost [$5].", "it cost five dollars")],
)


def test_figures_at_their_bounds_pass() -> None:
    assert missed(GOOD) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exact": 0.979}, "exact match is 97.9%, below 98%"),
        ({"verified": verified((1000, 999, 1000), MOST)}, "float32, lowering scatter: only 999 of 1000"),
        ({"verified": verified(ALL, (994, 1000, 1000))}, "FP16, lowering ort: only 994 of 1000"),
    ],
)
def test_a_figure_below_its_bound_is_named(change: dict, message: str) -> None:
    (found,) = missed(dataclasses.replace(GOOD, **change))
    assert message in found


def test_the_summary_shows_every_figure_in_a_pipe() -> None:
    output = io.StringIO()
    print_summary(GOOD, Console(file=output))
    text = output.getvalue()
    figures = ["98.0% of 1000", "99.12", "1000/1000; 3.2e-05", "995/1000", "1.050", "4:10", "4:11"]
    for shown in [*figures, "build/demo/bundle", "It cost [$5].", "it cost five dollars"]:
        assert shown in text
    assert "\x1b" not in text, "no colours in a pipe"


# Stands for a command: records its arguments, and puts its result where the option -o says.
STAND_IN = """#!{python}
import json, pathlib, shutil, sys
name, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps([name, *arguments]) + "\\n")
shutil.copytree({result!r}, arguments[arguments.index("-o") + 1])
if name == "tx-export":
    print(json.dumps({{"verification": json.loads(pathlib.Path({result!r}, "verification.json").read_text())}}))
"""


@dataclass(frozen=True)
class Run:
    figures: DemoFigures
    shown: str
    calls: list[list[str]]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, bundle: Path) -> Run:
    """Real commands evaluate and translate; training and exporting, tested elsewhere, hand out what exists."""
    directory, ours = tmp_path_factory.mktemp("demo"), Path(sys.executable).parent
    scripts, log, console = directory / "bin", directory / "log", Console(file=io.StringIO())
    scripts.mkdir()
    for name in ("tx-evaluate", "tx-translate"):
        (scripts / name).symlink_to(ours / name)
    for name, result in (("tx-train", checkpoint), ("tx-export", bundle)):
        (scripts / name).write_text(STAND_IN.format(python=sys.executable, log=str(log), result=str(result)))
        (scripts / name).chmod(0o755)
    figures = Demo(directory / "results", "tiny", 30, console, scripts).run()
    assert isinstance(console.file, io.StringIO)
    return Run(figures, console.file.getvalue(), [json.loads(line) for line in log.read_text().splitlines()])


def test_all_stages(demo: Run) -> None:
    """Exact match, and nothing else, is too low: the checkpoint of the tests has learned little."""
    figures = demo.figures
    (verdict,) = missed(figures)
    assert verdict.startswith("exact match is ")
    assert figures.sentences == 60 and figures.bundle.name == "bundle"
    assert [each.lowering for each in figures.verified["FP16"]] == ["ort", "scatter", "tensorscatter"]
    assert 1 < figures.bundle_bytes / figures.weight_bytes < 3
    assert [source for source, _ in figures.translations] == list(EXAMPLES)
    for shown in (*EXAMPLES, "train", "export and verify, FP16", "tx-evaluate"):
        assert shown in demo.shown


def test_the_commands_accept_the_options(demo: Run) -> None:
    from txport.exporter import export_command
    from txport.training import train_command

    train, single, half = demo.calls
    for (name, *arguments), command in ((train, train_command), (single, export_command), (half, export_command)):
        parsed = command.main.make_context(name, list(arguments)).params
        assert parsed["force"], "an earlier run is replaced"
    assert train[train.index("--recipe") + 1] == "tiny"
    assert "--fp16" in half and "--fp16" not in single and single[single.index("--sentences") + 1] == "30"


def test_bad_use_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "txport.benchmarks.demo", "-o", str(tmp_path / "demo"), "--recipe", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "demo: tx-train ended with exit code 2; see above"
