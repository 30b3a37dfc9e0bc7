"""Pictures as text: what a label may hold."""

import logging
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from txport.benchmarks.pictures.canvas import Canvas, Line, Rectangle, Text, text_width

SVG = "{http://www.w3.org/2000/svg}"
LABEL = "a < b & \"c\" 'd' \x01\ud800 $x_1$ 犬"


def drawn() -> Canvas:
    canvas = Canvas()
    canvas.add(Rectangle(5, 6, 7, 8, "#ff0000", 0.25, LABEL))
    canvas.add(Line([(1, 2), (30, 40.123456)], "#00ff00", title=LABEL))
    canvas.add(Text(10, 100, LABEL, 10, bold=True))
    return canvas


def test_any_label_makes_a_valid_document() -> None:
    clean = LABEL.replace("\x01", "\ufffd").replace("\ud800", "\ufffd")
    root = ET.fromstring(drawn().svg(LABEL).encode())
    assert [each.text for each in root.iter() if each.text and each.text.strip()] == [clean] * 3
    assert root.get("aria-label") == clean
    assert drawn().svg(LABEL) in drawn().page(LABEL)
    drawn().page(LABEL).encode()  # no lone surrogate is left


def test_the_plane_grows_with_what_is_drawn() -> None:
    canvas = drawn()
    assert canvas.width == 10 + text_width(LABEL, 10) + 12 and canvas.height == 100 + 3 + 12


def test_wide_characters_are_wider() -> None:
    assert text_width("犬", 10) == 10 and text_width("ab", 10) == pytest.approx(12.4)


def test_a_large_png_is_coarser() -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'txport[bench]'")
    from txport.benchmarks.pictures.png import MAX_PIXELS, png

    canvas = Canvas()
    canvas.add(Rectangle(0, 0, 20, 2 * MAX_PIXELS, "#000000"))
    width, height = struct.unpack(">II", png(canvas)[16:24])
    assert MAX_PIXELS - 1 <= height <= MAX_PIXELS and width < 40


def test_png_takes_labels_as_they_are(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Dollars are no formulas, and a character without a glyph is said."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'txport[bench]'")
    from txport.benchmarks.pictures.png import png

    canvas = Canvas()
    canvas.add(Text(0, 20, "$x$ ▁a"))
    with caplog.at_level(logging.WARNING, "txport"):
        assert png(canvas).startswith(b"\x89PNG")
        assert not caplog.records
        canvas.add(Text(0, 20, "犬"))
        png(canvas)
    assert [each.message for each in caplog.records] == [
        "some characters are not in the font of PNG pictures: write SVG or HTML"
    ]
