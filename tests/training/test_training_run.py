"""Whole runs of a tiny recipe: what they write, that they can be resumed, that they refuse what they should."""

import csv
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import changed, weights
from txport.models.checkpoint import load_checkpoint
from txport.models.config import preset
from txport.runtime.bundle.tokenizer_schema import TokenizerFiles
from txport.runtime.errors import InputError
from txport.training.loop import train
from txport.training.recipe import Recipe, read
from txport.training.run.directory import RunDirectory
from txport.training.run.paths import Finished
from txport.training.stages.finish import Outcome

Tiny = Callable[..., Recipe]
OPTIONS = ("training.validate_every=6", "model.dropout=0.1", "training.keep=last")


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Twelve steps with dropout in two parts of an epoch, without interruption."""
    output = tmp_path_factory.mktemp("run") / "checkpoint"
    outcome = train(tiny("training.max_steps=12", *OPTIONS), output, Path())
    assert outcome is not None
    return output, outcome


def test_the_checkpoint_is_whole(run: tuple[Path, Outcome]) -> None:
    output, outcome = run
    checkpoint = load_checkpoint(output)
    assert checkpoint.config.source_vocabulary == 400 and checkpoint.config.d_model == 32
    assert checkpoint.tokenizer.source == TokenizerFiles("tokenizer/shared.model", None)
    assert len(checkpoint.sentences) == 24 and len(set(checkpoint.sentences)) == 24
    report = json.loads((output / "training.json").read_text())
    assert report["steps"] == outcome.steps == 12 and report["test"]["sentences"] == 12
    assert report["recipe"]["model"]["dropout"] == 0.1
    assert "version:2" in report["test"]["bleu_signature"]


def test_logs_for_people_and_programs(run: tuple[Path, Outcome]) -> None:
    logs = RunDirectory(run[0]).logs
    rows = list(csv.DictReader((logs / "csv" / "version_0" / "metrics.csv").open()))
    validated = [row for row in rows if row["validation/bleu"]]
    assert [int(row["step"]) for row in validated] == [5, 11]
    assert all(row["validation/chrf"] and row["validation/exact"] and row["validation/loss"] for row in validated)
    assert any(row["learning_rate"] for row in rows)
    assert list((logs / "tensorboard").glob("events.out.tfevents.*"))


def test_words_learned_by_the_textbooks_recipe(tmp_path: Path) -> None:
    """On a few sentences instead of a thousand: the rate is constant, and what is learned is said again, exactly."""
    pairs = [("Go.", "Va !"), ("I lost.", "J'ai perdu."), ("I won.", "J'ai gagné."), ("I'm home.", "Je suis chez moi.")]
    (tmp_path / "fra.txt").write_text("".join(f"{s}\t{t}\tTatoeba {i}\n" for i in range(2) for s, t in 6 * pairs))
    overrides = ("corpus.held_out=2", "corpus.unique_sources=false", "training.max_epochs=120")
    (tmp_path / "eng_fra.tsv").write_text("go .\tva !\ni won !\tj'ai gagné .\ni'm home .\tje suis chez moi .\n")
    recipe = read("eng_fra", overrides)
    outcome = train(recipe, tmp_path / "checkpoint", tmp_path)
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    shape = preset("d2l", source_vocabulary=16, target_vocabulary=16, max_positions=64)
    assert checkpoint.config == shape, "what is chosen for other recipes must not change the textbook's model"
    assert checkpoint.tokenizer.source != checkpoint.tokenizer.target
    metrics = RunDirectory(tmp_path / "checkpoint").logs / "csv" / "version_0" / "metrics.csv"
    rows = list(csv.DictReader(metrics.open()))
    assert sorted({float(row["learning_rate"]) for row in rows if row["learning_rate"]}) == pytest.approx([0.005])
    # Two of the three test sentences were trained on. With so little loss (measured: 0.001) they are said exactly.
    assert [float(row["training/loss"]) for row in rows if row["training/loss"]][-1] < 0.1
    assert outcome is not None and outcome.test.exact > 0.6


@pytest.mark.parametrize("model", ["preset=tiny", "preset=t5_small", "positions=rotary"])
def test_the_model_learns(tiny: Tiny, model: str, tmp_path: Path) -> None:
    sizes = ("model.heads=2", "model.head_dim=24", "training.learning_rate=1.5e-2")
    recipe = tiny(
        "training.max_steps=60", "training.validate_every=10", "training.monitor=loss", *sizes, f"model.{model}"
    )
    train(recipe, tmp_path / "checkpoint", Path())
    metrics = tmp_path / "checkpoint.run" / "logs" / "csv" / "version_0" / "metrics.csv"
    losses = [float(row["validation/loss"]) for row in csv.DictReader(metrics.open()) if row["validation/loss"]]
    # A model that knows nothing has log(400), the vocabulary; measured: 4.8 to 5.0 at the end, 5.5 to 5.6 at first.
    assert losses[-1] < math.log(400) - 0.5 and losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize("average", ["0.0", "0.5"])
def test_a_resumed_run_ends_with_the_same_weights(
    tiny: Tiny, run: tuple[Path, Outcome], tmp_path: Path, average: str
) -> None:
    """In the middle of an epoch, with dropout, and with averaged weights: bit by bit."""
    options, whole = (*OPTIONS, f"training.average={average}"), tmp_path / "whole"
    if average == "0.0":
        whole = run[0]
    else:
        train(tiny("training.max_steps=12", *options), whole, Path())
    train(tiny("training.max_steps=6", *options), tmp_path / "parts", Path())
    half = weights(tmp_path / "parts")
    outcome = train(tiny("training.max_steps=12", *options), tmp_path / "parts", Path(), resume=True)
    assert outcome is not None and outcome.steps == 12
    assert not changed(whole, tmp_path / "parts")
    assert any(not torch.equal(half[name], value) for name, value in weights(whole).items())


def test_a_seed_decides_the_weights(tiny: Tiny, tmp_path: Path, run: tuple[Path, Outcome]) -> None:
    train(tiny("training.max_steps=12", *OPTIONS), tmp_path / "again", Path())
    assert not changed(run[0], tmp_path / "again")


def test_resuming_reads_no_pickle(tiny: Tiny, run: tuple[Path, Outcome], tmp_path: Path) -> None:
    """The saved state is tensors and plain values: torch refuses anything else here."""
    state = torch.load(RunDirectory(run[0]).last, weights_only=True)
    assert state["global_step"] == 12
    bad = RunDirectory(tmp_path / "bad")
    recipe = tiny("training.max_steps=12")
    bad.start(recipe)
    bad.state.mkdir()
    torch.save({"state_dict": {}, "evil": Path("anything")}, bad.last)
    with pytest.raises(InputError, match=r"last\.ckpt cannot be resumed from"):
        train(recipe, bad.checkpoint, Path(), resume=True)


def test_every_process_resumes_with_the_new_limits(tiny: Tiny, tmp_path: Path) -> None:
    """Though only the first one writes them, maybe after the others have read the old ones."""
    run = RunDirectory(tmp_path / "checkpoint")
    run.start(tiny("training.max_steps=12"))
    run.state.mkdir()
    run.last.touch()
    assert run.resume(tiny("training.max_steps=8"), write=False).training.max_steps == 8
    assert run.stored().training.max_steps == 12
    run.resume(tiny("training.max_steps=8"), write=True)
    assert run.stored().training.max_steps == 8


def files(*directories: Path) -> dict[Path, tuple[int, bytes]]:
    """When each file was written, and what is in it."""
    there = [file for directory in directories for file in sorted(directory.rglob("*")) if file.is_file()]
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in there}


def test_a_finished_run_says_so_and_writes_nothing(tiny: Tiny, run: tuple[Path, Outcome]) -> None:
    """It goes on where a limit is raised, as `test_a_resumed_run_ends_with_the_same_weights` does."""
    output, outcome = run
    before = files(output, RunDirectory(output).path)
    for limit in ("training.max_steps=12", "training.max_steps=11"):
        with pytest.raises(Finished) as said:
            train(tiny(limit, *OPTIONS), output, Path(), resume=True)
        bleu = f"{outcome.test.bleu:.2f}"
        assert str(said.value) == f"the run is finished (12 steps, BLEU {bleu}): raise max_steps to continue"
        assert said.value.exit_code == 0
    assert files(output, RunDirectory(output).path) == before


def test_a_run_that_its_time_ended_is_finished(tiny: Tiny, tmp_path: Path) -> None:
    limits = ("training.max_minutes=0.03", "training.max_steps=100000")
    train(tiny(*limits), tmp_path / "checkpoint", Path())
    with pytest.raises(Finished, match="raise max_minutes to continue"):
        train(tiny(*limits), tmp_path / "checkpoint", Path(), resume=True)


def test_an_output_that_exists_is_refused(tiny: Tiny, run: tuple[Path, Outcome], tmp_path: Path) -> None:
    recipe = tiny("training.max_steps=1")
    with pytest.raises(InputError, match="exists: choose another name, or give --force"):
        train(recipe, run[0], Path())
    (tmp_path / "mine.run" / "state").mkdir(parents=True)
    (tmp_path / "mine.run" / "state" / "last.ckpt").touch()
    with pytest.raises(InputError, match="--resume to continue it"):
        train(recipe, tmp_path / "mine", Path())


def test_force_replaces_only_what_tx_train_made(tiny: Tiny, tmp_path: Path) -> None:
    recipe, output = tiny("training.max_steps=1", "training.validate_every=1"), tmp_path / "checkpoint"
    train(recipe, output, Path())
    train(recipe, output, Path(), force=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()
    with pytest.raises(InputError, match="home is not replaced, because tx-train did not make it"):
        train(recipe, tmp_path / "home", Path(), force=True)
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_resuming_another_task_is_refused(tiny: Tiny, run: tuple[Path, Outcome], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run to resume"):
        train(tiny(), tmp_path / "nothing", Path(), resume=True)
    with pytest.raises(InputError, match=r"has another \[corpus\]"):
        train(tiny("corpus.seed=9"), run[0], Path(), resume=True)
    with pytest.raises(InputError, match=r"has another \[training\]"):
        train(tiny("model.dropout=0.1", "training.seed=9"), run[0], Path(), resume=True)


def test_early_stopping(tiny: Tiny, tmp_path: Path) -> None:
    """A learning rate of next to nothing cannot improve the loss twice."""
    recipe = tiny("training.learning_rate=1e-20", "training.patience=2", "training.validate_every=2")
    outcome = train(recipe, tmp_path / "checkpoint", Path())
    assert outcome is not None and outcome.steps == 6


@pytest.mark.parametrize(("target", "steps"), [(1e3, 4), (-1.0, 8)])
def test_two_validations_that_reach_a_value_end_the_run(target: float, steps: int, tiny: Tiny, tmp_path: Path) -> None:
    """Every loss is below the one, and none below the other."""
    recipe = tiny(
        f"training.stop_at={target}", "training.monitor=loss", "training.max_steps=8", "training.validate_every=2"
    )
    outcome = train(recipe, tmp_path / "checkpoint", Path())
    assert outcome is not None and outcome.steps == steps
    ended = json.loads((tmp_path / "checkpoint.run" / "end.json").read_text())
    assert ended["by"] == ("stop_at" if steps == 4 else "max_steps")


def test_a_time_limit_ends_the_run_and_cools_it_down(tiny: Tiny, tmp_path: Path) -> None:
    recipe = tiny(
        "training.max_minutes=0.03", "training.max_steps=100000", "training.cooldown=0.5", "training.schedule=constant"
    )
    outcome = train(recipe, tmp_path / "checkpoint", Path())
    assert outcome is not None and outcome.steps < 1_000
    metrics = tmp_path / "checkpoint.run" / "logs" / "csv" / "version_0" / "metrics.csv"
    rates = [float(row["learning_rate"]) for row in csv.DictReader(metrics.open()) if row["learning_rate"]]
    assert rates[-1] < 0.5 * 3e-3  # which it would else have to the end


def test_epochs_end_a_run(tiny: Tiny, tmp_path: Path) -> None:
    recipe = tiny("training.max_epochs=1", "corpus.train=100", "training.max_steps=1000", "tokenizer.vocabulary=200")
    outcome = train(recipe, tmp_path / "checkpoint", Path())
    assert outcome is not None and 1 <= outcome.steps < 20


def test_the_recipe_takes_what_lightning_has(tiny: Tiny) -> None:
    """Names are checked before Lightning is imported, by a list of this package's own."""
    from lightning.pytorch.accelerators import AcceleratorRegistry
    from lightning.pytorch.strategies import StrategyRegistry

    assert {"cpu", "cuda"} <= set(AcceleratorRegistry.available_accelerators())
    for name in AcceleratorRegistry.available_accelerators():
        assert tiny(f"training.accelerator={name}").training.accelerator == name
    assert {"ddp", "fsdp"} <= set(StrategyRegistry.available_strategies())
    for name in StrategyRegistry.available_strategies():
        assert tiny(f"training.strategy={name}").training.strategy == name


