"""Generation settings of Hugging Face models: generation_config.json, or config.json of older models."""

import math
from collections.abc import Callable
from typing import Any

from txport.runtime.bundle.schema import Generation
from txport.runtime.bundle.strict_json import encode
from txport.runtime.errors import CheckpointError

# Above real ids, lengths and factors. JSON allows larger numbers than a bundle does.
_LARGEST = 1 << 53
_POSITIVE = math.ulp(0.0)
# Default of `top_k` in `generate` (transformers 5, GenerationConfig).
_TOP_K = 50
# Settings that txport does not support, and their neutral values.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (),
    "sequence_bias": ({}, []),
    "forced_decoder_ids": ([],),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "top_h": (),
    "guidance_scale": (1,),
    "force_words_ids": ([],),
    "constraints": ([],),
    "dola_layers": (),
    "num_return_sequences": (1,),
    "watermarking_config": (),
}


def generation_settings(
    setting: Callable[[str], Any], ends: tuple[int, ...], banned: set[int], file: str
) -> Generation:
    """Convert the model's settings.

    Args:
        setting: returns a setting by name, or None.
        ends: ids that end a sequence in addition to eos.
        banned: ids that already have no probability, because of the weights.
        file: name of the file for messages.

    Raises:
        CheckpointError: a setting has the wrong type.
    """
    read = SettingReader(setting, file)
    sample = read.of("do_sample", bool, False)
    beam = read.of("num_beams", int, 1, 1)
    words = word_lists(setting("bad_words_ids"), "bad_words_ids", file)
    words = tuple(word for word in words if not (len(word) == 1 and word[0] in banned))
    suppressed = id_list(setting("suppress_tokens"), "suppress_tokens", file)
    sampling: dict[str, Any] = {}
    if sample:
        sampling["temperature"] = read.of("temperature", float, 1.0, _POSITIVE)
        sampling["top_k"] = _TOP_K
        if setting("top_k") is not None:
            sampling["top_k"] = read.of("top_k", int, None, 0)
        sampling["top_p"] = read.of("top_p", float, 1.0, 0, 1)
        sampling["min_p"] = read.of("min_p", float, 0.0, 0, 1)
    return Generation(
        beam=None if beam == 1 else beam,
        length_penalty=read.of("length_penalty", float, 1.0),
        early_stopping=_early(setting("early_stopping"), file),
        repetition_penalty=read.of("repetition_penalty", float, 1.0, _POSITIVE),
        no_repeat_ngram=read.of("no_repeat_ngram_size", int, 0, 0),
        bad_words=words or None,
        suppress=tuple(token for token in suppressed if token not in banned) or None,
        begin_suppress=id_list(setting("begin_suppress_tokens"), "begin_suppress_tokens", file) or None,
        end_ids=ends or None,
        forced_end=_one(setting("forced_eos_token_id"), file),
        renormalize=read.of("renormalize_logits", bool, False),
        sample=sample,
        **sampling,
        min_length=_min_length(read),
        max_length=_max_length(read),
        unsupported=tuple(_unsupported(setting, bool(sample) and beam is not None)),
    )


def check_vocabulary(generation: Generation, vocabulary: int, file: str) -> None:
    """Check that all ids in the settings are in the vocabulary.

    Raises:
        CheckpointError: an id is not.
    """
    words = generation.bad_words or ()
    ids = {
        "bad_words_ids": [token for word in words for token in word],
        "suppress_tokens": generation.suppress or (),
        "begin_suppress_tokens": generation.begin_suppress or (),
        "eos_token_id": generation.end_ids or (),
        "forced_eos_token_id": () if generation.forced_end is None else (generation.forced_end,),
    }
    for name, tokens in ids.items():
        for token in tokens:
            if token >= vocabulary:
                raise CheckpointError(f"{file}: {name} has the id {token}, outside the vocabulary of {vocabulary}")


def generation_notes(generation: Generation) -> list[str]:
    """Return notes for the user about the model's settings."""
    settings_by_name = encode(generation)
    unsupported = settings_by_name.pop("unsupported", [])
    notes = []
    if settings_by_name:
        settings = ", ".join(f"{name} {value}" for name, value in settings_by_name.items())
        notes.append(f'the model\'s own generation settings, for the option generation="model": {settings}')
    if unsupported:
        notes.append(f"settings of the model that txport's search does not have: {', '.join(unsupported)}")
    return notes


