"""The search of a call, from its options and the model's own settings."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from txport.runtime.arguments import check_ids
from txport.runtime.bundle.schema import Generation, Limits, SpecialTokens
from txport.runtime.bundle.shortlist import Shortlist
from txport.runtime.errors import InputError
from txport.runtime.options import Options
from txport.runtime.search.settings import Rules, Sampling, Search

if TYPE_CHECKING:
    from txport.runtime.text.tokenizer import Tokenizer

_NONE = Generation()


@dataclass(frozen=True)
class ModelFacts:
    """Facts about the model for the options of a call.

    Attributes:
        tokens: the special tokens.
        vocabulary: size of the target vocabulary.
        generation: the model's own settings.
        shortlist: that of the bundle, or None.
    """

    tokens: SpecialTokens
    vocabulary: int
    generation: Generation = _NONE
    shortlist: Shortlist | None = None


def with_settings(options: Options, generation: Generation, limits: Limits) -> Options:
    """Fill unset options with the model's own settings, if `generation` is "model".

    Raises:
        InputError: the search does not support a setting of the model.
    """
    if options.generation != "model":
        return options
    if generation.unsupported:
        raise InputError(
            f"generation settings of the model are not supported: {', '.join(generation.unsupported)}. Leave out "
            "the option generation, and set options"
        )
    settings = {each.name: getattr(generation, each.name) for each in fields(generation)}
    unset = [option.name for option in fields(options) if getattr(options, option.name) == option.default]
    filled = {name: settings[name] for name in unset if settings.get(name) is not None}
    # A model's own maximum may exceed the caches that the bundle was exported with.
    if filled.get("max_length", 0) > limits.target:
        filled["max_length"] = limits.target
    return replace(options, **filled)


# The value of each option at which it has no effect.
_SAMPLING_DEFAULTS: dict[str, Any] = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": None, "seed": 0}
_BEAM_DEFAULTS: dict[str, Any] = {"length_penalty": 1, "early_stopping": False, "renormalize": False}


def check_effect(requested: Options, filled: Options) -> None:
    """Refuse options without effect.

    Args:
        requested: the options of the call.
        filled: the same with the model's own settings.

    Raises:
        InputError: one of them has no effect.
    """
    needs: list[tuple[dict[str, Any], bool | None, str]] = [
        (_SAMPLING_DEFAULTS, filled.sample, "without sample"),
        (_BEAM_DEFAULTS, (filled.beam or 1) > 1, "without a beam of 2 or more"),
        ({"patience": 1}, filled.early_stopping is True, "without early_stopping true"),
        ({"full_length": False}, requested.max_length is None, "with max_length"),
    ]
    for neutral, has_effect, reason in needs:
        for name, value in neutral.items():
            if (
                not has_effect
                and (requested_value := getattr(requested, name)) is not None
                and requested_value != value
            ):
                raise InputError(f"{name} has no effect {reason}")


def check_pieces(options: Options) -> None:
    """Refuse options that change tokens which a stream has already sent.

    Raises:
        InputError: `replace_unknowns` is set.
    """
    if options.replace_unknowns:
        raise InputError("a stream cannot replace unknown tokens: leave out replace_unknowns, or use `translate`")


def search_of(options: Options, model: ModelFacts, limits: Limits, tokenizer: "Tokenizer") -> Search:
    """Return the search for these options.

    Raises:
        InputError: options contradict each other, an id is outside the vocabulary, or the beam exceeds the batch.
    """
    if options.shortlist and model.shortlist is None:
        raise InputError("the bundle has no shortlist: make one with tx-shortlist, or leave out the option shortlist")
    search = Search(
        n_best=options.n_best,
        alternatives=options.alternatives,
        sampling=_sampling(options) if options.sample else None,
        rules=_rules(options, model, tokenizer),
        shortlist=options.shortlist,
        **_set_options(options, "beam", "length_penalty", "early_stopping", "patience"),
    )
    _check(search, limits)
    return search


def _set_options(options: Options, *names: str) -> dict[str, Any]:
    """Return the options of these names that are not None."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _sampling(options: Options) -> Sampling:
    return Sampling(seed=options.seed, **_set_options(options, "temperature", "top_k", "top_p", "min_p"))


def _rules(options: Options, model: ModelFacts, tokenizer: "Tokenizer") -> Rules:
    def ids(name: str) -> tuple[int, ...]:
        return tuple(check_ids(getattr(options, name) or (), model.vocabulary, name))

    rules = Rules(
        bad_words=tuple(_bad_word(word, model, tokenizer) for word in options.bad_words or ()),
        suppress=ids("suppress"),
        begin_suppress=ids("begin_suppress"),
        end_ids=ids("end_ids"),
        **_set_options(options, "repetition_penalty", "no_repeat_ngram", "forced_end", "renormalize"),
    )
    if rules.forced_end is not None:
        check_ids([rules.forced_end], model.vocabulary, "forced_end")
    if len(set(rules.suppress)) == model.vocabulary:
        raise InputError(f"suppress contains all {model.vocabulary} ids: leave out at least one")
    return rules


def _bad_word(word: str | Sequence[int], model: ModelFacts, tokenizer: "Tokenizer") -> tuple[int, ...]:
    if isinstance(word, str):
        ids = tokenizer.encode_prefix(word)
        description = repr(word)
    else:
        ids = check_ids(word, model.vocabulary, "a bad word")
        description = repr(ids)
    if not ids:
        raise InputError(f"bad_words has {description}, which has no tokens: leave it out")
    return tuple(ids)


def _check(search: Search, limits: Limits) -> None:
    """Refuse options that contradict each other."""
    kinds = {"beam": search.beam > 1, "sample": search.sampling is not None, "alternatives": search.alternatives > 0}
    first, *rest = [*(name for name, present in kinds.items() if present), ""]
    if len(rest) > 1:
        raise InputError(f"{first} excludes {rest[0]}: leave out one of them")
    if search.sampling is None and search.n_best > search.beam:
        raise InputError(f"n_best {search.n_best} is more than the beam of {search.beam}: raise beam, or lower n_best")
    rows = max(search.beam, search.alternatives, search.n_best)
    if rows > limits.batch:
        if search.beam > 1:
            name = "beam"
        elif search.alternatives:
            name = "alternatives"
        else:
            name = "n_best"
        raise InputError(f"{name} {rows} is too large: this bundle supports at most {limits.batch} rows")