def test_devices_that_are_not_there(tiny: Tiny, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    with pytest.raises(InputError, match="these devices cannot be used"):
        train(tiny("training.accelerator=gpu"), tmp_path / "checkpoint", tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_positions_must_cover_the_longest_sentence(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"max_length \(64\) is above model.max_positions \(32\)"):
        train(tiny("model.max_positions=32"), tmp_path / "checkpoint", Path())


def test_separate_tokenizers(tiny: Tiny, tmp_path: Path) -> None:
    options = ("tokenizer.joint=false", "model.share_embeddings=false", "training.max_steps=2")
    train(tiny(*options, "tokenizer.vocabulary=300", "training.validate_every=2"), tmp_path / "checkpoint", Path())
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    assert checkpoint.tokenizer.source != checkpoint.tokenizer.target


def test_a_start_that_failed_leaves_nothing(tiny: Tiny, write: Callable[..., Path], tmp_path: Path) -> None:
    """And a run that was killed before its first state was saved is begun again without a word."""
    recipe = read(str(write("p.toml", '[corpus]\nkind = "parallel"\n[training]\nmax_steps = 1\n')))
    with pytest.raises(InputError, match="train.en does not exist"):
        train(recipe, tmp_path / "mine", tmp_path / "nowhere")
    assert not (tmp_path / "mine.run").exists()
    RunDirectory(tmp_path / "mine").start(recipe)
    with pytest.raises(InputError, match="holds no run to resume"):
        train(recipe, tmp_path / "mine", tmp_path, resume=True)
    train(tiny("training.max_steps=1"), tmp_path / "mine", Path())
    assert load_checkpoint(tmp_path / "mine").config.d_model == 32


def test_a_vocabulary_that_the_corpus_does_not_support_is_said(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tiny("training.max_steps=1", "tokenizer.vocabulary=100000"), tmp_path / "checkpoint", Path())
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    said = [text for text in said if "this machine is busy" not in text]
    assert len(said) == 1 and re.match(r"tokenizer.vocabulary is 100000, but the corpus gives \d+ pieces only", said[0])


def test_what_was_kept_is_said(tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "txport")
    options = ("training.max_steps=5", "training.validate_every=2", "training.monitor=loss", "training.keep=best")
    train(tiny(*options, "corpus.test=1"), tmp_path / "checkpoint", Path())
    assert re.search(r"kept step 4 of 5: loss \d\.\d{3}", caplog.text)
    state = torch.load(tmp_path / "checkpoint.run" / "state" / "best.ckpt", weights_only=True)["state_dict"]
    for name, value in weights(tmp_path / "checkpoint").items():
        assert torch.equal(value, state[f"model.{name}"])


def test_a_run_by_time_validates_at_its_end_and_tests(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However small the corpus is: an epoch is a step or two here."""
    caplog.set_level("INFO", "txport")
    options = ("training.max_minutes=0.1", "training.max_steps=100000", "corpus.train=60", "tokenizer.vocabulary=150")
    recipe = tiny(*options)
    recipe = replace(recipe, training=replace(recipe.training, validate_every=None))
    outcome = train(recipe, tmp_path / "checkpoint", Path())
    assert outcome is not None and outcome.test.sentences == 12
    validated = [int(number) for number in re.findall(r"step (\d+), \d+ s: loss", caplog.text)]
    assert validated[-1] == outcome.steps and 1 <= len(validated) <= 11 and len(set(validated)) == len(validated)
