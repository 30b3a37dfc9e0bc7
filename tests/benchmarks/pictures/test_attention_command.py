"""tx-attention: what its pictures show, next to PyTorch's numbers, and what it refuses."""

import itertools
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
import sentencepiece
import torch
from toy import BUNDLE
from txport.benchmarks import attention_command
from txport.benchmarks.pictures.maps import KINDS, read_maps
from txport.models.attention_maps import attention_maps
from txport.models.checkpoint import load_checkpoint
from txport.models.positions import sinusoids
from txport.runtime.errors import BundleError, InputError
from txport.runtime.options import Options

TEXT, ANSWER = "See you at 5 pm, it is 3.", "see you at five p m it is three"
SVG = "{http://www.w3.org/2000/svg}"
LAYERS, HEADS = 2, 4  # of the tiny checkpoint


def attend(*arguments: object) -> None:
    attention_command.main.main([str(argument) for argument in arguments], standalone_mode=False)


class Expected:
    """What PyTorch and SentencePiece say of a checkpoint, a text and a translation, without a tokenizer of ours."""

    def __init__(self, checkpoint: Path, target: str) -> None:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(checkpoint / "tokenizer" / "shared.model"))
        source, made = ([*pieces.encode(text), pieces.eos_id()] for text in (TEXT, target))
        model = load_checkpoint(checkpoint).model
        with torch.no_grad():
            maps = attention_maps(
                model,
                torch.tensor([source]),
                torch.tensor([len(source)]),
                torch.tensor([made]),
                torch.tensor([len(made)]),
            )
        self.weights = {kind: getattr(maps, kind)[:, 0].numpy() for kind in KINDS}
        self.source, self.made = ([pieces.id_to_piece(token) for token in ids] for ids in (source, made))
        self.read = [pieces.id_to_piece(pieces.bos_id()), *self.made[:-1]]

    def labels(self, kind: str) -> tuple[list[str], list[str]]:
        """Of queries and keys."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.made, self.read),
            "cross": (self.made, self.source),
        }[kind]

    def titles(self, kind: str, layer: int, head: int, rows: Sequence[int] | None = None) -> list[str]:
        """Of the marks of one panel, row by row."""
        queries, keys = self.labels(kind)
        every = itertools.product(range(len(queries)) if rows is None else rows, range(len(keys)))
        found = [(i, j, self.weights[kind][layer, head, i, j]) for i, j in every]
        return [f"{queries[i]} → {keys[j]}: {weight:.4f}" for i, j, weight in found if weight >= 5e-5]


def titles(text: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(text).iter(f"{SVG}title")]


def texts(text: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(text).iter(f"{SVG}text")]


@pytest.fixture(scope="module")
def given(checkpoint: Path) -> Expected:
    return Expected(checkpoint, ANSWER)


def test_a_picture_says_of_what_it_is(checkpoint: Path, tmp_path: Path) -> None:
    attend(checkpoint, TEXT, "--target", ANSWER, "--kind", "cross", "-o", tmp_path / "maps.svg")
    assert texts((tmp_path / "maps.svg").read_text())[-3:] == [str(checkpoint), TEXT, ANSWER]


def test_the_maps_of_a_checkpoint_are_those_of_pytorch(checkpoint: Path, given: Expected, tmp_path: Path) -> None:
    attend(checkpoint, TEXT, "--target", ANSWER, "-o", tmp_path / "maps.svg")
    svg = (tmp_path / "maps.svg").read_text()
    panels = list(itertools.product(KINDS, range(LAYERS), range(HEADS)))
    assert titles(svg) == [title for panel in panels for title in given.titles(*panel)]
    shown = texts(svg)
    assert shown.count("layer 1, head 1") == len(KINDS) == shown.count(f"layer {LAYERS}, head {HEADS}")
    for kind in KINDS:
        queries, keys = given.labels(kind)
        # Row labels stand beside each layer, and column labels under each head.
        expected = [queries] * LAYERS + [keys] * HEADS
        start = 0
        for labels in expected:
            start = next(i for i in range(start, len(shown)) if shown[i : i + len(labels)] == labels) + 1


def cells(svg: str) -> list[tuple[float, float, float, str]]:
    """Of the weights in a picture: x and y of the middle, opacity, title."""
    found = []
    for each in ET.fromstring(svg).iter(f"{SVG}rect"):
        if (title := each.find(f"{SVG}title")) is not None:
            x, y, width, height = (float(each.get(name, "")) for name in ("x", "y", "width", "height"))
            opacity = float(each.get("fill-opacity", "1"))
            found.append((x + width / 2, y + height / 2, opacity, title.text or ""))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_one_map_is_a_matrix(checkpoint: Path, given: Expected, tmp_path: Path, kind: str) -> None:
    file, one = tmp_path / "one.svg", ("--kind", kind, "--layer", 2, "--head", 3)
    attend(checkpoint, TEXT, "--target", ANSWER, *one, "-o", file)
    queries, keys = given.labels(kind)
    found, drawn = np.zeros((len(queries), len(keys))), cells(file.read_text())
    *_, frame = ET.parse(file).iter(f"{SVG}polyline")
    (left, top), (right, _), *_ = (map(float, point.split(",")) for point in frame.get("points", "").split())
    side = (right - left) / len(keys)
    for x, y, opacity, title in drawn:
        assert title.endswith(f": {opacity:.4f}")
        found[int((y - top) / side), int((x - left) / side)] = opacity
    np.testing.assert_allclose(found, given.weights[kind][1, 2], atol=5.1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-3)
    if kind == "decoder":
        assert (np.triu(found, 1) == 0).all() and (np.diag(found) > 0).all()


def test_a_picture_as_png_has_the_colours_of_the_svg(checkpoint: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="needs matplotlib: pip install 'txport[bench]'")
    for kind in ("png", "svg"):
        attend(checkpoint, TEXT, "--target", ANSWER, "--kind", "cross", "-o", tmp_path / f"maps.{kind}")
    pixels, svg = image.imread(tmp_path / "maps.png"), (tmp_path / "maps.svg").read_text()
    width, height = (float(ET.fromstring(svg).get(name, "")) for name in ("width", "height"))
    assert pixels.shape[:2] == (pytest.approx(2 * height, abs=1), pytest.approx(2 * width, abs=1))
    dark = np.array([0x08, 0x30, 0x6B]) / 255
    for x, y, opacity, _ in cells(svg):
        np.testing.assert_allclose(pixels[int(2 * y), int(2 * x), :3], 1 - opacity * (1 - dark), atol=0.02)


def test_a_page_needs_nothing_else(checkpoint: Path, given: Expected, tmp_path: Path) -> None:
    for kind in ("html", "svg"):
        attend(checkpoint, TEXT, "--target", ANSWER, "--kind", "encoder", "-o", tmp_path / f"maps.{kind}")
    page, svg = ((tmp_path / f"maps.{kind}").read_text() for kind in ("html", "svg"))
    assert svg in page
    assert re.findall(r"\w+://[^\"]+", page) == ["http://www.w3.org/2000/svg"], "the name of a language, not a link"
    assert not re.search("<(script|link|img|iframe)|url\\(|@import", page)


@pytest.mark.parametrize(("word", "kinds"), [("it", ("encoder", "decoder", "cross")), ("five", ("decoder", "cross"))])
def test_a_word_is_joined_with_what_it_attends_to(
    checkpoint: Path, given: Expected, tmp_path: Path, word: str, kinds: tuple[str, ...]
) -> None:
    attend(checkpoint, TEXT, "--target", ANSWER, "--word", word, "--layer", 1, "-o", tmp_path / "word.svg")
    expected = []
    for kind, head in itertools.product(kinds, range(HEADS)):
        pieces = "".join(given.labels(kind)[0])
        start = pieces.index(f"▁{word}▁")
        ends = list(itertools.accumulate(map(len, given.labels(kind)[0])))
        rows = [i for i, end in enumerate(ends) if end > start and end <= start + 1 + len(word)]
        # Lines are drawn token by token of what is attended to.
        queries, keys = given.labels(kind)
        for j, i in itertools.product(range(len(keys)), rows):
            weight = given.weights[kind][0, head, i, j]
            expected += [f"{queries[i]} → {keys[j]}: {weight:.4f}"] if weight >= 5e-5 else []
    svg = (tmp_path / "word.svg").read_text()
    assert titles(svg) == expected
    lines = [each for each in ET.fromstring(svg).iter(f"{SVG}polyline") if each.find(f"{SVG}title") is not None]
    assert [float(each.get("stroke-opacity", "1")) for each in lines] == [
        float(title.rpartition(" ")[2]) for title in expected
    ]
    bold = [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}text") if each.get("font-weight")]
    assert "".join(bold[1 : 1 + len(rows)]) == f"▁{word}", "after the first heading"


def test_a_token_without_text_can_be_the_word(checkpoint: Path, given: Expected, tmp_path: Path) -> None:
    one = ("--kind", "encoder", "--layer", 1, "--head", 1)
    attend(checkpoint, TEXT, "--target", ANSWER, *one, "--word", "</s>", "-o", tmp_path / "eos.svg")
    svg = (tmp_path / "eos.svg").read_text()
    assert titles(svg) == given.titles("encoder", 0, 0, [len(given.source) - 1])


@pytest.mark.parametrize("target", [None, ANSWER])
def test_a_bundle_gives_what_its_checkpoint_gives(attention_bundle: Path, checkpoint: Path, target: str | None) -> None:
    for ours, theirs in zip(
        *(read_maps(x, TEXT, target, Options()) for x in (attention_bundle, checkpoint)), strict=True
    ):
        assert (ours.kind, ours.queries, ours.keys, ours.text) == (
            theirs.kind,
            theirs.queries,
            theirs.keys,
            theirs.text,
        )
        assert list(ours.spans) == list(theirs.spans)
        np.testing.assert_allclose(ours.weights, theirs.weights, atol=1e-5)
    if target is not None:
        assert ours.text == target


def test_a_bundle_is_drawn_without_pytorch_and_matplotlib(attention_bundle: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'matplotlib', 'rich']))\n"
        "from txport.benchmarks.entry import attention\n"
        f"sys.argv = ['tx-attention', {str(attention_bundle)!r}, {TEXT!r}, '-o', 'maps.html']; attention()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=500)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "layer 2, head 4" in (tmp_path / "maps.html").read_text()


@pytest.mark.parametrize("d_model", [2, 64, 512])
def test_positions_are_those_of_the_models(tmp_path: Path, d_model: int) -> None:
    attend("--positions", d_model, "-o", tmp_path / "positions.svg")
    expected, seen = sinusoids(100, d_model).numpy(), set()
    for each in ET.parse(tmp_path / "positions.svg").iter(f"{SVG}polyline"):
        if (title := each.find(f"{SVG}title")) is not None:
            dimension = int((title.text or "").removeprefix("dimension "))
            points = np.array([point.split(",") for point in each.get("points", "").split()], float)
            np.testing.assert_allclose(np.diff(points[:, 0]), 6.0)
            height = np.polyfit(expected[:, dimension], points[:, 1], 1)
            assert height[0] == pytest.approx(-40, abs=1e-2)
            np.testing.assert_allclose(np.polyval(height, expected[:, dimension]), points[:, 1], atol=1e-2)
            seen.add(dimension)
    assert seen == {2: {0, 1}, 64: {8, 9, 16, 17, 24, 25}, 512: {64, 65, 128, 129, 192, 193}}[d_model]


SPLIT = [TEXT, "--target", ANSWER]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SPLIT, "--layer", 3], "there is no layer 3: encoder attention has 2, from 1 on"),
        ([*SPLIT, "--layer", 0], "there is no layer 0: encoder attention has 2, from 1 on"),
        ([*SPLIT, "--kind", "cross", "--head", 5], "there is no head 5: cross attention has 4, from 1 on"),
        ([*SPLIT, "--kind", "own"], "there is no attention of the kind 'own': give encoder, decoder, cross"),
        ([*SPLIT, "--word", "pig"], f"the word 'pig' is not in {TEXT!r} nor in {ANSWER!r}: give one that is there"),
        (
            [*SPLIT, "--word", "five", "--kind", "encoder"],
            f"the word 'five' is not in {TEXT!r}: give one that is there",
        ),
        ([*SPLIT, "--word", ""], "the word '' is not in"),
        (["", "--target", ANSWER], "the text is empty: give a sentence"),
        ([" \n"], "the text is empty: give a sentence"),
        ([TEXT, "--target", ""], "the translation is empty: give a sentence"),
        (["a " * 200], "the text has 201 tokens, more than the 128 that this model supports: shorten it, or leave out"),
        (
            [TEXT, "--target", "a " * 200],
            "the translation has 201 tokens, more than the 128 that this model supports",
        ),
        ([*SPLIT, "--target-language", "de"], "de"),
        ([], "give a bundle or a checkpoint, and a text in quotes, or --positions"),
        ([TEXT, "--positions", 64], "--positions does not draw a model: use it only with -o"),
    ],
)
def test_what_cannot_be_drawn_of_a_checkpoint(
    checkpoint: Path, tmp_path: Path, arguments: list[object], message: str
) -> None:
    with pytest.raises(InputError) as error:
        attend(checkpoint, *arguments, "-o", tmp_path / "out.svg")
    assert message in str(error.value)
    assert "\n" not in str(error.value).replace(repr(TEXT), "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("width", [0, 7, -2, 1 << 20])
def test_positions_of_no_model(tmp_path: Path, width: int) -> None:
    with pytest.raises(InputError, match=f"even, 2 to 65536: --positions {width} is not one"):
        attend("--positions", width, "-o", tmp_path / "out.svg")


@pytest.mark.parametrize(
    "option", ["--target", "--kind", "--layer", "--head", "--word", "--source-language", "--target-language"]
)
def test_positions_and_options_of_a_model(tmp_path: Path, option: str) -> None:
    with pytest.raises(InputError, match=f"{option} has no effect with --positions"):
        attend("--positions", 64, option, "1", "-o", tmp_path / "out.svg")


def test_a_text_longer_than_a_bundle_takes(attention_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"the sentence has \d+ tokens, more than the \d+ that this model supports: shorten"
    ):
        attend(attention_bundle, "a " * 1000, "-o", tmp_path / "out.svg")


@pytest.mark.parametrize("name", ["maps.pdf", "maps", ".svg"])
def test_files_of_other_kinds(checkpoint: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"the name must end in \.svg, \.html or \.png$"):
        attend(checkpoint, TEXT, "-o", tmp_path / name)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        attend("--positions", 64, "-o", tmp_path / "none" / "out.svg")


def test_what_is_neither_a_bundle_nor_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is neither a bundle \(manifest.json\) nor a checkpoint \(config.json\)$"):
        attend(tmp_path, TEXT, "-o", tmp_path / "out.svg")


def test_a_bundle_without_the_graphs_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="tx-export --with-attention"):
        attend(BUNDLE, "abc", "-o", tmp_path / "out.svg")


def test_a_picture_too_large_is_refused(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_command, "MAX_WEIGHTS", 100)
    with pytest.raises(InputError, match=r"a picture of \d+ weights is too large: choose by --kind, --layer or"):
        attend(checkpoint, TEXT, "--target", ANSWER, "-o", tmp_path / "out.svg")
