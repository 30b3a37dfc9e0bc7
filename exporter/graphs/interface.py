"""Names of the graphs' inputs and outputs, in order, and which output is bound over which input.

    encoder        input_ids [batch, source], source_lengths [batch]
                   -> cross_key_i, cross_value_i [batch, heads, source, head_dim] for each decoder layer i,
                      cross_bias [batch, 1, 1, source]: 0 where a token is, a large negative number where padding is
    decoder_step   token_ids, positions, finished, target_limits [batch], cache_positions [target],
                   cross_bias, cross_key_i, cross_value_i, self_key_i, self_value_i [batch, heads, target, head_dim]
                   -> next_token_ids, next_positions, next_finished [batch], next_self_key_i, next_self_value_i,
                      logits [batch, target_vocabulary] (optional: a runtime may leave it unbound)

ids, positions, lengths and limits are int64, finished is bool, the rest is float32 or float16. For each row, one step
does: chosen = argmax(logits); next_token = pad if finished else chosen; next_finished = finished or next_token == eos
or positions + 1 >= target_limits; next_positions = positions + not next_finished.
"""

STATE = ("token_ids", "positions", "finished")
OPTIONAL_OUTPUTS = ("logits",)


def encoder_inputs() -> list[str]:
    return ["input_ids", "source_lengths"]


def cross_names(layers: int) -> list[str]:
    return [f"cross_{kind}_{i}" for i in range(layers) for kind in ("key", "value")]


def cache_names(layers: int) -> list[str]:
    return [f"self_{kind}_{i}" for i in range(layers) for kind in ("key", "value")]


def encoder_outputs(layers: int) -> list[str]:
    return [*cross_names(layers), "cross_bias"]


def step_inputs(layers: int) -> list[str]:
    return [*STATE, "target_limits", "cache_positions", "cross_bias", *cross_names(layers), *cache_names(layers)]


def step_outputs(layers: int) -> list[str]:
    return [output for _, output in step_aliases(layers)] + ["logits"]


def step_aliases(layers: int) -> list[tuple[str, str]]:
    """(input, output) pairs that a runtime binds to one buffer."""
    return [(name, f"next_{name}") for name in [*STATE, *cache_names(layers)]]
