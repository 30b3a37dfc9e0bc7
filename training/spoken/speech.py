"""Synthetic speech in NumPy: English digits from a formant synthesizer, and log-mel spectrograms.

Each sound has targets for three formants, and the synthesizer moves between them (Klatt 1980, "Software for a
cascade/parallel formant synthesizer", reduced to harmonics and noise). It sounds artificial, but has the variation that
a recognizer must handle: pitch, vocal tract and speed of speakers, and noise.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]
Frames = npt.NDArray[np.float32]

RATE = 8000  # samples per second
HOP = 160  # samples from one frame to the next: 50 frames per second
WINDOW = 256  # samples of a frame
MELS = 40  # numbers of a frame
FRAME_RATE = RATE / HOP
_BANDWIDTHS = np.array([90.0, 110.0, 170.0])  # of the formants, Hz
_SMALLEST = 1e-4  # power below which a band is silence

# Formants in Hz, seconds, voicing (1 voiced, 0 noise) and loudness of each sound.
_SOUNDS: dict[str, tuple[tuple[float, float, float], float, float, float]] = {
    "z": ((300, 1700, 2900), 0.07, 0.5, 0.4), "i": ((300, 2200, 2900), 0.11, 1, 1.0),
    "r": ((350, 1200, 1600), 0.07, 1, 0.7), "o": ((480, 900, 2400), 0.12, 1, 1.0),
    "w": ((300, 700, 2200), 0.08, 1, 0.7), "a": ((700, 1200, 2500), 0.12, 1, 1.0),
    "n": ((280, 1500, 2500), 0.08, 1, 0.4), "t": ((400, 1900, 3100), 0.05, 0, 0.5),
    "u": ((320, 900, 2300), 0.12, 1, 0.9), "th": ((500, 1500, 2800), 0.08, 0, 0.2),
    "f": ((600, 1400, 2700), 0.09, 0, 0.25), "v": ((300, 1200, 2500), 0.06, 0.6, 0.4),
    "s": ((900, 2500, 3600), 0.11, 0, 0.5), "I": ((420, 1950, 2600), 0.09, 1, 0.9),
    "k": ((400, 1500, 2300), 0.05, 0, 0.6), "e": ((550, 1800, 2550), 0.11, 1, 1.0),
    "-": ((500, 1500, 2500), 0.05, 0, 0.0),
}  # fmt: skip
WORDS = {
    "zero": "z i r o", "one": "w a n", "two": "t u", "three": "th r i", "four": "f o r", "five": "f a I v",
    "six": "s I - k s", "seven": "s e v e n", "eight": "e I - t", "nine": "n a I n",
}  # fmt: skip


def speak(words: list[str], random: np.random.Generator) -> Samples:
    """Return the samples of some digits by one random speaker, -1 to 1."""
    pitch = random.uniform(90, 230)
    tract = random.uniform(0.88, 1.15)  # of the formants
    pace = random.uniform(0.85, 1.25)
    sounds = ["-", "-", *(sound for word in words for sound in (*WORDS[word].split(), "-"))]
    lengths = [int(RATE * _SOUNDS[each][1] * pace * random.uniform(0.85, 1.2)) for each in sounds]
    middles = np.cumsum(lengths) - np.array(lengths) / 2
    times = np.arange(sum(lengths))
    formants = np.stack([np.interp(times, middles, [_SOUNDS[each][0][i] * tract for each in sounds]) for i in range(3)])
    voiced, loud = (np.interp(times, middles, [_SOUNDS[each][i] for each in sounds]) for i in (2, 3))
    # Formants, voicing and loudness change slowly: the spectrum is computed for every 40th sample.
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.06 * np.sin(2 * np.pi * times / RATE * 3))) / RATE
    harmonics = np.arange(1, int(0.95 * RATE / 2 / (pitch * 1.06)) + 1)
    coarse = times[::40]
    gains = np.abs(_response(harmonics[:, None] * pitch, formants[:, coarse])) / harmonics[:, None] ** 0.5
    gains = np.repeat(gains.astype(np.float32), 40, axis=1)[:, : len(times)]
    waves = np.sin((harmonics[:, None] * phase[None]).astype(np.float32))
    tone = np.einsum("ht,ht->t", gains, waves).astype(np.float64)
    noise = _hissed(random.standard_normal(len(times)), formants[2, coarse], coarse)
    sound = loud * (voiced * tone / 3 + (1 - voiced) * noise)
    sound += random.uniform(0.002, 0.02) * random.standard_normal(len(times))
    loudness = random.uniform(0.4, 0.95) / max(1.0, float(np.abs(sound).max()))
    return np.asarray(sound * loudness, np.float32)


def _response(frequencies: npt.NDArray[Any], formants: npt.NDArray[np.float64]) -> npt.NDArray[np.complex128]:
    """Return the response of three resonances `[3, times]` at frequencies `[n, 1]`: `[n, times]`."""
    total = np.zeros((len(frequencies), formants.shape[1]), np.complex128)
    for centre, width, gain in zip(formants, _BANDWIDTHS, (1.0, 0.6, 0.3), strict=True):
        total += gain * width / (width + 2j * (frequencies - centre[None]))
    return total


def _hissed(
    noise: npt.NDArray[np.float64], centres: npt.NDArray[np.float64], coarse: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return noise around a frequency that changes: low-pass noise, shifted to the frequency."""
    smooth = np.convolve(noise, np.hanning(9) / 3, mode="same")
    frequency = np.interp(np.arange(len(noise)), coarse, centres)
    return smooth * np.cos(2 * np.pi * np.cumsum(frequency) / RATE)


def log_mel(samples: Samples) -> Frames:
    """Return the log-mel spectrogram of samples at `RATE`: float32 `[frames, MELS]`, about -1 to 1.

    Frame i starts at sample i * HOP. The last frames are padded with zeros.
    """
    count = max(1, -(-len(samples) // HOP))
    padded = np.zeros(count * HOP + WINDOW, np.float32)
    padded[: len(samples)] = samples
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[: count * HOP : HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW))) ** 2
    return ((np.log10(np.maximum(power @ mel_filters(), _SMALLEST)) + 1) / 3).astype(np.float32)


@cache
def mel_filters() -> npt.NDArray[np.float64]:
    """Return triangular filters that overlap by half, equally spaced in mel: `[WINDOW / 2 + 1, MELS]`."""
    highest = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest, MELS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    rising = (bins - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[None, 2:] - bins) / (edges[2:] - edges[1:-1])
    filters: npt.NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling))
    return filters
