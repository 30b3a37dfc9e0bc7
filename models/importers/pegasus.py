"""Hugging Face Pegasus (Zhang et al. 2020, arXiv:1912.08777): pre-norm, final norms, sinusoids as in Marian."""

from pathlib import Path

from txport.models.importers.huggingface import HuggingFaceModel
from txport.models.importers.imported import Imported, ImportOptions
from txport.models.importers.marian import map_positions
from txport.models.importers.tokenizers.t5 import pegasus_tokenizer

# Options of old config.json files. Hugging Face's Pegasus supports only these values.
_NEUTRAL = {
    "normalize_before": (True, None),
    "normalize_embedding": (False, None),
    "add_final_layer_norm": (True, None),
    "static_position_embeddings": (True, None),
    "extra_pos_embeddings": (0, 1, 2, None),  # the first versions had extra rows, which files no longer contain
}
_UNK = 105


def import_pegasus(directory: Path, options: ImportOptions) -> Imported:
    """Read a directory written by PegasusForConditionalGeneration.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: a language is chosen, but the model has none.
    """
    model = HuggingFaceModel(directory, options.adapter)
    model.refuse(_NEUTRAL)
    embeddings = model.embeddings()
    unk = min(_UNK, embeddings["source_vocabulary"] - 1)
    ours = model.config(norm="pre", unk_id=unk, **embeddings)
    map_positions(model.plan, model.prefix, ours)
    for side in ("encoder", "decoder"):
        model.plan.affine(f"{side}_norm", f"{model.prefix}{side}.layer_norm")
    model.layers(ours)
    model.plan.check(ours)
    tokenizer = pegasus_tokenizer(model, ours, options).beginning_with(model.forced_start(ours.target_vocabulary))
    return Imported(
        "pegasus", ours, model.plan, tokenizer, model.notes, model.generation_settings(ours.target_vocabulary)
    )
