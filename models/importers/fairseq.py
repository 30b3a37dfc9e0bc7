"""fairseq transformers (Ott et al. 2019, arXiv:1904.01038): a checkpoint file with dictionaries beside it.

Layer names are those of BART. Positions are fairseq's sinusoids or learned. The decoder starts with </s>. Padding is
never generated, as in fairseq's generator.
"""

from pathlib import Path
from typing import Any

import torch
from txport.models.config import BANNED, Config
from txport.models.description import PLAIN
from txport.models.importers.generation import SettingReader, generation_notes
from txport.models.importers.imported import Imported, ImportOptions, TokenizerParts
from txport.models.importers.layers import FAIRSEQ, OFFSET, map_layers, offset_sinusoids
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import Settings, flat_settings, one_file
from txport.models.importers.tokenizers.languages import refuse_languages
from txport.models.importers.tokenizers.sentencepiece_models import dictionary_tokenizer, find_sentencepiece
from txport.models.importers.tokenizers.vocabulary import token_lines
from txport.models.importers.weights import read_pickle, tensors_of
from txport.runtime.bundle.schema import Generation
from txport.runtime.bundle.tokenizer_schema import ids_only
from txport.runtime.errors import CheckpointError

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
PAD = 1
EOS = 2
UNK = 3
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "no_token_positional_embeddings": (False,),
    "adaptive_softmax_cutoff": (None, []),
    "adaptive_input": (False,),
    "no_cross_attention": (False,),
    "cross_self_attention": (False,),
    "no_decoder_final_norm": (False,),
    "base_layers": (0, None),
    "moe_freq": (0, None),
    "char_embedder_highway_layers": (None, 0),
}
# Options of fairseq's generator that change its output, and their neutral values.
_GENERATION_NEUTRAL: dict[str, Any] = {
    "max_len_a": 0,
    "match_source_len": False,
    "unkpen": 0,
    "temperature": 1.0,
    "sampling": False,
    "constraints": None,
    "diverse_beam_groups": -1,
    "diversity_rate": -1.0,
    "lm_path": None,
    "prefix_size": 0,
}
# Names of LayerNorms. The first versions numbered them, in this order.
_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
# Tensors that version 0.12 adds to each encoder layer for a fused operator: zeros or copies, recreated on loading.
_COPIES = [f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]


def import_fairseq(path: Path, options: ImportOptions) -> Imported:
    """Read a checkpoint of fairseq-train.

    Args:
        path: the file, or a directory with one (preferably checkpoint_best.pt).
        options: `vocabulary` is the directory of dict.<language>.txt and SentencePiece models.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
    """
    file = one_file(path, ("checkpoint_best.pt", "model.pt"))
    value = read_pickle(file)
    settings, task = _settings(file, value)
    theirs = {_current_name(name): tensor for name, tensor in tensors_of(value.get("model"), file).items()}
    plan = ImportPlan(theirs, file)
    ours = _config(settings, plan)
    _positions(plan, settings, ours)
    map_layers(plan, ours, FAIRSEQ)
    plan.ignore(*(f"encoder.layers.{number}.{name}" for number in range(ours.encoder_layers) for name in _COPIES))
    for side, embedded in (("encoder", "source"), ("decoder", "target")):
        plan.ignore(f"{side}.version", f"{side}.embed_positions._float_tensor")
        if ours.norm == "pre":
            plan.affine(f"{side}_norm", f"{side}.layer_norm")
        if ours.embedding_norm:
            plan.affine(f"{embedded}_embedding.norm", f"{side}.layernorm_embedding")
    bias = torch.zeros(ours.target_vocabulary)
    bias[PAD] = BANNED
    plan.put("projection.bias", bias)
    plan.check(ours)
    generation = _generation(flat_settings(file, (value.get("cfg") or {}).get("generation") or {}))
    notes = [
        "fairseq's generator never makes <pad>, which is banned here too, nor empty answers, as with --min-length 1",
        *generation_notes(generation),
    ]
    refuse_languages(options, file)
    if options.tokenizer:
        tokenizer = _tokenizer(file, task, ours, options)
    else:
        tokenizer = TokenizerParts(ids_only(EOS))
    return Imported("fairseq", ours, plan, tokenizer, notes, generation)


def _settings(file: Path, value: Any) -> tuple[Settings, Settings]:
    """Return the settings of the model and of the task."""
    if not isinstance(value, dict) or not (value.get("args") or value.get("cfg")):
        raise CheckpointError(f"{file} is not a checkpoint of fairseq: it has neither args nor cfg")
    if value.get("args") is not None:
        settings = task = flat_settings(file, value["args"])
        name = settings.get("arch", "transformer")
    else:
        settings, task = (flat_settings(file, value["cfg"].get(part) or {}) for part in ("model", "task"))
        name = settings.get("arch", settings.get("_name", "transformer"))
    if not str(name).startswith("transformer") or "lm" in str(name).split("_"):
        raise CheckpointError(f"{file}: the architecture {name!r} of fairseq is not supported; there is transformer")
    settings.refuse(_NEUTRAL)
    return settings, task


