"""The chain of kernels of one decoder step: weights as the kernels read them, and the launches in order.

It needs neither a GPU nor PyTorch. `tests/gpu/chain/chain.cu` has the kernels and describes their arguments.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Address = int

NORMS = ("layer", "rms", "affine")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
CLASSES = (8, 16, 32)  # the maximum rows of a compiled chain
_WARPS = 8  # of a block


class Memory(Protocol):
    """Memory that kernels read and write. It is never freed before the chain."""

    def place(self, array: Array) -> Address:
        """Copy an array."""

    def write(self, address: Address, array: Array) -> None:
        """Replace what is there."""

    def read(self, address: Address, shape: tuple[int, ...], dtype: Any) -> Array:
        """Copy back."""


@dataclass(frozen=True)
class ChainModel:
    """A decoder whose step is to be computed.

    Attributes:
        parameters: float32, by the names of `txport.runtime.bundle.schema.Parameters`; queries are scaled.
        heads: of the decoder.
        norm, activation: as `txport.models.config.Config` has them.
        norm_kind: "layer", "rms" or "affine": a norm whose statistics are part of its weight and bias.
        embedding_scale: of the target embedding.
        epsilon: of norms.
        pad_id, eos_id: token ids.
        copy_heads: (layer, head) of cross-attention by which the model copies words of the source; none: it does not.
    """

    parameters: Mapping[str, Array]
    heads: int
    norm: str
    norm_kind: str
    activation: str
    embedding_scale: float
    epsilon: float
    pad_id: int
    eos_id: int
    copy_heads: tuple[tuple[int, int], ...] = ()

    @property
    def copy_layers(self) -> list[int]:
        return sorted({layer for layer, _ in self.copy_heads})

    @property
    def layers(self) -> int:
        return 1 + max(int(name.split(".")[1]) for name in self.parameters if name.startswith("decoder."))

    @property
    def table(self) -> Array:
        return self.parameters["target_embedding.tokens.weight"]

    @property
    def projection(self) -> Array:
        return self.parameters.get("projection.weight", self.table)

    @property
    def gated(self) -> bool:
        return "decoder.0.feed_forward.gate.weight" in self.parameters

    def constants(self, rows: int, cache: int, half_caches: bool) -> dict[str, int | float]:
        """Return the sizes that chain.cu is compiled for.

        Raises:
            ValueError: the kernels cannot compute this model; the message names the size.
        """
        width, d_model = self.parameters["decoder.0.self_attention.query.weight"].shape
        head_dim = width // self.heads
        if head_dim > 128:
            raise ValueError(f"head_dim = {head_dim}: the kernels support at most 128")
        if not 0 < rows <= CLASSES[-1]:
            raise ValueError(f"rows = {rows}: the kernels support 1 to {CLASSES[-1]}")
        return {
            "ROWS": next(each for each in CLASSES if each >= rows),
            "D_MODEL": d_model,
            "HEADS": self.heads,
            "HEAD_DIM": head_dim,
            "FFN": len(self.parameters["decoder.0.feed_forward.inner.weight"]),
            "VOCABULARY": len(self.projection),
            "CACHE": cache,
            "PRE_NORM": int(self.norm.startswith("pre")),
            "GATED": int(self.gated),
            "HALF_CACHES": int(half_caches),
            "NORM": NORMS.index(self.norm_kind),
            "ACTIVATION": ACTIVATIONS.index(self.activation),
            "EPSILON": self.epsilon,
        }


def padded(values: Array, multiple: int, axis: int = -1) -> Array:
    """Zeros at the end of an axis, up to a multiple."""
    widths = [(0, 0)] * values.ndim
    widths[axis] = (0, -values.shape[axis] % multiple)
    return np.pad(values, widths)


def _nan(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return np.full(shape, np.nan, dtype)


def pack_weights(weight: Array) -> Array:
    """float32 `[outputs, inputs]` -> float16 `[outputs / 8, inputs / 32, 8, 32]`, zeros at the ends.

    Raises:
        ValueError: a weight has no float16.
    """
    with np.errstate(over="ignore"):
        half = padded(padded(weight.astype(np.float16), 32), 8, 0)
    if not np.isfinite(half).all():
        raise ValueError("a weight is too large for float16")
    tiles = half.reshape(len(half) // 8, 8, -1, 32)
    return np.ascontiguousarray(tiles.transpose(0, 2, 1, 3))


def _structure(name: str, *fields: str) -> type[ctypes.Structure]:
    """A struct of chain.cu. Fields are pointers, unless they end in ':i' or ':f'."""
    types = {"i": ctypes.c_int, "f": ctypes.c_float, "": ctypes.c_void_p}
    pairs = [field.partition(":")[::2] for field in fields]
    return type(name, (ctypes.Structure,), {"_fields_": [(each, types[kind]) for each, kind in pairs]})


_NEXT = ("next_tokens", "next_positions", "next_finished")
_CURRENT = ("tokens", "positions", "finished")
Embedding = _structure(
    "Embedding", *_NEXT, *_CURRENT, "table", "position_table", "gamma", "beta", "stream", "error", "scale:f", "rows:i"
)
Product = _structure(
    "Product",
    *("weights", "bias", "stream", "gamma", "beta", "input", "output", "keys", "values", "turns"),
    *(*_CURRENT, "best", "best_ids", "rows:i"),
)
Attention = _structure(
    "Attention", "query", "keys", "values", "lengths", "biases", "weights", "context", "more:i", "capacity:i"
)
Mixture = _structure(
    "Mixture",
    *("logits", "best", "best_ids", "state", "embedding", "context", "gate", "weights", "heads", "ids", "lengths"),
    *("output", "mixed", "mixed_ids", "error", "blocks:i", "count:i", "capacity:i"),
)
Choice = _structure(
    "Choice",
    *("best", "best_ids", *_CURRENT, *_NEXT, "limits", "history", "error"),
    *("blocks:i", "rows:i", "pad:i", "eos:i"),
)


@dataclass(frozen=True)
class Launch:
    """One kernel of a step: its name in chain.cu, how many blocks of 256 threads, its arguments."""

    kernel: str
    blocks: int
    arguments: ctypes.Structure


class Chain:
    """The buffers of some rows, and the launches of their step.

    Args:
        model: whose step.
        memory: where buffers are.
        rows: sentences, 1 to 32.
        cache: positions of the caches.
        source: positions of cross-attention's keys and values.
        blocks: maximum blocks of a product, such as the multiprocessors of a GPU.
        cross: addresses of cross-attention's keys and values, of each layer `[rows, heads, source, head_dim]`; without
            them, the chain has buffers for `place_sources`.
        half_caches: keys and values are float16, else float32.
        logits: whether the step writes all logits.
    """

    def __init__(
        self,
        model: ChainModel,
        memory: Memory,
        *,
        rows: int,
        cache: int,
        source: int,
        blocks: int,
        cross: Sequence[tuple[Address, Address]] | None = None,
        half_caches: bool = True,
        logits: bool = True,
    ) -> None:
        self.model = model
        self.memory = memory
        self.rows = rows
        self.source = source
        self.constants = model.constants(rows, cache, half_caches)
        self._blocks = blocks
        self._cache = cache
        self._cache_type = np.float16 if half_caches else np.float32
        self._heads = model.heads
        self._head_dim = int(self.constants["HEAD_DIM"])
        self._placed: dict[str, Address] = {}
        self._at: dict[str, Address] = {}
        for layer, pair in enumerate(cross or ()):
            self._at |= {f"cross.{layer}.{part}": at for part, at in zip(("keys", "values"), pair, strict=True)}
        self._allocate(logits)
        self.launches = list(self._step())

    def _allocate(self, logits: bool) -> None:
        """All buffers that are not weights. Integers are 0, and floats are NaN: kernels must not read them first."""
        integers = {name: (self.rows,) for name in (*_NEXT, *_CURRENT, "limits", "source_lengths")}
        integers |= {"error": (1,), "history": (self.rows, self._cache)}
        integers |= {"source_ids": (self.rows, self.source), "mixed_ids": (_WARPS, int(self.constants["ROWS"]))}
        integers["best_ids"] = (self._blocks, int(self.constants["ROWS"]))
        self._at |= {name: self.memory.place(np.zeros(shape, np.int32)) for name, shape in integers.items()}
        self._scratch = self._scratch_shapes(logits)
        self._at |= {name: self.memory.place(_nan(shape)) for name, shape in self._scratch.items()}
        for layer in range(self.model.layers):
            for kind, length in (("self", self._cache), ("cross", self.source)):
                for name in (f"{kind}.{layer}.keys", f"{kind}.{layer}.values"):
                    if name not in self._at:
                        shape = (self.rows, self._heads, length, self._head_dim)
                        self._at[name] = self.memory.place(_nan(shape, self._cache_type))

    def _scratch_shapes(self, logits: bool) -> dict[str, tuple[int, ...]]:
        """Shapes of the float32 buffers that a step writes before it reads them."""
        streams = ("embedding", "stream", "other_stream")
        widths = dict.fromkeys(streams, int(self.constants["D_MODEL"])) | {"hidden": int(self.constants["FFN"])}
        widths |= dict.fromkeys(("query", "context"), self._heads * self._head_dim)
        shapes: dict[str, tuple[int, ...]] = {"best": (self._blocks, int(self.constants["ROWS"]))}
        vocabulary = (self.rows, int(self.constants["VOCABULARY"]))
        layers = len(self.model.copy_layers)
        if layers:
            widths["copy_context"] = self._heads * self._head_dim
            shapes["copy_weights"] = (layers, self.rows, self._heads, self.source)
            shapes |= {"mixed": (_WARPS, int(self.constants["ROWS"])), "unmixed": vocabulary}
        if logits:
            shapes["logits"] = vocabulary
        return shapes | {name: (self.rows, width + -width % 8) for name, width in widths.items()}

    def poison(self) -> None:
        """Fill every buffer that a step must write before it reads it with NaN."""
        for name, shape in self._scratch.items():
            self.memory.write(self._at[name], _nan(shape))
        for name, blocks in (("best_ids", self._blocks), ("mixed_ids", _WARPS)):
            self.memory.write(self._at[name], np.full((blocks, int(self.constants["ROWS"])), -1, np.int32))

    def place_sources(self, cross: Sequence[tuple[Array, Array]], lengths: Array, ids: Array | None = None) -> None:
        """Set cross-attention's keys and values, of each layer `[rows, heads, source, head_dim]`, and the sources."""
        for layer, pair in enumerate(cross):
            for part, values in zip(("keys", "values"), pair, strict=True):
                self.memory.write(self._at[f"cross.{layer}.{part}"], values.astype(self._cache_type))
        self.place_lengths(lengths, ids)

    def place_lengths(self, lengths: Array, ids: Array | None = None) -> None:
        """Set the lengths of the sources, `[rows]`, and for models that copy their ids, `[rows, source]`."""
        self.memory.write(self._at["source_lengths"], lengths.astype(np.int32))
        if ids is not None:
            self.memory.write(self._at["source_ids"], ids.astype(np.int32))

    def place_rows(self, tokens: Array, positions: Array, limits: Array, finished: Array | None = None) -> None:
        """Set what the next step reads, each `[rows]`."""
        finished = np.zeros(self.rows, np.int32) if finished is None else finished
        state = dict(zip((*_NEXT, "limits"), (tokens, positions, finished, limits), strict=True))
        for name, values in state.items():
            self.memory.write(self._at[name], np.asarray(values).astype(np.int32))

    def state(self, name: str) -> Array:
        """Return tokens, positions or finished flags after a step, int32 `[rows]`."""
        return self.memory.read(self._at[f"next_{name}"], (self.rows,), np.int32)

    def history(self) -> Array:
        """Return the chosen tokens by position, int32 `[rows, cache]`."""
        return self.memory.read(self._at["history"], (self.rows, self._cache), np.int32)

    def logits(self) -> Array:
        """Return float32 `[rows, vocabulary]`."""
        return self.memory.read(self._at["logits"], (self.rows, int(self.constants["VOCABULARY"])), np.float32)

    def cache(self, layer: int, part: str) -> Array:
        """Return "keys" or "values" of self-attention, `[rows, heads, cache, head_dim]`."""
        shape = (self.rows, self._heads, self._cache, self._head_dim)
        return self.memory.read(self._at[f"self.{layer}.{part}"], shape, self._cache_type)

    def error(self) -> int:
        """Return 0, 1 if a token or position was invalid, or 2 if no logit was a number."""
        return int(self.memory.read(self._at["error"], (1,), np.int32)[0])

    def _constant(self, name: str, values: Array) -> Address:
        """Place a constant once."""
        if name not in self._placed:
            self._placed[name] = self.memory.place(values)
        return self._placed[name]

    def _vector(self, name: str, size: int) -> Address:
        """A vector, zeros if the model does not have it."""
        values = self.model.parameters.get(name)
        values = np.zeros(size, np.float32) if values is None else values
        return self._constant(name, padded(values.astype(np.float32), 8))

    def _norm(self, name: str | None) -> dict[str, Address]:
        if name is None:
            return {}
        size = int(self.constants["D_MODEL"])
        return {"gamma": self._vector(f"{name}.weight", size), "beta": self._vector(f"{name}.bias", size)}

    def _linear(self, *names: str, interleaved: bool = False) -> tuple[dict[str, Address], int]:
        """Weights and biases of linear layers of one input, and the blocks of their product."""
        weights = [self.model.parameters[f"{name}.weight"] for name in names]
        zeros = [np.zeros(len(weight), np.float32) for weight in weights]
        biases = [self.model.parameters.get(f"{name}.bias", zero) for name, zero in zip(names, zeros, strict=True)]
        weight, bias = np.concatenate(weights), np.concatenate(biases).astype(np.float32)
        if interleaved:
            weight = np.stack(weights, axis=1).reshape(weight.shape)
            bias = np.stack(biases, axis=1).reshape(bias.shape).astype(np.float32)
        arguments = {
            "weights": self._constant(f"{names}.weight", pack_weights(weight)),
            "bias": self._constant(f"{names}.bias", padded(bias, 8)),
        }
        return arguments, min(self._blocks, -(-len(weight) // 8))

    def _product(self, kernel: str, linear: tuple[dict[str, Address], int], **arguments: Address) -> Launch:
        weights, blocks = linear
        state = {name: self._at[name] for name in _CURRENT}
        return Launch(kernel, blocks, Product(**weights, **arguments, **state, rows=self.rows))

    def _step(self) -> Iterator[Launch]:
        yield self._embed()
        self._stream = self._at["embedding"]
        norm = None  # of the stream, in a post-norm model
        for layer in range(self.model.layers):
            name = f"decoder.{layer}"
            norm = yield from self._attention(layer, "self", f"{name}.self_attention", norm)
            norm = yield from self._attention(layer, "cross", f"{name}.cross_attention", norm)
            norm = yield from self._feed_forward(f"{name}.feed_forward", norm)
        yield from self._choose(norm)

    def _embed(self) -> Launch:
        model = self.model
        state = {name: self._at[name] for name in (*_NEXT, *_CURRENT, "error")}
        state["stream"] = self._at["embedding"]
        positions = model.parameters.get("target_embedding.positions")
        if positions is not None:
            table = padded(positions[: self._cache].astype(np.float32), 8)
            state["position_table"] = self._constant("target_embedding.positions", table)
        has_norm = "target_embedding.norm.weight" in model.parameters
        norm = self._norm("target_embedding.norm" if has_norm else None)
        table = self._constant("table", pack_weights(model.table))
        arguments = Embedding(**state, **norm, table=table, scale=model.embedding_scale, rows=self.rows)
        return Launch("embed", -(-self.rows // 8), arguments)

    def _normed(self, own: str, before: str | None) -> dict[str, Address]:
        """The norm of a sublayer's input: its own in a pre-norm model, else that of the sublayer before."""
        return {"stream": self._stream, **self._norm(own if self.constants["PRE_NORM"] else before)}

    def _added(self, kernel: str, name: str, values: Address, norm: dict[str, Address]) -> Launch:
        """Add a sublayer's result to the stream."""
        output = self._next_stream()
        launch = self._product(kernel, self._linear(name), input=values, output=output, **norm)
        self._stream = output
        return launch

    def _next_stream(self) -> Address:
        """The free one of two buffers; that of the embedding is only read."""
        return self._at["other_stream" if self._stream == self._at["stream"] else "stream"]

    def _attention(self, layer: int, kind: str, name: str, before: str | None) -> Iterator[Launch]:
        own = f"{name}_residual.norm"
        norm = self._normed(own, before)
        query = self._at["query"]
        caches = {part: self._at[f"{kind}.{layer}.{part}"] for part in ("keys", "values")}
        context = self._at["context"]
        options: dict[str, int] = {"lengths": self._at["source_lengths"], "capacity": self.source}
        if kind == "self":
            linear = self._linear(f"{name}.query", f"{name}.key", f"{name}.value")
            yield self._product("project_heads", linear, output=query, turns=self._turns(), **caches, **norm)
            options = {"lengths": self._at["positions"], "more": 1, "capacity": self._cache}
            options["biases"] = self._biases(layer)
        else:
            yield self._product("project_heads", self._linear(f"{name}.query"), output=query, **norm)
            if layer in self.model.copy_layers:
                lines = self.model.copy_layers.index(layer) * self.rows * self._heads
                options["weights"] = self._at["copy_weights"] + 4 * lines * self.source
                if layer == self.model.copy_layers[-1]:
                    context = self._at["copy_context"]
        attention = Attention(query=query, context=context, **caches, **options)
        yield Launch("attend", self.rows * self._heads, attention)
        yield self._added("project_context", f"{name}.output", context, norm)
        return own

    def _feed_forward(self, name: str, before: str | None) -> Iterator[Launch]:
        own = f"{name}_residual.norm"
        norm = self._normed(own, before)
        inner = self._linear(f"{name}.inner")
        if self.model.gated:
            inner = self._linear(f"{name}.gate", f"{name}.inner", interleaved=True)
        yield self._product("project_inner", inner, output=self._at["hidden"], **norm)
        yield self._added("project_outer", f"{name}.outer", self._at["hidden"], norm)
        return own

    def _choose(self, norm: str | None) -> Iterator[Launch]:
        """Logits and the next tokens."""
        if self.model.norm == "post_final":
            yield self._normalised(self._norm(norm))
        last = {"pre": "decoder_norm", "post_final": "decoder_norm", "pre_no_final": None}.get(self.model.norm, norm)
        norms = self._norm(last)
        if self.model.copy_heads and norms:
            yield self._normalised(norms)
            norms = {}
        vocabulary = len(self.model.projection)
        weights = {
            "weights": self._tied() or self._constant("projection", pack_weights(self.model.projection)),
            "bias": self._vector("projection.bias", vocabulary),
        }
        blocks = min(self._blocks, -(-vocabulary // 8))
        best = {name: self._at[name] for name in ("best", "best_ids")}
        output = self._at.get("unmixed", self._at.get("logits", 0))
        yield self._product("project_logits", (weights, blocks), stream=self._stream, output=output, **norms, **best)
        if self.model.copy_heads:
            yield self._mix(blocks)
            best = {"best": self._at["mixed"], "best_ids": self._at["mixed_ids"]}
            blocks = _WARPS
        state = {name: self._at[name] for name in (*_CURRENT, *_NEXT, "limits", "history", "error")}
        ids = {"pad": self.model.pad_id, "eos": self.model.eos_id}
        yield Launch("choose", 1, Choice(**best, **state, **ids, blocks=blocks, rows=self.rows))

    def _normalised(self, norm: dict[str, Address]) -> Launch:
        """The norm of the stream as a stream."""
        output = self._next_stream()
        launch = Launch(
            "normalise", -(-self.rows // 8), Product(**norm, stream=self._stream, output=output, rows=self.rows)
        )
        self._stream = output
        return launch

    def _mix(self, blocks: int) -> Launch:
        """Log-probabilities of a model that copies, and the largest of each row."""
        parameters = self.model.parameters
        layers = self.model.copy_layers
        # The gate reads the output of the last layer's cross-attention, a product of the context.
        name = f"decoder.{layers[-1]}.cross_attention.output"
        context = parameters["copying.context.weight"]
        bias = parameters["copying.state.bias"] + context @ parameters.get(f"{name}.bias", np.zeros(context.shape[1]))
        parts = [parameters["copying.state.weight"], parameters["copying.input.weight"]]
        parts += [context @ parameters[f"{name}.weight"], bias[None]]
        gate = self._constant("gate", np.concatenate(parts, axis=1, dtype=np.float32))
        heads = [
            (layers.index(each) * self.rows * self._heads + head) * self.source for each, head in self.model.copy_heads
        ]
        place = {name: self._at[name] for name in ("best", "best_ids", "embedding", "mixed", "mixed_ids", "error")}
        place |= {"ids": self._at["source_ids"], "lengths": self._at["source_lengths"], "state": self._stream}
        place |= {"logits": self._at["unmixed"], "output": self._at.get("logits", 0), "gate": gate}
        place |= {"context": self._at["copy_context"], "weights": self._at["copy_weights"]}
        place["heads"] = self._constant("heads", np.array(heads, np.int32))
        return Launch("mix", self.rows, Mixture(**place, blocks=blocks, count=len(heads), capacity=self.source))

    def _tied(self) -> Address:
        """The table of tokens if it is also the projection, else 0."""
        if np.array_equal(self.model.projection, self.model.table):
            return self._placed["table"]
        return 0

    def _turns(self) -> Address:
        """Rotary positions: cosine and sine of each pair, `[cache, head_dim / 2, 2]`, or 0."""
        cosines = self.model.parameters.get("decoder_rotations.cosines")
        if cosines is None:
            return 0
        sines = self.model.parameters["decoder_rotations.sines"]
        turns = np.stack([cosines[: self._cache, 0::2], sines[: self._cache, 1::2]], axis=2)
        return self._constant("turns", turns.astype(np.float32))

    def _biases(self, layer: int) -> Address:
        """Relative positions: biases of scores by distance, `[heads, cache]`, or 0."""
        table = self.model.parameters.get("decoder_positions.weight")
        if table is None:
            return 0
        first = layer * self._heads if table.shape[1] > self._heads else 0
        biases = table[: self._cache, first : first + self._heads].T
        return self._constant(f"biases.{first}", np.ascontiguousarray(biases, dtype=np.float32))
