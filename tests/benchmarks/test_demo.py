"""The demo: its verdict on figures, its table, and all its stages with a recipe of seconds."""

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from txport.benchmarks.demo import SENTENCES, Demo
from txport.benchmarks.demo_summary import MAX_LISTED, DemoFigures, Translated, missed, print_summary
from txport.training.loop import train
from txport.training.recipe import read
from txport.training.run.paths import RunPaths
from warm import warm_commands


def verified(float32: tuple[int, ...], half: tuple[int, ...]) -> dict[str, list[dict]]:
    """By the numbers of identical sentences of each lowering."""
    names = ("ort", "scatter", "tensorscatter")
    return {
        precision: [
            {"lowering": name, "token_identical": count, "sentences": 1000, "max_logit_error": 3.2e-5}
            for name, count in zip(names, identical, strict=True)
        ]
        for precision, identical in (("float32", float32), ("FP16", half))
    }


# Short answers, and enough steps that float16 meets no two tokens that are nearly as likely.
RECIPE = """
[corpus]
kind = "builtin"
train = 2000
validation = 60
test = 60
[tokenizer]
vocabulary = 800
lower_case = true
[model]
preset = "tiny"
norm = "pre"
dropout = 0.0
max_positions = 32
[training]
max_steps = 120
batch_tokens = 1024
max_length = 32
learning_rate = 3e-3
warmup_steps = 10
label_smoothing = 0.0
validate_every = 120
validation_sentences = 20
"""

HI = Translated("Hi", "hi", "hi")
ALL, MOST = (1000, 1000, 1000), (1000, 995, 998)
GOOD = DemoFigures(
    sentences=1000,
    exact=0.97,
    bleu=99.123,
    verified=verified(ALL, MOST),
    failures={},
    bundle_bytes=10_500_000,
    weight_bytes=10_000_000,
    seconds={"train": 250.4, "translate": 1.0},
    engine="fused cpu (AVX3, float32 weights)",
    bundle=Path("build/demo/bundle"),
    translations=[Translated("It cost [$5].", "it cost five dollars", "it cost five dollars")],
)


def test_figures_at_their_bounds_pass() -> None:
    assert missed(GOOD) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exact": 0.969}, "exact match is 96.9%; it is usually at least 97%"),
        ({"translations": [Translated("Ok", "ok", "o"), *[HI] * 20]}, "'Ok' became 'o', not 'ok'"),
        ({"translations": [*[HI] * 8, Translated("Ok", "ok", "o")]}, "only 8 of 9 everyday sentences are right"),
    ],
)
def test_a_figure_below_its_bound_is_named(change: dict, message: str) -> None:
    (found,) = missed(dataclasses.replace(GOOD, **change))
    assert message in found


def test_the_summary_shows_every_figure_in_a_pipe() -> None:
    output = io.StringIO()
    print_summary(GOOD, Console(file=output))
    text = output.getvalue()
    figures = [
        "97.0% of 1000",
        "1 of 1 right",
        "99.12",
        "1000/1000; 3.2e-05",
        "995/1000",
        "1.050",
        "4:10",
        "4:11",
        "fused cpu (AVX3",
    ]
    for shown in [*figures, "build/demo/bundle", "It cost [$5].", "it cost five dollars"]:
        assert shown in text
    assert "\x1b" not in text, "no colours in a pipe"


def test_a_model_that_learned_too_little_comes_with_advice() -> None:
    for exact, advised in ((0.97, False), (0.95, False), (0.89, True)):
        output = io.StringIO()
        print_summary(dataclasses.replace(GOOD, exact=exact), Console(file=output))
        assert ("run `make demo` again" in output.getvalue()) is advised


def test_an_fp16_bundle_that_failed_is_a_row_with_its_reason() -> None:
    output, reason = io.StringIO(), "verification failed: scatter: NaN or infinity in logits or encoder outputs"
    failed = dataclasses.replace(GOOD, verified={**GOOD.verified, "FP16": []}, failures={"FP16": reason})
    print_summary(failed, Console(file=output, width=200))
    assert re.search(rf"verified, FP16 .*\n.*failed .*{reason}", output.getvalue())
    assert "it cost five dollars" in output.getvalue()


def test_nothing_of_the_summary_is_cut_on_80_columns() -> None:
    output = io.StringIO()
    long = dataclasses.replace(GOOD, seconds={"export and verify the bundle in FP16 " * 3: 1.0}, bundle=Path("x/" * 60))
    print_summary(long, Console(file=output, width=80))
    text = output.getvalue()
    cells = "".join(line.split("│")[2].strip() for line in text.splitlines() if line.count("│") == 3)
    assert "…" not in text and text.count("FP16") >= 3 and "x/" * 59 in cells


def test_all_stages_with_a_model_that_has_learned_nothing(tmp_path: Path, checkpoint: Path, bundle: Path) -> None:
    """It replaces the results of an earlier run. Wrong translations are shown, and the exit code is 0."""
    shutil.copytree(checkpoint, tmp_path / "demo/checkpoint")
    shutil.copytree(bundle, tmp_path / "demo/bundle-fp16")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    command = [warm_commands() / "python", "-m", "txport.benchmarks.demo", "-o", "demo", "--recipe", "recipe.toml"]
    command += ["--sentences", "12"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "exact match is " in done.stdout and "everyday sentences are right" in done.stdout
    assert done.stdout.index(SENTENCES.read_text().split("\t")[0]) < done.stdout.index("export and verify, FP16")
    shown_first = [line.split("\t")[0] for line in SENTENCES.read_text().splitlines()[:MAX_LISTED]]
    for shown in ("demo/bundle", *shown_first, "12/12", "in total"):
        assert shown in done.stdout
    for name, precision in (("bundle", "float32"), ("bundle-fp16", "float16")):
        manifest = json.loads((tmp_path / "demo" / name / "manifest.json").read_text())
        assert manifest["precision"]["type"] == precision


def test_training_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ended by its steps has no end.json once that is taken away, as one that was interrupted."""
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("max_steps = 120", "max_steps = 4"))
    monkeypatch.setattr(sys, "executable", str(warm_commands() / "python"))  # commands are beside it
    demo = Demo(tmp_path, str(tmp_path / "recipe.toml"), 12, Console(file=io.StringIO()))
    run = RunPaths(demo.checkpoint)
    train(read(demo.recipe), demo.checkpoint, Path())
    run.end.unlink()
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("max_steps = 120", "max_steps = 6"))
    demo._train()
    assert json.loads(run.end.read_text())["steps"] == 6 and "--resume" in demo.console.file.getvalue()
    run.end.unlink()
    (tmp_path / "recipe.toml").write_text(
        RECIPE.replace("max_steps = 120", "max_steps = 2").replace("tokens = 1024", "tokens = 512")
    )
    demo._train()
    text = demo.console.file.getvalue()
    assert "cannot continue, a new one begins: " in " ".join(text.split())
    assert json.loads(run.end.read_text())["steps"] == 2


def test_bad_use_is_one_sentence(tmp_path: Path) -> None:
    command = [warm_commands() / "python", "-m", "txport.benchmarks.demo", "-o", tmp_path / "demo"]
    command += ["--recipe", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "demo: tx-train ended with exit code 2; see above"
