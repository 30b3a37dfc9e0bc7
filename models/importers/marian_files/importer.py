"""Transformers that Marian trained (Junczys-Dowmunt et al. 2018, arXiv:1804.00344), in Marian's own files.

A directory with an .npz file, vocabularies, and perhaps decoder.yml, as OPUS-MT's releases have. Weights are stored as
[input, output]. The decoder starts from a zero embedding: a token more, with a row of zeros, that is never made.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from txport.models.config import Config
from txport.models.hub.source import only_directory
from txport.models.importers.ctranslate2.mapping import (
    GELU_SIGMOID,
    Tables,
    changed_tables,
    map_projection_bias,
    multiply,
)
from txport.models.importers.ctranslate2.texts import Texts, model_tokenizer
from txport.models.importers.imported import Imported, ImportOptions, import_archive
from txport.models.importers.layers import offset_sinusoids
from txport.models.importers.marian_files.arrays import transposed, vector
from txport.models.importers.marian_files.files import ModelFiles, find_files, read_sides
from txport.models.importers.marian_files.options import MarianOptions, read_options
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import Settings
from txport.models.importers.weights import Stored
from txport.runtime.bundle.schema import Generation
from txport.runtime.errors import CheckpointError

EPSILON = 1e-6  # of Marian's layerNorm and rmsNorm
_LOGITS = "decoder_ff_logit_out"


@dataclass(frozen=True)
class _Names:
    """Marian's names of both embeddings and the projection."""

    source: str
    target: str
    projection: str


def import_marian_files(path: Path, options: ImportOptions) -> Imported:
    """Understand a directory, an .npz file of Marian's, or a zip archive of such a directory.

    Raises:
        CheckpointError: something is missing, damaged, hostile or not supported.
        InputError: a language that the model does not have.
    """
    if path.is_file() and path.suffix == ".zip":
        return import_archive(path, lambda directory: _import(only_directory(directory), options))
    return _import(path, options)


def _import(path: Path, options: ImportOptions) -> Imported:
    files = find_files(path)
    marian = read_options(files)
    _check_embeddings(files, marian)
    sides = read_sides(files, marian.rows, options)
    plan, names = _plan(files, marian, sides.swaps)
    rows = marian.rows[1]
    embeddings = plan.embeddings(names.source, names.target, names.projection)
    bias = map_projection_bias(plan, 1, sides.swaps[1], (names.projection, f"{_LOGITS}_b"))
    ours = Settings(files.weights.file, {}).config(
        **embeddings, **marian.fields, projection_bias=bias, layer_norm_epsilon=EPSILON, pad_id=rows, bos_id=rows,
        unk_id=sides.unk, eos_id=sides.eos,
    )  # fmt: skip
    _map_layers(plan, ours, marian)
    plan.check(ours)
    texts = Texts(files.directory, sides.vocabularies, sides.swaps, ours, sides.models)
    tokenizer, notes = model_tokenizer(texts, options)
    generation = _generation(files.decoder, sides.unk)
    return Imported("marian-files", ours, plan, tokenizer, [*files.notes, *notes], generation)


def _check_embeddings(files: ModelFiles, marian: MarianOptions) -> None:
    """Check the sizes of the embeddings, before tokens are read for each row."""
    stored = files.weights.tensors
    names = _names(marian, stored)
    for name, rows in zip((names.source, names.target), marian.rows, strict=True):
        needed = (rows, marian.fields["d_model"])
        if name not in stored:
            raise CheckpointError(f"{files.weights.file} lacks {name}, which its configuration needs")
        if stored[name].shape != needed:
            raise CheckpointError(
                f"{files.weights.file}: {name} has shape {stored[name].shape}, but dim-vocabs and dim-emb set {needed}"
            )


def _plan(
    files: ModelFiles, marian: MarianOptions, swaps: tuple[tuple[int, int], tuple[int, int]]
) -> tuple[ImportPlan, _Names]:
    """Return a plan of weights as [output, input], with embeddings that have a row of zeros more."""
    stored = files.weights.tensors
    names = _names(marian, stored)
    if len({names.source, names.target}) == 1 and swaps[0] != swaps[1]:
        raise CheckpointError(
            f"{files.weights.file} has one embedding for both sides, but its vocabularies have <unk> at different ids"
        )
    tensors: dict[str, Stored] = {}
    for name, tensor in stored.items():
        part = name.rpartition("_")[2]
        if part[:1] == "W" and not part.startswith(("Wemb", "Wt", "Wpos")) and len(tensor.shape) == 2:
            tensors[name] = transposed(tensor)
        elif part[:1] == "W":
            tensors[name] = tensor
        else:
            tensors[name] = vector(tensor)
    tables = Tables(names.source, names.target, (1.0, 1.0), swaps, marian.rows[1] + 1, names.projection)
    return ImportPlan(changed_tables(tensors, tables), files.weights.file), names


