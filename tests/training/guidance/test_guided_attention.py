"""Guided attention against the formulas of its papers, fairseq and OpenNMT-py; and whole runs with it."""

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import changed
from recorded_models import FOLDER as FOREIGN
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.attention_maps import attention_maps, recorded_weights
from txport.models.checkpoint import load_checkpoint
from txport.models.config import preset
from txport.models.description import read_config
from txport.models.transformer import Transformer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import InputError
from txport.runtime.text.tokenizer import TextTokenizer, open_tokenizer
from txport.training.examples import Examples, Ragged, TrainingBatch
from txport.training.fitting import fit
from txport.training.guidance.guided_attention import (
    Aligned,
    Diagonal,
    Guide,
    alignment_loss,
    average_of_heads,
    cross_attentions,
    diagonal_loss,
)
from txport.training.guidance.heads import default_heads
from txport.training.loop import train
from txport.training.recipe import Recipe, read
from txport.training.run.agreement import CorpusAgreement

Tiny = Callable[..., Recipe]
HEADS = ((0, 1), (1, 2))
# Of three sentences, the longest source first: tokens of source and target without eos, and aligned positions.
LENGTHS = ((6, 4), (5, 7), (2, 3))
LINKS = ([(0, 0), (3, 1), (4, 1), (5, 3)], [(4, 0), (0, 6)], [(1, 2), (0, 2), (1, 2)])
SHORT = ("training.validate_every=4", "model.dropout=0.1", "training.keep=last", "training.max_steps=8")
LAYERS = ("model.decoder_layers=3", "training.guided_attention=diagonal")


def examples(guide: Guide, points: Sequence[Sequence[int]], rows: Sequence[int] = (0, 1, 2)) -> Examples:
    draw = np.random.default_rng(3)
    ids = [[draw.integers(4, 24, length).tolist() for length in pair] for pair in LENGTHS]
    sources = Ragged.of([*ids[row][0], 3] for row in rows)
    targets = Ragged.of([2, *ids[row][1], 3] for row in rows)
    return Examples(sources, targets, 0, guide, Ragged.of(points[row] for row in rows))


@pytest.fixture(scope="module")
def aligned() -> Examples:
    guide = Aligned({}, None)  # type: ignore[arg-type]  # no text: the points are given
    return examples(guide, [[position for link in links for position in link] for links in LINKS])


@pytest.fixture(scope="module")
def diagonal() -> Examples:
    return examples(Diagonal(0.2), [Diagonal(0.2).points(("", ""), range(s), range(t)) for s, t in LENGTHS])


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(2)
    sizes = {"source_vocabulary": 24, "target_vocabulary": 24, "d_model": 32, "ffn": 48, "max_positions": 40}
    return Transformer(preset("tiny", **sizes, dropout=0.0, alignment_heads=HEADS)).train()


def attention_of(model: Transformer, batch: TrainingBatch) -> torch.Tensor:
    with recorded_weights(cross_attentions(model)) as weights:
        model(batch.source_ids, batch.source_lengths, batch.target_ids[:, :-1])
    return average_of_heads(model, weights)


def guide_of(batch: TrainingBatch) -> torch.Tensor:
    assert batch.guide is not None
    return batch.guide


TOKENS = sum(target + 1 for _, target in LENGTHS)  # with eos


def test_the_attention_is_the_average_of_the_heads_of_the_maps(model: Transformer, diagonal: Examples) -> None:
    batch = diagonal[range(3)]
    found = attention_of(model, batch)
    lengths = torch.tensor([target + 1 for _, target in LENGTHS])
    maps = attention_maps(model, batch.source_ids, batch.source_lengths, batch.target_ids[:, 1:], lengths)
    for row, (_, target) in enumerate(LENGTHS):
        expected = (maps.cross[0, row, 1] + maps.cross[1, row, 2]) / 2
        torch.testing.assert_close(found[row, : target + 1], expected[: target + 1])


def test_the_diagonal_loss_is_the_formula_of_its_paper(model: Transformer, diagonal: Examples) -> None:
    """Tachibana et al. (2017), equations 6 and 7, without padding and eos, summed over the source."""
    batch, expected = diagonal[range(3)], 0.0
    attention = attention_of(model, batch).detach()
    for row, (sources, targets) in enumerate(LENGTHS):
        for t in range(targets):
            for n in range(sources):
                penalty = 1 - math.exp(-((n / sources - t / targets) ** 2) / (2 * 0.2**2))
                expected += penalty * float(attention[row, t, n])
            expected += float(attention[row, t, sources])  # eos costs 1
    found = diagonal_loss(attention, guide_of(batch), TOKENS)
    assert float(found) == pytest.approx(expected / TOKENS, rel=1e-5)
    perfect = torch.eye(5)[None]
    assert float(diagonal_loss(perfect, torch.from_numpy(filled(Diagonal(0.2), (0, 5, 0, 5), 5, 5))[None], 5)) == 0.0


