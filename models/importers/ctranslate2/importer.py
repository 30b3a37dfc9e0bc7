"""Encoder-decoder Transformers in CTranslate2's format (Klein et al. 2020): a directory with model.bin."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from txport.models.config import Config
from txport.models.importers.ctranslate2.mapping import (
    PROJECTION,
    Tables,
    changed_tables,
    has_bias,
    map_projection_bias,
    map_weights,
    one_table,
)
from txport.models.importers.ctranslate2.model_file import NAME, ModelFile, read_model_file
from txport.models.importers.ctranslate2.options import (
    OTHER_MODELS,
    SideOptions,
    alignment_heads,
    distance_of,
    embedding_of,
    refuse_options,
    same,
    side_of,
    snapped,
)
from txport.models.importers.ctranslate2.revisions import newest_names
from txport.models.importers.ctranslate2.texts import LANGUAGE_FORMS, Texts, model_tokenizer
from txport.models.importers.ctranslate2.vocabularies import ModelVocabularies, read_vocabularies
from txport.models.importers.imported import Imported, ImportOptions
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import Settings
from txport.runtime.errors import CheckpointError, InputError

MAX_POSITIONS = 1024  # as many source tokens as CTranslate2 reads by default
_EPSILONS = (1e-5, 1e-6)  # of LayerNorm and RMSNorm, if config.json has none
# By whether norms stand before sublayers, and whether one follows the last layer.
_NORMS = {(False, False): "post", (False, True): "post_final", (True, True): "pre", (True, False): "pre_no_final"}


@dataclass(frozen=True)
class _Ids:
    """Our special ids, and the changes of the tables that they require.

    Attributes:
        pad, unk, bos, eos: the ids.
        appended: number of tokens to append to the target vocabulary.
        swaps: two ids of the source and two of the target to swap, so that both sides have the same unknown id.
    """

    pad: int
    unk: int
    bos: int
    eos: int
    appended: int
    swaps: tuple[tuple[int, int], tuple[int, int]]


def import_ctranslate2(path: Path, options: ImportOptions) -> Imported:
    """Read a directory that a converter of CTranslate2 wrote, or its model.bin.

    Args:
        path: the directory or the file.
        options: `vocabulary` names the directory of SentencePiece models.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: the model does not have a chosen language.
    """
    file = path
    if path.is_dir():
        file = path / NAME
    model = newest_names(read_model_file(file, OTHER_MODELS))
    tables = (embedding_of(model, "encoder"), embedding_of(model, "decoder"))
    rows = (model.tensors[tables[0]].shape[0], model.tensors[tables[1]].shape[0])
    vocabularies = read_vocabularies(file.parent, model, rows)
    refuse_options(model)
    sides = (side_of(model, "encoder"), side_of(model, "decoder"))
    start = _start(vocabularies, options, file)
    ids = _ids(model, vocabularies, start)
    plan, ours = _model(model, tables, sides, vocabularies, ids)
    map_weights(plan, model, ours, sides)
    plan.check(ours)
    notes = _notes(model, ours, vocabularies)
    texts = Texts(file.parent, vocabularies, ids.swaps, ours)
    tokenizer, tokenizer_notes = model_tokenizer(texts, options)
    return Imported("ctranslate2", ours, plan, tokenizer, notes + tokenizer_notes)


def _model(
    model: ModelFile,
    names: tuple[str, str],
    sides: tuple[SideOptions, SideOptions],
    vocabularies: ModelVocabularies,
    ids: _Ids,
) -> tuple[ImportPlan, Config]:
    """Map embeddings and projection, and return our config."""
    d_model = model.tensors[names[1]].shape[1]
    scales = [side.scale for side in sides]
    scaled = math.isclose(scales[1], math.sqrt(d_model), rel_tol=1e-6)
    factor = math.sqrt(d_model) ** scaled
    rows = 0
    if ids.appended:
        rows = model.tensors[names[1]].shape[0] + ids.appended
    factors = (snapped(scales[0] / factor, 1.0), snapped(scales[1] / factor, 1.0))
    tables = Tables(*names, factors, ids.swaps, rows)
    plan = ImportPlan(changed_tables(model.tensors, tables), model.file)
    embeddings = plan.embeddings(*names, PROJECTION)
    bias = map_projection_bias(plan, ids.appended, ids.swaps[1])
    # Without a last norm, `scale_outputs` goes into the projection, which then differs from the embedding.
    if model.attributes.get("decoder/scale_outputs", 1) != 1 and not sides[1].norms[1] and embeddings["tie_projection"]:
        plan.take("projection.weight", PROJECTION)
        embeddings["tie_projection"] = False
    fields = _fields(model, plan, sides, vocabularies)
    return plan, Settings(model.file, {}).config(
        **embeddings,
        **fields,
        projection_bias=bias,
        scale_embedding=scaled,
        pad_id=ids.pad,
        unk_id=ids.unk,
        bos_id=ids.bos,
        eos_id=ids.eos,
    )


def _fields(
    model: ModelFile, plan: ImportPlan, sides: tuple[SideOptions, SideOptions], vocabularies: ModelVocabularies
) -> dict[str, Any]:
    """Return the fields of our config except embeddings and special ids."""
    encoder, decoder = sides
    d_model = plan.stored(PROJECTION).shape[1]
    kinds = {side.positions for side in sides}
    if (len(kinds) > 1 and kinds != {"table", "computed"}) or encoder.sliced != decoder.sliced:
        raise CheckpointError(f"{model.file}: encoder and decoder have different kinds of positions: {sorted(kinds)}")
    rms = same(model, sides, "rms")
    activation = same(model, sides, "activation")
    epsilon = vocabularies.epsilon
    if epsilon is None:
        epsilon = _EPSILONS[rms]
    fields: dict[str, Any] = {
        "d_model": d_model,
        "heads": encoder.heads,
        "decoder_heads": _if_different(decoder.heads, encoder.heads),
        "head_dim": _head_dim(model, sides, d_model),
        "ffn": encoder.ffn,
        "decoder_ffn": _if_different(decoder.ffn, encoder.ffn),
        "encoder_layers": encoder.layers,
        "decoder_layers": decoder.layers,
        "norm": _NORMS[same(model, sides, "norms")],
        "norm_kind": ("layer", "rms")[rms],
        "layer_norm_epsilon": epsilon,
        "activation": {"gelu_sigmoid": "silu"}.get(activation, activation),
        "feed_forward": ("plain", "gated")[same(model, sides, "gated")],
        "embedding_norm": same(model, sides, "embedding_norm"),
        "attention_bias": has_bias(model.tensors, "attention"),
        "feed_forward_bias": has_bias(model.tensors, "ffn"),
        "alignment_heads": alignment_heads(model, decoder),
    }
    return {**fields, **_positions(model, plan, sides)}


def _positions(model: ModelFile, plan: ImportPlan, sides: tuple[SideOptions, SideOptions]) -> dict[str, Any]:
    kind = sides[0].positions
    if kind == "rotary":
        return {"positions": "rotary", "max_positions": MAX_POSITIONS}
    if kind == "relative":
        stack = all([one_table(plan, side) for side in sides])  # a list, since `one_table` marks tensors of both sides
        table = plan.stored("encoder/layer_0/self_attention/relative_attention_bias")
        return {
            "positions": "relative",
            "max_positions": MAX_POSITIONS,
            "position_buckets": table.shape[0],
            "position_distance": distance_of(model, sides),
            "position_tables": ("layer", "stack")[stack],
        }
    if kind == "shaw":
        rows = plan.stored("encoder/layer_0/self_attention/relative_position_keys").shape[0]
        return {"positions": "shaw", "max_positions": MAX_POSITIONS, "position_distance": rows // 2}
    tables = [
        plan.stored(f"{side.name}/position_encodings/encodings").shape[0] for side in sides if side.positions == "table"
    ]
    return {"positions": "learned", "max_positions": min(MAX_POSITIONS, *tables, MAX_POSITIONS)}


def _head_dim(model: ModelFile, sides: tuple[SideOptions, SideOptions], d_model: int) -> int | None:
    """Return the width of a head; None if it follows from the heads on both sides."""
    if all(side.head_dim * side.heads == d_model for side in sides):
        return None
    return int(same(model, sides, "head_dim"))


def _if_different(value: int, usual: int) -> int | None:
    """Return a size of the decoder, or None if it equals that of the encoder."""
    if value == usual:
        return None
    return value


def _start(vocabularies: ModelVocabularies, options: ImportOptions, file: Path) -> int:
    """Return the id that the decoder starts from.

    Raises:
        InputError: callers of CTranslate2 choose it, and no target language is named.
    """
    if vocabularies.start is not None:
        return vocabularies.start
    name = options.target_language
    ids = [vocabularies.id_of(form.format(name), "target") for form in LANGUAGE_FORMS if name]
    start = next((each for each in ids if each is not None), None)
    if start is None:
        raise InputError(
            f"{file.parent} has no decoder_start_token, and no token {name or 'as a target language'}: name the token "
            "that answers start from with --target-language"
        )
    return start


def _ids(model: ModelFile, vocabularies: ModelVocabularies, start: int) -> _Ids:
    """Return our special ids. Our model has the same ones on both sides."""
    unk = min(vocabularies.unk)
    swaps = tuple((unk, theirs) for theirs in vocabularies.unk)
    zero = bool(model.attributes.get("decoder/start_from_zero_embedding", 0))
    last = len(vocabularies.target)
    pad = vocabularies.padding
    if zero or pad is None:
        pad = last
    bos = start
    if zero:
        bos = last
    pad, bos, eos = (_swapped(each, swaps[1]) for each in (pad, bos, vocabularies.eos))
    return _Ids(pad, unk, bos, eos, int(last in (pad, bos)), (swaps[0], swaps[1]))


def _swapped(token: int, swap: tuple[int, int]) -> int:
    """Return an id after a swap."""
    return {swap[0]: swap[1], swap[1]: swap[0]}.get(token, token)


def _notes(model: ModelFile, ours: Config, vocabularies: ModelVocabularies) -> list[str]:
    notes = []
    quantised = sum(kind in (torch.int8, torch.int16) for name, kind in model.types.items() if name.endswith("weight"))
    if quantised:
        kinds = {str(kind)[6:] for name, kind in model.types.items() if kind in (torch.int8, torch.int16)}
        notes.append(
            f"{quantised} matrices are {' and '.join(sorted(kinds))} in {model.file.name}: tx-export --int8 rounds the "
            "same values to int8 again"
        )
    if ours.positions == "learned":
        notes.append(f"inputs and outputs of up to {ours.max_positions} tokens are taken")
    if (model.file.parent / "vmap.txt").is_file():
        notes.append("vmap.txt is not imported: tx-shortlist makes a shortlist of a corpus")
    return notes
