"""OpenNMT-py transformers (Klein et al. 2017, arXiv:1701.02810): version 3, and other files of that form.

Pre-norm with an epsilon of 1e-6, usually attention without biases, a projection with a bias. Positions are stored
tables, or vectors by distance (Shaw et al. 2018, `max_relative_positions`), the same ones for keys and values.
Source texts have no eos. The decoder starts with <s>.

A model with `copy_attn` copies by the first head of the last layer. OpenNMT-py extends the vocabulary by the unknown
words of each source, so that they can be copied. Here they have no ids, and remain <unk>. With subwords nothing is
unknown, and results are equal.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from txport.models.config import BANNED, Config
from txport.models.importers.imported import Imported, ImportOptions, TokenizerParts
from txport.models.importers.layers import LayerNames, map_layers
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import Settings, flat_settings, one_file
from txport.models.importers.tokenizers.languages import refuse_languages
from txport.models.importers.tokenizers.sentencepiece_models import dictionary_tokenizer, find_sentencepiece
from txport.models.importers.weights import Stored, read_pickle, read_safetensors, tensors_of
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.errors import CheckpointError

MAX_POSITIONS = 1024  # 5000 rows are stored
_PAD = "<blank>"
_BOS = "<s>"
_EOS = "</s>"
_UNK = "<unk>"
_FILLER = "averyunlikelytoken"  # fills a vocabulary up to a multiple
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "model_type": ("text",),
    "model_task": ("seq2seq",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "relative_positions_buckets": (0,),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "num_kv": (0,),
    "multiquery": (False,),
    "parallel_residual": (False,),
    "layer_norm": ("standard",),
    "sliding_window": (0,),
    "num_experts": (0,),
    "lora_layers": ([], None, ""),
    "lora_embedding": (False,),
    "quant_layers": ([], None, ""),
    "generator_function": ("softmax", "log_softmax"),
}
# By whether a model has vectors by distance.
_POSITIONS: dict[bool, dict[str, tuple[Any, ...]]] = {
    False: {"position_encoding": (True,), "max_relative_positions": (0,)},
    True: {"position_encoding": (False,)},
}
_LAYERS = LayerNames(
    stacks=("encoder.transformer", "decoder.transformer_layers"),
    attentions=("self_attn", "context_attn"),
    feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    encoder_norms=("layer_norm", "feed_forward.layer_norm"),
    decoder_norms=("layer_norm_1", "layer_norm_2", "feed_forward.layer_norm"),
    projections=("linear_query", "linear_keys", "linear_values", "final_linear"),
)
_EMBEDDING = "embeddings.make_embedding.emb_luts.0.weight"


def import_opennmt(path: Path, options: ImportOptions) -> Imported:
    """Read a checkpoint of onmt_train.

    Args:
        path: the file (with its weights in it or in a .safetensors file beside it), or a directory with one.
        options: `vocabulary` is the directory of SentencePiece models.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
    """
    file = one_file(path, ("model.pt",))
    value = read_pickle(file)
    if not isinstance(value, dict) or "opt" not in value:
        raise CheckpointError(f"{file} is not a checkpoint of OpenNMT-py: it has no opt")
    settings = flat_settings(file, value["opt"])
    farthest = settings.get("max_relative_positions", 0, kind=int)
    settings.refuse({**_NEUTRAL, **_POSITIONS[farthest > 0]})
    source, target, start = _vocabularies(file, value.get("vocab"))
    plan = ImportPlan(_tensors(file, value), file)
    ours = _config(settings, plan, source, target, start)
    for theirs in ("encoder", "decoder"):
        plan.affine(f"{theirs}_norm", f"{theirs}.layer_norm")
    map_layers(plan, ours, _LAYERS)
    notes = _positions(plan, ours)
    plan.check(ours)
    refuse_languages(options, file)
    if options.tokenizer:
        place = options.vocabulary or file.parent
        tokenizer = pieces_tokenizer(place, settings, (source, target), {_PAD, _BOS, _EOS, _UNK})
    else:
        tokenizer = TokenizerParts(TokenizerDescription("none", None, None, (), (), (), None))
    return Imported("opennmt", ours, plan, tokenizer, notes)


def _vocabularies(file: Path, vocab: Any) -> tuple[list[str], list[str], str]:
    """Return the source and target tokens by id, and the token that the decoder starts with."""
    if not isinstance(vocab, dict) or not all(isinstance(vocab.get(side), list) for side in ("src", "tgt")):
        raise CheckpointError(
            f"{file} keeps its vocabularies in the way of OpenNMT-py 2 or older: convert it with 3 first"
        )
    if vocab.get("src_feats"):
        raise CheckpointError(f"{file} has source features, which are not supported")
    source = vocab["src"]
    target = vocab["tgt"]
    start = vocab.get("decoder_start_token", _BOS)
    for token in (_PAD, _EOS, _UNK, start):
        if token not in target or (token != start and token in source and source.index(token) != target.index(token)):
            raise CheckpointError(f"{file}: {token} is not in the target vocabulary, or not at the id of the source's")
    return source, target, start


def _tensors(file: Path, value: dict[str, Any]) -> dict[str, Stored]:
    if "model" not in value:
        weights = file.with_suffix(".safetensors")
        if not weights.is_file():
            raise CheckpointError(f"{file} holds no weights, and {weights.name} is not beside it: copy it too")
        return read_safetensors(weights)
    tensors = tensors_of(value["model"], file)
    if generator := value.get("generator"):
        parts = tensors_of(generator, file)
        tensors |= {f"generator.{name.removeprefix('0.')}": tensor for name, tensor in parts.items()}
    # The first versions had their own LayerNorm class, with other names.
    names = {"a_2": "weight", "b_2": "bias"}
    return {re.sub(r"(?<=\.)(a_2|b_2)$", lambda match: names[match[1]], name): t for name, t in tensors.items()}


def _config(settings: Settings, plan: ImportPlan, source: list[str], target: list[str], start: str) -> Config:
    tables = [f"{side}.{_EMBEDDING}" for side in ("encoder", "decoder")]
    for name, vocabulary in zip(tables, (source, target), strict=True):
        if (rows := plan.stored(name).shape[0]) != len(vocabulary):
            raise CheckpointError(
                f"{plan.source}: {name} has {rows} rows, but the vocabulary has {len(vocabulary)} tokens"
            )
    copies = settings.get("copy_attn", False)
    generator = "generator.linear" if copies else "generator"
    embeddings = plan.embeddings(tables[0], tables[1], f"{generator}.weight")
    plan.take("projection.bias", f"{generator}.bias")
    layers = settings.get("dec_layers")
    if copies:
        if source != target:
            raise CheckpointError(
                f"{plan.source} copies (copy_attn = True) from a source vocabulary that is not the target's: only a "
                "model with one vocabulary (share_vocab) can copy by its ids"
            )
        layers = settings.get("dec_layers", kind=int)
        _copying(plan, settings.get("dec_hid_size", kind=int), target.index(_PAD))
    dropout = settings.get("dropout", 0.1)
    positions: dict[str, Any] = {"positions": "shaw", "max_positions": MAX_POSITIONS, "scale_embedding": False}
    if settings.get("max_relative_positions", 0) > 0:
        positions["position_distance"] = settings.get("max_relative_positions")
    else:
        rows = plan.stored("encoder.embeddings.make_embedding.pe.pe").shape[0]
        positions = {"positions": "learned", "max_positions": min(MAX_POSITIONS, rows)}
    return settings.config(
        d_model=settings.same("enc_hid_size", "dec_hid_size"),
        heads=settings.get("heads"),
        ffn=settings.get("transformer_ff"),
        encoder_layers=settings.get("enc_layers"),
        decoder_layers=layers,
        copy_heads=((layers - 1, 0),) if copies else (),
        norm="pre",
        activation=settings.activation("pos_ffn_activation_fn", {"relu": "relu", "gelu": "gelu"}, "relu"),
        projection_bias=True,
        dropout=float(dropout[0] if isinstance(dropout, list) else dropout),
        layer_norm_epsilon=settings.get("norm_eps", 1e-6),
        pad_id=target.index(_PAD),
        unk_id=target.index(_UNK),
        bos_id=target.index(start),
        eos_id=target.index(_EOS),
        **embeddings,
        **positions,
    )


def _copying(plan: ImportPlan, width: int, pad: int) -> None:
    """Map CopyGenerator. It uses only the decoder state, predicts 1 - p_gen, and never generates padding."""
    for part in ("weight", "bias"):
        plan.take(f"copying.state.{part}", f"generator.linear_copy.{part}")
        plan.change(f"copying.state.{part}", torch.neg)
    for name in ("context", "input"):
        plan.put(f"copying.{name}.weight", torch.zeros(1, width))

    def without_pad(bias: Tensor) -> Tensor:
        return bias.index_fill(0, torch.tensor([pad]), BANNED)

    plan.change("projection.bias", without_pad)


def _positions(plan: ImportPlan, ours: Config) -> list[str]:
    """Map stored tables `[5000, 1, d_model]`, which are added to scaled embeddings, or vectors; return notes."""
    if ours.positions == "shaw":
        sides = (("encoder", "attention", ours.encoder_layers), ("decoder", "self_attention", ours.decoder_layers))
        for (side, attention, count), stack in zip(sides, _LAYERS.stacks, strict=True):
            for layer in range(count):
                name = f"{stack}.{layer}.{_LAYERS.attentions[0]}.relative_positions_embeddings.weight"
                for part in ("keys", "values"):
                    plan.take(f"{side}.{layer}.{attention}.positions.{part}", name)
        return []
    for side, theirs in (("source", "encoder"), ("target", "decoder")):
        name = f"{theirs}.embeddings.make_embedding.pe.pe"
        table = plan.stored(name).read(0, ours.max_positions).detach().float()
        plan.put(f"{side}_embedding.positions", table.reshape(table.shape[0], -1), name)
    return [
        f"inputs and outputs of up to {ours.max_positions} tokens are taken; OpenNMT-py's own table has 5000 positions"
    ]


def pieces_tokenizer(
    place: Path, settings: Settings, sides: tuple[list[str], list[str]], special: set[str]
) -> TokenizerParts:
    """Return a tokenizer of SentencePiece models.

    Args:
        place: directory of the models. Their names are those in `settings`, otherwise the usual ones.
        settings: options of the subword transform.
        sides: source tokens and target tokens by id.
        special: tokens that do not occur in texts.
    """
    file_names = [settings.get(f"{side}_subword_model", None) for side in ("src", "tgt")]
    paths = [place / Path(str(name)).name for name in file_names if name]
    if len(paths) == 2 and all(path.is_file() for path in paths):
        models = (paths[0], paths[1])
    else:
        models = find_sentencepiece(place, "src", "tgt")

    def table(tokens: list[str]) -> list[str | None]:
        return [None if token in special or token.startswith(_FILLER) else token for token in tokens]

    return dictionary_tokenizer([table(tokens) for tokens in sides], models, suffix=())
