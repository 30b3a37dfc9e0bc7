"""The Transformer of "Dive into Deep Learning" (Zhang et al. 2023, chapter 11.7, PyTorch), releases 0.14 to 1.0.

Post-norm without a norm at the end of the stacks; attention without biases. txport computes the same as the textbook's
code in training. The textbook's translation differs in two points, see models/README.md.
"""

import re
from pathlib import Path

import torch
from torch import Tensor
from txport.models.importers.imported import Imported, ImportOptions
from txport.models.importers.layers import LayerNames, map_layers
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import Settings, one_file
from txport.models.importers.textbooks.annotated import ENDINGS, needed_heads, notes, prefix_of
from txport.models.importers.tokenizers.word_lists import WordLists, read_word_lists, word_tokenizer
from txport.models.importers.weights import read_tensors
from txport.runtime.errors import CheckpointError

MARK = "encoder.embedding.weight"
_NAMES = (
    (r"\.blks\.(?:block)?(?=\d)", ".blks."),
    (r"\.add_?[nN]orm_?(?=\d\.)", ".addnorm"),
    (r"\.attention\.(?=W_)", ".attention1."),  # encoder blocks, with only one attention
)
_LAYERS = LayerNames(
    stacks=("encoder.blks", "decoder.blks"),
    attentions=("attention1", "attention2"),
    feed_forward=("ffn.dense1", "ffn.dense2"),
    encoder_norms=("addnorm1.ln", "addnorm2.ln"),
    decoder_norms=("addnorm1.ln", "addnorm2.ln", "addnorm3.ln"),
    projections=("W_q", "W_k", "W_v", "W_o"),
    no_bias=("attention",),
)
_IDS = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}  # up to release 0.17


def import_d2l(path: Path, options: ImportOptions) -> Imported:
    """Read a state dict of d2l's encoder-decoder.

    Args:
        path: the file, or a directory with one.
        options: `heads` is required; `vocabulary` is the directory of source.txt and target.txt.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: `heads` is missing.
    """
    file = one_file(path, ("model.pt",), ENDINGS)
    stored = read_tensors(file)
    prefix = prefix_of(stored, MARK, file, "d2l's Transformer")
    plan = ImportPlan({_todays_name(name.removeprefix(prefix)): tensor for name, tensor in stored.items()}, file)
    _refuse_norms_over_time(plan)
    fields = plan.embeddings(MARK, "decoder.embedding.weight", "decoder.dense.weight")
    plan.take("projection.bias", "decoder.dense.bias")
    rows = fields["source_vocabulary"], fields["target_vocabulary"]
    lists = None
    special = _IDS
    if options.tokenizer:
        lists = read_word_lists(options.vocabulary or file.parent, rows)
        special = _special(lists)
    advice = f"{file} is not a whole state dict of d2l's Transformer"
    ours = Settings(file, {}).config(
        d_model=plan.stored(MARK).shape[1],
        heads=needed_heads(file, options),
        ffn=plan.stored("encoder.blks.0.ffn.dense1.weight").shape[0],
        encoder_layers=plan.count("encoder.blks.", advice),
        decoder_layers=plan.count("decoder.blks.", advice),
        norm="post",
        projection_bias=True,
        attention_bias=_attention_bias(plan),
        attention_dropout=0.1,
        activation_dropout=0.0,
        **fields,
        **special,
    )
    map_layers(plan, ours, _LAYERS)
    plan.check(ours)
    if lists:
        lists = _with_one_unknown(plan, lists)
    tokenizer = word_tokenizer(lists, options, ours.eos_id, spaced=True)
    return Imported("d2l", ours, plan, tokenizer, notes(ours, lists))


def _todays_name(name: str) -> str:
    for theirs, ours in _NAMES:
        name = re.sub(theirs, ours, name)
    return name


def _attention_bias(plan: ImportPlan) -> bool:
    """Return whether attention has biases. The textbook's `use_bias` applies only to the encoder.

    Raises:
        CheckpointError: only some layers of a side have them.
    """
    has_bias = False
    for side in ("encoder", "decoder"):
        ours = {name.rpartition(".")[::2] for name in plan.theirs if name.startswith(side) and ".W_" in name}
        biased = {layer for layer, kind in ours if kind == "bias"}
        lacking = sorted({layer for layer, kind in ours if kind == "weight"} - biased)
        if biased and lacking:
            raise CheckpointError(f"{plan.source} lacks {lacking[0]}.bias, although others of its {side} have biases")
        has_bias = has_bias or bool(biased)
    return has_bias


def _refuse_norms_over_time(plan: ImportPlan) -> None:
    """Refuse norms over time and channels, AddNorm([100, 24], ...), which an example in the textbook uses."""
    for name, stored in plan.theirs.items():
        if ".addnorm" in name and len(stored.shape) > 1:
            raise CheckpointError(
                f"{plan.source}: {name} has shape {stored.shape}: a LayerNorm over positions too takes sentences of "
                f"{stored.shape[0]} tokens only, which is not supported; train with norm_shape = [{stored.shape[-1]}]"
            )


def _special(lists: WordLists) -> dict[str, int]:
    """Return special ids of the target side, except that <unk> is that of the source; see `_with_one_unknown`."""
    special_ids = lists.special()
    unknown = lists.token("unk_id", "source")
    assert unknown is not None
    swapped = {special_ids["unk_id"]: unknown, unknown: special_ids["unk_id"]}
    return {name: swapped.get(token, token) for name, token in special_ids.items()}


def _with_one_unknown(plan: ImportPlan, lists: WordLists) -> WordLists:
    """Give <unk> the same id on both sides, by exchanging two rows of the target's tables.

    Release 1.0 sorts each vocabulary, so <unk> may have different ids. Our model has one id for it.
    """
    source = lists.token("unk_id", "source")
    target = lists.token("unk_id")
    assert source is not None and target is not None
    if source == target:
        return lists
    tokens = list(lists.target)
    tokens[source], tokens[target] = tokens[target], tokens[source]
    order = torch.arange(len(tokens))
    order[source], order[target] = target, source

    def exchange(rows: Tensor) -> Tensor:
        return rows[order]

    for name in ("target_embedding.tokens.weight", "projection.weight", "projection.bias"):
        if name in plan.parts:
            plan.change(name, exchange)
    return WordLists(lists.source, tokens, lists.files)
