"""What Hugging Face's encoder-decoder models that descend from BART share: config.json, layer names, generation."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from txport.models.config import Config
from txport.models.importers.plan import BANNED, Plan
from txport.runtime.errors import CheckpointError, InputError

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
_ATTENTION = (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("output", "out_proj"))
# Settings of `generate` that change what greedy search gives, each with the value that changes nothing.
_SEARCH: dict[str, tuple[Any, ...]] = {
    "no_repeat_ngram_size": (0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "repetition_penalty": (1, 1.0, None),
    "encoder_repetition_penalty": (1, 1.0, None),
    "min_length": (0, None),
    "min_new_tokens": (0, None),
    "begin_suppress_tokens": (None, []),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None, {}),
    "forced_decoder_ids": (None, []),
    "do_sample": (False, None),
    "num_beams": (1, None),
}


class HuggingFaceConfig:
    """config.json of a directory, and generation_config.json beside it.

    Raises:
        CheckpointError: it is missing or not JSON.
    """

    def __init__(self, directory: Path) -> None:
        self.file = directory / "config.json"
        self.fields = _read_json(self.file)
        generation = directory / "generation_config.json"
        # As `generate` does: the file of its own comes before what older models have in config.json.
        self._generation = _read_json(generation) if generation.is_file() else {}

    @property
    def model_type(self) -> str:
        """What kind of model it is."""
        return str(self.fields.get("model_type"))

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """A field of config.json.

        Raises:
            CheckpointError: it is missing and has no default, or is of another type.
        """
        value = self.fields.get(name, default)
        if value is None and default is None:
            raise CheckpointError(f"{self.file} lacks {name}; it is not the config of such a model")
        if type(value) is not kind:
            raise CheckpointError(f"{self.file}: {name} must be {kind.__name__}, not {value!r}")
        return value

    def generation(self, name: str) -> Any:
        """A setting of generation, None if there is none."""
        return self._generation.get(name, self.fields.get(name))

    def token(self, name: str) -> int:
        """The id of a special token; where there are several ends, the first.

        Raises:
            CheckpointError: it is missing.
        """
        value = self.generation(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if type(value) is not int:
            raise CheckpointError(f"{self.file}: {name} must be an id, not {value!r}")
        return value

    def equal_sides(self, encoder: str, decoder: str) -> int:
        """A size that our model has once for both sides.

        Raises:
            CheckpointError: they differ.
        """
        sizes: list[int] = [self.get(name, int) for name in (encoder, decoder)]
        if sizes[0] != sizes[1]:
            raise CheckpointError(
                f"{self.file}: {encoder} = {sizes[0]} and {decoder} = {sizes[1]} differ, "
                "which txport's model cannot have: it has one size for both sides"
            )
        return sizes[0]

    def activation(self) -> str:
        """Our name of the activation.

        Raises:
            CheckpointError: we have not got it.
        """
        name = self.get("activation_function", str)
        if name not in _ACTIVATIONS:
            raise CheckpointError(
                f"{self.file}: activation_function = {name!r} is not supported; there are {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[name]

    def ours(self, **fields: Any) -> Config:
        """Our config: what all of the family say alike, and `fields`.

        Raises:
            CheckpointError: a size that no model of ours can have.
        """
        dropout = self.fields.get("dropout", 0.1)
        try:
            return Config(
                d_model=self.get("d_model", int),
                heads=self.equal_sides("encoder_attention_heads", "decoder_attention_heads"),
                ffn=self.equal_sides("encoder_ffn_dim", "decoder_ffn_dim"),
                encoder_layers=self.get("encoder_layers", int),
                decoder_layers=self.get("decoder_layers", int),
                activation=self.activation(),
                scale_embedding=self.get("scale_embedding", bool, False),
                dropout=float(dropout) if isinstance(dropout, int | float) else 0.1,
                positions="learned",
                eos_id=self.token("eos_token_id"),
                pad_id=self.token("pad_token_id"),
                bos_id=decoder_start(self),
                **fields,
            )
        except InputError as error:
            raise CheckpointError(f"{self.file}: {error}") from None

    def refuse(self, unsupported: Mapping[str, object]) -> None:
        """See that options which our model has not got have the value that makes no difference.

        Raises:
            CheckpointError: one has another value.
        """
        for name, neutral in unsupported.items():
            value = self.fields.get(name, neutral)
            if value != neutral and value is not None:
                raise CheckpointError(
                    f"{self.file}: {name} = {value!r} is not supported; only {neutral!r} gives the same model here"
                )


def prefix_of(plan: Plan) -> str:
    """What stands before the names of the model without its head: nothing where it was saved without one."""
    return "model." if any(name.startswith("model.") for name in plan.theirs) else ""


def layers(
    plan: Plan, prefix: str, encoder: int, decoder: int, d_model: int, ffn: int, *, attentions: bool = True
) -> None:
    """Map the layers of BART's family: the same names in Hugging Face and, without `prefix`, in fairseq.

    Args:
        plan: to fill.
        prefix: of their names.
        encoder: the number of encoder layers.
        decoder: that of decoder layers.
        d_model: for biases that are missing.
        ffn: likewise.
        attentions: whether to map attentions too, query, key and value each by its own name.
    """
    for index in range(encoder):
        ours, theirs = f"encoder.{index}", f"{prefix}encoder.layers.{index}"
        if attentions:
            attention(plan, f"{ours}.attention", f"{theirs}.self_attn", d_model)
        plan.affine(f"{ours}.attention_residual.norm", f"{theirs}.self_attn_layer_norm")
        _feed_forward(plan, ours, theirs, d_model, ffn)
    for index in range(decoder):
        ours, theirs = f"decoder.{index}", f"{prefix}decoder.layers.{index}"
        if attentions:
            attention(plan, f"{ours}.self_attention", f"{theirs}.self_attn", d_model)
            attention(plan, f"{ours}.cross_attention", f"{theirs}.encoder_attn", d_model)
        plan.affine(f"{ours}.self_attention_residual.norm", f"{theirs}.self_attn_layer_norm")
        plan.affine(f"{ours}.cross_attention_residual.norm", f"{theirs}.encoder_attn_layer_norm")
        _feed_forward(plan, ours, theirs, d_model, ffn)


def attention(plan: Plan, ours: str, theirs: str, d_model: int) -> None:
    """Map one attention whose four projections stand apart."""
    for name, projection in _ATTENTION:
        plan.affine(f"{ours}.{name}", f"{theirs}.{projection}", bias=d_model)


def _feed_forward(plan: Plan, ours: str, theirs: str, d_model: int, ffn: int) -> None:
    plan.affine(f"{ours}.feed_forward.inner", f"{theirs}.fc1", bias=ffn)
    plan.affine(f"{ours}.feed_forward.outer", f"{theirs}.fc2", bias=d_model)
    plan.affine(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm")


def embeddings(plan: Plan, prefix: str, config: HuggingFaceConfig, *, shared: bool) -> tuple[bool, bool]:
    """Map both embeddings and the projection's weight, whichever copies of shared tables the file holds.

    Args:
        plan: to fill.
        prefix: of the names of the model without its head.
        config: says what is tied.
        shared: whether it says that source and target have one embedding.

    Returns:
        whether the embeddings are one, and whether the projection is the target's.

    Raises:
        CheckpointError: a table is missing, or tables that the config ties differ.
    """
    common, head = f"{prefix}shared.weight", "lm_head.weight"
    sides = [f"{prefix}{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    source, target = (side if plan.has(side) else common for side in sides)
    tied = bool(config.fields.get("tie_word_embeddings", True))
    projection = head if plan.has(head) else target
    if not tied and projection != head:
        raise CheckpointError(f"{plan.source} lacks {head}, although {config.file} says tie_word_embeddings = false")
    if not tied and common not in (source, target):
        plan.ignore(common)  # saved, but used by no side: transformers 5 unties everything at once
    for names in ((common, *sides) if shared and tied else (), (target, head) if tied else ()):
        if not plan.same(*names):
            there = " and ".join(name for name in names if plan.has(name))
            raise CheckpointError(f"{plan.source}: {there} differ, although {config.file} ties them")
    share, tie = source == target or plan.same(source, target), projection == target or plan.same(target, head)
    plan.take("source_embedding.tokens.weight", source)
    if not share:
        plan.take("target_embedding.tokens.weight", target)
    if not tie:
        plan.take("projection.weight", projection)
    return share, tie


def one_vocabulary(plan: Plan, config: HuggingFaceConfig, prefix: str, notes: list[str]) -> dict[str, Any]:
    """Map embeddings and projection of a model whose sides have one vocabulary.

    Args:
        plan: to fill.
        config: says how large they are and what is tied.
        prefix: of the names of the model without its head.
        notes: to add to.

    Returns:
        the fields of our config that this decides, and the number of positions.

    Raises:
        CheckpointError: as `embeddings` and `projection_bias`, or the table has other rows than the config says.
    """
    share, tie = embeddings(plan, prefix, config, shared=True)
    vocabulary = config.get("vocab_size", int)
    check_rows(plan, config, "source_embedding.tokens.weight", "vocab_size", vocabulary)
    return {
        "source_vocabulary": vocabulary,
        "target_vocabulary": vocabulary,
        "share_embeddings": share,
        "tie_projection": tie,
        "projection_bias": projection_bias(plan, config, vocabulary, notes),
        "max_positions": config.get("max_position_embeddings", int),
    }


def projection_bias(plan: Plan, config: HuggingFaceConfig, vocabulary: int, notes: list[str]) -> bool:
    """Map final_logits_bias with the ids that must never be made; whether the projection needs a bias at all.

    Raises:
        CheckpointError: the bias has another size, or a banned id is not one.
    """
    name, bias = "final_logits_bias", torch.zeros(vocabulary)
    if plan.has(name):
        stored = plan.stored(name)
        if stored.shape[-1] != vocabulary or stored.shape != (*(1,) * (len(stored.shape) - 1), vocabulary):
            raise CheckpointError(f"{plan.source}: {name} has shape {stored.shape}, not (1, {vocabulary})")
        bias = stored.whole().detach().float().reshape(vocabulary).clone()
    banned = _banned(config, notes)
    for token in banned:
        if not 0 <= token < vocabulary:
            raise CheckpointError(f"{config.file} bans the id {token}, outside the vocabulary of {vocabulary}")
        bias[token] = BANNED
    if banned:
        notes.append(f"ids that are never made, as the model's generation settings say: {', '.join(map(str, banned))}")
    if not bool(bias.any()):
        return False
    plan.put("projection.bias", bias, name)
    return True


def _banned(config: HuggingFaceConfig, notes: list[str]) -> list[int]:
    words = config.generation("bad_words_ids") or []
    banned = [word[0] for word in words if len(word) == 1]
    if longer := len(words) - len(banned):
        notes.append(f"bad_words_ids bans {longer} sequences of several ids, which txport's search does not")
    return sorted({*banned, *(config.generation("suppress_tokens") or [])})


def search_notes(config: HuggingFaceConfig) -> list[str]:
    """A sentence if the model's own generation settings are not plain greedy search."""
    given = {name: config.generation(name) for name in _SEARCH}
    differing = [f"{name} = {value}" for name, value in given.items() if value not in _SEARCH[name]]
    if not differing:
        return []
    return [
        f"the model's own generation settings are not plain greedy search, which txport does: {', '.join(differing)}"
    ]


