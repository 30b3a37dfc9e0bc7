"""Alignments, attention, scores of given translations and embeddings: on a real bundle, by other ways to the same."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import BUNDLE as TOY
from txport.runtime import entry
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines import teacher_forcing
from txport.runtime.errors import BundleError, InputError
from txport.runtime.translator import Translator

TEXTS = ["one hundred and five", "seven", "two thousand three hundred and eleven", "it is ten past nine", "seven seven"]


@pytest.fixture(scope="module")
def real(attention_bundle: Path) -> Translator:
    return Translator(attention_bundle, "cpu", threads=1)


def test_attention_and_alignment_of_a_translation(real: Translator) -> None:
    """What is asked for is there, the rest as without; a blank sentence has nothing."""
    plain = real.translate([*TEXTS, " "], scores=True)
    results = real.translate([*TEXTS, " "], scores=True, alignments=True, attention=True)
    assert [(r.text, r.ids, r.scores) for r in results] == [(r.text, r.ids, r.scores) for r in plain]
    assert results[-1] == plain[-1] and plain[0].alignment is None and plain[0].attention is None
    for text, result in zip(TEXTS, results, strict=False):
        source, eos = real.tokenizer.encode(text), real.manifest.tokens.eos
        assert result.attention is not None and result.alignment is not None
        assert result.attention.shape == (len(result.ids), len(source)) and result.attention.dtype == np.float32
        np.testing.assert_allclose(result.attention.sum(axis=1), 1, atol=1e-5)
        best = result.attention[:, :-1].argmax(axis=1)  # without the source's eos
        tokens = [None if token == eos else int(best[i]) for i, token in enumerate(result.ids)]
        assert result.alignment.tokens == tokens
        of_words = [text[start:end] for start, end in result.alignment.source_words]
        made = [result.text[start:end] for start, end in result.alignment.target_words]
        assert of_words == text.split() and made == result.text.split()
        assert result.alignment.source_spans[-1] == (0, 0), "eos"
        pairs = [tuple(map(int, pair.split("-"))) for pair in result.alignment.pharaoh.split()]
        assert pairs == result.alignment.words
        assert all(s < len(of_words) and t < len(made) for s, t in pairs)
    assert real.translate(TEXTS[:1], alignments=True)[0].attention is None
    assert real.translate(TEXTS[:1], attention=True)[0].alignment is None


def test_characters_that_normalisation_changes(real: Translator) -> None:
    """Full-width letters and two spaces are plain letters and one space to the model (NFKC), not to the alignment."""
    text = "ｓｅｖｅｎ  seven"
    plain, result = real.translate(["seven seven", text], alignments=True)
    assert result.ids == plain.ids and result.alignment is not None and plain.alignment is not None
    assert result.alignment.words == plain.alignment.words and result.alignment.source_words == [(0, 5), (7, 12)]
    seen = [text[start:end] for start, end in result.alignment.source_spans]
    assert "".join(seen) == "ｓｅｖｅｎseven"


def test_attention_is_the_average_of_the_maps(real: Translator, attention_bundle: Path, tmp_path: Path) -> None:
    (result,) = real.translate(TEXTS[:1], attention=True)
    maps = real.attention_maps(TEXTS[0])
    assert maps.target_ids == result.ids and maps.source_ids == real.tokenizer.encode(TEXTS[0])
    assert result.attention is not None
    np.testing.assert_allclose(result.attention, maps.cross[-2:].mean((0, 1)), atol=1e-6)
    assert maps.source_labels[-1] == maps.target_labels[-1] == "</s>"
    assert "".join(maps.source_labels[:-1]).replace("▁", " ").strip() == TEXTS[0]
    given = real.attention_maps(TEXTS[0], result.text)
    assert given.target_ids[-1] == real.manifest.tokens.eos
    chosen = Path(shutil.copytree(attention_bundle, tmp_path / "bundle"))
    replace(Manifest.load(chosen), alignment_heads=((0, 1), (1, 3))).write(chosen)
    (other,) = Translator(chosen, "cpu", threads=1).translate(TEXTS[:1], attention=True)
    assert other.attention is not None
    np.testing.assert_allclose(other.attention, (maps.cross[0, 1] + maps.cross[1, 3]) / 2, atol=1e-6)


def test_maps_are_those_of_pytorch(real: Translator, checkpoint: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
    from txport.models.attention_maps import attention_maps
    from txport.models.checkpoint import load_checkpoint

    model = load_checkpoint(checkpoint).model
    for text in TEXTS:
        maps = real.attention_maps(text)
        source, target = torch.tensor([maps.source_ids]), torch.tensor([maps.target_ids])
        with torch.inference_mode():
            lengths = torch.tensor([source.shape[1]]), torch.tensor([target.shape[1]])
            expected = attention_maps(model, source, lengths[0], target, lengths[1])
            memory = model.encode(source, lengths[0])[0].numpy()
        for ours, theirs in (
            (maps.encoder, expected.encoder[:, 0]),
            (maps.decoder, expected.decoder[:, 0]),
            (maps.cross, expected.cross[:, 0]),
            (np.array(maps.scores), expected.log_probabilities[0]),
        ):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)
        (whole,) = real.embed([text], pooled=False)
        np.testing.assert_allclose(whole, memory, atol=1e-5)
        np.testing.assert_allclose(real.embed([text])[0], memory.mean(axis=0), atol=1e-5)


def test_scores_of_its_own_translations_are_those_of_the_search(real: Translator) -> None:
    made = real.translate(TEXTS, scores=True, max_length=12)
    for scores in (
        real.score(TEXTS, [result.ids for result in made]),
        real.score_ids([real.tokenizer.encode(text) for text in TEXTS], [result.ids for result in made]),
    ):
        for result, score in zip(made, scores, strict=True):
            assert score.ids == result.ids and result.scores is not None
            np.testing.assert_allclose(score.scores, result.scores, atol=1e-4)
            assert score.total == pytest.approx(sum(result.scores), abs=1e-3)


def test_a_text_is_scored_with_its_end(real: Translator) -> None:
    """What the model would say is likelier than what it would not."""
    made = real.translate(TEXTS)
    scores = real.score(TEXTS, [result.text for result in made])
    for result, score in zip(made, scores, strict=True):
        assert score.ids == [*real.tokenizer.encode_prefix(result.text), real.manifest.tokens.eos]
    others = real.score(TEXTS, [made[(i + 1) % len(made)].text for i in range(len(made))])
    assert sum(score.total for score in scores) > sum(score.total for score in others) + 1


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_each_pair_is_scored_as_if_alone(real: Translator, data: st.DataObject) -> None:
    """Ragged batches of any size, in any order."""
    ids = st.lists(st.integers(4, 250), min_size=1, max_size=20)
    pairs = data.draw(st.lists(st.tuples(ids, ids), min_size=1, max_size=6))
    most = data.draw(st.sampled_from([1, 5000, 1 << 24]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher_forcing, "MAX_NUMBERS", most)
        together = real.score_ids([source for source, _ in pairs], [target for _, target in pairs])
    for (source, target), score in zip(pairs, together, strict=True):
        (alone,) = real.score_ids([source], [target])
        assert len(score.scores) == len(target) and max(score.scores) <= 0
        np.testing.assert_allclose(score.scores, alone.scores, atol=1e-4)


def test_nothing_is_nothing(real: Translator) -> None:
    assert real.score([], []) == [] and real.score_ids([], []) == [] and real.translate([], alignments=True) == []
    pooled = real.embed([])
    assert isinstance(pooled, np.ndarray) and pooled.shape == (0, real.manifest.model.d_model)
    assert real.embed([], pooled=False) == []


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("score", [["one", "two"], ["one"]], "there are 2 sentences and 1 translations: give one for each"),
        ("score", [[" "], ["one"]], "sentence 1 is empty: give text"),
        ("score", [["one"], [" "]], "translation 1 is empty: there is nothing to score"),
        ("score", [["one"], [[5, 256]]], "translation 1 has the id 256, which is not between 0 and 255"),
        ("score", [["one"], [5]], "translation 1 is not a list of ids"),
        ("score", ["one", ["one"]], "put the one sentence in a list"),
        ("score", [["one"], [[5] * 129]], "translation 1 has 129 tokens, more than the 128 that this bundle supports"),
        ("score_ids", [[[5] * 129], [[5]]], "sentence 1 has 129 tokens, more than the 128 that this bundle supports"),
        ("score_ids", [[[5, 3]], [[]]], "translation 1 has no ids except padding: give at least one"),
        ("score_ids", [[[0, 0]], [[5]]], "sentence 1 has no ids except padding: give at least one"),
        ("score_ids", [[[-1]], [[5]]], "sentence 1 has the id -1"),
        ("embed", [["one", ""]], "sentence 2 is empty: give text"),
        ("attention_maps", [" "], "the sentence is empty: give text"),
        ("attention_maps", ["one", []], "the translation has no ids except padding: give at least one"),
    ],
)
def test_bad_input_is_named(real: Translator, method: str, arguments: list[Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        getattr(real, method)(*arguments)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("call", "role"),
    [
        (lambda toy: toy.translate(["one"], alignments=True), "decoder"),
        (lambda toy: toy.translate_ids([[5, 3]], attention=True), "decoder"),
        (lambda toy: toy.score(["one"], ["one"]), "decoder"),
        (lambda toy: toy.embed(["one"]), "encoder_attention"),
    ],
)
def test_a_bundle_without_the_graphs_says_how_to_get_them(
    toy: Translator, call: Any, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where ONNX Runtime is not installed, which would not help."""
    monkeypatch.setitem(sys.modules, "txport.runtime.engines.teacher_forcing", None)
    with pytest.raises(BundleError) as error:
        call(toy)
    assert str(error.value).startswith(f"{TOY} has no graph of the role {role!r}, which ")
    assert str(error.value).endswith("need: export it again with tx-export --with-attention")


