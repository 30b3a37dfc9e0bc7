"""Random sampling of a token. The same seed gives the same answer in every batch, in Python and in C++."""

import numpy as np
from txport.runtime.engine import Float32, Float64
from txport.runtime.search.settings import Sampling


def draw(logits: Float32, sampling: Sampling, key: int, sample: int, position: int) -> int:
    """Sample a token.

    Args:
        logits: float32 `[vocabulary]`; -inf for forbidden tokens.
        sampling: the settings.
        key: index of the sentence.
        sample: index of the answer of the sentence.
        position: number of tokens before this one.
    """
    cumulated = np.cumsum(probabilities(logits, sampling))
    point = uniform(sampling.seed, key, sample, position) * cumulated[-1]
    return int(np.searchsorted(cumulated, point, side="right"))


def probabilities(logits: Float32, sampling: Sampling) -> Float64:
    """Return float64 `[vocabulary]`, not normalized, 0 for excluded tokens, in the order of Hugging Face's warpers."""
    scores = logits.astype(np.float64) / sampling.temperature
    if 0 < sampling.top_k < len(scores):
        threshold = np.partition(scores, -sampling.top_k)[-sampling.top_k]
        scores[scores < threshold] = -np.inf
    weights: Float64 = np.exp(scores - scores.max())
    if sampling.top_p < 1:
        _remove_tail(weights, (1 - sampling.top_p) * weights.sum())
    if sampling.min_p > 0:
        weights[weights < sampling.min_p] = 0  # the best token has the weight 1
    return weights


def _remove_tail(weights: Float64, mass: float) -> None:
    """Set the smallest weights to 0 as long as their sum is at most `mass`; keep the largest weight in any case."""
    # Sorting a large vocabulary is slow. The weights below half of an equal share are nearly all of it, and their sum
    # is less than `mass`, so they need no sorting.
    small = weights < mass / (2 * len(weights))
    rest = np.flatnonzero(~small)
    ascending = rest[np.argsort(weights[rest], kind="stable")]
    removed = weights[small].sum() + np.cumsum(weights[ascending]) <= mass
    removed[-1] = False
    weights[small] = 0
    weights[ascending[removed]] = 0


def uniform(seed: int, key: int, sample: int, position: int) -> float:
    """Return a number in [0, 1) by Philox 4x64-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).

    The key is (seed, key). The counter is (position, sample, 0, 0); NumPy increases it by 1 before the first use. The
    number consists of the upper 53 bits of the first word.
    """
    bits = np.random.Philox(key=np.array([seed, key], np.uint64), counter=np.array([position, sample, 0, 0], np.uint64))
    return float(int(bits.random_raw()) >> 11) * 2.0**-53
