"""Comparison of a bundle of encoder states with the Hugging Face model that it was imported from.

Both get the same states. Hugging Face's `generate` and the bundle decode them by greedy search and by beam search, with
the model's generation settings and forced ids, and all ids must be equal.

Two hypotheses may be so nearly tied that rounding decides between them. An input with other ids is therefore decoded
again by Hugging Face with random rounding (Monte Carlo arithmetic, Parker 1997). If one of these runs gives the ids of
the bundle, the input is a tie.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from txport.exporter.sample import MAX_GENERATED, RANDOM, Sample
from txport.exporter.verification.report import EngineIdentity, OriginalReport
from txport.models.hub.source import open_source
from txport.models.importers.settings import model_kind
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.console.words import plural
from txport.runtime.engines.choice import FUSED, ORT
from txport.runtime.engines.native import missing
from txport.runtime.errors import InputError
from txport.runtime.features import Vectors
from txport.runtime.libraries import needs
from txport.runtime.translator import Translator

BEAM = 4
_BATCH = 16
# Class of each kind of model in transformers.
_CLASSES = {"vision": "VisionEncoderDecoderModel", "whisper": "WhisperForConditionalGeneration"}
_LONGEST = 64  # random states of one input
EXAMINED = 16  # maximum number of inputs with other ids that are decoded again
ROUNDINGS = 16
# Standard deviation of a random error, relative to a result: twice the largest rounding error of one operation.
_ERROR = 2.0**-23
Ids = list[list[int]]


def check_original(sample: Sample, bundle: Path, manifest: Manifest, source: str) -> OriginalReport:
    """Decode the sample's states, or random ones, with both. The bundle must read encoder states.

    Args:
        sample: its states are used if they are not random.
        bundle: the bundle. Each engine of its manifest that is available on this CPU decodes all states.
        manifest: of the bundle.
        source: directory or hub id of the model in Hugging Face's format.

    Raises:
        InputError: the model is missing, of another kind, or has other sizes.
        MissingLibrary: transformers is not installed.
    """
    if sample.is_real:
        states, origin = [np.asarray(each, np.float32) for each in sample.sources], sample.origin
    else:
        states, origin = random_states(manifest, len(sample.sources)), f"{RANDOM} states"
    beam = min(BEAM, manifest.limits.batch)
    room = min(MAX_GENERATED, manifest.limits.target - len(manifest.tokenizer.target_prefix))
    with open_original(source) as model:
        _check_sizes(model, manifest, source)
        searches = [OriginalSearch(model, manifest, states, room, count) for count in (1, beam)]
        engines = []
        for engine in (ORT, *([FUSED] if manifest.parameters is not None and not missing() else [])):
            translator = Translator(bundle, "cpu", engine)
            (greedy, greedy_ties), (beams, beam_ties) = (search.compared(translator) for search in searches)
            engines.append(EngineIdentity(engine, greedy, beams, greedy_ties, beam_ties))
    return OriginalReport(source, len(states), origin, beam, engines, _failures(engines, len(states), beam, manifest))


class OriginalSearch:
    """A search of the original, with its ids for all states. The arguments are those of `generate`."""

    def __init__(self, model: Any, manifest: Manifest, states: Sequence[Vectors], room: int, beam: int) -> None:
        self._model = model
        self._manifest = manifest
        self._states = states
        self._room = room
        self._beam = beam
        self._ids = generate(model, manifest, states, room, beam)

    def compared(self, translator: Translator) -> tuple[int, int]:
        """Return the number of inputs with the same ids by a bundle, and of ties."""
        longest = self._room + len(_prompt(self._manifest))
        translations = translator.translate_features(
            self._states, generation="model", sample=False, beam=self._beam, max_length=longest
        )
        pairs = zip(translations, self._ids, strict=True)
        other = [(row, ours.ids) for row, (ours, theirs) in enumerate(pairs) if ours.ids != theirs]
        ties = sum(self.is_tie(row, ids) for row, ids in other[:EXAMINED])
        return len(self._ids) - len(other), ties

    def is_tie(self, row: int, ids: list[int]) -> bool:
        """Return whether the original gives these ids in one of `ROUNDINGS` random roundings."""
        with random_rounding(self._model):
            copies = [self._states[row]] * ROUNDINGS
            return ids in generate(self._model, self._manifest, copies, self._room, self._beam)


@contextmanager
def random_rounding(model: Any) -> Iterator[None]:
    """Give each result of a matrix product and a norm a random error, of the size that engines make."""
    generator = torch.Generator().manual_seed(0)

    def rounded(_module: object, _inputs: object, result: torch.Tensor) -> torch.Tensor:
        return result * (1 + _ERROR * torch.randn(result.shape, generator=generator))

    modules = [each for each in model.modules() if isinstance(each, torch.nn.Linear | torch.nn.LayerNorm)]
    handles = [each.register_forward_hook(rounded) for each in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _failures(engines: Sequence[EngineIdentity], count: int, beam: int, manifest: Manifest) -> list[str]:
    """Return a sentence for each search with other ids; none for bundles that round, which may choose other ids."""
    if manifest.precision.weights != "float32":
        return []
    return [
        f"{engine.engine}: {count - same} of {plural(count, 'input')} have other ids than Hugging Face's by {search}"
        for engine in engines
        for search, same in (
            ("greedy search", engine.greedy_identical + engine.greedy_ties),
            (f"{beam} beams", engine.beams_identical + engine.beams_ties),
        )
        if same < count
    ]


def _prompt(manifest: Manifest) -> tuple[int, ...]:
    """Return the forced ids that Hugging Face reads as input. It generates other forced ids itself."""
    if not manifest.tokenizer.prompt:
        return ()
    return tuple(token for token in manifest.tokenizer.target_prefix if isinstance(token, int))


def random_states(manifest: Manifest, count: int) -> list[Vectors]:
    """Return random states, N(0, 1), of three lengths, so that Hugging Face reads equal ones without padding."""
    assert manifest.model.feature_size is not None
    longest = min(manifest.limits.source, _LONGEST)
    lengths = [max(1, longest // 4), max(1, longest // 2), longest]
    generator = np.random.default_rng(0)
    return [
        generator.standard_normal((lengths[number % 3], manifest.model.feature_size), np.float32)
        for number in range(count)
    ]


@contextmanager
def open_original(source: str) -> Iterator[Any]:
    """Yield the model of transformers in a directory or a repository of the hub.

    Raises:
        InputError: it is missing, or of a kind without an external encoder.
        MissingLibrary: transformers is not installed.
    """
    with needs("dev", "--original needs Hugging Face's library"):
        import transformers
    with open_source(source, "main", offline=False) as directory:
        config = directory / "config.json"
        if not config.is_file():
            raise InputError(f"--original {source} has no config.json: give the model that was imported")
        kind = model_kind(config)
        if kind not in _CLASSES:
            raise InputError(
                f"--original {source} is of {kind}, not of {' or '.join(_CLASSES)}: give the model that was imported"
            )
        transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        model = getattr(transformers, _CLASSES[kind]).from_pretrained(directory).eval()
        _compute_sinusoids(model)
        yield model


def _compute_sinusoids(model: Any) -> None:
    """Compute TrOCR's sinusoids, which transformers 5 leaves without values after loading."""
    for module in model.modules():
        table = getattr(module, "weights", None)
        if isinstance(table, torch.Tensor) and table.is_meta:
            module.weights = module.get_embedding(len(table), module.embedding_dim, module.padding_idx)