def filled(guide: Guide, points: Sequence[int], steps: int, columns: int) -> np.ndarray:  # type: ignore[type-arg]
    matrix = np.zeros((steps, columns), np.float32)
    guide.fill(matrix, np.array(points, np.int32))
    return matrix


def test_a_language_before_the_text_is_no_part_of_the_diagonal() -> None:
    plain = filled(Diagonal(0.3), (0, 4, 0, 3), 4, 5)
    moved = filled(Diagonal(0.3), (1, 5, 2, 5), 7, 6)
    np.testing.assert_array_equal(moved[2:5, 1:5], plain[:3, :4])
    assert (moved[2:5, [0, 5]] == 1).all() and not moved[:2].any() and not moved[5:].any()


@pytest.mark.parametrize("package", ["fairseq", "opennmt"])
def test_the_alignment_loss_is_theirs(aligned: Examples, package: str) -> None:
    """Of an attention that tests/data/make_foreign_models.py has shown to both packages; no link counts twice."""
    theirs = json.loads((FOREIGN / "alignment_losses.json").read_text())
    ours = alignment_loss(torch.tensor(theirs["attention"]), guide_of(aligned[range(3)]), TOKENS)
    assert float(ours) == pytest.approx(theirs[package] / TOKENS, rel=1e-4)
    assert float(ours) > 0.1


@pytest.mark.parametrize("kind", ["diagonal", "aligned"])
def test_a_sentence_costs_the_same_in_any_company(
    model: Transformer, kind: str, request: pytest.FixtureRequest
) -> None:
    whole: Examples = request.getfixturevalue(kind)
    loss = diagonal_loss if kind == "diagonal" else alignment_loss

    def cost(rows: list[int]) -> float:
        batch = whole[rows]
        return float(loss(attention_of(model, batch), guide_of(batch), 1))

    assert cost([0, 1, 2]) == pytest.approx(sum(cost([row]) for row in range(3)), rel=1e-5)


@pytest.mark.parametrize("kind", ["diagonal", "aligned"])
def test_steps_of_padding_and_eos_are_free(model: Transformer, kind: str, request: pytest.FixtureRequest) -> None:
    batch = request.getfixturevalue(kind)[range(3)]
    for row, (sources, targets) in enumerate(LENGTHS):
        assert not batch.guide[row, targets:].any(), "steps that make eos and padding"
        if kind == "aligned":
            assert not batch.guide[row, :, sources:].any()
            sums = batch.guide[row].sum(-1)
            assert set(sums.tolist()) <= {0.0, 1.0} and int(sums.sum()) == len({target for _, target in LINKS[row]})
    attention = attention_of(model, batch)
    assert not any(attention[row, :, sources + 1 :].any() for row, (sources, _) in enumerate(LENGTHS))


def test_only_the_named_heads_learn(model: Transformer, diagonal: Examples) -> None:
    one = Transformer(replace(model.config, alignment_heads=((0, 3),)))
    batch = diagonal[range(3)]
    diagonal_loss(attention_of(one, batch), guide_of(batch), TOKENS).backward()  # type: ignore[no-untyped-call]
    gradients = {name: value.grad for name, value in one.named_parameters() if value.grad is not None}
    for name in ("query.weight", "key.weight"):
        by_head = gradients[f"decoder.0.cross_attention.{name}"].view(4, -1).abs().amax(dim=1)
        assert by_head[3] > 1e-6 and by_head[:3].tolist() == [0.0, 0.0, 0.0]
    untouched = ("decoder.1.", "decoder.0.cross_attention.value", "decoder.0.cross_attention.output", "projection.bias")
    assert not [name for name in gradients if name.startswith((*untouched, "decoder.0.feed_forward"))]
    assert gradients["encoder.0.attention.query.weight"].abs().max() > 0


