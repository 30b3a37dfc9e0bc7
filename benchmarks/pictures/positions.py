"""Pictures of sinusoidal positions (Vaswani et al., 2017, section 3.5)."""

import math

import numpy as np
from txport.benchmarks.pictures.canvas import INK, LINE, MARGIN, Canvas, Line, Text
from txport.runtime.engine import Float32
from txport.runtime.errors import InputError

LENGTH = 100
SINE = "#0072B2"
COSINE = "#009E73"
WIDTH = 600.0  # width of a panel
HALF = 40.0  # half the height of a panel
STEP = 20  # positions between two ticks


def sinusoids(length: int, d_model: int) -> Float32:
    """Return float32 `[length, d_model]`: sine (even dimensions), cosine (odd) of position / 10000^(2i / d_model)."""
    pairs = np.arange(d_model) // 2
    angles = np.arange(length)[:, None] / 10000.0 ** (2 * pairs / d_model)
    return np.where(np.arange(d_model) % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)


def draw_positions(d_model: int) -> Canvas:
    """Draw three pairs of dimensions of a model of this width, over the first positions.

    Raises:
        InputError: no model can have this width.
    """
    if d_model < 2 or d_model % 2 or d_model > 1 << 16:
        raise InputError(f"a model's width is even, 2 to {1 << 16}: --positions {d_model} is not one")
    canvas = Canvas()
    table = sinusoids(LENGTH, d_model)
    for pair in sorted({d_model // 2 * eighth // 8 for eighth in (1, 2, 3)}):
        _panel(canvas, table, pair)
    canvas.add(Text(MARGIN + 30 + WIDTH / 2, canvas.height + 4, "position", 10, "middle"))
    return canvas


def _panel(canvas: Canvas, table: Float32, pair: int) -> None:
    d_model = table.shape[1]
    first = 2 * pair
    wavelength = 2 * math.pi * 10000 ** (first / d_model)
    left = MARGIN + 30
    top = canvas.height + 12
    canvas.add(Text(left, top, f"dimension {first}: sine", 11, colour=SINE))
    canvas.add(Text(left + 130, top, f"dimension {first + 1}: cosine", 11, colour=COSINE))
    canvas.add(Text(left + WIDTH, top, f"of {d_model}; repeats after {wavelength:,.1f} positions", 10, "end"))
    middle = top + 10 + HALF
    for value in (-1, 0, 1):
        y = middle - value * HALF
        canvas.add(Line([(left, y), (left + WIDTH, y)], LINE, 0.8))
        canvas.add(Text(left - 5, y + 3, str(value), 9, "end"))
    for position in range(0, LENGTH + 1, STEP):
        x = left + position * WIDTH / LENGTH
        canvas.add(Line([(x, middle + HALF), (x, middle + HALF + 4)], INK, 0.8))
        canvas.add(Text(x, middle + HALF + 14, str(position), 9, "middle"))
    for dimension, colour in ((first, SINE), (first + 1, COSINE)):
        points = [
            (left + position * WIDTH / LENGTH, middle - HALF * float(value))
            for position, value in enumerate(table[:, dimension])
        ]
        canvas.add(Line(points, colour, 1.6, title=f"dimension {dimension}"))
