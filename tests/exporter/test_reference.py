"""PyTorch's answers by way of a guess are those of its own search; a wrong guess changes nothing."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from txport.exporter.reference import Answer, answers
from txport.models.config import Config
from txport.models.transformer import Transformer

MOST = 12
EOS = 3


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(3)
    sizes = Config(source_vocabulary=24, target_vocabulary=24, d_model=16, heads=2, ffn=24, norm="pre")
    separate = {"tie_projection": False, "share_embeddings": False, "projection_bias": True}
    made = Transformer(dataclasses.replace(sizes, encoder_layers=2, decoder_layers=2, **separate))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(1.5)
        made.projection.bias[EOS] = 0.5  # so that some sentences end
    return made.eval()


@pytest.fixture(scope="module")
def sources() -> list[list[int]]:
    random = np.random.default_rng(0)
    return [[*random.integers(4, 24, random.integers(1, 9)).tolist(), EOS] for _ in range(40)]


def by_index(found: Sequence[Answer]) -> list[list[int]]:
    rows = {i: row for answer in found for i, row in zip(answer.batch.indices, answer.batch.targets, strict=True)}
    return [rows[i] for i in range(len(rows))]


@pytest.fixture(scope="module")
def searched(model: Transformer, sources: list[list[int]]) -> list[list[int]]:
    found = by_index(list(answers(model, sources, MOST)))
    ended = sum(row[-1] == EOS for row in found)
    assert 5 < ended < 35, "some must end and some must not, or the test says little"
    return found


def test_a_right_guess_needs_no_search(
    model: Transformer, sources: list[list[int]], searched: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = list(answers(model, sources, MOST))
    monkeypatch.setattr(model, "decode_step", None)
    guessed = list(answers(model, sources, MOST, guesses=searched))
    assert by_index(guessed) == searched
    steps = [max(len(target) for target in answer.batch.targets) for answer in guessed]
    assert steps == sorted(steps), "sentences of one batch end at about the same step"
    first, second = numbers(plain), numbers(guessed)
    for index in range(len(sources)):
        for a, b in zip(first[index], second[index], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def numbers(found: Sequence[Answer]) -> dict[int, list[np.ndarray]]:
    """Of each sentence: its logits, and its cross-attention keys and values, without padding."""
    return {
        index: [
            answer.logits[row, : len(answer.batch.targets[row])],
            *(tensor[row, :, : answer.batch.source_lengths[row]] for tensor in answer.cross),
        ]
        for answer in found
        for row, index in enumerate(answer.batch.indices)
    }


def wrong(row: list[int], kind: str) -> list[int]:
    if kind == "other token":
        return [*row[:-1], 4 + (row[-1] + 1) % 20]
    if kind == "too short":
        return row[:-1]
    if kind == "goes on":
        return [*row, 5]
    if kind == "ends too early":
        return [*row[: len(row) // 2], EOS]
    return []


@pytest.mark.parametrize("kind", ["other token", "too short", "goes on", "ends too early", "empty"])
def test_a_wrong_guess_changes_nothing(
    model: Transformer, sources: list[list[int]], searched: list[list[int]], kind: str
) -> None:
    for index in (0, 17, 39):
        guesses = [wrong(row, kind) if i == index else row for i, row in enumerate(searched)]
        assert by_index(list(answers(model, sources, MOST, guesses=guesses))) == searched


def test_a_forced_beginning(model: Transformer, sources: list[list[int]]) -> None:
    prefix = [7, 9]
    forced = by_index(list(answers(model, sources, MOST, prefix)))
    assert all(row[:2] == prefix for row in forced)
    assert by_index(list(answers(model, sources, MOST, prefix, guesses=forced))) == forced
    unforced = by_index(list(answers(model, sources, MOST)))
    assert by_index(list(answers(model, sources, MOST, prefix, guesses=unforced))) == forced


def test_each_sentence_has_a_limit_of_its_own(
    model: Transformer, sources: list[list[int]], searched: list[list[int]]
) -> None:
    limits = [1 + index % MOST for index in range(len(sources))]
    cut = [row[:most] for row, most in zip(searched, limits, strict=True)]
    assert by_index(list(answers(model, sources, limits))) == cut
    assert by_index(list(answers(model, sources, limits, guesses=cut))) == cut
    assert by_index(list(answers(model, sources, limits, guesses=searched))) == cut