def _check_sizes(model: Any, manifest: Manifest, source: str) -> None:
    """Refuse a model whose states or ids differ from the bundle's in number."""
    config = model.config
    whisper = hasattr(config, "max_source_positions")
    theirs = (config.d_model, config.vocab_size) if whisper else (config.encoder.hidden_size, config.decoder.vocab_size)
    ours = (manifest.model.feature_size, manifest.model.target_vocabulary)
    if theirs != ours:
        raise InputError(
            f"--original {source} has states of {theirs[0]} numbers and {theirs[1]} ids, but the bundle {ours[0]} and "
            f"{ours[1]}: give the model that was imported"
        )


@torch.inference_mode()
def generate(model: Any, manifest: Manifest, states: Sequence[Vectors], room: int, beam: int) -> Ids:
    """Return the ids that follow the decoder start, up to the first end, from Hugging Face's `generate`.

    Args:
        model: of transformers.
        manifest: with the forced ids and special tokens.
        states: encoder states of each input.
        room: maximum number of tokens after the prompt.
        beam: number of beams.
    """
    import transformers

    ends = {manifest.tokens.eos, *(manifest.generation.end_ids or ())}
    settings = model.generation_config
    settings.forced_decoder_ids = None  # the prompt has them
    last = getattr(settings, "no_timestamps_token_id", None)
    if last in (manifest.generation.suppress or ()):  # imported with --timestamps
        settings.suppress_tokens = sorted({*(settings.suppress_tokens or ()), last})
    by_length: dict[int, list[int]] = {}
    for index, array in enumerate(states):
        by_length.setdefault(len(array), []).append(index)
    ids_by_row: dict[int, list[int]] = {}
    for rows in (group[at : at + _BATCH] for group in by_length.values() for at in range(0, len(group), _BATCH)):
        memory = torch.from_numpy(np.stack([states[row] for row in rows]))
        generated = transformers.GenerationMixin.generate(
            model,
            decoder_input_ids=torch.tensor([[manifest.tokens.bos, *_prompt(manifest)]] * len(rows)),
            encoder_outputs=transformers.modeling_outputs.BaseModelOutput(last_hidden_state=memory),
            max_new_tokens=room,
            num_beams=beam,
            do_sample=False,
        )
        for row, ids in zip(rows, generated[:, 1:].tolist(), strict=True):
            end = next((at + 1 for at, token in enumerate(ids) if token in ends), len(ids))
            ids_by_row[row] = ids[:end]
    return [ids_by_row[row] for row in range(len(states))]
