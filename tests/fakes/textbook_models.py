"""State dicts with the names of the annotated Transformer and of d2l, and what such models compute.

Nothing here is those programs' code: tensors are random, and they are computed with PyTorch's own layers.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, INNER, LAYERS = 16, 2, 24, (2, 3)
ROWS = (50, 55)

State = dict[str, Tensor]
# Versions of the annotated Transformer: the names of a norm's weight and bias, of linear layers, of the projection.
ANNOTATED = {
    "2022": ("a_2", "b_2", "w_1", "w_2", "generator.proj"),
    "source": ("gamma", "beta", "w1", "w2", "generator.projection"),
}
# The versions of d2l: prefix of a block's number, and a residual's name.
D2L = {"1.0": ("block", "addnorm"), "source": ("block", "addNorm"), "numbers": ("", "addnorm")}


def annotated_state(
    version: str = "2022", seed: int = 1, eos_bias: float = 2.0, eos: int = 1, sharpness: float = 2.0
) -> State:
    """Random weights under the names of a version; `sharpness`: of the cross-attention, which makes answers differ."""
    gain, shift, inner, outer, projection = ANNOTATED[version]
    shapes: dict[str, tuple[int, ...]] = {
        "src_embed.0.lut.weight": (ROWS[0], WIDTH),
        "tgt_embed.0.lut.weight": (ROWS[1], WIDTH),
        **_linear(projection, ROWS[1], WIDTH),
    }
    for side, count, attentions in (
        ("encoder", LAYERS[0], ("self_attn",)),
        ("decoder", LAYERS[1], ("self_attn", "src_attn")),
    ):
        for layer in (f"{side}.layers.{number}" for number in range(count)):
            for attention in attentions:
                for part in range(4):
                    shapes |= _linear(f"{layer}.{attention}.linears.{part}", WIDTH, WIDTH)
            shapes |= _linear(f"{layer}.feed_forward.{inner}", INNER, WIDTH)
            shapes |= _linear(f"{layer}.feed_forward.{outer}", WIDTH, INNER)
            for part in range(len(attentions) + 1):
                name = f"{layer}.sublayer.{part}.norm"
                shapes |= {f"{name}.{gain}": (WIDTH,), f"{name}.{shift}": (WIDTH,)}
        shapes |= {f"{side}.norm.{gain}": (WIDTH,), f"{side}.norm.{shift}": (WIDTH,)}
    state = _random(shapes, seed, gains=(gain,), sharp="src_attn", sharpness=sharpness)
    state[f"{projection}.bias"][eos] = eos_bias
    table = positions(5000)[None]
    return {**state, "src_embed.1.pe": table, "tgt_embed.1.pe": table}


def d2l_state(
    version: str = "1.0",
    seed: int | None = None,
    eos_bias: float = 2.0,
    eos: int = 3,
    bias: bool = False,
    sharpness: float = 3.0,
) -> State:
    """Random weights under the names of a version; `bias`: of the encoder's attention, `use_bias` of the textbook."""
    block, residual = D2L[version]
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.embedding.weight": (ROWS[0], WIDTH),
        "decoder.embedding.weight": (ROWS[1], WIDTH),
        **_linear("decoder.dense", ROWS[1], WIDTH),
    }
    for side, count, attentions in (
        ("encoder", LAYERS[0], ("attention",)),
        ("decoder", LAYERS[1], ("attention1", "attention2")),
    ):
        for layer in (f"{side}.blks.{block}{number}" for number in range(count)):
            for name in (f"{layer}.{attention}.{part}" for attention in attentions for part in _PARTS):
                shapes[f"{name}.weight"] = (WIDTH, WIDTH)
                if bias and side == "encoder":
                    shapes[f"{name}.bias"] = (WIDTH,)
            shapes |= _linear(f"{layer}.ffn.dense1", INNER, WIDTH) | _linear(f"{layer}.ffn.dense2", WIDTH, INNER)
            for part in range(1, len(attentions) + 2):
                name = f"{layer}.{residual}{part}.ln"
                shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    state = _random(
        shapes,
        (3 if bias else 7) if seed is None else seed,
        gains=("ln.weight",),
        sharp="attention2",
        sharpness=sharpness,
    )
    state["decoder.dense.bias"][eos] = eos_bias
    return state


_PARTS = ("W_q", "W_k", "W_v", "W_o")


def _linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _random(
    shapes: Mapping[str, tuple[int, ...]], seed: int, gains: tuple[str, ...], sharp: str, sharpness: float
) -> State:
    draw = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=draw)
        if len(shape) > 1:
            state[name] = (sharpness if sharp in name else 1.0) * noise * shape[-1] ** -0.5
        else:
            state[name] = 0.2 * noise + (1.0 if name.endswith(gains) else 0.0)
    return state


def positions(length: int) -> Tensor:
    """float32 `[length, WIDTH]`: sin and cos of position / 10000 ** (2i / d), in turns."""
    angles = torch.arange(length).double()[:, None] / 10000.0 ** (torch.arange(0, WIDTH, 2).double() / WIDTH)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


