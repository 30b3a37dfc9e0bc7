"""Transcribe a WAV file of spoken digits: python transcribe.py BUNDLE FILE.wav (a bundle of the recipe digits)."""

import sys
import wave

import numpy as np
from txport.runtime.translator import Translator

RATE = 8000
HOP = 160
WINDOW = 256
MELS = 40


def read_wav(file):
    """Return the samples of a WAV file, 16 bits, one channel, 8 kHz."""
    with wave.open(file) as source:
        if (source.getnchannels(), source.getsampwidth(), source.getframerate()) != (1, 2, RATE):
            sys.exit(f"{file} must have one channel of 16 bits at {RATE} Hz")
        return np.frombuffer(source.readframes(source.getnframes()), "<i2").astype(np.float32) / 32768


def mel_filters():
    """Return triangular filters with equal distances in mel, [129, 40]."""
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), MELS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


def log_mel(samples):
    """Return frames [frames, 40], computed as in training by txport.training.spoken.speech.log_mel."""
    count = max(1, -(-len(samples) // HOP))
    padded = np.pad(samples, (0, count * HOP + WINDOW - len(samples)))
    frames = np.stack([padded[start : start + WINDOW] for start in range(0, count * HOP, HOP)])
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW))) ** 2
    return (np.log10(np.maximum(power @ mel_filters(), 1e-4)) + 1) / 3


bundle, file = sys.argv[1:]
translator = Translator(bundle)
(result,) = translator.translate_features([log_mel(read_wav(file))])
print(result.text)
