"""Makes `draws.json`: what sampling must draw, by NumPy alone, for the runtimes in Python and C++.

Uniform numbers are NumPy's own generator over its Philox. A distribution is cut off by what the warpers of Hugging Face
say (temperature, top-k, top-p, min-p), written out over sorted probabilities. To write the file again:
`python tests/data/make_draws.py`
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("draws.json")
LARGE = 2**64 - 1
PLACES = [(0, 0, 0, 0), (0, 1, 0, 1), (1, 0, 3, 2), (42, 7, 1, 500), (2**63, 2**40 + 3, 2**33, 2**35), (LARGE, 9, 4, 5)]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7, "top_k": 3},
    {"top_p": 0.8},
    {"top_k": 5, "top_p": 0.6, "temperature": 1.3},
    {"min_p": 0.2},
    {"top_p": 0.95, "min_p": 0.05, "temperature": 0.7},
    {"top_k": 1},
]


def generator(seed: int, key: int, sample: int, position: int) -> np.random.Generator:
    """NumPy's generator at this place."""
    words = [np.array(each, np.uint64) for each in ([seed, key], [position, sample, 0, 0])]
    return np.random.Generator(np.random.Philox(key=words[0], counter=words[1]))


def shares(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """float64 `[vocabulary]` probabilities."""

    def normalised(weights: np.ndarray) -> np.ndarray:
        return weights / weights.sum()

    found = normalised(np.exp(logits.astype(np.float64) / temperature))
    best_first = np.argsort(-found, kind="stable")
    if top_k:
        found = normalised(np.where(found >= found[best_first[min(top_k, len(found)) - 1]], found, 0))
    before = np.cumsum(found[best_first]) - found[best_first]
    kept = best_first[before < top_p]
    found = np.where(np.isin(np.arange(len(found)), kept), found, 0)
    return normalised(np.where(found >= min_p * found.max(), found, 0))


def draws() -> list[dict[str, Any]]:
    """One token of random logits for each setting and place."""
    cases = []
    for number, settings in enumerate(SETTINGS):
        random = np.random.default_rng(number)
        logits = random.normal(0, 2, 11).astype(np.float32)
        full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **settings}
        found = shares(logits, **full)
        for place in PLACES:
            token = int(np.searchsorted(np.cumsum(found), generator(*place).random(), side="right"))
            cases.append({**full, "place": list(map(str, place)), "logits": logits.tolist(), "token": token})
    return cases


def main() -> None:
    """Write the file."""
    uniform = [{"place": list(map(str, place)), "number": generator(*place).random()} for place in PLACES]
    # One case a line.
    lists = {"uniform": uniform, "draws": draws()}
    lines = {name: ",\n  ".join(map(json.dumps, cases)) for name, cases in lists.items()}
    FILE.write_text("{" + ",".join(f'\n "{name}": [\n  {cases}\n ]' for name, cases in lines.items()) + "\n}\n")


if __name__ == "__main__":
    main()