class Textbook:
    """What a state dict computes.

    Args:
        state: of either model.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.annotated = "src_embed.0.lut.weight" in state

    def logits(self, source: Tensor, lengths: Tensor, target: Tensor, *, causal: bool = True, at: int = -1) -> Tensor:
        """int64 `[b, s]`, `[b]` and `[b, t]` -> `[b, t, v]`.

        Args:
            source, lengths, target: ids; the target begins with bos.
            causal: False for a decoder that sees all of its target.
            at: the position of all target tokens; -1 for each its own.
        """
        unseen = (torch.arange(source.shape[1])[None] >= lengths[:, None])[:, None, None]
        own = torch.arange(target.shape[1])
        memory = self._stack("encoder", self._embed("src", source, torch.arange(source.shape[1])), unseen)
        future = (own[None] > own[:, None])[None, None] if causal else torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        x = self._embed("tgt", target, own if at < 0 else torch.full_like(own, at))
        x = self._stack("decoder", x, future, memory, unseen)
        name = next(name for name in self.state if name.startswith(("generator.", "decoder.dense.")))
        return self._affine(name.rpartition(".")[0], x)

    def greedy(self, sources: Sequence[Sequence[int]], bos: int, eos: int, most: int) -> list[list[int]]:
        """Answers, of which all is computed anew at each step, for one more token."""
        lengths = torch.tensor([len(source) for source in sources])
        padded = torch.zeros(len(sources), int(lengths.max()), dtype=torch.int64)
        for row, source in zip(padded, sources, strict=True):
            row[: len(source)] = torch.tensor(source)
        ids = torch.full((len(sources), 1), bos)
        with torch.inference_mode():
            for _ in range(most):
                ids = torch.cat([ids, self.logits(padded, lengths, ids)[:, -1:].argmax(-1)], dim=1)
        rows = ids[:, 1:].tolist()
        return [row[: row.index(eos) + 1] if eos in row else row for row in rows]

    def _embed(self, side: str, ids: Tensor, where: Tensor) -> Tensor:
        names = {"src": "encoder", "tgt": "decoder"}
        name = f"{side}_embed.0.lut.weight" if self.annotated else f"{names[side]}.embedding.weight"
        return F.embedding(ids, self.state[name]) * WIDTH**0.5 + positions(5000)[where]

    def _stack(
        self, side: str, x: Tensor, mask: Tensor, memory: Tensor | None = None, unseen: Tensor | None = None
    ) -> Tensor:
        start = f"{side}.layers." if self.annotated else f"{side}.blks."
        layers = dict.fromkeys(name[len(start) :].partition(".")[0] for name in self.state if name.startswith(start))
        for layer in (f"{start}{number}" for number in layers):
            own, cross = ("self_attn", "src_attn") if self.annotated else ("attention1", "attention2")
            own = own if memory is not None or self.annotated else "attention"
            x = self._residual(layer, 0, x, lambda y, n=f"{layer}.{own}": self._attention(n, y, y, mask))
            if memory is not None:
                x = self._residual(layer, 1, x, lambda y, n=f"{layer}.{cross}": self._attention(n, y, memory, unseen))
            x = self._residual(layer, 1 + (memory is not None), x, lambda y, n=layer: self._feed_forward(n, y))
        return self._norm(f"{side}.norm", x) if self.annotated else x

    def _residual(self, layer: str, number: int, x: Tensor, sublayer) -> Tensor:  # type: ignore[no-untyped-def]
        if self.annotated:
            return x + sublayer(self._norm(f"{layer}.sublayer.{number}.norm", x))
        kind = next(name for name in ("addnorm", "addNorm") if f"{layer}.{name}1.ln.weight" in self.state)
        return self._norm(f"{layer}.{kind}{number + 1}.ln", x + sublayer(x))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        if f"{name}.weight" in self.state:
            return F.layer_norm(x, (WIDTH,), self.state[f"{name}.weight"], self.state[f"{name}.bias"])
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=1)
        if f"{name}.gamma" in self.state:
            return self.state[f"{name}.gamma"] * (x - mean) / (variance + 1e-6).sqrt() + self.state[f"{name}.beta"]
        return self.state[f"{name}.a_2"] * (x - mean) / (variance.sqrt() + 1e-6) + self.state[f"{name}.b_2"]

    def _feed_forward(self, layer: str, x: Tensor) -> Tensor:
        pairs = (
            ("feed_forward.w_1", "feed_forward.w_2"),
            ("feed_forward.w1", "feed_forward.w2"),
            ("ffn.dense1", "ffn.dense2"),
        )
        inner, outer = next(pair for pair in pairs if f"{layer}.{pair[0]}.weight" in self.state)
        return self._affine(f"{layer}.{outer}", F.relu(self._affine(f"{layer}.{inner}", x)))

    def _attention(self, name: str, x: Tensor, memory: Tensor, unseen: Tensor | None) -> Tensor:
        """By `nn.MultiheadAttention` with these weights."""
        parts = [f"{name}.linears.{i}" for i in range(4)] if self.annotated else [f"{name}.{part}" for part in _PARTS]
        module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
        zeros = torch.zeros(WIDTH)
        with torch.no_grad():
            module.in_proj_weight.copy_(torch.cat([self.state[f"{part}.weight"] for part in parts[:3]]))
            module.in_proj_bias.copy_(torch.cat([self.state.get(f"{part}.bias", zeros) for part in parts[:3]]))
            module.out_proj.weight.copy_(self.state[f"{parts[3]}.weight"])
            module.out_proj.bias.copy_(self.state.get(f"{parts[3]}.bias", zeros))
            assert unseen is not None
            mask = unseen.expand(len(x), HEADS, x.shape[1], memory.shape[1]).flatten(0, 1)
            return module(x, memory, memory, attn_mask=mask, need_weights=False)[0]  # type: ignore[no-any-return]

    def _affine(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])