def _names(marian: MarianOptions, stored: dict[str, Stored]) -> _Names:
    source, target = "encoder_Wemb", "decoder_Wemb"
    if marian.one_embedding:
        source = target = "Wemb"
    if marian.tied:
        return _Names(source, target, target)
    if f"{_LOGITS}_W" in stored:  # of old versions, which the plan transposes
        return _Names(source, target, f"{_LOGITS}_W")
    return _Names(source, target, f"{_LOGITS}_Wt")


def _map_layers(plan: ImportPlan, config: Config, marian: MarianOptions) -> None:
    """Map everything except the embeddings' tokens and the projection."""
    for side, ours, count in (
        ("encoder", "source", config.encoder_layers),
        ("decoder", "target", config.decoder_layers),
    ):
        layers = _Layers(plan, config, marian)
        for index in range(count):
            layers.layer(side, index)
        if config.embedding_norm:
            layers.norm(f"{ours}_embedding.norm", f"{side}_emb", "_pre")
        if config.final_norm:
            layers.norm(f"{side}_norm", f"{side}_top", "")
        table = offset_sinusoids(config.max_positions, config.d_model, 0)
        plan.put(f"{ours}_embedding.positions", table)


class _Layers:
    """Maps layers.

    Args:
        plan: of the model.
        config: ours.
        marian: options of the model in its files.
    """

    def __init__(self, plan: ImportPlan, config: Config, marian: MarianOptions) -> None:
        self._plan = plan
        self._config = config
        self._marian = marian
        self._suffix = "_pre" if config.pre_norm else ""

    def layer(self, side: str, index: int) -> None:
        """Map a layer of a side."""
        number = index + 1
        if side == "encoder":
            attentions = {"attention": "self"}
        else:
            attentions = {"self_attention": "self", "cross_attention": "context"}
            number = self._marian.decoder_layers[index]
        ours = f"{side}.{index}"
        theirs = f"{side}_l{number}"
        for mine, name in attentions.items():
            for part, letter in zip(("query", "key", "value", "output"), "qkvo", strict=True):
                self._linear(f"{ours}.{mine}.{part}", f"{theirs}_{name}", letter)
            self.norm(f"{ours}.{mine}_residual.norm", f"{theirs}_{name}_Wo", self._suffix)
        self._linear(f"{ours}.feed_forward.inner", f"{theirs}_ffn", "1")
        self._linear(f"{ours}.feed_forward.outer", f"{theirs}_ffn", "2")
        self.norm(f"{ours}.feed_forward_residual.norm", f"{theirs}_ffn_ffn", self._suffix)
        if self._marian.gelu_sigmoid:
            inner = f"{ours}.feed_forward.inner"
            multiply(self._plan, GELU_SIGMOID, f"{inner}.weight", f"{inner}.bias")
            multiply(self._plan, 1 / GELU_SIGMOID, f"{ours}.feed_forward.outer.weight")

    def norm(self, ours: str, theirs: str, suffix: str) -> None:
        """Map a norm."""
        if self._config.norm_kind == "rms":
            self._plan.take(f"{ours}.weight", f"{theirs}_rms_scale{suffix}")
            return
        self._plan.take(f"{ours}.weight", f"{theirs}_ln_scale{suffix}")
        self._plan.take(f"{ours}.bias", f"{theirs}_ln_bias{suffix}")

    def _linear(self, ours: str, theirs: str, letter: str) -> None:
        self._plan.take(f"{ours}.weight", f"{theirs}_W{letter}")
        self._plan.take(f"{ours}.bias", f"{theirs}_b{letter}")


def _generation(decoder: Settings, unk: int) -> Generation:
    """Return the settings of Marian's search in decoder.yml: <unk> is not made unless they allow it."""
    beam = decoder.optional("beam-size", int)
    normalize = decoder.fields.get("normalize")
    settings = Generation(beam=beam, suppress=(unk,))
    if decoder.fields.get("allow-unk") is True:
        settings = Generation(beam=beam)
    if beam is None:
        return settings
    penalty = 0.0
    if isinstance(normalize, int | float):
        penalty = float(normalize)
    # Marian's beam becomes smaller with each hypothesis that ends. Without early stopping, the best hypothesis is more
    # often Marian's (158 to 200 of 200 inputs of random models; 131 to 200 with it).
    return replace(settings, length_penalty=penalty, early_stopping=False)
