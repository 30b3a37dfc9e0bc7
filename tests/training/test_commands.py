"""tx-train and tx-evaluate as people run them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import commands
import pytest
from click.testing import CliRunner
from toy import BUNDLE as TOY
from txport.runtime.console.progress import Stages
from txport.runtime.errors import InputError
from txport.training import entry, evaluate_command
from txport.training.evaluate_command import main as evaluate
from txport.training.loop import train
from txport.training.quality.comparison import compare
from txport.training.recipe import Recipe, starter
from txport.training.run.directory import RunDirectory

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`command("train", ...)` runs tx-train in an empty directory: in this process or, with `before`, in a new one."""

    def run(name: str, *arguments: object, before: str = "") -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("TXPORT_DATA", raising=False)
        if not before:
            return commands.run(entry, f"tx-{name}", *arguments)
        script = f"import sys; sys.argv[0] = 'tx-{name}'; {before}\nfrom txport.training import entry; entry.{name}()"
        line = [sys.executable, "-c", script, *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=500)

    return run


@pytest.fixture(scope="module")
def checkpoint(tiny: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("commands") / "checkpoint"
    train(tiny("training.max_steps=2", "training.validate_every=2"), output, Path())
    return output


def assert_says(done: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    """One sentence on standard error, no traceback, nothing on standard output."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    for text in texts:
        assert text in done.stderr


def test_recipe_help_is_a_recipe(command: Command, tmp_path: Path) -> None:
    done = command("train", "--recipe-help")
    assert done.returncode == 0 and done.stdout == starter() and done.stderr == ""


def test_help_of_training_imports_nothing_heavy(command: Command) -> None:
    watch = "import atexit; atexit.register(lambda: print('HEAVY', {'torch', 'lightning'} & set(sys.modules)))"
    assert "HEAVY set()" in command("train", "--help", before=watch).stdout


def test_train_reports_figures_and_evaluate_agrees(command: Command, tmp_path: Path) -> None:
    values = ("corpus.train=300", "corpus.validation=10", "corpus.test=10", "training.max_length=64")
    small = [word for value in values for word in ("--set", value)]
    arguments = ("--recipe", "tiny", "-o", "out/checkpoint", "--max-steps", 4, "--vocabulary", 300, *small)
    done = command("train", *arguments, "--set", "training.validate_every=4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out/checkpoint: 4 steps in") and "on 10 test sentences BLEU" in done.stdout
    assert "tx-train: step 4, " in done.stderr and "Warning" not in done.stderr
    assert done.stderr.endswith("tx-train: next: tx-export out/checkpoint -o out/checkpoint-bundle\n")
    (tmp_path / "own.toml").write_text('[corpus]\nkind = "builtin"\ntest = 10\n[training]\nmax_steps = 1\n')
    checkpoint = tmp_path / "out" / "checkpoint"
    judged = CliRunner().invoke(evaluate, [str(checkpoint), "--recipe", str(tmp_path / "own.toml"), "--json"])
    figures = json.loads(judged.stdout)
    assert figures.items() >= json.loads((checkpoint / "training.json").read_text())["test"].items()
    assert figures["lines"] == 10 and figures["cut"] == 0


def test_evaluate_files(checkpoint: Path, tmp_path: Path) -> None:
    source, reference, output = (tmp_path / name for name in ("s", "r", "h"))
    source.write_text("It cost $5.\n\nCall me.\n")
    reference.write_text("it cost five dollars\nnothing\ncall me\n")
    arguments = [str(checkpoint), "--source", str(source), "--reference", str(reference), "--output", str(output)]
    done = CliRunner().invoke(evaluate, arguments)
    # The pair with an empty source is left out.
    assert "2 sentences\n" in done.stdout and "nrefs:1" in done.stdout
    assert len(output.read_text().splitlines()) == 2
    limited = CliRunner().invoke(evaluate, [*arguments, "--lines", "1", "--max-length", "3"])
    assert "1 sentence, the first of 2\n" in limited.stdout
    assert "unfinished   1 sentence: no end within 3 tokens (see --max-length)\n" in limited.stdout
    assert len(output.read_text().splitlines()) == 1


def test_evaluate_names_its_test_set_and_has_no_hidden_one(checkpoint: Path) -> None:
    done = CliRunner().invoke(evaluate, [str(checkpoint), "--max-length", "3", "--lines", "2"])
    assert done.stdout.startswith(f"{checkpoint} on its own {checkpoint / 'sentences.txt'}: 2 sentences")
    named = CliRunner().invoke(evaluate, [str(checkpoint), "--max-length", "3", "--lines", "2", "--recipe", "tiny"])
    assert named.stdout.startswith(f"{checkpoint} on the test split of tiny: 2 sentences, the first of ")


def test_evaluate_compares_models_on_several_sets(checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    source, reference = (tmp_path / name for name in ("s", "r"))
    source.write_text("It cost $5.\nCall me.\nThank you.\n")
    reference.write_text("it cost five dollars\ncall me\nthank you\n")
    files = ["--source", str(source), "--reference", str(reference), "--recipe", "tiny"]
    arguments = [str(checkpoint), str(other), *files, "--lines", "3", "--max-length", "9"]
    figures = json.loads(CliRunner().invoke(evaluate, [*arguments, "--json"]).stdout)
    sets = [str(source), "the test split of tiny"]
    assert [(each["model"], each["test_set"]) for each in figures] == [
        (str(model), name) for model in (checkpoint, other) for name in sets
    ]
    assert [each["bootstrap"]["p_value"] is None for each in figures] == [True, True, False, False]
    table = CliRunner().invoke(evaluate, arguments).stdout
    blocks = table.strip().split("\n\n")
    assert f"; difference from {checkpoint}: p = " in table and len(blocks) == 6
    for block, name, each in zip(blocks[4:], sets, figures[2:], strict=True):
        title, heads, first, second = block.split("\n")
        assert title == name and heads.split() == ["BLEU", "difference", "p", "chrF", "exact"]
        assert first.split()[0] == str(checkpoint) and len(first.split()) == 4
        assert second.split()[:4] == [str(other), f"{each['bleu']:.2f}", "+0.00", f"{each['bootstrap']['p_value']:.3f}"]


def test_a_difference_is_more_than_chance_or_not() -> None:
    references = [f"the {word} sees a bird in tree number {n}" for n, word in enumerate(["cat", "dog", "owl"] * 20)]
    worse = [text.replace("sees a bird", "bird is seen") for text in references]
    alike = [text.replace("number 7", "number seven") for text in references]
    models = {"good": references, "alike": alike, "bad": worse, "equal": list(references)}
    standings = compare(models, references)
    assert standings["good"].bleu == pytest.approx(100) and standings["good"].p_value is None
    assert standings["bad"].bleu < 70 and standings["bad"].p_value < 0.01
    assert standings["alike"].p_value > 0.05 and standings["equal"].p_value == 1


def test_evaluate_shows_the_worst(checkpoint: Path, tmp_path: Path) -> None:
    source, reference = (tmp_path / name for name in ("s", "r"))
    source.write_text("It cost $5.\nCall me.\nThank you.\n")
    reference.write_text("it cost five dollars\ncall me\nthank you\n")
    arguments = [str(checkpoint), "--source", str(source), "--reference", str(reference), "--max-length", "9"]
    figures = json.loads(CliRunner().invoke(evaluate, [*arguments, "--show", "2", "--json"]).stdout)
    shown = figures["worst"]
    assert figures["bleu_order"] == 2 and len(shown) == 2 and shown[0]["bleu"] <= shown[1]["bleu"]
    done = CliRunner().invoke(evaluate, [*arguments, "--show", "3", "--bleu-order", "1"])
    blocks = done.stdout.strip().split("\n\n")
    assert len(blocks) == 4
    for block in blocks[1:]:
        assert re.fullmatch(
            r"source       .+\nreference    .+\ntranslation  .*\nBLEU-1       \d\.\d{3}, chrF \d+\.\d", block
        )
    assert sorted(block.splitlines()[0][13:] for block in blocks[1:]) == sorted(source.read_text().splitlines())
    assert "worst" not in json.loads(CliRunner().invoke(evaluate, [*arguments, "--json"]).stdout)


def test_evaluate_says_how_far_it_is_where_there_is_no_terminal(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate_command, "Stages", partial(Stages, every=0.001))
    for name in ("s", "r"):
        (tmp_path / name).write_text("Call me.\n" * 300)
    files = ["--source", str(tmp_path / "s"), "--reference", str(tmp_path / "r")]
    short = ["--max-length", "2", "--batch", "100", "--threads", "1"]
    lines = CliRunner().invoke(evaluate, [str(checkpoint), *files, *short]).stderr.splitlines()
    said = {line.partition(": ")[2] for line in lines}
    assert "translating, 0 of 300" in said and "translating, 256 of 300, about 0:00 min left" in said


def test_evaluate_refuses_a_device_and_a_length_that_are_not_there(checkpoint: Path) -> None:
    for arguments, message in (
        (["--device", "tpu"], "device 'tpu' is not supported"),
        (["--engine", "trt"], "is a checkpoint, which PyTorch runs, not engine trt: leave out --engine"),
        (["--max-length", "9999"], "the maximum length 9999 is not between 1 and 64"),
    ):
        refused = CliRunner().invoke(evaluate, [str(checkpoint), "--recipe", "tiny", *arguments])
        assert isinstance(refused.exception, InputError) and message in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ((), ("Missing option '--recipe'",)),
        (("--recipe", "tiny"), ("Missing option '-o'",)),
        (("--recipe", "nonsense", "-o", "x"), ("tx-train: recipe nonsense cannot be read",)),
        (("--recipe", "tiny", "-o", "x", "--seed", "-3"), ("training.seed is -3, but must be at least 0",)),
        (("--recipe", "tiny", "-o", "x", "--preset", "huge"), ("there is no preset 'huge'",)),
        (
            ("--recipe", "tiny", "-o", "x", "--source-language", "en"),
            ("corpus has the unknown field 'source_language'",),
        ),
        (("--recipe", "tiny", "-o", "x", "--resume", "--force"), ("choose one of them",)),
    ],
)
def test_bad_use_of_train(command: Command, arguments: tuple[str, ...], texts: tuple[str, ...]) -> None:
    assert_says(command("train", *arguments), 2, *texts)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "corpus/train.en does not exist: name the directory"),
        (("--data", "uneven"), "has 2 lines and uneven/train.fr has 1: parallel files need the same number"),
        (("--data", "empty"), "empty/train.en is empty"),
        (("-o", "there"), "there exists: choose another name"),
        (("--from", "nowhere"), "nowhere does not exist"),
        (("--from", "bundle"), "bundle is a bundle: give the checkpoint it was exported from"),
        (("--from", "foreign"), "foreign is a Hugging Face model: tx-import makes a checkpoint of it"),
    ],
)
def test_mistakes_are_said_before_pytorch_is_imported(
    command: Command, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    recipe = '[corpus]\nkind = "parallel"\nsource_language = "en"\ntarget_language = "fr"\n[training]\nmax_steps = 1\n'
    (tmp_path / "a.toml").write_text(recipe)
    for folder, texts in {"uneven": ("a\nb\n", "c\n"), "empty": ("", ""), "good": ("a\n", "b")}.items():
        (tmp_path / folder).mkdir()
        for language, text in zip(("en", "fr"), texts, strict=True):
            (tmp_path / folder / f"train.{language}").write_text(text)
    for folder, file, text in (
        ("there", "config.json", "{}"), ("bundle", "manifest.json", '{"format_version": 1}'),
        ("foreign", "config.json", '{"model_type": "marian"}'),
    ):  # fmt: skip
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text(text)
    without = "sys.modules['torch'] = sys.modules['lightning'] = None"
    place = () if "--data" in more else ("--data", "corpus" if not more else "good")
    done = command("train", "--recipe", "a.toml", "-o", "x", *place, *more, before=without)
    assert_says(done, 2, words)


def test_a_resumed_run_keeps_the_limits_of_its_first_command_line(tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = tiny("training.max_minutes=3", "training.max_steps=10")
    run = RunDirectory(tmp_path / "x")
    run.start(tiny("training.max_minutes=4", "training.max_steps=10"))
    run.state.mkdir()
    run.last.touch()

    def limits(recipe: Recipe, *stated: str) -> tuple[float | None, int | None]:
        options = run.check_resume(recipe, stated).training
        return options.max_minutes, options.max_steps

    assert limits(recipe) == (4, 10), "the recipe has not what the command line said"
    assert limits(recipe, "max_minutes") == (3, 10), "unless it says so again"
    assert limits(tiny("training.max_minutes=7", "training.max_steps=10")) == (7, 10), (
        "a recipe may be changed for more"
    )


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """A disk of 4 MB, in which the logs of Lightning and TensorBoard have room, and two states have none."""
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=4m none {small}"
    namespace = ["unshare", "-rm", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, mount], capture_output=True).returncode:
        pytest.skip("needs a name space of mounts: unshare -rm")
    script = "import sys; sys.argv[0] = 'tx-train'; from txport.training import entry; entry.train()"
    line = [sys.executable, "-W", "ignore", "-c", f'"{script}"', "--recipe tiny --set corpus.train=600 --max-steps 20"]
    line += ["--set training.validate_every=5", "-o", str(small / "m")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*namespace, f"{mount} && {' '.join(line)}"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "tx-train: the disk is full" in done.stderr.splitlines()[-1], done.stderr


def test_nothing_to_resume_and_a_finished_run_are_said_before_pytorch_is_imported(
    command: Command, checkpoint: Path, tmp_path: Path
) -> None:
    without = "sys.modules['torch'] = sys.modules['lightning'] = None"
    arguments = ("--recipe", "tiny", "--resume", "-o")
    assert_says(command("train", *arguments, "x", before=without), 2, "x.run holds no run to resume")
    done = command("train", *arguments, checkpoint, "--max-steps", 2, before=without)
    assert_says(done, 0, "tx-train: the run is finished (2 steps, BLEU ", "raise max_steps to continue")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ((".", "--source", "s"), ("--source and --reference belong together",)),
        ((".",), (". is neither a bundle (manifest.json) nor a checkpoint (config.json)",)),
        ((".", ".", "--recipe", "demo"), ("a model is given twice: name each once",)),
        ((".", "--recipe", "demo", "--recipe", "tiny", "--output", "x"), ("evaluate them one by one",)),
        ((".", "--recipe", "demo", "--recipe", "demo"), ("a test set is given twice",)),
        ((".", "--source", "s", "--reference", "r"), ("s cannot be read: No such file",)),
    ],
)
def test_bad_use_of_evaluate(command: Command, arguments: tuple[str, ...], texts: tuple[str, ...]) -> None:
    assert_says(command("evaluate", *arguments), 2, *texts)


@pytest.mark.parametrize(("name", "library"), [("train", "lightning"), ("evaluate", "sacrebleu"), ("train", "click")])
def test_a_missing_library_is_one_sentence(command: Command, name: str, library: str) -> None:
    arguments = ("--recipe", "tiny", *(("-o", "x") if name == "train" else (str(TOY),)))
    done = command(name, *arguments, before=f"sys.modules['{library}'] = None")
    assert_says(done, 2, f"{library} is not installed: pip install 'txport[train]'")
