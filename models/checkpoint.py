"""Checkpoints: a directory of safetensors and JSON. Nothing in it is ever unpickled.

checkpoint/
  config.json          {"format_version": 1, "config": {...}}; "generation" if an imported model has search settings
  model.safetensors    parameters by their names in `Transformer`, tied ones once under the first name, and running
                       means of norms
  tokenizer/           shared.model, or source.model and target.model; absent for models of token ids.
                       Imported tokenizers may have other files; description.json then describes them
  sentences.txt        held-out source lines, for calibration and verification
  features.npz         held-out feature vectors instead of sentences (runtime/features.py)
  references.txt       translations of the held-out lines; optional
  training.json        how the model was made; for people
"""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode
from txport.models.config import Config
from txport.models.description import FORMAT_VERSION, PLAIN, ConfigFile, read_config_file, read_tokenizer, write_json
from txport.models.transformer import Transformer
from txport.runtime.bundle.schema import Generation
from txport.runtime.bundle.strict_json import encode
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.features import Vectors, read_features, write_features
from txport.runtime.files import new_directory
from txport.runtime.text.lines import read_lines

FEATURES = "features.npz"


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint. The files that `tokenizer` names lie in `directory`."""

    directory: Path
    config: Config
    model: Transformer
    tokenizer: TokenizerDescription
    sentences: list[str]
    references: list[str]  # one for each sentence, or empty
    generation: Generation = PLAIN
    features: Sequence[Vectors] = ()  # instead of sentences, for models of feature vectors


def save_checkpoint(
    directory: Path,
    model: Transformer,
    tokenizer: Path | None,
    sentences: Sequence[str],
    training: dict[str, Any],
    *,
    references: Sequence[str] = (),
    generation: Generation = PLAIN,
    features: Sequence[Vectors] = (),
    replace: bool = False,
) -> None:
    """Write a checkpoint to a temporary directory beside it, then rename it, so that it is never incomplete.

    Args:
        directory: must not exist, unless `replace`.
        model: saved in its current dtype.
        tokenizer: directory of SentencePiece models to copy; None for a model of token ids.
        sentences: held-out source lines, without line breaks.
        training: how the model was made, JSON.
        references: one translation of each sentence, without line breaks, or empty.
        generation: search settings of an imported model.
        features: held-out vectors instead of sentences, each float32 `[vectors, feature_size]`.
        replace: replace an existing checkpoint.

    Raises:
        InputError: the directory exists, or the disk is full or cannot be written.
    """
    with new_checkpoint(directory, model.config, training, generation, replace=replace) as temporary:
        tensors = {name: tensor.detach().contiguous() for name, tensor in named_tensors(model).items()}
        save_file(tensors, temporary / "model.safetensors")
        if tokenizer is not None:
            shutil.copytree(tokenizer, temporary / "tokenizer")
        _write_lines(temporary / "sentences.txt", sentences)
        if features:
            write_features(temporary / FEATURES, features)
        if references:
            _write_lines(temporary / "references.txt", references)


@contextmanager
def new_checkpoint(
    directory: Path, config: Config, training: dict[str, Any], generation: Generation = PLAIN, *, replace: bool
) -> Iterator[Path]:
    """Yield a temporary directory for weights, tokenizer and sentences; see `save_checkpoint`."""
    with new_directory(directory, replace, marker="config.json") as temporary:
        write_json(temporary / "config.json", encode(ConfigFile(FORMAT_VERSION, config, generation)))
        write_json(temporary / "training.json", training)
        yield temporary


def load_checkpoint(directory: Path) -> Checkpoint:
    """Read a checkpoint and check that its tensors match its config.

    Raises:
        CheckpointError: a file is missing, damaged or in another format; a tensor is missing, superfluous, of the wrong
            shape or not floating point.
    """
    if directory.exists() and not directory.is_dir():
        raise CheckpointError(f"{directory} is not a checkpoint directory (tx-train and tx-import make one)")
    file = read_config_file(directory)
    config = file.config
    # Checked before the model is built: a damaged config may need more memory than exists.
    tensors = _read_tensors(directory / "model.safetensors", parameter_shapes(config))
    with _NoRandomWeights():
        model = Transformer(config)
    for name, tensor in named_tensors(model).items():
        tensor.data = tensors[name]
    tokenizer = read_tokenizer(directory, config)
    sentences = _lines(directory / "sentences.txt")
    features = _features(directory, config)
    references = _lines(directory / "references.txt")
    count = len(features or sentences)
    if references and len(references) != count:
        raise CheckpointError(
            f"{directory} has {count} sentences but {len(references)} references: delete its references.txt"
        )
    return Checkpoint(directory, config, model.eval(), tokenizer, sentences, references, file.generation, features)


class _NoRandomWeights(TorchFunctionMode):
    """Context that skips random initialisation, which takes longer than reading the weights of a checkpoint."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        initialises = getattr(function, "__module__", None) == "torch.nn.init"
        if initialises or function in (torch.Tensor.uniform_, torch.Tensor.normal_):
            if args:
                return args[0]
            return options["tensor"]
        return function(*args, **options)


