"""The graphs' contract: names, shapes and dtypes of inputs and outputs, and which output is bound over which input.

    encoder        input_ids [batch, source], source_lengths [batch]
                   -> cross_key_i, cross_value_i [batch, heads, source, head_dim] for each decoder layer i,
                      cross_bias [batch, 1, 1, source]: 0 where a token is, `MASKED` where padding is, in float16
                      `MASKED_HALF`
    decoder_step   token_ids, positions, finished, target_limits [batch], cache_positions [target],
                   cross_bias, cross_key_i, cross_value_i, self_key_i, self_value_i [batch, heads, target, head_dim]
                   -> next_token_ids, next_positions, next_finished [batch], next_self_key_i, next_self_value_i,
                      logits [batch, target_vocabulary]
    decoder        target_ids [batch, target], target_lengths [batch], cross_bias, cross_key_i, cross_value_i
                   -> log_probabilities [batch, target], cross_attention [layers, batch, heads, target, source],
                      self_attention [layers, batch, heads, target, target]
    decoder_beams  token_ids, positions, rows [batch, beam], cache_positions [target], cross_bias, cross_key_i,
                   cross_value_i, self_ancestors [batch, beam, target, beam],
                   self_key_i, self_value_i [batch, heads, target, beam, head_dim]
                   -> top_ids, top_logits [rows, top], normaliser [rows, 1], next_self_key_i, next_self_value_i,
                      logits [rows, target_vocabulary]
    encoder_attention  input_ids [batch, source], source_lengths [batch]
                   -> memory [batch, source, d_model], self_attention [layers, batch, heads, source, source]

The encoder of a model that reads feature vectors (`model.feature_size`) has, instead of input_ids, the input features
[batch, source, feature_size], float32 in every precision; what padding contains does not matter.

The encoder of a model that copies (`model.copies`) also returns cross_ids [batch, 1, source, 1], the source ids, which
its decoder_step and decoder take; its logits are logarithms of the mixture's probabilities.

ids, positions, lengths and limits are int64, finished is bool, the rest is float32 or float16. For each row, one step
does: chosen = argmax(logits); next_token = pad if finished else chosen; next_finished = finished or next_token == eos
or positions + 1 >= target_limits; next_positions = positions + not next_finished.

The last two are optional graphs that process all positions of sentences in parallel. Their outputs are float32 in every
precision, and 0 at padding. `target_ids` are translations without bos. Row i of the decoder's attention belongs to the
step that generates token i. That step reads bos and the tokens before i, which are the columns of self-attention. Rows
sum to 1, and weights of future tokens are exactly 0. `log_probabilities` are natural logarithms for the target ids.

The exporter writes these names, runtimes bind raw buffers by them, and `runtime/cpp/src/bundle/interface.cpp` defines
the same in C++: `tests/data/interface.json` is compared with both.
"""

from dataclasses import dataclass

from txport.runtime.bundle.schema import Dimension, DType, ModelSizes, Tensor

# Added to the scores of masked positions. It is below the scores of all trained models, some of which reach millions.
# With -inf, a row of masked positions only would become NaN.
MASKED = -1e30
# The same in float16: the lowest finite number, which no score exceeds.
MASKED_HALF = -65504.0

# Input of the encoder: ids, or feature vectors for models that read these.
INPUT_IDS = "input_ids"
FEATURES = "features"
# Source ids, for models that copy.
CROSS_IDS = "cross_ids"
# Mask of the cache slots that belong to a hypothesis.
ANCESTORS = "self_ancestors"
# Beam search needs twice as many candidates as beams. This suffices for 8 beams; no model's own settings have more.
MAX_TOP = 16
# For each row: the candidates, and the normaliser of their logits.
TOP_OUTPUTS = ("top_ids", "top_logits", "normaliser")
STATE = ("token_ids", "positions", "finished")
# Lowerings that do not need these inputs omit them.
OPTIONAL_INPUTS = ("cache_positions", "slot_positions")
# Runtimes may leave these outputs unbound.
OPTIONAL_OUTPUTS = ("logits", "memory", "cross_attention", "self_attention")


@dataclass(frozen=True)
class Interface:
    """Inputs and outputs of a graph, in order, and the (input, output) pairs that share a buffer."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    aliases: tuple[tuple[str, str], ...] = ()


def masked(item_bytes: int) -> float:
    """Return the mask value in floating-point numbers of this size."""
    if item_bytes == 2:
        return MASKED_HALF
    return MASKED


def source_name(sizes: ModelSizes) -> str:
    """Return the name of the encoder's input: ids or feature vectors."""
    if sizes.feature_size is None:
        return INPUT_IDS
    return FEATURES


def cross_names(layers: int) -> list[str]:
    """Cross-attention keys and values of each decoder layer."""
    return [f"cross_{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")]


def cache_names(layers: int) -> list[str]:
    """Self-attention keys and values of each decoder layer."""
    return [f"self_{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")]


def encoder(sizes: ModelSizes, floating: DType) -> Interface:
    """Interface of the encoder for these sizes; `floating` is the dtype of keys, values and bias."""
    name = source_name(sizes)
    if sizes.feature_size is None:
        source = _tensors("int64", ("batch", "source"), name)
    else:
        source = _tensors("float32", ("batch", "source", sizes.feature_size), name)
    inputs = [*source, *_tensors("int64", ("batch",), "source_lengths")]
    return Interface(tuple(inputs), (*_cross(sizes, floating), *_bias(floating), *_ids(sizes)))