def _generation(settings: Settings) -> Generation:
    """Return the default search settings of fairseq-generate.

    Its beam search is Hugging Face's with early stopping (fairseq/sequence_generator.py), except that hypotheses at the
    maximum length end with eos.
    """
    read = SettingReader(lambda name: settings.get(name, None), str(settings.file))
    beam = read.of("beam", int, 1)
    if beam is None:
        return PLAIN
    unsupported = [
        f"{name} = {value!r}"
        for name, neutral in _GENERATION_NEUTRAL.items()
        if (value := settings.get(name, neutral)) != neutral
    ]
    length_penalty = 0.0
    if not settings.get("unnormalized", False):
        length_penalty = read.of("lenpen", float, 1.0)
    max_length = read.of("max_len_b", int, None)
    if max_length is not None:
        max_length += 1
    min_length = 1  # fairseq's default
    if "min_len" in settings.fields:
        min_length = read.of("min_len", int, 0)
    return Generation(
        beam=beam,
        length_penalty=length_penalty,
        early_stopping=True,
        no_repeat_ngram=read.of("no_repeat_ngram_size", int, 0),
        min_length=min_length,
        max_length=max_length,
        unsupported=tuple(unsupported),
    )


def _current_name(name: str) -> str:
    parts = name.split(".")
    if "layer_norms" in parts:
        index = parts.index("layer_norms")
        number = int(parts[index + 1])
        parts[index : index + 2] = [_NORMS[parts[0]][number]]
    return ".".join(parts)


def _config(settings: Settings, plan: ImportPlan) -> Config:
    same = settings.same
    pre = same("encoder_normalize_before", "decoder_normalize_before", False)
    same("encoder_learned_pos", "decoder_learned_pos", False)
    lengths = [settings.get(f"max_{side}_positions", 1024) for side in ("source", "target")]
    return settings.config(
        d_model=same("encoder_embed_dim", "decoder_embed_dim"),
        heads=same("encoder_attention_heads", "decoder_attention_heads"),
        ffn=same("encoder_ffn_embed_dim", "decoder_ffn_embed_dim"),
        encoder_layers=settings.get("encoder_layers"),
        decoder_layers=settings.get("decoder_layers"),
        norm="pre" if pre else "post",
        positions="learned",
        max_positions=min(lengths),
        activation=settings.activation("activation_fn", {"relu": "relu", "gelu": "gelu", "swish": "silu"}, "relu"),
        projection_bias=True,
        scale_embedding=not settings.get("no_scale_embedding", False),
        embedding_norm=settings.get("layernorm_embedding", False),
        pad_id=PAD,
        unk_id=UNK,
        bos_id=EOS,
        eos_id=EOS,
        **_embeddings(plan, settings),
    )


def _embeddings(plan: ImportPlan, settings: Settings) -> dict[str, Any]:
    source = "encoder.embed_tokens.weight"
    target = "decoder.embed_tokens.weight"
    names = ("decoder.output_projection.weight", "decoder.embed_out")
    head = next((name for name in names if plan.has(name)), target)
    fields = plan.embeddings(source, target, head)
    share = fields["share_embeddings"]
    tie = fields["tie_projection"]
    for one, tied in (("share_all_embeddings", share and tie), ("share_decoder_input_output_embed", tie)):
        if settings.get(one, False) and not tied:
            raise CheckpointError(f"{plan.source}: {source}, {target} and {head} differ, although {one} is set")
    return fields


def _positions(plan: ImportPlan, settings: Settings, ours: Config) -> None:
    learned = settings.get("encoder_learned_pos", False)
    for side, theirs in (("source", "encoder"), ("target", "decoder")):
        if learned:
            name = f"{theirs}.embed_positions.weight"
            plan.take(f"{side}_embedding.positions", name, first=OFFSET, rows=ours.max_positions)
        else:
            plan.put(f"{side}_embedding.positions", offset_sinusoids(ours.max_positions, ours.d_model))


def _tokenizer(file: Path, task: Settings, ours: Config, options: ImportOptions) -> TokenizerParts:
    name = str(task.get("task", task.get("_name", "translation")))
    if name != "translation":
        raise CheckpointError(
            f"{file}: the task {name!r} puts language tokens around texts in its own way, which is not supported: "
            "import with --no-tokenizer and give ids"
        )
    place = options.vocabulary or file.parent
    languages = [task.get("source_lang", None), task.get("target_lang", None)]
    if not all(languages):
        raise CheckpointError(
            f"{file} does not specify its languages, by which dictionaries are named: give --no-tokenizer"
        )
    rows = (ours.source_vocabulary, ours.target_vocabulary)
    tables = [_dictionary(place / f"dict.{language}.txt", size) for language, size in zip(languages, rows, strict=True)]
    models = find_sentencepiece(place, str(languages[0]), str(languages[1]))
    return dictionary_tokenizer(tables, models, suffix=(EOS,))


def _dictionary(file: Path, rows: int) -> list[str | None]:
    """Return the tokens of dict.<language>.txt by id: special tokens, then a token and its count on each line."""
    if not file.is_file():
        raise CheckpointError(
            f"{file} is missing: name its directory with --vocabulary, or import without a tokenizer (--no-tokenizer)"
        )
    lines = token_lines(file, each=True)
    tokens = [line.removesuffix(" #fairseq:overwrite").rpartition(" ")[0] for line in lines]
    if len(tokens) + len(SPECIAL) != rows:
        raise CheckpointError(
            f"{file} has {len(tokens)} tokens, which with {len(SPECIAL)} special ones are not the {rows} rows of the "
            "embedding: it belongs to another model; find the right one, or give --no-tokenizer"
        )
    special = {token for token in tokens if token.startswith("madeupword")}
    return [*(None for _ in SPECIAL), *(None if token in special else token for token in tokens)]
