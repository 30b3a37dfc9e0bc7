"""Small models of many shapes, and a runner of their graphs that is independent of the runtime."""

import copy
import functools
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
from txport.exporter.graphs.decoder import write_step
from txport.exporter.graphs.encoder import write_encoder
from txport.exporter.graphs.float16 import HALF_LOWERINGS
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.graphs.tensors import ModelTensors
from txport.exporter.graphs.write import ATTENTION
from txport.models.config import preset
from txport.models.transformer import Transformer
from txport.runtime.engines.ort_session import avoid_overflow

T5 = {"norm": "pre", "norm_kind": "rms", "positions": "relative", "position_buckets": 6, "position_distance": 9}
GATED = {"feed_forward": "gated", "activation": "silu"}
# Every option of the model appears at least once. ONNX Runtime's fused attention does not support head_dim 12.
OPTIONS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm": "pre", "positions": "learned", "activation": "gelu", "tie_projection": False},
    "bart": {"positions": "learned", "embedding_norm": True, "projection_bias": True, "scale_embedding": False},
    "marian": {"activation": "silu", "projection_bias": True, "share_embeddings": False, "target_vocabulary": 72},
    "d2l": {"attention_bias": False, "share_embeddings": False, "tie_projection": False, "projection_bias": True},
    "odd_heads": {"d_model": 60, "heads": 5, "norm": "pre"},
    "deep_shallow": {"encoder_layers": 3, "decoder_layers": 1, "norm": "post_final"},
    "rms": {"norm_kind": "rms", "norm": "pre", "embedding_norm": True},
    "power": {"norm_kind": "power", "norm": "pre", "tie_projection": False, "attention_bias": False},
    "batch": {"norm_kind": "batch", "norm": "post_final", "embedding_norm": True},
    "t5": {**T5, "head_dim": 24, "scale_embedding": False, "attention_bias": False, "feed_forward_bias": False},
    "umt5": {**T5, "position_tables": "layer", "tie_projection": False, **GATED, "activation": "gelu_tanh"},
    "sides": {
        **{"norm": "pre", "encoder_layers": 3, "ffn": 48, "decoder_ffn": 80},
        **{"heads": 2, "decoder_heads": 4, "head_dim": 16},
    },
    "relative_odd": {"positions": "relative", "head_dim": 12, "decoder_heads": 3},
    "rotary": {"positions": "rotary", "norm": "pre", "heads": 2, "decoder_heads": 4},
    "shaw": {
        "positions": "shaw",
        "position_distance": 5,
        "norm": "pre",
        "heads": 2,
        "decoder_heads": 4,
        "head_dim": 16,
    },
    "copies": {"copy_heads": ((1, 0), (0, 3)), "norm": "pre", "projection_bias": True},
}

# Options that the fused engine for CPUs supports: with LayerNorm or RMSNorm.
FUSED = {
    name: options
    for name, options in OPTIONS.items()
    if options.get("norm_kind", "layer") in ("layer", "rms")
    and "copy_heads" not in options
    and options.get("positions") != "shaw"
}


def random_model(seed: int = 0, **overrides: Any) -> Transformer:
    """Return a tiny model whose biases, norms and embeddings are all random, so that no weight is 0 or 1.

    Running means are computed from twenty batches, so that they match the inputs of the norms. The generator of PyTorch
    continues from the same state after each call.
    """
    model, state = _random_model(seed, tuple(sorted(overrides.items())))
    torch.set_rng_state(state)
    return copy.deepcopy(model)


@functools.cache
def _random_model(seed: int, overrides: tuple[tuple[str, Any], ...]) -> tuple[Transformer, torch.Tensor]:
    """Return a model and the state of PyTorch's generator after its construction."""
    torch.manual_seed(seed)
    sizes = {"source_vocabulary": 64, "target_vocabulary": 64, "max_positions": 32}
    model = Transformer(preset("tiny", **{**sizes, **dict(overrides)})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        if model.config.norm_kind in ("power", "batch"):
            model.train()
            for _ in range(20):
                model(torch.randint(4, 64, (8, 9)), torch.full((8,), 9), torch.randint(4, 64, (8, 9)))
    return model.eval(), torch.get_rng_state()


# A lowering that is different in float16 has a separate name.
STEPS = LOWERINGS | {"ort.float16": HALF_LOWERINGS["ort"]}


def graphs_of(model: Transformer, lowering: str) -> tuple[ir.Model, ir.Model]:
    """Return the encoder and one decoder step."""
    length, tensors = model.config.max_positions, ModelTensors()
    return write_encoder(model, length, tensors), write_step(model, STEPS[lowering], length, tensors)


def attention_graphs_of(model: Transformer) -> dict[str, ir.Model]:
    """Return the optional graphs."""
    return {name: write(model, model.config.max_positions, ModelTensors()) for name, write in ATTENTION.items()}


def copied(model: ir.Model) -> ir.Model:
    """Return an independent copy of a graph. The tensors of a clone would still share their types."""
    return ir.from_proto(ir.to_proto(ir.external_data.load_to_model(model)))


def open_session(model: ir.Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    avoid_overflow(options)
    whole = ir.external_data.load_to_model(model)
    return onnxruntime.InferenceSession(ir.to_proto(whole).SerializeToString(), options)


def run_graph(session: onnxruntime.InferenceSession, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a session and return all outputs by name."""
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


class NumpyRunner:
    """A runner with plain arrays: no IO binding, no aliasing, and only one session option of txport.runtime."""

    def __init__(self, model: Transformer, encoder: ir.Model, step: ir.Model) -> None:
        self.config = model.config
        self._encoder, self._step = open_session(encoder), open_session(step)
        self._inputs = {value.name: value for value in self._step.get_inputs()}

    def encode(self, ids: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
        return run_graph(self._encoder, {"input_ids": ids, "source_lengths": lengths})

    def empty_caches(self, rows: int, length: int) -> dict[str, np.ndarray]:
        shape = (rows, self.config.decoder.heads, length, self.config.decoder.head_dim)
        dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        names = [name for name in self._inputs if name.startswith("self_")]
        return {name: np.zeros(shape, dtypes[self._inputs[name].type]) for name in names}

    def step(self, cross: dict[str, np.ndarray], caches: dict[str, np.ndarray], **state: Any) -> dict[str, np.ndarray]:
        """Run one step; `caches` receives the written caches. Inputs that are not in `state` get a neutral value."""
        rows, length = len(state["token_ids"]), next(iter(caches.values())).shape[2]
        feed = {
            "finished": np.zeros(rows, bool),
            "target_limits": np.full(rows, 10**6),
            "cache_positions": np.arange(length),
            **cross,
            **caches,
            **state,
        }
        output = run_graph(self._step, {name: np.asarray(feed[name]) for name in self._inputs})
        caches.update({name: output[f"next_{name}"] for name in caches})
        return output