def decoder_start(config: HuggingFaceConfig) -> int:
    """The id that the decoder starts from, by the rules of `generate`."""
    name = "decoder_start_token_id"
    return config.token(name if config.generation(name) is not None else "bos_token_id")


def check_rows(plan: Plan, config: HuggingFaceConfig, table: str, field: str, expected: int) -> None:
    """See that an embedding has as many rows as the config says.

    Raises:
        CheckpointError: it has not.
    """
    rows = plan.parts[table].shape[0]
    if rows != expected:
        raise CheckpointError(
            f"{plan.source}: {plan.parts[table].origin} has {rows} rows, but {config.file} says {field} = {expected}"
        )


def read_vocabulary(file: Path, rows: int) -> dict[str, int]:
    """vocab.json: pieces and their ids.

    Raises:
        CheckpointError: it is missing, is not such a file, or has ids that the embedding of `rows` rows has not.
    """
    value = _read_json(file, "or import without a tokenizer (--no-tokenizer)")
    if not value or any(type(token) is not int for token in value.values()):
        raise CheckpointError(f"{file} is not a vocabulary of pieces and ids; copy it again, or give --no-tokenizer")
    if len(set(value.values())) != len(value):
        raise CheckpointError(f"{file} gives one id to two pieces; copy it again, or give --no-tokenizer")
    if not 0 <= min(value.values()) <= max(value.values()) < rows:
        raise CheckpointError(
            f"{file} has ids up to {max(value.values())}, but the embedding has {rows} rows: "
            "they belong to different models; find the right file, or give --no-tokenizer"
        )
    return value


