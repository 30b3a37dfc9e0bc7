"""Generated corpus of spoken digits: log-mel spectrograms with their words."""

import numpy as np
from txport.training.spoken.corpus import Split
from txport.training.spoken.recordings import Recording
from txport.training.spoken.speech import WORDS, log_mel, speak

MAX_WORDS = 4


def pairs(seed: int, split: Split, count: int) -> list[tuple[str, str]]:
    """Return recordings of one to four digits with their words. Each has another speaker, also between splits."""
    words = list(WORDS)
    recordings: list[tuple[str, str]] = []
    for number in range(count):
        random = np.random.default_rng([seed, ("train", "validation", "test").index(split), number])
        spoken_words = [words[each] for each in random.integers(len(words), size=random.integers(1, MAX_WORDS + 1))]
        name = f"{split} recording {number} of digits"
        recordings.append((Recording(name, log_mel(speak(spoken_words, random))), " ".join(spoken_words)))
    return recordings
