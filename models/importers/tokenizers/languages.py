"""Languages of a model: names, ids and defaults."""

from collections.abc import Mapping
from pathlib import Path

from txport.models.importers.huggingface import HuggingFaceModel
from txport.models.importers.imported import ImportOptions
from txport.models.importers.settings import read_json, tokenizer_settings
from txport.models.importers.tokenizers.added_tokens import language_of, listed_tokens, tokens_in
from txport.runtime.errors import InputError

# Languages in the order of their ids, for directories without a list of them.
CODES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he "
    "hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl "
    "no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi "
    "yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
    "mbart": "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM "
    "ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN",
    "mbart50": "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE "
    "sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI",  # after the languages of mbart
    "base": "java python en_XX",  # keys are PLBart's names of its lists
    "multi": "java python en_XX javascript php ruby go",
}
ENGLISH = ("en", "eng", "eng_Latn", "en_XX")  # default source language of all these tokenizers


def languages_in_files(directory: Path) -> dict[str, int]:
    """Return the languages with ids in the directory's files, in the order of ids.

    Raises:
        CheckpointError: a list of tokens is damaged.
    """
    tokens = sorted(listed_tokens(directory).values(), key=lambda token: token.id)
    return {name: token.id for token in tokens if (name := language_of(token.content))}


def all_languages(directory: Path, first: int, codes: str, rows: int) -> dict[str, int]:
    """Return the languages with ids in the directory's files, and languages that are only listed in order.

    Both may exist: a language that was added later may be the only one with an id.

    Args:
        directory: of the model.
        first: id of the first listed language.
        codes: the list, for directories without one.
        rows: size of the embedding.

    Raises:
        CheckpointError: a list of tokens is damaged.
    """
    ids_by_name = languages_in_files(directory)
    names = _ordered_languages(directory)
    if all(name in ids_by_name for name in names):
        names = codes.split()
        if any(ids_by_name.get(name, first + i) != first + i for i, name in enumerate(names)):
            return ids_by_name  # the ids differ from the order of the published model
    used_ids = {token.id for token in listed_tokens(directory).values()}
    ids_in_order = {name: first + i for i, name in enumerate(names) if name not in ids_by_name}
    if ids_by_name:
        ids_in_order = {name: token for name, token in ids_in_order.items() if token not in used_ids and token < rows}
    return dict(sorted((ids_by_name | ids_in_order).items(), key=lambda item: item[1]))


def _ordered_languages(directory: Path) -> list[str]:
    """Return the list of languages in the directory's files; empty if there is none."""
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        value = read_json(directory / file, optional=True)
        tokens = tokens_in(value.get("additional_special_tokens") or value.get("extra_special_tokens"))
        contents = [token.get("content") if isinstance(token, dict) else token for token in tokens]
        if names := [name for content in contents if isinstance(content, str) and (name := language_of(content))]:
            return names
    return []


def default_languages(
    model: HuggingFaceModel, options: ImportOptions, languages: Mapping[str, int], *, forced: bool
) -> tuple[str | None, str | None]:
    """Return the default source and target language: the option, else the directory's, else English for the source.

    Args:
        model: its forced_bos_token_id may be a language.
        options: options of the user.
        languages: ids by language.
        forced: whether outputs begin with a forced target language, so that one is required.

    Raises:
        InputError: a language is unknown, or a required target language is not specified anywhere.
    """
    model_source, model_target = (
        default_language(model.directory, field, languages) for field in ("src_lang", "tgt_lang")
    )
    english = next((name for name in ENGLISH if name in languages), None)
    source = options.source_language or model_source or english
    source = chosen_language(source, languages, "source", model.directory, required=True)
    if not forced:
        return source, None
    if options.target_language is None:
        bos = model.forced_start()
    else:
        bos = ()
    target = options.target_language or next((name for name, token in languages.items() if token in bos), None)
    return source, chosen_language(target or model_target, languages, "target", model.directory, required=True)


def default_language(directory: Path, field: str, languages: Mapping[str, int]) -> str | None:
    """Return the language in a field of tokenizer_config.json, given as name or token; None if not in `languages`."""
    name: str | None = tokenizer_settings(directory).optional(field, str)
    if name is None or name in languages:
        return name
    language = language_of(name)
    if language in languages:
        return language
    return None


def chosen_language(
    name: str | None, table: Mapping[str, int], side: str, directory: Path, *, required: bool = False
) -> str | None:
    """Return a default language after checking it.

    Raises:
        InputError: it is unknown, or is required but missing.
    """
    examples = ", ".join(list(table)[:8]) + (" ..." if len(table) > 8 else "")
    if name is None and required:
        raise InputError(f"{directory} has many languages: set the default with --{side}-language ({examples})")
    if name is not None and not table:
        raise InputError(f"--{side}-language {name} means nothing for {directory}, which has none: leave it out")
    if name is not None and name not in table:
        raise InputError(f"--{side}-language {name} is not a {side} language of {directory}: choose from {examples}")
    return name


def refuse_languages(options: ImportOptions, source: Path) -> None:
    """Refuse a chosen language for a model without languages.

    Raises:
        InputError: a language is chosen.
    """
    for side, name in (("source", options.source_language), ("target", options.target_language)):
        chosen_language(name, {}, side, source)
