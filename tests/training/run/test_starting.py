"""Going on from checkpoints, ours and imported ones: what is kept, what is learned, and what is refused."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import changed, weights
from foreign_models import WORDS, changed_json, import_here
from safetensors.torch import load_file
from tiny_marian import EOS, tiny_marian
from txport.models.checkpoint import Checkpoint, load_checkpoint
from txport.models.description import read_config, read_tokenizer
from txport.models.transformer import Transformer
from txport.runtime.bundle.schema import Generation
from txport.runtime.bundle.tokenizer_schema import Languages
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.tokenizer import TextTokenizer, open_tokenizer
from txport.training.corpora import Pair
from txport.training.examples import Examples, TrainingBatch
from txport.training.fitting import fit
from txport.training.loop import train
from txport.training.recipe import Recipe, from_table, read
from txport.training.run.clock import Clock
from txport.training.run.lightning_module import TranslationModule
from txport.training.run.paths import Finished
from txport.training.run.starting import Start, freeze
from txport.training.torch_engine import special_tokens

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

RECIPE = """
[corpus]
kind = "table"
held_out = 4
[training]
max_steps = 6
batch_tokens = 64
max_length = 32
learning_rate = 1e-3
warmup_steps = 2
validate_every = 3
validation_sentences = 2
keep = "last"
cooldown = 0.0
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`marian`, as Hugging Face saves it, `checkpoint`, imported from it, and a corpus in its words."""
    directory = tmp_path_factory.mktemp("starting")
    tiny_marian(directory / "marian", seed=5, vocabulary=60, tokenizer=True, max_position_embeddings=48)
    changed_json(directory / "marian" / "generation_config.json", num_beams=6, length_penalty=0.8)
    import_here(directory / "marian", directory / "checkpoint", target_language="fra")
    lines = [
        "\t".join(" ".join(WORDS[(row * step + i) % len(WORDS)] for i in range(2 + row % 7)) for step in (1, 5))
        for row in range(80)
    ]
    (directory / "train.tsv").write_text("\n".join(dict.fromkeys(lines)) + "\n")
    (directory / "recipe.toml").write_text(RECIPE)
    return directory


def recipe(place: Path, *values: str) -> Recipe:
    start = f"training.from_checkpoint={json.dumps(str(place / 'checkpoint'))}"
    return read(str(place / "recipe.toml"), [start, *values])


@pytest.fixture(scope="module")
def tuned(place: Path) -> Path:
    """Six steps, with the dropout of the checkpoint."""
    assert read_config(place / "checkpoint").dropout > 0
    train(recipe(place), place / "tuned", place)
    return place / "tuned"


# --- one step, as Hugging Face makes it ------------------------------------------------------------------------------


def tokenizer_of(checkpoint: Checkpoint) -> TextTokenizer:
    opened = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    assert isinstance(opened, TextTokenizer)
    return opened


def module_of(checkpoint: Checkpoint, options: Any) -> TranslationModule:
    arguments = tokenizer_of(checkpoint), [("a", "a")], Clock(None), lambda done, total: None
    return TranslationModule(checkpoint.model, options, *arguments)


def pairs_of(place: Path) -> list[Pair]:
    return [tuple(line.split("\t")) for line in (place / "train.tsv").read_text().splitlines()]  # type: ignore[misc]


def a_batch(checkpoint: Checkpoint, pairs: list[Pair]) -> TrainingBatch:
    examples = Examples.of(pairs, tokenizer_of(checkpoint), 48, special_tokens(checkpoint.config))
    return examples[range(len(pairs))]


def theirs(place: Path) -> Any:
    """Their model, with the ban of pad in its bias, where tx-import puts it and `generate` has a list."""
    model = transformers.MarianMTModel.from_pretrained(str(place / "marian"))
    model.final_logits_bias[0, model.config.pad_token_id] = -30000.0
    return model.eval()


def test_one_step_has_the_loss_and_the_gradients_of_hugging_face(place: Path) -> None:
    """Ids by their tokenizer, loss by their model, gradients by theirs, and the weights after a step of Adam."""
    checkpoint, pairs = load_checkpoint(place / "checkpoint"), pairs_of(place)[:16]
    module = module_of(checkpoint, recipe(place, "training.label_smoothing=0").training)
    batch = a_batch(checkpoint, pairs)
    model = theirs(place)
    tokenizer = transformers.MarianTokenizer.from_pretrained(str(place / "marian"))
    sources, targets = zip(*pairs, strict=True)
    inputs = tokenizer([f">>fra<< {text}" for text in sources], text_target=list(targets), padding=True)
    assert inputs.input_ids == batch.source_ids.tolist() and inputs.labels == batch.target_ids[:, 1:].tolist()
    labels = torch.tensor(inputs.labels)
    labels[labels == model.config.pad_token_id] = -100
    ids, mask = torch.tensor(inputs.input_ids), torch.tensor(inputs.attention_mask)
    output = model(input_ids=ids, attention_mask=mask, labels=labels)
    output.loss.backward()
    loss = module.loss(batch, 0.0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(float(output.loss.detach()), abs=1e-5)
    # All weights are random: equal values say which of theirs is which of ours.
    others = [each for each in model.parameters() if each.grad is not None]
    for name, parameter in checkpoint.model.named_parameters():
        if name == "projection.bias" or name.endswith("embedding.positions"):
            continue  # tables that they do not train
        (same,) = [each for each in others if each.shape == parameter.shape and torch.equal(each, parameter)]
        assert parameter.grad is not None and same.grad is not None
        assert float((parameter.grad - same.grad).abs().max()) < 1e-5, name
        assert float(parameter.grad.abs().max()) > 1e-4 or "key.bias" in name, "a gradient of nothing proves nothing"
    assert len(others) == len(list(checkpoint.model.parameters())) - 3
    # And the loss after a step of Adam, each with its own optimizer.
    freeze(checkpoint.model, ["*.positions", "projection.bias"])
    their_step = torch.optim.Adam(others, lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    our_step = module.configure_optimizers()
    our_step.param_groups[0]["lr"] = 1e-3
    their_step.step()
    our_step.step()
    with torch.no_grad():
        after = float(model(input_ids=ids, attention_mask=mask, labels=labels).loss)
        assert float(module.loss(batch, 0.0)) == pytest.approx(after, abs=1e-4)
    assert abs(after - float(loss.detach())) > 0.01


def test_banned_ids_get_no_share_of_the_smoothing(place: Path) -> None:
    """By hand, in float64: the share would multiply -30000."""
    checkpoint = load_checkpoint(place / "checkpoint")
    module, batch = module_of(checkpoint, recipe(place).training), a_batch(checkpoint, pairs_of(place)[:3])
    pad = checkpoint.config.pad_id
    with torch.no_grad():
        logits = checkpoint.model(batch.source_ids, batch.source_lengths, batch.target_ids[:, :-1]).double()
        loss = float(module.loss(batch, 0.2))
    kept = [i for i in range(60) if i != pad]
    said = torch.log_softmax(logits[..., kept], -1)
    terms = []
    for row, targets in zip(said, batch.target_ids[:, 1:].tolist(), strict=True):
        for values, target in zip(row, targets, strict=True):
            if target != pad:
                terms.append(-0.8 * values[kept.index(target)] - 0.2 * values.mean())
    assert loss == pytest.approx(float(sum(terms)) / len(terms), rel=1e-5) and loss < 100


# --- whole runs ------------------------------------------------------------------------------------------------------


def test_no_step_leaves_checkpoint_and_bundle_as_they_are(place: Path, tmp_path: Path) -> None:
    from txport.exporter.export import ExportOptions, export_bundle

    same = tmp_path / "same"
    outcome = train(recipe(place, "training.max_steps=0", "model.dropout=0.3"), same, place)
    assert outcome is not None and outcome.steps == 0
    first, second = place / "checkpoint", same
    stored, written = (load_file(place / "model.safetensors") for place in (first, second))
    assert stored.keys() == written.keys()
    assert all(
        torch.equal(value, written[name]) and value.dtype == written[name].dtype for name, value in stored.items()
    )
    files = {file.name: file.read_bytes() for file in (first / "tokenizer").iterdir()}
    assert files == {file.name: file.read_bytes() for file in (second / "tokenizer").iterdir()}
    assert replace(read_config(second), dropout=read_config(first).dropout) == read_config(first)
    assert read_config(second).dropout == 0.3
    # The same sentences, which a new corpus changes: bundles hold some as a self-test.
    for name in ("sentences.txt", "references.txt"):
        (second / name).unlink(missing_ok=True)
        if (first / name).exists():
            shutil.copy(first / name, second)
    shutil.copy(first / "config.json", second)
    for checkpoint in (first, second):
        options = ExportOptions(lowerings=("scatter",), sentences=8, singles=1)
        export_bundle(checkpoint, tmp_path / f"{checkpoint.name}-bundle", options)
    graphs = [sorted((tmp_path / f"{name}-bundle" / "onnx").iterdir()) for name in ("checkpoint", "same")]
    assert len(graphs[0]) > 2
    assert [file.read_bytes() for file in graphs[0]] == [file.read_bytes() for file in graphs[1]]


def test_an_interrupted_run_goes_on_without_the_checkpoint(place: Path, tuned: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "checkpoint", tmp_path / "checkpoint")
    shutil.copy(place / "recipe.toml", tmp_path)
    train(recipe(tmp_path, "training.max_steps=3"), tmp_path / "parts", place)
    shutil.rmtree(tmp_path / "checkpoint")
    outcome = train(recipe(tmp_path), tmp_path / "parts", place, resume=True)
    assert outcome is not None and outcome.steps == 6
    assert changed(tuned, tmp_path / "parts") == set()
    with pytest.raises(Finished, match="raise max_steps to continue"):
        train(recipe(tmp_path, "training.max_steps=0"), tmp_path / "parts", place, resume=True)
    assert changed(tuned, tmp_path / "parts") == set(), "no step more"
    assert len(changed(tuned, place / "checkpoint")) > 20
    assert load_checkpoint(tmp_path / "parts").generation == Generation(beam=6, length_penalty=0.8, forced_end=0)
    assert read_tokenizer(tuned, read_config(tuned)) == load_checkpoint(place / "checkpoint").tokenizer


def test_what_is_frozen_stays(place: Path, tmp_path: Path) -> None:
    values = (
        'training.freeze=["source_embedding", "encoder.*.attention", "decoder.[0]"]',
        "training.scheduled_sampling=linear",
    )
    train(recipe(place, *values), tmp_path / "tuned", place)
    moved = changed(place / "checkpoint", tmp_path / "tuned")
    names = weights(place / "checkpoint").keys()
    frozen = {name for name in names if name.startswith(("source_embedding", "decoder.0")) or ".attention." in name}
    assert moved == names - frozen - {"projection.bias"} | ({"projection.bias"} & moved) and len(frozen) > 15


def test_a_pattern_without_a_name_and_nothing_left_are_refused(place: Path) -> None:
    model = load_checkpoint(place / "checkpoint").model
    with pytest.raises(
        InputError, match=r"training.freeze: 'source_embeding' fits no parameter: did you mean source_emb"
    ):
        freeze(model, ["source_embeding"])
    with pytest.raises(InputError, match="leaves nothing to train"):
        freeze(model, ["*"])


def test_a_tied_tensor_is_frozen_by_each_of_its_names(place: Path) -> None:
    model: Transformer = load_checkpoint(place / "checkpoint").model
    freeze(model, ["projection.weight"])
    assert (
        not model.source_embedding.tokens.weight.requires_grad and model.encoder[0].attention.query.weight.requires_grad
    )  # type: ignore[union-attr]


def test_the_peak_rate_is_a_tenth(place: Path, tmp_path: Path) -> None:
    plain = read("tiny", ["training.max_steps=500"])
    plain = replace(plain, training=replace(plain.training, learning_rate=None))
    tuned = replace(plain, training=replace(plain.training, from_checkpoint="x"))
    rates = [fit(each, [("a", "b")] * 99)[0].training.learning_rate for each in (plain, tuned)]
    assert rates[0] is not None and rates[1] == pytest.approx(rates[0] / 10, rel=0.05)


def test_languages_of_the_corpus_become_the_defaults(place: Path) -> None:
    description = load_checkpoint(place / "checkpoint").tokenizer
    assert description.languages is not None and description.languages.target_default == "fra"
    other = 'corpus={kind="parallel", source_language="en", target_language="deu"}'
    parallel = read(str(place / "recipe.toml"), [f"training.from_checkpoint={place}"])
    from txport.training.options import ParallelOptions

    parallel = replace(parallel, corpus=ParallelOptions(source_language="en", target_language="deu"))
    start = Start.read(parallel, place / "checkpoint")
    assert isinstance(start.description.languages, Languages), other
    assert start.description.languages.target_default == "deu"
    fra, deu = (
        tokenizer.encode_source("a cat")[1].source_prefix
        for tokenizer in (tokenizer_of(load_checkpoint(place / "checkpoint")), start.tokenizer())
    )
    assert fra != deu and len(fra) == len(deu) == 1


def test_answers_begin_as_the_model_was_taught(place: Path) -> None:
    """M2M100, mBART and others: the target language stands before the pieces, bos before it."""
    checkpoint = load_checkpoint(place / "checkpoint")
    description = replace(checkpoint.tokenizer, target_prefix=("target_language",))
    tokenizer = open_tokenizer(checkpoint.directory, description, checkpoint.config.vocabularies)
    assert isinstance(tokenizer, TextTokenizer)
    tokens = special_tokens(checkpoint.config)
    (row,) = Examples.of([("a cat", "le chat")], tokenizer, 48, tokens)[[0]].target_ids.tolist()
    fra = description.languages.target["fra"]  # type: ignore[union-attr]
    assert row == [tokens.bos, fra, *tokenizer.encode_prefix("le chat"), EOS]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("model.d_model=64",), "model.d_model is 64, but .*checkpoint has 16: a checkpoint decides the model"),
        (
            ("model.preset=tiny",),
            "has 16: a checkpoint decides the model, leave .model. out except for dropout and align",
        ),
        (("training.max_length=49",), r"training.max_length \(49\) is above model.max_positions \(48\)"),
        (('training.freeze=["nothing"]',), "'nothing' fits no parameter"),
        (("training.from_checkpoint=nowhere",), "nowhere"),
    ],
)
def test_what_contradicts_the_checkpoint_is_refused(
    place: Path, tmp_path: Path, values: tuple[str, ...], message: str
) -> None:
    with pytest.raises(Exception, match=message) as caught:
        train(recipe(place, *values), tmp_path / "out", place)
    assert str(caught.value).count("\n") == 0 and not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("value", ['training.freeze=["a"]', "training.max_steps=0"])
def test_what_needs_a_checkpoint_is_refused_without(place: Path, value: str) -> None:
    with pytest.raises(InputError, match="--from|unless training.from_checkpoint is set"):
        read(str(place / "recipe.toml"), [value])


def test_a_tokenizer_that_does_not_fit_the_corpus_is_refused(place: Path, tmp_path: Path) -> None:
    lines = [f"{chr(0x4E00 + i)} {chr(0x4E10 + i)} {chr(0x4E20 + i)}\tthe cat" for i in range(40)]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    message = r"lacks \d\d% of the pieces of the corpus' source texts, for example in '.*': fine-tune a checkpoint"
    with pytest.raises(InputError, match=message):
        train(recipe(place), tmp_path / "out", tmp_path)
    assert not (tmp_path / "out.run").exists()


def test_a_checkpoint_of_ids_only_is_refused(place: Path, tmp_path: Path) -> None:
    import_here(place / "marian", tmp_path / "checkpoint", tokenizer=False)
    shutil.copy(place / "recipe.toml", tmp_path)
    with pytest.raises(InputError, match="has no tokenizer: import it with one"):
        train(recipe(tmp_path), tmp_path / "out", place)


def test_our_own_checkpoint_goes_on_with_its_recipe(
    tiny: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command: another corpus, the same recipe's [model], and [tokenizer] without effect."""
    from click.testing import CliRunner
    from txport.training.train_command import main

    options = ("training.max_steps=2", "training.validate_every=2")
    train(tiny(*options), tmp_path / "first", Path())
    values = ["corpus.seed=5", "corpus.train=300", "corpus.validation=4", "corpus.test=4", "training.max_length=64"]
    values += ["model.encoder_layers=1", "model.decoder_layers=1", "model.d_model=32", "model.ffn=64"]
    values += ["model.max_positions=64", "tokenizer.vocabulary=9000", "training.validation_sentences=2"]
    arguments = [
        "--recipe",
        "tiny",
        "-o",
        str(tmp_path / "second"),
        "--from",
        str(tmp_path / "first"),
        "--max-steps",
        "2",
    ]
    sets = [word for value in values for word in ("--set", value)]
    done = CliRunner().invoke(main, [*arguments, *sets], catch_exceptions=False)
    assert done.exit_code == 0 and "second: 2 steps in" in done.output
    first, second = tmp_path / "first" / "tokenizer", tmp_path / "second" / "tokenizer"
    assert [file.name for file in second.iterdir()] == ["shared.model"]
    assert (first / "shared.model").read_bytes() == (second / "shared.model").read_bytes()
    assert json.loads((tmp_path / "second" / "training.json").read_text())["recipe"]["training"]["from_checkpoint"]


def test_a_bundle_is_no_checkpoint(tmp_path: Path) -> None:
    """Said before the corpus is read, which is not there."""
    (tmp_path / "bundle").mkdir()
    for name in ("manifest.json", "config.json"):
        (tmp_path / "bundle" / name).write_text("{}")
    table = {"corpus": {"kind": "parallel"}, "training": {"max_steps": 1, "from_checkpoint": str(tmp_path / "bundle")}}
    with pytest.raises(CheckpointError, match="bundle is a bundle: give the checkpoint it was exported from"):
        train(from_table(table, "mine.toml"), tmp_path / "mine", tmp_path / "nowhere")
