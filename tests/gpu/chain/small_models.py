"""Small random models without PyTorch, and what the chain of kernels must compute for them.

`small_models.json` has what the emulator found. It is compared with the emulator and with a GPU.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from chain_plan import Array, Chain, ChainModel, Memory

# Sizes that are not multiples of 8 or 32, and an FFN of more chunks than a warp of the emulator holds.
SMALL_MODELS: tuple[dict[str, Any], ...] = (
    {"d_model": 36, "heads": 3, "ffn": 600, "layers": 2, "vocabulary": 75, "norm": "pre", "gated": True},
    {"d_model": 64, "heads": 2, "ffn": 128, "layers": 1, "vocabulary": 64, "norm": "post_final", "gated": False},
    {
        "d_model": 40,
        "heads": 2,
        "ffn": 48,
        "layers": 2,
        "vocabulary": 71,
        "norm": "post",
        "copy_heads": ((1, 0), (0, 1)),
    },
)
BATCHES = (3, 18)
HALF_CACHES = (18,)  # the others have float32 caches
CACHE = 6
SOURCE = 5
STEPS = 2
RECORDED = Path(__file__).with_suffix(".json")


def recorded() -> list[list[float]]:
    """Return the sums of logits that `decode_small_models` must find."""
    found: list[list[float]] = json.loads(RECORDED.read_text())
    return found


def random_chain_model(
    seed: int,
    *,
    d_model: int,
    heads: int,
    ffn: int,
    layers: int,
    vocabulary: int,
    norm: str,
    gated: bool = False,
    copy_heads: tuple[tuple[int, int], ...] = (),
) -> ChainModel:
    """Return a decoder with random weights, tied embeddings, LayerNorm and ReLU."""
    random = np.random.default_rng(seed)
    parameters: dict[str, Array] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        values = random.standard_normal((outputs, inputs), np.float32)
        parameters[f"{name}.weight"] = values / np.float32(inputs**0.5)
        parameters[f"{name}.bias"] = random.standard_normal(outputs, np.float32) * np.float32(0.1)

    def new_norm(name: str) -> None:
        parameters[f"{name}.weight"] = 1 + random.standard_normal(d_model, np.float32) * np.float32(0.1)
        parameters[f"{name}.bias"] = random.standard_normal(d_model, np.float32) * np.float32(0.1)

    table = random.standard_normal((vocabulary, d_model), np.float32) / np.float32(d_model**0.5)
    parameters["target_embedding.tokens.weight"] = table
    parameters["target_embedding.positions"] = random.standard_normal((CACHE, d_model), np.float32)
    for layer in range(layers):
        for attention in ("self_attention", "cross_attention"):
            for part in ("query", "key", "value", "output"):
                linear(f"decoder.{layer}.{attention}.{part}", d_model, d_model)
            new_norm(f"decoder.{layer}.{attention}_residual.norm")
        name = f"decoder.{layer}.feed_forward"
        for part in ("gate", "inner") if gated else ("inner",):
            linear(f"{name}.{part}", ffn, d_model)
        linear(f"{name}.outer", d_model, ffn)
        new_norm(f"{name}_residual.norm")
    new_norm("decoder_norm")
    for part in ("context", "state", "input") if copy_heads else ():
        linear(f"copying.{part}", 1, d_model)
    return ChainModel(parameters, heads, norm, "layer", "relu", d_model**0.5, 1e-5, 0, 3, copy_heads)


def decode(chain: Chain, run: Callable[[Chain, int], None], seed: int) -> list[float]:
    """Run greedy steps over random sources; returns the sum of the absolute logits of each step."""
    random = np.random.default_rng(seed)
    shape = (chain.rows, chain.model.heads, SOURCE, int(chain.constants["HEAD_DIM"]))
    cross = [tuple(random.standard_normal((2, *shape))) for _ in range(chain.model.layers)]
    ids = random.integers(4, int(chain.constants["VOCABULARY"]), (chain.rows, SOURCE))
    chain.place_sources(cross, 1 + np.arange(chain.rows) % SOURCE, ids)
    chain.place_rows(np.arange(chain.rows) + 4, np.zeros(chain.rows), np.full(chain.rows, CACHE))
    sums = []
    for step in range(STEPS):
        chain.poison()
        run(chain, step)
        sums.append(float(np.abs(chain.logits()).sum(dtype=np.float64)))
    return sums


def decode_small_models(
    run: Callable[[Chain, int], None], memory: Memory, claimed_cache: int = CACHE
) -> list[list[float]]:
    """Decode each model in each batch.

    Args:
        run: runs one step of a chain; it gets the number of the step.
        memory: where the buffers are.
        claimed_cache: another length of the caches than they have is a mistake, by which kernels leave them.
    """
    found = []
    for seed, options in enumerate(SMALL_MODELS):
        model = random_chain_model(seed, **options)
        for rows in BATCHES:
            half = rows in HALF_CACHES
            chain = Chain(model, memory, rows=rows, cache=CACHE, source=SOURCE, blocks=3, half_caches=half)
            chain.constants["CACHE"] = claimed_cache
            found.append(decode(chain, run, seed))
    return found


def constants_of_small_models() -> Iterator[dict[str, int | float]]:
    """Yield the sizes that `decode_small_models` needs programs for."""
    for seed, options in enumerate(SMALL_MODELS):
        for rows in BATCHES:
            yield random_chain_model(seed, **options).constants(rows, CACHE, rows in HALF_CACHES)
