"""Imports of the annotated Transformer and of d2l, against the same weights in PyTorch's own layers."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import INPUTS, MADE, assert_varied, greedy, identical, import_here, padded, random_sources
from safetensors.torch import save_file
from textbook_models import ANNOTATED, D2L, HEADS, ROWS, State, Textbook, annotated_state, d2l_state
from torch import Tensor
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.checkpoint import Checkpoint
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.tokenizer import open_tokenizer
from txport.runtime.translator import Translator

torch.set_num_threads(1)

STATES: dict[str, Callable[..., State]] = {
    **{f"annotated {version}": functools.partial(annotated_state, version) for version in ANNOTATED},
    **{f"d2l {version}": functools.partial(d2l_state, version) for version in D2L},
    "d2l use_bias": functools.partial(d2l_state, bias=True),
}
# Of the public versions, without a list of tokens.
ENDS = {"annotated": (0, 1), "d2l": (2, 3)}


def imported(directory: Path, state: State, name: str = "model.pt", **options: Any) -> Checkpoint:
    directory.mkdir(exist_ok=True)
    save_file(state, directory / name) if name.endswith("safetensors") else torch.save(state, directory / name)
    number = sum(1 for _ in directory.iterdir())
    return import_here(
        directory / name, directory / f"checkpoint{number}", **{"heads": HEADS, "tokenizer": False, **options}
    )


def logits(checkpoint: Checkpoint, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    with torch.inference_mode():
        return checkpoint.model(source, lengths, target)


@pytest.mark.parametrize("name", STATES)
def test_logits_are_the_same(name: str, tmp_path: Path) -> None:
    state = STATES[name](sharpness=1.0)  # or rounding in float32 alone would be as much as is allowed
    checkpoint = imported(tmp_path, state)
    config, kind = checkpoint.config, name.split()[0]
    assert (config.bos_id, config.eos_id, config.heads) == (*ENDS[kind], HEADS)
    assert config.attention_bias == (kind == "annotated" or name == "d2l use_bias")
    source, lengths = padded(random_sources(range(4, ROWS[0]), [config.eos_id])[:24], config.pad_id)
    target = torch.randint(4, ROWS[1], (24, 9), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = Textbook(state).logits(source, lengths, target)
    assert expected.std() > 0.5, "a model that says nothing proves nothing"
    torch.testing.assert_close(logits(checkpoint, source, lengths, target), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", STATES)
def test_greedy_ids_are_the_same(name: str, tmp_path: Path) -> None:
    state = STATES[name]()
    bos, eos = ENDS[name.split()[0]]
    sources = random_sources(range(4, ROWS[0]), [eos])
    answers = Textbook(state).greedy(sources, bos, eos, MADE)
    assert_varied(answers, eos)
    assert identical(greedy(imported(tmp_path, state), sources), answers) == INPUTS


def test_the_norm_that_is_not_pytorchs_matters(tmp_path: Path) -> None:
    """With PyTorch's own instead, by the biased variance, logits are far from the annotated Transformer's."""
    state = annotated_state(sharpness=1.0)
    checkpoint, oracle = imported(tmp_path, state), Textbook(state)
    renamed = {name.replace("a_2", "weight").replace("b_2", "bias"): tensor for name, tensor in state.items()}
    ids = torch.randint(4, 50, (4, 7)), torch.full((4,), 7), torch.randint(4, 50, (4, 5))
    with torch.inference_mode():
        assert (Textbook(renamed).logits(*ids) - oracle.logits(*ids)).abs().max() > 0.02
        torch.testing.assert_close(logits(checkpoint, *ids), oracle.logits(*ids), atol=1e-4, rtol=0)


def test_txport_decodes_as_the_textbook_trains(tmp_path: Path) -> None:
    """In two points the textbook's d2l decoder is another model when it translates than when it was trained.

    In evaluation it masks nothing, and step by step each token gets the first position. One step of ours, over caches,
    is what the textbook computes in training.
    """
    state = d2l_state(sharpness=1.0)
    model, oracle = imported(tmp_path, state).model, Textbook(state)
    source, lengths = torch.randint(4, 50, (3, 6)), torch.tensor([6, 2, 4])
    target = torch.randint(4, 55, (3, 8))
    with torch.inference_mode():
        trained = oracle.logits(source, lengths, target)
        cross, caches = model.cross_key_values(model.encode(source, lengths)), model.new_caches(3, 8)
        steps = [
            model.decode_step(target[:, i], torch.full((3,), i), cross, lengths, caches) for i in range(target.shape[1])
        ]
        torch.testing.assert_close(torch.stack(steps, dim=1), trained, atol=1e-5, rtol=0)
        unmasked = oracle.logits(source, lengths, target, causal=False)
        assert (unmasked - trained)[:, :-1].abs().max() > 0.1
        first = oracle.logits(source, lengths, target, at=0)
        assert (first - trained)[:, 1:].abs().max() > 0.1
        torch.testing.assert_close(first[:, 0], trained[:, 0])


@pytest.mark.parametrize("name", ["model.pth", "weights.safetensors"])
def test_other_files_and_prefixes(name: str, tmp_path: Path) -> None:
    state = annotated_state()
    state["tgt_embed.1.pe"] = state["tgt_embed.1.pe"].clone()  # safetensors refuses what is one in memory
    first = imported(tmp_path / "one", state)
    second = imported(tmp_path / "two", {f"module.{key}": tensor for key, tensor in state.items()}, name)
    without = {key: tensor for key, tensor in state.items() if not key.endswith(".pe")}
    third = imported(tmp_path / "three", without, kind="annotated")
    for other in (second, third):
        for (ours, tensor), (theirs, same) in zip(
            first.model.named_parameters(), other.model.named_parameters(), strict=True
        ):
            assert ours == theirs and torch.equal(tensor, same)


# --- words ----------------------------------------------------------------------------------------------------------


def lists(directory: Path, source: list[str], target: list[str]) -> Path:
    directory.mkdir(exist_ok=True)
    for name, tokens in (("source", source), ("target", target)):
        (directory / f"{name}.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return directory


def words(count: int, special: list[str], start: str) -> list[str]:
    return [*special, *(f"{start}{number}" for number in range(count - len(special) - 2)), ".", "!"]


D2L_SPECIAL = ["<unk>", "<pad>", "<bos>", "<eos>"]
HARVARD = ["<s>", "</s>", "<blank>", "<unk>"]


def test_texts_of_d2l(tmp_path: Path) -> None:
    """From the state dict and its lists to a bundle that takes text; the oracle parts texts by plain Python."""
    state = d2l_state()
    source, target = words(ROWS[0], D2L_SPECIAL, "w"), words(ROWS[1], D2L_SPECIAL, "v")
    place = lists(tmp_path / "lists", source, target)
    checkpoint = imported(tmp_path / "d2l", state, tokenizer=True, vocabulary=place)
    texts = [f"W{i % 40} w{(7 * i) % 40}{'.' if i % 2 else ' !'}" for i in range(12)] + ["w3 nothing w4."]
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in texts))
    options = ExportOptions(lowerings=("scatter",), max_target=20, text=tmp_path / "texts")
    export_bundle(checkpoint.directory, tmp_path / "bundle", options)
    ids = [
        [source.index(word) if word in source else 0 for word in text.lower().replace(".", " .").split()] + [3]
        for text in texts
    ]
    translator = Translator(tmp_path / "bundle", "cpu")
    assert [translator.tokenizer.encode(text) for text in texts] == ids
    expected = Textbook(state).greedy(ids, 2, 3, 15)
    made = translator.translate(texts, max_length=15)
    assert [list(result.ids) for result in made] == [row[:15] for row in expected]
    plain = [" ".join(target[i] for i in row if i > 3) for row in expected]
    assert [result.text for result in made] == [" ".join(target[i] for i in row[:15] if i > 3) for row in expected]
    assert len(set(plain)) > 4


def test_unknown_words_have_one_id_on_both_sides(tmp_path: Path) -> None:
    """Release 1.0 sorts its vocabularies, so that <unk> has another id on each side; two target rows are exchanged."""
    state = d2l_state(eos=4, sharpness=1.0)
    source = sorted(["<unk>", "<pad>", "<eos>", ".", "!", *(f"w{i:02}" for i in range(ROWS[0] - 5))])
    target = sorted(["<unk>", "<pad>", "<eos>", "<bos>", ".", "!", "-", *(f"v{i:02}" for i in range(ROWS[1] - 7))])
    place = lists(tmp_path / "lists", source, target)
    checkpoint = imported(tmp_path / "d2l", state, tokenizer=True, vocabulary=place)
    unknown = source.index("<unk>"), target.index("<unk>")
    assert unknown[0] != unknown[1] and checkpoint.config.unk_id == unknown[0]
    ids = torch.tensor([[7, 8, source.index("<eos>")]])
    given = torch.tensor([[target.index("<bos>"), *unknown, 9]])
    swap = {unknown[0]: unknown[1], unknown[1]: unknown[0]}
    order = torch.tensor([swap.get(i, i) for i in range(ROWS[1])])
    assert checkpoint.config.bos_id == int(order[given[0, 0]])
    with torch.inference_mode():
        expected = Textbook(state).logits(ids, torch.tensor([3]), given)
    found = logits(checkpoint, ids, torch.tensor([3]), order[given])
    torch.testing.assert_close(found[..., order], expected, atol=1e-5, rtol=0)
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    assert tokenizer.decode(order[torch.tensor([target.index("v03"), target.index(".")])].tolist()) == "v03 ."
    assert tokenizer.encode("W03 nothing") == [source.index("w03"), unknown[0], source.index("<eos>")]


@pytest.mark.parametrize("both", [True, False])
def test_texts_of_the_annotated_transformer(tmp_path: Path, both: bool) -> None:
    """Sources begin with <s> and end with </s> as in 2022, unless their list lacks both, as in 2018; case is kept."""
    special = HARVARD if both else ["<unk>", "<blank>"]
    source, target = words(ROWS[0], special, "W"), words(ROWS[1], HARVARD, "v")
    if not both:
        target = words(ROWS[1], ["<unk>", "<blank>", "<s>", "</s>"], "v")
    checkpoint = imported(
        tmp_path / "model", annotated_state(), tokenizer=True, vocabulary=lists(tmp_path / "lists", source, target)
    )
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    unknown = source.index("<unk>")
    middle = [source.index("W5"), unknown, source.index(".")]
    assert tokenizer.encode("W5 w5 .") == ([0, *middle, 1] if both else middle)
    assert tokenizer.decode([0, 9, target.index("."), 1]) == f"{target[9]} ."
    assert checkpoint.config.eos_id == target.index("</s>") and checkpoint.config.pad_id == target.index("<blank>")


# --- what is refused ------------------------------------------------------------------------------------------------


def refusal(path: Path, state: State, error: type[Exception] = CheckpointError, **options: Any) -> str:
    """The one sentence that an import ends with."""
    with pytest.raises(error) as caught:
        imported(path, state, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence and not sentence.endswith(".")
    return sentence


def without(state: State, *names: str) -> State:
    return {name: tensor for name, tensor in state.items() if name not in names}


def test_state_dicts_that_are_none(tmp_path: Path) -> None:
    other = {"a.weight": torch.zeros(2, 2)}
    annotated = "is not a state dict of the annotated Transformer"
    assert f"{annotated}: it has no src_embed.0.lut" in refusal(tmp_path, other, kind="annotated")
    assert "is not a state dict of d2l's Transformer: it has no encoder.embedding" in refusal(
        tmp_path, other, kind="d2l"
    )
    neither = "neither of fairseq nor of OpenNMT-py, of the annotated Transformer nor of d2l"
    assert neither in refusal(tmp_path, other)
    assert annotated in refusal(tmp_path, d2l_state(), kind="annotated")
    assert "is not a state dict of d2l" in refusal(tmp_path, annotated_state(), kind="d2l")
    with pytest.raises(CheckpointError, match=r"holds no \.pt or \.pth or \.safetensors file"):
        (tmp_path / "empty").mkdir()
        import_here(tmp_path / "empty", tmp_path / "x", "d2l", heads=2)


@pytest.mark.parametrize("make", [annotated_state, d2l_state])
def test_parameters_that_are_missing_too_many_or_of_another_shape(make: Callable[[], State], tmp_path: Path) -> None:
    state = make()
    for name in list(state)[2::7]:
        if not name.endswith("pe"):
            sentence = refusal(tmp_path, without(state, name))
            assert "lacks" in sentence or "is not a whole state dict" in sentence
    more = {**state, "encoder.more.weight": torch.zeros(3)}
    assert "does not support and will not leave out: encoder.more" in refusal(tmp_path, more)
    name = next(name for name in state if name.endswith(("linears.1.weight", "W_k.weight")))
    narrow = {**state, name: torch.zeros(16, 15)}
    assert "has shape (16, 15), but its configuration needs (16, 16)" in refusal(tmp_path, narrow)
    assert "give --heads" in refusal(tmp_path, state, InputError, heads=None)
    assert "must be divisible by heads" in refusal(tmp_path, state, heads=3)
    assert "--target-language fr means nothing" in refusal(tmp_path, state, InputError, target_language="fr")


def test_a_norm_over_time_is_refused(tmp_path: Path) -> None:
    """AddNorm([100, 24], 0.5), an example of the textbook's."""
    state = d2l_state()
    for kind in ("weight", "bias"):
        state[f"encoder.blks.block0.addnorm1.ln.{kind}"] = torch.ones(100, 16)
    sentence = refusal(tmp_path, state)
    assert "shape (100, 16): a LayerNorm over positions too takes sentences of 100 tokens only" in sentence


