"""Names of variables in old revisions of CTranslate2's specification, brought to those of revision 7.

As `TransformerModel` of CTranslate2 4.8 does it (src/models/transformer.cc).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from txport.models.importers.ctranslate2.model_file import ModelFile
from txport.runtime.errors import CheckpointError

NEWEST = 7
# Names of the specification, and the heads of models before revision 3, which do not contain their number.
_HEADS = {"": 8, "TransformerBase": 8, "TransformerBig": 16, "TransformerSpec": None}
# Names in OpenNMT-tf, which revision 1 has, and their replacements, each once, in this order.
_OPENNMT = (
    ("transformer/", ""),
    (":0", ""),
    ("w_embs", "embeddings/weight"),
    ("kernel", "weight"),
    ("LayerNorm", "layer_norm"),
    ("dense", "projection"),
    ("conv1d_", "linear_"),
    ("conv1d", "linear_0"),
)
_SIDES = {
    "encoder": ("num_heads", "pre_norm", "activation", "embeddings_merge"),
    "decoder": ("num_heads", "pre_norm", "activation", "alignment_layer", "alignment_heads"),
}

T = TypeVar("T")


def newest_names(model: ModelFile) -> ModelFile:
    """Return the model with the names of the newest revision.

    Raises:
        CheckpointError: it is newer, or no Transformer.
    """
    if model.specification not in _HEADS:
        raise CheckpointError(
            f"{model.file} is of the specification {model.specification!r:.80}: only encoder-decoder Transformers of "
            "CTranslate2 (TransformerSpec) are supported"
        )
    if not 1 <= model.revision <= NEWEST:
        raise CheckpointError(
            f"{model.file} has revision {model.revision} of {model.specification or 'TransformerBase'}; there are "
            f"1 to {NEWEST}"
        )
    if model.revision == 1:
        model = replace(
            model,
            tensors=_rename(model, model.tensors),
            attributes=_rename(model, model.attributes),
            types=_rename(model, model.types),
        )
    attributes = dict(model.attributes)
    if model.revision < 3 and (heads := _HEADS[model.specification]) is not None:
        attributes.setdefault("num_heads", heads)
    if model.revision < 5:
        for side, names in _SIDES.items():
            for name in names:
                if name in attributes:
                    attributes.setdefault(f"{side}/{name}", attributes[name])
        for name in {name for names in _SIDES.values() for name in names}:
            attributes.pop(name, None)
    return replace(model, attributes=attributes)


def _rename(model: ModelFile, values: Mapping[str, T]) -> dict[str, T]:
    renamed = {_name(name): value for name, value in values.items()}
    if len(renamed) != len(values):
        raise CheckpointError(f"{model.file} has two variables with one meaning: convert the original model again")
    return renamed


def _name(name: str) -> str:
    for old, new in _OPENNMT:
        name = name.replace(old, new, 1)
    if "encoder" in name:
        return name.replace("multi_head", "self_attention", 1)
    return name.replace("masked_multi_head", "self_attention", 1).replace("multi_head", "attention", 1)