class SettingReader:
    """Reader of typed settings. Settings with a neutral value are None."""

    def __init__(self, setting: Callable[[str], Any], file: str) -> None:
        self._setting = setting
        self._file = file

    def of(self, name: str, kind: type, neutral: Any, minimum: float = -math.inf, maximum: float = _LARGEST) -> Any:
        value = self._setting(name)
        if value is None:
            return None
        if kind is float:
            fits = isinstance(value, int | float)
        else:
            fits = isinstance(value, kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(f"{self._file}: {name} must be of type {kind.__name__}, not {value!r:.80}")
        if not abs(value) <= _LARGEST or not minimum <= value <= maximum:  # NaN as well
            raise CheckpointError(f"{self._file}: {name} must be a number that `generate` takes, not {value!r:.80}")
        if value == neutral:
            return None
        return kind(value)


def id_list(value: Any, name: str, file: str) -> tuple[int, ...]:
    """Return the ids of a setting; empty if it is null.

    Raises:
        CheckpointError: it is not a list of ids.
    """
    if value is None:
        ids = []
    else:
        ids = value
    if not isinstance(ids, list) or any(type(token) is not int or not 0 <= token <= _LARGEST for token in ids):
        raise CheckpointError(f"{file}: {name} must be a list of ids, not {value!r:.80}")
    return tuple(ids)


def word_lists(value: Any, name: str, file: str) -> tuple[tuple[int, ...], ...]:
    """Return the words of a setting, each a tuple of ids; empty if it is null.

    Raises:
        CheckpointError: it is not a list of nonempty lists of ids.
    """
    if value is None:
        words = []
    else:
        words = value
    if not isinstance(words, list) or not all(isinstance(word, list) and word for word in words):
        raise CheckpointError(f"{file}: {name} must be a list of lists of ids, not {value!r:.80}")
    return tuple(id_list(word, name, file) for word in words)


def _early(value: Any, file: str) -> Any:
    if not (value is None or isinstance(value, bool) or value == "never"):
        raise CheckpointError(f'{file}: early_stopping must be true, false or "never", not {value!r}')
    return value or None


def _one(value: Any, file: str) -> int | None:
    """Return the only id of a setting that may be an id or a list."""
    if isinstance(value, list):
        ids = value
    else:
        ids = [value]
    if value is None or not ids:
        return None
    if len(ids) > 1 or type(ids[0]) is not int or not 0 <= ids[0] <= _LARGEST:
        raise CheckpointError(f"{file}: forced_eos_token_id must be one id, not {value!r}")
    return ids[0]


def _min_length(read: SettingReader) -> int | None:
    """Return the minimum number of tokens. Hugging Face's `min_length` also counts the decoder's start token."""
    with_prompt = read.of("min_length", int, 0, 0) or 0
    new_tokens = read.of("min_new_tokens", int, 0, 0) or 0
    return max(with_prompt - 1, new_tokens) or None


def _max_length(read: SettingReader) -> int | None:
    """Return the maximum number of tokens from `max_new_tokens`, otherwise from `max_length`.

    Hugging Face's `max_length` also counts the decoder's start token.
    """
    new_tokens: int | None = read.of("max_new_tokens", int, None, 1)
    with_prompt: int | None = read.of("max_length", int, None, 1)
    if new_tokens is not None or with_prompt is None:
        return new_tokens
    return max(1, with_prompt - 1)


def _as_text(value: Any) -> str:
    """Return any JSON value as short text that can be encoded as UTF-8."""
    return f"{value}"[:200].encode("utf-8", "replace").decode()


def _unsupported(setting: Callable[[str], Any], beams_and_samples: bool) -> list[str]:
    values = {name: setting(name) for name in _UNSUPPORTED}
    unsupported = [
        f"{name} = {_as_text(value)}"
        for name, value in values.items()
        if value is not None and value not in _UNSUPPORTED[name]
    ]
    if beams_and_samples:
        unsupported.append(f"do_sample = true with num_beams = {setting('num_beams')}")
    return unsupported
