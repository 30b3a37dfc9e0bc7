"""The annotated Transformer (Rush 2018; Huang et al. 2022) and its copies: a state dict.

Pre-norm with a norm at the end of each stack. Its LayerNorm divides by the *unbiased* standard deviation, which is
sqrt(d / (d - 1)) times PyTorch's for width d. The imported weights contain this factor.
"""

import re
from pathlib import Path

from txport.models.config import Config
from txport.models.importers.imported import Imported, ImportOptions
from txport.models.importers.layers import LayerNames, map_layers
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import Settings, one_file
from txport.models.importers.tokenizers.word_lists import WordLists, read_word_lists, word_tokenizer
from txport.models.importers.weights import Stored, read_tensors
from txport.models.positions import sinusoids
from txport.runtime.errors import CheckpointError, InputError

# Tensor that identifies such a state dict.
MARK = "src_embed.0.lut.weight"
ENDINGS = ("pt", "pth", "safetensors")
# Names of other versions, and the corresponding names of the 2022 version.
_NAMES = (
    (r"\.w(?=[12]\.)", ".w_"),
    (r"\.(a_2|gamma)$", ".weight"),
    (r"\.(b_2|beta)$", ".bias"),
    (r"^generator\.projection\.", "generator.proj."),
)
_LAYERS = LayerNames(
    stacks=("encoder.layers", "decoder.layers"),
    attentions=("self_attn", "src_attn"),
    feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    encoder_norms=("sublayer.0.norm", "sublayer.1.norm"),
    decoder_norms=("sublayer.0.norm", "sublayer.1.norm", "sublayer.2.norm"),
    projections=("linears.0", "linears.1", "linears.2", "linears.3"),
    no_bias=(),
)
_IDS = {"bos_id": 0, "eos_id": 1, "pad_id": 2, "unk_id": 3}  # of the 2022 version
_EPSILON = 1e-6
# Maximum difference between its sinusoids, computed in float32, and ours.
_TOLERANCE = 5e-3


def import_annotated(path: Path, options: ImportOptions) -> Imported:
    """Read a state dict of this model.

    Args:
        path: the file, or a directory with one.
        options: `heads` is required; `vocabulary` is the directory of source.txt and target.txt.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: `heads` is missing.
    """
    file = one_file(path, ("model.pt",), ENDINGS)
    stored = read_tensors(file)
    prefix = prefix_of(stored, MARK, file, "the annotated Transformer")
    # The versions of 2018 and 2022 add epsilon to the deviation, the version with the name gamma to the variance.
    has_gamma = any(name.endswith(".gamma") for name in stored)
    plan = ImportPlan({_todays_name(name.removeprefix(prefix)): tensor for name, tensor in stored.items()}, file)
    fields = plan.embeddings(MARK, "tgt_embed.0.lut.weight", "generator.proj.weight")
    plan.take("projection.bias", "generator.proj.bias")
    width = plan.stored(MARK).shape[1]
    rows = fields["source_vocabulary"], fields["target_vocabulary"]
    lists = None
    special = _IDS
    prefix_ids: tuple[int, ...] = ()
    if options.tokenizer:
        lists = read_word_lists(options.vocabulary or file.parent, rows)
        special = lists.special()
        bos = lists.token("bos_id", "source")
        prefix_ids = tuple(token for token in (bos,) if token is not None)
    advice = f"{file} is not a whole state dict of the annotated Transformer"
    unbiased = (width - 1) / width
    ours = Settings(file, {}).config(
        d_model=width,
        heads=needed_heads(file, options),
        ffn=plan.stored("encoder.layers.0.feed_forward.w_1.weight").shape[0],
        encoder_layers=plan.count("encoder.layers.", advice),
        decoder_layers=plan.count("decoder.layers.", advice),
        norm="pre",
        projection_bias=True,
        attention_dropout=0.1,
        # Epsilon outside the root is replaced by its square inside. They are equal if the deviation is 0. For
        # deviations of 1 or more, the relative difference is less than epsilon.
        layer_norm_epsilon=unbiased * (_EPSILON if has_gamma else _EPSILON**2),
        **fields,
        **special,
    )
    _positions(plan, ours)
    map_layers(plan, ours, _LAYERS)
    for side in ("encoder", "decoder"):
        plan.affine(f"{side}_norm", f"{side}.norm")
    plan.check(ours)
    for name in plan.parts:
        if name.endswith("norm.weight"):
            plan.change(name, lambda weight: weight * unbiased**0.5)
    tokenizer = word_tokenizer(lists, options, ours.eos_id, prefix=prefix_ids)
    return Imported("annotated", ours, plan, tokenizer, notes(ours, lists))


def _todays_name(name: str) -> str:
    for theirs, ours in _NAMES:
        name = re.sub(theirs, ours, name)
    return name


def _positions(plan: ImportPlan, ours: Config) -> None:
    """Check that position tables `[1, length, d_model]` are sinusoids. They are computed again for any length."""
    for name in ("src_embed.1.pe", "tgt_embed.1.pe"):
        if plan.has(name):
            table = plan.stored(name).whole().reshape(-1, ours.d_model)
            if not bool((table - sinusoids(len(table), ours.d_model)).abs().max() < _TOLERANCE):
                raise CheckpointError(f"{plan.source}: {name} does not hold the paper's sinusoids: not supported")


def prefix_of(stored: dict[str, Stored], mark: str, file: Path, kind: str) -> str:
    """Return the prefix of all names, from the name of a tensor that must exist.

    Raises:
        CheckpointError: the tensor does not exist.
    """
    prefixes = [name.removesuffix(mark) for name in stored if name == mark or name.endswith(f".{mark}")]
    if not prefixes:
        raise CheckpointError(f"{file} is not a state dict of {kind}: it has no {mark}")
    if len(prefixes) > 1:
        raise CheckpointError(f"{file} is not a state dict of {kind}: it has several {mark}")
    return prefixes[0]


def needed_heads(file: Path, options: ImportOptions) -> int:
    """Return the number of attention heads.

    Raises:
        InputError: it was not given.
    """
    if options.heads is None:
        raise InputError(f"{file} does not specify the number of attention heads: give --heads")
    return options.heads


def notes(ours: Config, lists: WordLists | None) -> list[str]:
    """Return notes for the user."""
    sentences = [
        f"inputs and outputs of up to {ours.max_positions} tokens are taken; its sinusoids have no end, so that "
        "tx-export takes more (--max-source, --max-target)"
    ]
    if lists is None:
        ids = ", ".join(f"{name} = {getattr(ours, name)}" for name in _IDS)
        return [*sentences, f"special ids are those of the public version, since there is no list of tokens: {ids}"]
    return [*sentences, "words are what spaces part, and unknown words that follow each other count as one"]