def test_a_weight_of_zero_has_a_finite_loss() -> None:
    attention = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    loss = alignment_loss(attention, torch.tensor([[[0.0, 1.0]]]), 1)
    loss.backward()  # type: ignore[no-untyped-call]
    assert math.isfinite(float(loss.detach())) and attention.grad is not None and attention.grad.isfinite().all()


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`plain` without guided attention, and `guided` with."""
    directory = tmp_path_factory.mktemp("guided")
    train(tiny(*SHORT, *LAYERS, "training.guided_attention=none"), directory / "plain", Path())
    train(tiny(*SHORT, *LAYERS), directory / "guided", Path())
    return directory


def test_a_weight_of_zero_is_training_without_it_bit_for_bit(tiny: Tiny, runs: Path, tmp_path: Path) -> None:
    train(tiny(*SHORT, *LAYERS, "training.guided_weight=0"), tmp_path / "zero", Path())
    assert not changed(runs / "plain", tmp_path / "zero") and changed(runs / "plain", runs / "guided")


def test_a_resumed_run_ends_with_the_same_weights(tiny: Tiny, runs: Path, tmp_path: Path) -> None:
    train(tiny(*SHORT, *LAYERS, "training.max_steps=5"), tmp_path / "parts", Path())
    train(tiny(*SHORT, *LAYERS), tmp_path / "parts", Path(), resume=True)
    assert not changed(runs / "guided", tmp_path / "parts")


def test_the_checkpoint_and_the_manifest_keep_the_heads(runs: Path, tmp_path: Path) -> None:
    """And `Translator` uses those of the manifest, see test_given_translations.py."""
    assert read_config(runs / "guided").alignment_heads == ((1, 0),)
    assert read_config(runs / "plain").alignment_heads == ()
    export_bundle(runs / "guided", tmp_path / "bundle", ExportOptions(lowerings=("scatter",), verify=False))
    assert Manifest.load(tmp_path / "bundle").alignment_heads == ((1, 0),)


def test_heads_of_ones_own_and_of_a_checkpoint(tiny: Tiny, runs: Path, tmp_path: Path) -> None:
    own = (*SHORT, *LAYERS, "model.alignment_heads=[[2, 1], [0, 3]]")
    train(tiny(*own, "training.max_steps=1"), tmp_path / "own", Path())
    assert read_config(tmp_path / "own").alignment_heads == ((2, 1), (0, 3))
    start = ("training.max_steps=2", f'training.from_checkpoint="{runs / "guided"}"')

    def go_on(name: str, model: dict[str, Any], *values: str, resume: bool = False) -> tuple[tuple[int, int], ...]:
        train(replace(tiny(*start, *values), model=model), tmp_path / name, Path(), resume=resume)
        return read_config(tmp_path / name).alignment_heads

    assert go_on("kept", {}) == ((1, 0),)
    assert go_on("kept", {}, "training.max_steps=3", resume=True) == ((1, 0),)
    assert go_on("other", {"alignment_heads": [[2, 2]]}, "training.guided_attention=diagonal") == ((2, 2),)
    assert changed(tmp_path / "kept", tmp_path / "other")
    with pytest.raises(InputError, match=r"alignment_heads = \[\[3, 0\]\] is outside the model's 3 decoder layers"):
        go_on("wrong", {"alignment_heads": [[3, 0]]})


def test_a_model_that_is_chosen_later_may_have_the_heads(tmp_path: Path) -> None:
    """Of a checkpoint, or one that fits the corpus, which then must have them."""
    file = tmp_path / "recipe.toml"
    file.write_text('[corpus]\nkind = "builtin"\n[model]\nalignment_heads = [[4, 7]]\n[training]\nmax_steps = 5\n')
    recipe = read(str(file))
    with pytest.raises(
        InputError, match=r"alignment_heads = \[\[4, 7\]\] is outside the model's 2 decoder layers of 4"
    ):
        fit(recipe, [("a", "b")] * 200)
    with pytest.raises(InputError, match=r"model config.alignment_heads\[0\] must be an array"):
        read(str(file), ["model.alignment_heads=[4, 7]"])


def test_the_first_head_of_the_last_layer_but_one_is_guided() -> None:
    """Of two layers, the last."""
    assert [default_heads(layers) for layers in (1, 2, 3, 6)] == [((0, 0),), ((1, 0),), ((1, 0),), ((4, 0),)]


def test_attention_learns_what_an_alignment_says(tmp_path: Path) -> None:
    """To copy words backwards, with the alignment that says so: one head points there, and its bundle says so."""
    draw, words = np.random.default_rng(1), [f"{a}{b}" for a in "bdgk" for b in "aeio"]
    rows = [[words[i] for i in draw.integers(0, 16, draw.integers(2, 6))] for _ in range(400)]
    with (tmp_path / "train.tsv").open("w") as file:
        for row in rows:
            links = " ".join(f"{i}-{len(row) - 1 - i}" for i in range(len(row)))
            file.write(f"{' '.join(row)}\t{' '.join(row[::-1])}\t{links}\n")
    (tmp_path / "backwards.toml").write_text(
        '[corpus]\nkind = "table"\nheld_out = 20\nalignment_column = 3\n'
        '[tokenizer]\nalgorithm = "word"\n'
        '[model]\npreset = "tiny"\nd_model = 32\nffn = 64\n'
        "[training]\nmax_steps = 300\nbatch_tokens = 256\nmax_length = 32\nlearning_rate = 5e-3\ncooldown = 0.0\n"
        'guided_attention = "alignments"\nguided_weight = 1.0\nvalidation_sentences = 4\nvalidate_every = 300\n'
    )
    train(read(str(tmp_path / "backwards.toml")), tmp_path / "checkpoint", tmp_path)
    metrics = tmp_path / "checkpoint.run" / "logs" / "csv" / "version_0" / "metrics.csv"
    read_rows = csv.DictReader(metrics.open())
    losses = [float(row["training/guided_attention"]) for row in read_rows if row["training/guided_attention"]]
    # Measured: 1.4 at first, 0.25 as the mean of the last ten, which single batches are far from.
    assert np.mean(losses[-10:]) < losses[0] / 2, losses
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    assert isinstance(tokenizer, TextTokenizer) and checkpoint.config.alignment_heads == ((1, 0),)
    right = []
    for source, target in zip(checkpoint.sentences, checkpoint.references, strict=True):
        ids, steps = tokenizer.encode(source), tokenizer.encode_prefix(target)
        lengths = torch.tensor([len(ids)]), torch.tensor([len(steps)])
        with torch.no_grad():
            maps = attention_maps(checkpoint.model, torch.tensor([ids]), lengths[0], torch.tensor([steps]), lengths[1])
        best = maps.cross[1, 0, 0].argmax(dim=-1).tolist()
        right += [position == len(steps) - 1 - step for step, position in enumerate(best)]
    assert np.mean(right) > 0.7, "measured: 0.96; by chance a third"


def test_processes_with_other_alignments_disagree(aligned: Examples) -> None:
    guide = Aligned({}, None)  # type: ignore[arg-type]
    other = Examples(aligned.sources, aligned.targets, 0, guide, Ragged.of([[], [4, 0], []]))
    assert CorpusAgreement(aligned)._digest == CorpusAgreement(aligned)._digest != CorpusAgreement(other)._digest


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("training.guided_attention=diagnal",), "not one of none, diagonal, alignments"),
        (("training.guided_weight=-1",), "guided_weight is -1.0, but must be at least 0"),
        (("training.guided_width=0",), "guided_width is 0.0, but must be above 0"),
        (
            ("model.alignment_heads=[[5, 0]]",),
            r"alignment_heads = \[\[5, 0\]\] is outside the model's 1 decoder layers",
        ),
        (
            ("model.alignment_heads=[[0, 4]]",),
            r"\[\[0, 4\]\] is outside .* 1 decoder layers of 4 heads, counted from 0",
        ),
        (("model.alignment_heads=[[0, -1]]",), r"\[\[0, -1\]\] is outside"),
        (("model.alignment_heads=[[0, 1], [0, 1]]",), r"\[\[0, 1\]\] is there twice"),
        (("model.alignment_heads=[0, 1]",), "alignment_heads"),
        (("training.guided_attention=alignments",), "only a corpus of kind parallel or table can have"),
    ],
)
def test_impossible_guidance_is_refused(tiny: Tiny, values: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny(*values)


@pytest.mark.parametrize("corpus", [("parallel", "alignments", "align"), ("table", "alignment_column", "3")])
def test_alignments_and_what_they_are_for_come_together(tmp_path: Path, corpus: tuple[str, str, str]) -> None:
    kind, name, value = corpus
    file = tmp_path / "recipe.toml"
    file.write_text(f'[corpus]\nkind = "{kind}"\n[training]\nmax_steps = 5\n')
    given, wanted = f"corpus.{name}={value}", "training.guided_attention=alignments"
    assert read(str(file), [given, wanted]).training.guided_attention == "alignments"
    with pytest.raises(InputError, match=f"is alignments, but the corpus names none: set corpus.{name}$"):
        read(str(file), [wanted])
    for other in ("none", "diagonal"):
        with pytest.raises(InputError, match=f"corpus.{name} is not read with training.guided_attention {other}"):
            read(str(file), [given, f"training.guided_attention={other}"])
    with pytest.raises(InputError, match="space_punctuation makes words of punctuation, which corpus"):
        read(str(file), [given, wanted, "tokenizer.space_punctuation=true", "tokenizer.algorithm=word"])