def read_bytes(file: Path) -> bytes:
    """A file of the tokenizer.

    Raises:
        CheckpointError: it is missing.
    """
    try:
        return file.read_bytes()
    except OSError:
        raise CheckpointError(
            f"{file} is missing or cannot be read: copy it too, or import without a tokenizer (--no-tokenizer)"
        ) from None


def by_id(pieces: Mapping[str, int], special: Iterable[str]) -> list[str | None]:
    """The pieces in the order of their ids; None for special ones and for gaps."""
    size, left_out = max(pieces.values()) + 1, set(special)
    table: list[str | None] = [None] * size
    for piece, token in pieces.items():
        table[token] = None if piece in left_out else piece
    return table


def chosen(name: str | None, table: Mapping[str, int], side: str, file: Path, *, required: bool) -> str | None:
    """A default language, checked.

    Raises:
        InputError: it is unknown, or none was given although one is needed.
    """
    some = ", ".join(list(table)[:8]) + (" ..." if len(table) > 8 else "")
    if name is None and required:
        raise InputError(f"{file.parent} has many languages: say the default with --{side}-language ({some})")
    if name is not None and name not in table:
        known = f"choose from {some}" if table else "leave it out"
        raise InputError(f"--{side}-language {name} is not a {side} language of {file.parent}: {known}")
    return name


def read_json_if_there(file: Path) -> dict[str, Any]:
    """An optional JSON file, empty if it is missing."""
    return _read_json(file) if file.is_file() else {}


def _read_json(file: Path, way_out: str = "or give the directory that holds it") -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except OSError:
        raise CheckpointError(f"{file} is missing or cannot be read: copy it too, {way_out}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON ({error}); copy it again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} must hold a JSON object, not {type(value).__name__}")
    return value
