"""Hugging Face M2M100 (Fan et al. 2020, arXiv:2010.11125) and NLLB (2022, arXiv:2207.04672).

Pre-norm, fairseq's sinusoids, a language token before each source text, and answers that are forced to begin with one.
"""

from pathlib import Path

from txport.models.config import Config
from txport.models.importers.huggingface import HuggingFaceModel
from txport.models.importers.imported import Imported, ImportOptions, TokenizerParts
from txport.models.importers.layers import offset_sinusoids
from txport.models.importers.settings import read_json
from txport.models.importers.tokenizers.languages import CODES, default_languages
from txport.models.importers.tokenizers.multilingual import (
    UNK,
    Affix,
    described,
    sentencepiece_files,
    without_tokenizer,
)
from txport.runtime.bundle.tokenizer_schema import Languages


def import_m2m100(directory: Path, options: ImportOptions) -> Imported:
    """Understand a directory that Hugging Face's M2M100ForConditionalGeneration wrote.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: a language that the model does not have, or none where one is needed.
    """
    model = HuggingFaceModel(directory)
    plan, ours = model.plan, model.config(norm="pre", unk_id=UNK, **model.embeddings())
    for side, theirs in (("source", "encoder"), ("target", "decoder")):
        plan.put(f"{side}_embedding.positions", offset_sinusoids(ours.max_positions, ours.d_model))
        plan.ignore(f"{model.prefix}{theirs}.embed_positions.weights")  # the same table, in files of old versions
        plan.affine(f"{theirs}_norm", f"{model.prefix}{theirs}.layer_norm")
    model.layers(ours)
    plan.check(ours)
    if options.tokenizer:
        tokenizer = _tokenizer(model, ours, options)
    else:
        tokenizer = without_tokenizer(model, ours, options, CODES["m2m100"])
    return Imported("m2m100", ours, plan, tokenizer, model.notes, model.generation_settings())


def _tokenizer(model: HuggingFaceModel, ours: Config, options: ImportOptions) -> TokenizerParts:
    directory = model.directory
    stated = read_json(directory / "tokenizer_config.json", optional=True)
    codes = CODES.get(str(stated.get("language_codes")), CODES["m2m100"])
    # NLLB's directories list their languages; these codes would be wrong for it.
    codes = codes if (directory / "vocab.json").exists() else ""
    tokenizer = sentencepiece_files(directory, ours.source_vocabulary, codes)
    source, target = default_languages(model, options, tokenizer.languages, forced=True)
    languages = Languages(tokenizer.languages, tokenizer.languages, source, target, False)
    legacy = stated.get("legacy_behaviour") is True
    before: Affix = () if legacy else ("source_language",)
    after: Affix = (ours.eos_id, "source_language") if legacy else (ours.eos_id,)
    return described(tokenizer, before, after, ("target_language",), languages)
