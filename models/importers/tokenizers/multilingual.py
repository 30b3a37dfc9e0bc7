"""Tokenizers of models with many languages: fairseq's order of ids over SentencePiece, and tokens around texts.

The first ids are <s>, <pad>, </s>, <unk>; SentencePiece's own pieces follow; then the languages. NLLB and mBART have no
other list of pieces than SentencePiece's; M2M100 has vocab.json.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from txport.models.importers.huggingface import (
    HuggingFaceConfig,
    by_id,
    chosen,
    read_bytes,
    read_json_if_there,
    read_vocabulary,
)
from txport.models.importers.imported import Options, TokenizerParts
from txport.models.importers.tokenizers.files import vocabulary_bytes
from txport.models.importers.tokenizers.pieces import completed, pieces_of
from txport.runtime.bundle.tokenizer_schema import Languages, Placeholder, TokenizerDescription, TokenizerFiles
from txport.runtime.errors import CheckpointError

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
UNK = 3
SPM = "sentencepiece.bpe.model"
# Languages in the order of their ids, for directories that do not list them.
CODES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he "
    "hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl "
    "no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi "
    "yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
    "mbart": "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM "
    "ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN",
    "mbart50": "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE "
    "sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI",  # after those of mbart
}
_ENGLISH = ("en", "eng_Latn", "en_XX")  # the source language of all these tokenizers unless they are told another one
# NLLB says eng_Latn, mBART en_XX, M2M100 __en__.
_CODE = re.compile(r"__([a-z_]+)__|([a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2})")

Affix = tuple[int | Placeholder, ...]


@dataclass(frozen=True)
class Pieces:
    """The files of a tokenizer, by their names in the folder, and the ids of its languages."""

    kind: str
    names: TokenizerFiles
    files: Mapping[str, bytes]
    languages: dict[str, int]


def listed_languages(directory: Path) -> dict[str, int]:
    """The languages whose ids the directory states; empty if it states none."""
    found: dict[str, int] = {}
    for token in read_json_if_there(directory / "tokenizer.json").get("added_tokens", []):
        found[token["content"]] = token["id"]
    for identifier, token in (
        read_json_if_there(directory / "tokenizer_config.json").get("added_tokens_decoder") or {}
    ).items():
        found[token["content"]] = int(identifier)
    found |= read_json_if_there(directory / "added_tokens.json")
    return {
        name: token for content, token in sorted(found.items(), key=lambda item: item[1]) if (name := _code(content))
    }


def ordered_languages(directory: Path, first: int, codes: str) -> dict[str, int]:
    """Languages of which only the order is known: the directory's own list, else `codes`, from the id `first` on."""
    names: list[str] = []
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        value = read_json_if_there(directory / file)
        tokens = value.get("additional_special_tokens") or value.get("extra_special_tokens") or []
        names = names or [name for token in tokens if isinstance(token, str) and (name := _code(token))]
    return {name: first + i for i, name in enumerate(names or codes.split())}


def _code(content: str) -> str | None:
    found = _CODE.fullmatch(content)
    return (found[1] or found[2]) if found else None


def sentencepiece_files(directory: Path, rows: int, codes: str) -> Pieces:
    """The tokenizer of a directory: SentencePiece where the file is there, else tokenizer.json (for Python only).

    Args:
        directory: of the model.
        rows: of the embedding.
        codes: the languages, for a directory that does not list them.

    Raises:
        CheckpointError: files are missing or belong to another model.
    """
    spm, vocab = directory / SPM, directory / "vocab.json"
    if not spm.is_file() and not vocab.is_file() and (directory / "tokenizer.json").is_file():
        data = read_bytes(directory / "tokenizer.json")
        names = TokenizerFiles("tokenizer/tokenizer.json", None)
        return _checked(
            Pieces("tokenizers", names, {"tokenizer.json": data}, listed_languages(directory)), rows, directory
        )
    model = read_bytes(spm)
    own = pieces_of(model, spm)
    if vocab.is_file():
        table = read_vocabulary(vocab, rows)
        pieces, after = by_id(table, SPECIAL), len(table)
    else:
        pieces, after = [*(None for _ in SPECIAL), *own[3:]], len(own) + 1
    languages = listed_languages(directory) or ordered_languages(directory, after, codes)
    whole = completed(model, own, [piece for piece in pieces if piece is not None])
    names = TokenizerFiles("tokenizer/shared.model", "tokenizer/vocabulary.json")
    files = {"shared.model": whole, "vocabulary.json": vocabulary_bytes(pieces)}
    if len(pieces) > rows:
        raise CheckpointError(
            f"{spm} has {len(own)} pieces, more than the embedding has rows ({rows}): not this model's"
        )
    return _checked(Pieces("sentencepiece", names, files, languages), rows, directory)


def _checked(found: Pieces, rows: int, directory: Path) -> Pieces:
    if beyond := [name for name, token in found.languages.items() if not 0 <= token < rows]:
        raise CheckpointError(
            f"{directory} gives the language {beyond[0]} the id {found.languages[beyond[0]]}, but the embedding has "
            f"{rows} rows: the tokenizer belongs to another model; find the right one, or give --no-tokenizer"
        )
    return found


def described(
    found: Pieces, prefix: Affix, suffix: Affix, forced: Affix, languages: Languages | None
) -> TokenizerParts:
    """Put files and affixes together."""
    kind: str = found.kind
    description = TokenizerDescription(kind, found.names, found.names, prefix, suffix, forced, languages)  # type: ignore[arg-type]
    return TokenizerParts(description, found.files)


def defaults(
    directory: Path, config: HuggingFaceConfig, options: Options, languages: Mapping[str, int], *, forced: bool
) -> tuple[str | None, str | None]:
    """The default source and target language: as told, as the directory says, and English for a source.

    Args:
        directory: of the model.
        config: of it; its forced_bos_token_id may be that of a language.
        options: what the user says.
        languages: the ids.
        forced: whether the target language is forced upon answers, so that there must be one.

    Raises:
        InputError: a language is unknown, or there must be a target language and none is said anywhere.
    """
    stated = read_json_if_there(directory / "tokenizer_config.json")
    english = next((name for name in _ENGLISH if name in languages), None)
    source = options.source_language or (stated.get("src_lang") if stated.get("src_lang") in languages else english)
    file = directory / "tokenizer"
    source = chosen(source, languages, "source", file, required=True)
    if not forced:
        return source, None
    bos = config.generation("forced_bos_token_id")
    target = options.target_language or next((name for name, token in languages.items() if token == bos), None)
    if target is None and stated.get("tgt_lang") in languages:
        target = stated["tgt_lang"]
    return source, chosen(target, languages, "target", file, required=True)