def named_tensors(model: Transformer) -> dict[str, torch.Tensor]:
    """Return the tensors that a checkpoint stores: parameters (tied ones once) and running means."""
    saved_names = model.state_dict().keys()
    return {**dict(model.named_parameters()), **{name: x for name, x in model.named_buffers() if name in saved_names}}


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of each stored tensor by name, without allocating memory."""
    with torch.device("meta"), _NoRandomWeights():
        return {name: tuple(tensor.shape) for name, tensor in named_tensors(Transformer(config)).items()}


def _read_tensors(file: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    try:
        with safe_open(file, framework="pt") as archive:
            names = set(archive.keys())
            if missing := sorted(shapes.keys() - names):
                raise CheckpointError(f"{file} lacks {join_names(missing)}, which its config.json needs")
            if extra := sorted(names - shapes.keys()):
                raise CheckpointError(f"{file} has {join_names(extra)}, which its config.json does not need")
            for name, shape in shapes.items():
                stored = tuple(archive.get_slice(name).get_shape())
                if stored != shape:
                    raise CheckpointError(f"{file}: {name} has shape {stored}, but its config.json needs {shape}")
            tensors = {name: archive.get_tensor(name) for name in shapes}
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing: the checkpoint is incomplete") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    except SafetensorError as error:
        raise CheckpointError(f"{file} is not a whole safetensors file ({error}): copy it again") from None
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"{file}: {name} has dtype {tensor.dtype}, which is not floating point")
        # `aminmax` returns NaN if there is one, and needs less memory than `isfinite`.
        if tensor.numel() and not all(map(math.isfinite, torch.stack(torch.aminmax(tensor)).tolist())):
            raise CheckpointError(f"{file}: {name} holds NaN or infinity: the training diverged")
        if name.endswith(("running_square", "running_variance")) and bool((tensor < 0).any()):
            raise CheckpointError(f"{file}: {name} has values below 0, which no mean of squares has: copy it again")
    return {name: tensor.float() for name, tensor in tensors.items()}


def _features(directory: Path, config: Config) -> list[Vectors]:
    file = directory / FEATURES
    if config.source != "features" or not file.exists():
        return []
    try:
        return read_features(file, config.feature_size).arrays
    except InputError as error:
        raise CheckpointError(str(error)) from None


def _lines(file: Path) -> list[str]:
    if file.exists():
        return read_lines(file, CheckpointError)
    return []


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def join_names(names: Sequence[str], maximum: int = 8) -> str:
    """Join names for a message, at most `maximum` of them."""
    if len(names) > maximum:
        rest = f" and {len(names) - maximum} more"
    else:
        rest = ""
    return ", ".join(names[:maximum]) + rest
