"""Encoder-decoder Transformers of eole, OpenNMT-py's successor: config.json, vocab.json and model.NN.safetensors.

Norms stand before sublayers, and one follows the last layer of each side. Source texts have no eos.
"""

import re
from pathlib import Path
from typing import Any

from txport.models.config import Config
from txport.models.importers.eole.description import (
    ACTIVATIONS,
    NEUTRAL_ROTARY,
    NORM_KINDS,
    SINUSOIDS,
    EoleModel,
    EoleVocabulary,
    biases,
)
from txport.models.importers.eole.mapping import map_weights
from txport.models.importers.imported import Imported, ImportOptions, TokenizerParts
from txport.models.importers.opennmt import MAX_POSITIONS, pieces_tokenizer
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import Settings, read_json
from txport.models.importers.tokenizers.languages import refuse_languages
from txport.models.importers.weights import Stored, read_safetensors
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.errors import CheckpointError

_PART = re.compile(r"model\.\d+\.safetensors")
# Transforms of eole whose tokens differ from those of SentencePiece.
_OTHER_TOKENS = ("bpe", "onmt_tokenize", "huggingface_tokenize")
_TABLES = ("src_emb.embeddings.weight", "tgt_emb.embeddings.weight", "generator.weight")


def is_eole(directory: Path) -> bool:
    """Return whether a directory contains the weights of an eole model."""
    return directory.is_dir() and any(_PART.fullmatch(file.name) for file in directory.glob("model.*.safetensors"))


def import_eole(directory: Path, options: ImportOptions) -> Imported:
    """Read a model directory of eole.

    Args:
        directory: contains config.json, vocab.json and model.00.safetensors.
        options: `vocabulary` names the directory of SentencePiece models.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
    """
    fields = read_json(directory / "config.json")
    model = EoleModel(directory / "config.json", fields)
    vocabulary = EoleVocabulary(directory / "vocab.json")
    plan = ImportPlan(_tensors(directory), directory)
    ours = _config(model, plan, vocabulary)
    map_weights(plan, model, ours)
    plan.check(ours)
    refuse_languages(options, directory)
    notes = []
    if ours.positions == "learned":
        notes.append(f"inputs and outputs of up to {ours.max_positions} tokens are taken")
    elif ours.positions == "shaw":
        notes.append(
            "eole 0.6 translates with other distances than it trains with; the imported model follows training"
        )
    tokenizer = TokenizerParts(TokenizerDescription("none", None, None, (), (), (), None))
    if options.tokenizer:
        steps = Settings(model.file, fields).optional("transforms", list) or []
        if unsupported := [step for step in steps if step in _OTHER_TOKENS]:
            raise CheckpointError(
                f"{model.file}: texts are split by {unsupported[0]}, which is not supported: give --no-tokenizer, "
                "and ids"
            )
        transforms = Settings(model.file, fields).optional("transforms_configs", dict) or {}
        options_of_transform = transforms.get("sentencepiece")
        settings = Settings(model.file, options_of_transform if isinstance(options_of_transform, dict) else {})
        tokens = (vocabulary.source, vocabulary.target)
        place = options.vocabulary or directory
        tokenizer = pieces_tokenizer(place, settings, tokens, {*vocabulary.specials.values(), vocabulary.start})
    return Imported("eole", ours, plan, tokenizer, notes)


def _tensors(directory: Path) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    files = sorted(file for file in directory.glob("model.*.safetensors") if _PART.fullmatch(file.name))
    if not files:
        raise CheckpointError(f"{directory} has no model.00.safetensors: copy the weights of the model too")
    numbers = [int(file.name.split(".")[1]) for file in files]
    # Each part lacks only tensors of others, so a missing part would look like a smaller model.
    if numbers != list(range(len(files))):
        raise CheckpointError(f"{directory} lacks model.{_gap(numbers):02}.safetensors: copy all parts of the weights")
    for file in files:
        part = read_safetensors(file)
        if repeated := sorted(part.keys() & tensors.keys()):
            raise CheckpointError(f"{file} contains {repeated[0]}, which another part of the weights also contains")
        tensors |= part
    if packed := [name for name in tensors if name.endswith(("qweight", "qzeros", "absmax", "weight_format"))]:
        raise CheckpointError(f"{directory} has quantised weights ({packed[0]}), which are not supported")
    return tensors


def _gap(numbers: list[int]) -> int:
    return next(index for index, number in enumerate([*numbers, -1]) if index != number)