def test_positions_of_another_kind_are_refused(tmp_path: Path) -> None:
    state = annotated_state()
    state["src_embed.1.pe"] = state["src_embed.1.pe"].flip(-1)
    assert "src_embed.1.pe does not hold the paper's sinusoids" in refusal(tmp_path, state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda source, target: source.pop(), "source.txt has 49 lines, but the embedding has 50 rows"),
        (lambda source, target: target.append("x"), "target.txt has 56 lines, but the embedding has 55 rows"),
        (lambda source, target: source.__setitem__(9, "w1"), "source.txt has the token 'w1' twice"),
        (lambda source, target: target.__setitem__(3, "end"), "target.txt has no <eos> or </s>"),
        (lambda source, target: source.__setitem__(0, "?"), "source.txt has no <unk>"),
        (lambda source, target: source.__setitem__(slice(4, None), [""] * 46), "source.txt has no words"),
    ],
)
def test_lists_that_do_not_fit(tmp_path: Path, change: Callable[[list[str], list[str]], Any], message: str) -> None:
    source, target = words(ROWS[0], D2L_SPECIAL, "w"), words(ROWS[1], D2L_SPECIAL, "v")
    change(source, target)
    place = lists(tmp_path / "lists", source, target)
    assert message in refusal(tmp_path / "model", d2l_state(), tokenizer=True, vocabulary=place)


def test_no_lists(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, d2l_state(), tokenizer=True)
    assert "source.txt is missing: write the model's tokens there" in sentence
