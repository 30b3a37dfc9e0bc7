"""The sizes of each axis, apart from what measures them, so that `--help` can name the axes at once."""

from collections.abc import Mapping, Sequence

QUICK: Mapping[str, Sequence[int]] = {
    "target": (16, 64, 256),
    "source": (8, 32, 128),
    "batch": (1, 4, 16),
    "layers": (2, 4, 8),
    "vocabulary": (8_000, 32_000, 128_000),
    "sentences": (100, 1_000, 5_000),
}
FULL: Mapping[str, Sequence[int]] = {
    "target": (16, 32, 64, 128, 256, 512),
    "source": (8, 16, 32, 64, 128, 256, 512),
    "batch": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "layers": (2, 4, 6, 12, 24),
    "vocabulary": (8_000, 16_000, 32_000, 64_000, 128_000, 256_000),
    "sentences": (10, 100, 1_000, 10_000, 100_000),
}