def _config(model: EoleModel, plan: ImportPlan, vocabulary: EoleVocabulary) -> Config:
    encoder, decoder = model.sides
    activation = model.same("mlp_activation_fn", "relu")
    names = _table_names(model, plan)
    embeddings = plan.embeddings(*names)
    for name, tokens in zip(names, (vocabulary.source, vocabulary.target, vocabulary.target), strict=True):
        if (rows := plan.stored(name).shape[0]) != len(tokens):
            raise CheckpointError(f"{plan.source}: {name} has {rows} rows, but vocab.json has {len(tokens)} tokens")
    has_bias = model.settings.get("generator_bias", True, kind=bool)
    if has_bias:
        plan.take("projection.bias", "generator.bias")
    heads = [side.get("heads", 8, kind=int) for side in model.sides]
    for side, count in zip(model.sides, heads, strict=True):
        side.refuse({"heads_kv": (None, count)})
    return model.settings.config(
        d_model=model.same("hidden_size", 512, kind=int),
        heads=heads[0],
        decoder_heads=None if heads[0] == heads[1] else heads[1],
        head_dim=_head_dim(model),
        ffn=encoder.get("transformer_ff", 2048, kind=int),
        decoder_ffn=decoder.get("transformer_ff", 2048, kind=int),
        encoder_layers=encoder.get("layers", 2, kind=int),
        decoder_layers=decoder.get("layers", 2, kind=int),
        norm="pre",
        norm_kind=_norm_kind(model),
        layer_norm_epsilon=model.same("norm_eps", 1e-5),
        activation=encoder.activation("mlp_activation_fn", ACTIVATIONS, "relu"),
        feed_forward="gated" if str(activation).startswith("gated") else "plain",
        feed_forward_bias=any(side.get("add_ffnbias", False, kind=bool) for side in model.sides),
        attention_bias=any(any(biases(side)) for side in model.sides),
        projection_bias=has_bias,
        pad_id=vocabulary.id_of(vocabulary.specials["pad_token"]),
        unk_id=vocabulary.id_of(vocabulary.specials["unk_token"]),
        bos_id=vocabulary.id_of(vocabulary.start),
        eos_id=vocabulary.id_of(vocabulary.specials["eos_token"]),
        alignment_heads=_alignment_heads(decoder),
        **_position_fields(model),
        **embeddings,
    )


def _table_names(model: EoleModel, plan: ImportPlan) -> tuple[str, str, str]:
    """Return the names of both embeddings and of the projection. A shared table is stored once, or in equal copies."""
    source, target, projection = _TABLES
    for option, first, second in (
        ("share_embeddings", source, target),
        ("share_decoder_embeddings", target, projection),
    ):
        if model.settings.get(option, False, kind=bool) and not plan.same(first, second):
            raise CheckpointError(f"{plan.source}: {first} and {second} differ, but config.json has {option} = true")
    if model.settings.get("share_embeddings", False):
        target = source
    if model.settings.get("share_decoder_embeddings", False):
        projection = target
    return source, target, projection


def _norm_kind(model: EoleModel) -> str:
    """Return our name of the norms, which both sides must have."""
    kinds = {side.activation("layer_norm", NORM_KINDS, "standard") for side in model.sides}
    if len(kinds) > 1:
        model.same("layer_norm", "standard")
    return kinds.pop()


def _head_dim(model: EoleModel) -> int | None:
    """Return the width of a head; None if it follows from the heads on both sides."""
    if any(side.optional("head_dim", int) is not None for side in model.sides):
        return int(model.same("head_dim", None, kind=int))
    return None


def _alignment_heads(decoder: Settings) -> tuple[tuple[int, int], ...]:
    """Return the heads that were trained to align (Garg et al. 2019): the first ones of a layer."""
    count = decoder.get("alignment_heads", 0, kind=int)
    if not decoder.get("lambda_align", 0.0) or decoder.get("full_context_alignment", False):
        return ()
    layers = decoder.get("layers", 2, kind=int)
    layer = decoder.get("alignment_layer", -2, kind=int)
    if layer < 0:
        layer += layers
    return tuple((layer, head) for head in range(min(count, decoder.get("heads", 8))))


def _position_fields(model: EoleModel) -> dict[str, Any]:
    kind = model.positions
    embeddings = model.embeddings
    scaled = bool(embeddings.optional("normalize", bool))
    if kind in SINUSOIDS:
        embeddings.refuse({"normalize": (False, None)})
        return {"positions": "learned", "max_positions": MAX_POSITIONS, "scale_embedding": True}
    if kind == "Learned":
        rows = embeddings.get("n_positions", kind=int) - model.shift
        return {"positions": "learned", "max_positions": min(MAX_POSITIONS, rows), "scale_embedding": scaled}
    fields = {"max_positions": MAX_POSITIONS, "scale_embedding": scaled}
    buckets = model.same("relative_positions_buckets", 0, kind=int)
    if kind == "Rotary":
        model.rotary.refuse(NEUTRAL_ROTARY)
        for side in model.sides:
            width = side.optional("head_dim", int) or side.get("hidden_size", 512) // max(1, side.get("heads", 8))
            model.rotary.refuse(dict.fromkeys(("rotary_dim", "rotary_dim_global"), (0, width)))
            side.refuse({"relative_positions_buckets": (0,)})
        return {"positions": "rotary", **fields}
    if kind == "Relative":
        fields["position_distance"] = embeddings.get("n_positions", kind=int)
        if not buckets:
            return {"positions": "shaw", **fields}
        return {"positions": "relative", "position_buckets": buckets, "position_tables": "layer", **fields}
    supported = ", ".join((*SINUSOIDS, "Learned", "Rotary", "Relative"))
    raise CheckpointError(f"{model.file}: position_encoding_type = {kind} is not supported; there are {supported}")
