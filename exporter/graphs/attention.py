"""The optional graphs of a bundle: what a model attends to, what it makes of a source, how it scores a translation.

They read whole sentences in parallel and have the weights of the other graphs, so that these stay as they are: a step
is fused and captured, and has no weights of attention to give. Shapes: b batch, h heads, k head_dim, d d_model,
s source, t target, v vocabulary.
"""

import torch
from torch import Tensor
from txport.exporter.graphs.lowerings import Lowering, StepInputs, attend
from txport.exporter.graphs.modules import DecoderStep, EncoderGraph
from txport.models.transformer import KeyValue, Transformer
from txport.runtime.bundle.interface import MASKED


def _tokens(lengths: Tensor, size: int) -> Tensor:
    """bool `[b, size]`, true where a token is not padding."""
    return torch.arange(size)[None] < lengths[:, None]


def _stacked(weights: list[Tensor], tokens: Tensor) -> Tensor:
    """Weights `[b, h, n, m]` of each layer -> `[layers, b, h, n, m]`, 0 in the rows that are no tokens `[b, n]`."""
    return torch.where(tokens[None, :, None, :, None], torch.stack(weights), 0.0)


class EncoderAttentionGraph(EncoderGraph):
    """ids and lengths -> the encoder's output, and the weights of its self-attention."""

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """int64 `[b, s]` and `[b]` -> memory `[b, s, d]`, weights `[layers, b, h, s, s]`; padding is 0 in both."""
        x, _, weights = self.encode(input_ids, source_lengths)
        memory = self.norm(x)
        tokens = _tokens(source_lengths, input_ids.shape[1])
        return torch.where(tokens[..., None], memory, 0.0), _stacked(weights, tokens)


class _Parallel(Lowering):
    """All positions of `batch` rows at once, of tokens that are given: the caches are the tokens themselves.

    Attributes:
        self_weights, cross_weights: weights of each layer so far, `[b, h, t, t]` and `[b, h, t, s]`.
    """

    def __init__(self, batch: int, causal: Tensor) -> None:
        self.self_weights: list[Tensor] = []
        self.cross_weights: list[Tensor] = []
        self._batch, self._causal = batch, causal

    def self_attention(self, qkv: Tensor, heads: int, cache: KeyValue, step: StepInputs) -> tuple[Tensor, KeyValue]:
        """Packed projections [b * t, 3d] -> context [b * t, d]; the cache stays as it is."""
        if (qkv.shape[1] // (3 * heads)) % 8:
            query, key, value = (self._split(part, heads) for part in qkv.chunk(3, dim=1))
        else:
            # As one matrix, as int8 keeps it for ONNX Runtime's fused attention.
            packed = qkv.reshape(self._batch, -1, 3, heads, qkv.shape[1] // (3 * heads)).permute(2, 0, 3, 1, 4)
            query, key, value = packed[0], packed[1], packed[2]
        context, weights = attend(query, key, value, self._causal)
        self.self_weights.append(weights)
        return self._merged(context), cache

    def cross_attention(self, query: Tensor, heads: int, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """query [b * t, d], key and value [b, h, s, k], bias [b, 1, 1, s] -> context [b * t, d]."""
        context, weights = attend(self._split(query, heads), key, value, bias)
        self.cross_weights.append(weights)
        return self._merged(context)

    def apart(self, x: Tensor) -> Tensor:
        return x.reshape(self._batch, -1, x.shape[1])

    def for_each_token(self, x: Tensor, tokens: Tensor) -> Tensor:
        return x.expand(-1, tokens.shape[1], -1)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """[b * t, d] -> [b, h, t, k]."""
        return x.reshape(self._batch, -1, heads, x.shape[1] // heads).transpose(1, 2)

    @staticmethod
    def _merged(context: Tensor) -> Tensor:
        """[b, h, t, k] -> [b * t, d]."""
        return context.transpose(1, 2).reshape(-1, context.shape[1] * context.shape[3])


class DecoderGraph(DecoderStep):
    """Teacher forcing: finished translations, and what the encoder made of their sources, to scores and weights.

    Activations are `[b * t, d]`, each token a row of its own: every layer is the step's, with its weights as they are
    stored for it.
    """

    def __init__(self, model: Transformer, max_target: int) -> None:
        super().__init__(model, Lowering(), max_target)

    def forward(  # type: ignore[override]
        self,
        target_ids: Tensor,
        target_lengths: Tensor,
        cross_bias: Tensor,
        cross: list[KeyValue],
        cross_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See the contract in `txport.runtime.bundle.interface` for names, shapes and meaning."""
        batch, length = target_ids.shape
        bos = torch.full_like(target_ids[:, :1], self.config.bos_id)
        read = torch.cat([bos, target_ids], dim=1)[:, :-1]
        positions = torch.arange(length)
        causal = torch.where(positions[None] <= positions[:, None], 0.0, MASKED)[None, None]
        self.lowering = parallel = _Parallel(batch, causal)
        x = self.embedding(read, positions[None]).reshape(-1, self.config.d_model)
        inputs = StepInputs(positions, positions, cross_bias, cross_ids)
        logits, _ = self._logits(x, inputs, cross, cross)
        chosen = _log_probabilities(logits, target_ids.reshape(-1)).reshape(batch, length)
        tokens = _tokens(target_lengths, length)
        cross_maps, self_maps = _stacked(parallel.cross_weights, tokens), _stacked(parallel.self_weights, tokens)
        return torch.where(tokens, chosen, 0.0), cross_maps, self_maps


def _log_probabilities(logits: Tensor, ids: Tensor) -> Tensor:
    """Of the id of each row: logits `[n, v]`, int64 ids `[n]` -> `[n, 1]`.

    Written out, because TensorRT's LogSoftmax and ReduceLogSumExp take the logarithm of what may be 0.
    """
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    return shifted.gather(1, ids[:, None]) - shifted.exp().sum(dim=-1, keepdim=True).log()
