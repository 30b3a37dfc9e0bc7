"""Training with a copy mechanism: what its loss is, what goes with it, and names that no training pair has."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import changed
from numpy_runner import random_model
from txport.models.checkpoint import load_checkpoint
from txport.runtime.errors import InputError
from txport.training.corpora import load
from txport.training.loop import train
from txport.training.loss import smoothed_cross_entropy
from txport.training.options import NamesOptions
from txport.training.recipe import Recipe, from_table, read
from txport.training.scheduled_sampling import mixed_inputs
from txport.training.spoken import names
from txport.training.stages.prepare import model_config
from txport.training.tokenizers import load_tokenizer, train_tokenizer

Tiny = Callable[..., Recipe]
# Smaller than the recipe: one layer each, a quarter of the sentences, a fifth of the steps.
SMALL = (
    "corpus.train=1000", "corpus.validation=20", "corpus.test=60", "model.encoder_layers=1", "model.decoder_layers=1",
    "training.max_steps=250", "training.warmup_steps=30", "training.validate_every=250",
    "training.validation_sentences=20",
)  # fmt: skip


def exact(output: Path, *values: str) -> float:
    outcome = train(read("names", [*SMALL, *values]), output, Path())
    assert outcome is not None
    return outcome.test.exact


def test_names_that_training_has_not_are_copied(tmp_path: Path) -> None:
    """A model of the same size without the mechanism gets none of these sentences right.

    With it 90% were right; the bound is halfway, since weights differ from processor to processor.
    """
    assert exact(tmp_path / "plain", "model.copy_heads=[]") < 0.1
    assert exact(tmp_path / "copies", "model.copy_heads=[[0, 0]]") > 0.45


def test_no_training_sentence_has_a_name_of_the_test() -> None:
    corpus = load(NamesOptions(train=3000, validation=300, test=300), Path())
    heard = {word for pair in corpus.train[:-1] for text in pair for word in text.split()}
    for pairs, split in ((corpus.validation, "validation"), (corpus.test, "test")):
        own = set(names.names(split))  # type: ignore[arg-type]
        assert not own & heard
        assert all(own & {*source.split()} == own & {*target.split()} != set() for source, target in pairs)
    # The last pair is for the vocabulary, and too long for any step.
    recipe = read("names")
    assert len(corpus.train[-1][0].split()) > recipe.training.max_length
    assert max(len(text.split()) for pair in corpus.train[:-1] for text in pair) < recipe.training.max_length
    assert load(NamesOptions(train=50), Path()).train == load(NamesOptions(train=50), Path()).train
    assert load(NamesOptions(train=50), Path()).train != load(NamesOptions(train=50, seed=2), Path()).train


def test_all_names_are_in_the_vocabulary(tmp_path: Path) -> None:
    recipe = read("names", ["tokenizer.vocabulary=1000"])
    train_tokenizer(load(recipe.corpus, Path()).train, recipe.tokenizer, tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    for split in names.NAMES:
        for name in names.names(split):
            (piece, end) = tokenizer.encode(name)
            assert piece > 3 and end == 3
    assert model_config(recipe, tokenizer).copy_heads == ((1, 0),)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_mixture(smoothing: float) -> None:
    """Label smoothing spreads its mass over the whole vocabulary, as without copying."""
    model = random_model(copy_heads=((1, 0),))
    source, lengths = torch.tensor([[9, 5, 9, 3], [7, 3, 0, 0]]), torch.tensor([4, 2])
    target = torch.tensor([[2, 9, 9, 3], [2, 7, 3, 0]])
    with torch.inference_mode():
        logits = model(source, lengths, target[:, :-1])
        said = target[:, 1:] != 0
        found = smoothed_cross_entropy(logits[said], target[:, 1:][said], smoothing)
    losses = []
    for row, step in zip(*np.nonzero(target[:, 1:].numpy()), strict=True):
        log = logits[row, step].double().numpy()
        losses.append(-(1 - smoothing) * log[target[row, step + 1]] - smoothing * log.mean())
    assert float(found) == pytest.approx(float(np.mean(losses)), rel=1e-5)


def test_scheduled_sampling_reads_what_the_mixture_would_say() -> None:
    model = random_model(copy_heads=((1, 0),)).train()
    source, lengths, target = torch.randint(4, 64, (3, 6)), torch.full((3,), 6), torch.randint(4, 64, (3, 5))
    memory = model.eval().encode(source, lengths)
    model.train()
    read_ids = mixed_inputs(model, target, memory, lengths, 0.0, 1, source)
    with torch.inference_mode():
        said = model.eval()(source, lengths, target).argmax(-1)
    assert torch.equal(read_ids[:, 1:], said[:, :-1]) and torch.equal(read_ids[:, 0], target[:, 0])


def test_it_goes_with_everything_else(tiny: Tiny, tmp_path: Path) -> None:
    """Guided heads that copy, scheduled sampling, smoothing, bfloat16; and another run from there with them frozen."""
    values = (
        "model.copy_heads=[[0, 1]]", "model.alignment_heads=[[0, 1]]", "training.guided_attention=diagonal",
        "training.scheduled_sampling=linear", "training.sampling_steps=4", "training.label_smoothing=0.1",
        "training.precision=bf16-mixed", "training.max_steps=6", "training.validate_every=6",
    )  # fmt: skip
    train(tiny(*values), tmp_path / "one", Path())
    assert load_checkpoint(tmp_path / "one").config.copy_heads == ((0, 1),)
    going_on = (f"training.from_checkpoint={tmp_path / 'one'}", 'training.freeze=["copying"]', "training.max_steps=3")
    recipe = tiny(*going_on, "training.validate_every=3", "model.copy_heads=[[0, 1]]")
    train(recipe, tmp_path / "two", Path())
    moved = changed(tmp_path / "one", tmp_path / "two")
    assert moved and not any(name.startswith("copying") for name in moved)


def test_a_checkpoint_decides_which_heads_copy(tiny: Tiny, tmp_path: Path) -> None:
    train(
        tiny("model.copy_heads=[[0, 1]]", "training.max_steps=1", "training.validate_every=1"), tmp_path / "one", Path()
    )
    other = tiny(f"training.from_checkpoint={tmp_path / 'one'}", "model.copy_heads=[[0, 0]]", "training.max_steps=1")
    with pytest.raises(InputError, match=r"model\.copy_heads is \[\[0, 0\]\], but .* has \[\[0, 1\]\]"):
        train(other, tmp_path / "two", Path())


@pytest.mark.parametrize(
    ("model", "tokenizer", "words"),
    [
        (
            {"copy_heads": [[1, 0]], "share_embeddings": False},
            {"joint": False},
            "model.copy_heads copy ids of the source, .*: set tokenizer.joint = true, or leave them out",
        ),
        ({"preset": "tiny", "copy_heads": [[2, 0]]}, {}, r"copy_heads = \[\[2, 0\]\] is outside the model's 2 decoder"),
        ({"copy_heads": [1, 0]}, {}, r"model config\.copy_heads"),
        ({"copy_heads": "all"}, {}, r"model config\.copy_heads"),
    ],
)
def test_recipes_that_contradict_themselves(model: dict, tokenizer: dict, words: str) -> None:
    table = {"corpus": {"kind": "builtin"}, "model": model, "tokenizer": tokenizer, "training": {"max_steps": 1}}
    with pytest.raises(InputError, match=words) as caught:
        from_table(table, "mine.toml")
    assert "\n" not in str(caught.value)