def decoder_step(sizes: ModelSizes, floating: DType) -> Interface:
    """Interface of one decoder step for these sizes; `floating` is the dtype of caches, bias and logits."""
    caches = cache_names(sizes.decoder_layers)
    shape: tuple[Dimension | int, ...] = ("batch", sizes.heads, "target", sizes.head_dim)
    aliases = tuple((name, f"next_{name}") for name in (*STATE, *caches))
    state = [*_tensors("int64", ("batch",), *STATE[:2]), *_tensors("bool", ("batch",), STATE[2])]
    inputs = [
        *state,
        *_tensors("int64", ("batch",), "target_limits"),
        *_tensors("int64", ("target",), "cache_positions"),
        *_bias(floating),
        *_cross(sizes, floating),
        *_tensors(floating, shape, *caches),
        *_ids(sizes),
    ]
    outputs = [Tensor(f"next_{t.name}", t.dtype, t.shape, False) for t in (*state, *_tensors(floating, shape, *caches))]
    outputs += _tensors(floating, ("batch", sizes.target_vocabulary), "logits")
    return Interface(tuple(inputs), tuple(outputs), aliases)


def candidate_count(sizes: ModelSizes) -> int:
    """Return the number of candidates that `decoder_beams` returns for each row."""
    return min(MAX_TOP, sizes.target_vocabulary)


def decoder_beams(sizes: ModelSizes, floating: DType) -> Interface:
    """Interface of one step of beam search; `floating` is the dtype of caches, bias and logits."""
    caches = cache_names(sizes.decoder_layers)
    shape: tuple[Dimension | int, ...] = ("batch", sizes.heads, "slots", sizes.head_dim)
    inputs = [
        *_tensors("int64", ("batch", "beam"), "token_ids", "positions", "rows"),
        *_tensors("int64", ("batch",), "first_slots"),
        *_tensors("int64", ("slots",), "slot_positions"),
        *_bias(floating),
        *_cross(sizes, floating),
        *_tensors("bool", ("batch", "beam", "slots"), ANCESTORS),
        *_tensors(floating, shape, *caches),
        *_ids(sizes),
    ]
    outputs = [
        *_tensors("int64", ("rows", candidate_count(sizes)), "top_ids"),
        *_tensors("float32", ("rows", candidate_count(sizes)), "top_logits"),
        *_tensors("float32", ("rows", 1), "normaliser"),
        *_tensors(floating, shape, *(f"next_{name}" for name in caches)),
        *_tensors(floating, ("rows", sizes.target_vocabulary), "logits"),
    ]
    return Interface(tuple(inputs), tuple(outputs), tuple((name, f"next_{name}") for name in caches))


def decoder(sizes: ModelSizes, floating: DType) -> Interface:
    """Interface of the decoder over whole translations; `floating` is the dtype of keys, values and bias."""
    maps: tuple[Dimension | int, ...] = (sizes.decoder_layers, "batch", sizes.heads, "target")
    inputs = [
        *_tensors("int64", ("batch", "target"), "target_ids"),
        *_tensors("int64", ("batch",), "target_lengths"),
        *_bias(floating),
        *_cross(sizes, floating),
        *_ids(sizes),
    ]
    outputs = [
        *_tensors("float32", ("batch", "target"), "log_probabilities"),
        *_tensors("float32", (*maps, "source"), "cross_attention"),
        *_tensors("float32", (*maps, "target"), "self_attention"),
    ]
    return Interface(tuple(inputs), tuple(outputs))


def encoder_attention(sizes: ModelSizes, floating: DType) -> Interface:
    """Interface of the encoder that returns its output and attention, both float32 in every precision."""
    heads = sizes.encoder_heads or sizes.heads
    outputs = [
        *_tensors("float32", ("batch", "source", sizes.d_model), "memory"),
        *_tensors("float32", (sizes.encoder_layers, "batch", heads, "source", "source"), "self_attention"),
    ]
    return Interface(encoder(sizes, floating).inputs, tuple(outputs))


def interface(role: str, sizes: ModelSizes, floating: DType) -> Interface | None:
    """Return the interface of the graphs of a role, or None if this version does not support the role."""
    of_role = {
        "encoder": encoder,
        "decoder_step": decoder_step,
        "decoder": decoder,
        "decoder_beams": decoder_beams,
        "encoder_attention": encoder_attention,
    }.get(role)
    return of_role and of_role(sizes, floating)


def _cross(sizes: ModelSizes, floating: DType) -> list[Tensor]:
    shape: tuple[Dimension | int, ...] = ("batch", sizes.heads, "source", sizes.head_dim)
    return _tensors(floating, shape, *cross_names(sizes.decoder_layers))


def _bias(floating: DType) -> list[Tensor]:
    return _tensors(floating, ("batch", 1, 1, "source"), "cross_bias")


def _ids(sizes: ModelSizes) -> list[Tensor]:
    """Source ids in the layout of keys, with one head and one number per token, so code for keys moves them too."""
    if sizes.copies:
        return _tensors("int64", ("batch", 1, "source", 1), CROSS_IDS)
    return []


def _tensors(dtype: DType, shape: tuple[Dimension | int, ...], *names: str) -> list[Tensor]:
    return [Tensor(name, dtype, shape, name in OPTIONAL_OUTPUTS) for name in names]