@pytest.mark.parametrize("option", ["alignments", "attention"])
def test_a_stream_refuses_what_needs_a_whole_translation(real: Translator, option: str) -> None:
    with pytest.raises(InputError, match="a stream has no alignments and no attention: use translate for these"):
        next(iter(real.stream("seven", **{option: True})))


def test_the_command_writes_attention(attention_bundle: Path, real: Translator) -> None:
    run = partial(commands.run, entry, "tx-translate", attention_bundle, "--device", "cpu", "--attention")
    refused = run(stdin="seven\n")
    assert refused.returncode == 2 and "--attention needs --json" in refused.stderr
    done = run("--json", stdin="seven\n\n")
    first, second = map(json.loads, done.stdout.splitlines())
    np.testing.assert_allclose(first["attention"], real.translate(["seven"], attention=True)[0].attention, atol=6e-7)
    assert "attention" not in second


def test_the_command_writes_alignments(attention_bundle: Path, real: Translator) -> None:
    """After the text as Marian does, or as a field; nothing is translated where there is no graph for it."""

    def run(bundle: Path, *options: str) -> subprocess.CompletedProcess[str]:
        arguments = (bundle, "--device", "cpu", "--alignments", *options)
        return commands.run(entry, "tx-translate", *arguments, stdin="seven\n\n")

    (expected,) = real.translate(["seven"], alignments=True)
    assert expected.alignment is not None
    assert expected.text and expected.alignment.pharaoh, "otherwise the command writes no space after the bars"
    assert run(attention_bundle).stdout == f"{expected.text} ||| {expected.alignment.pharaoh}\n |||\n"
    first, second = map(json.loads, run(attention_bundle, "--json").stdout.splitlines())
    assert first["alignment"] == expected.alignment.pharaoh
    assert first["source_words"] == [[0, 5]] and len(first["target_words"]) == len(expected.text.split())
    assert "alignment" not in second
    refused = run(TOY)
    assert refused.stdout == "" and refused.returncode != 0 and "tx-export --with-attention" in refused.stderr
