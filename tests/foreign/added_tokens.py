"""Models of Hugging Face's families whose tokenizers have tokens of `add_tokens`, saved as users do."""

import io
import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import transformers
from foreign_models import WORDS, pieces, shake, write_json
from txport.models.importers.tokenizers.languages import CODES

SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 40}
BART = {
    **SIZES,
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")},
}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
TOKEN = transformers.AddedToken
ADDED = [
    TOKEN("<ent>"),
    TOKEN("newword"),
    TOKEN("ß-token"),
    TOKEN("<sp>", special=True, normalized=False),
    TOKEN("<left>", lstrip=True),
    TOKEN("<right>", rstrip=True, normalized=False),
    TOKEN("dog", single_word=True),
    TOKEN("<raw>", normalized=False),
    TOKEN("<all>", lstrip=True, rstrip=True, single_word=True, normalized=False),
    TOKEN("two words"),
    TOKEN("<ent"),
]


PARTS = [
    *(token.content for token in ADDED), *" the cat sees a bird x . é 漢".split(), "dogs", "ｂｉｒｄ",
    *[" "] * 8, "  ",
]  # fmt: skip


def texts(count: int = 1000) -> list[str]:
    """Return texts of tokens, words, and parts of both."""
    draw = random.Random(3)
    drawn = ("".join(draw.choices(PARTS, k=draw.randrange(1, 9))).rstrip() for _ in range(count))
    return ["the <ent> cat", "<ent>", "<ent><ent>the", "a dog, two dogs", *(text for text in drawn if text)]


def model_of(algorithm: str = "unigram", rules: str | None = None, **options: Any) -> bytes:
    """Return a SentencePiece model; `rules` is a file of normalisation rules."""
    lines = [" ".join(WORDS[(i * step) % len(WORDS)] for i in range(12)) for step in range(1, 60)]
    lines += list("abcdefghijklmnopqrstuvwxyz") * 3
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, vocab_size=60, hard_vocab_limit=algorithm == "bpe",
        model_type=algorithm, minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
    return out.getvalue()


T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


def _marian(directory: Path) -> Any:
    model = model_of()
    for side in ("source", "target"):
        (directory / f"{side}.spm").write_bytes(model)
    tokens = ["</s>", "<unk>", *sorted(pieces(model), reverse=True), "<pad>"]
    write_json(directory / "vocab.json", {token: i for i, token in enumerate(tokens)})
    return transformers.MarianTokenizer.from_pretrained(str(directory), source_lang="en", target_lang="fr")


def _m2m100(directory: Path) -> Any:
    model = model_of()
    (directory / "sentencepiece.bpe.model").write_bytes(model)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces(model))]
    write_json(directory / "vocab.json", {token: i for i, token in enumerate(tokens)})
    languages = [f"__{code}__" for code in CODES["m2m100"].split()]
    fields = {"tokenizer_class": "M2M100Tokenizer", "extra_special_tokens": languages}
    write_json(directory / "tokenizer_config.json", fields)
    return transformers.M2M100Tokenizer.from_pretrained(str(directory))


def _spm(name: str, algorithm: str = "unigram", **options: Any) -> Callable[[Path], Any]:
    def made(directory: Path) -> Any:
        (directory / "sentencepiece.bpe.model").write_bytes(model_of(algorithm))
        return getattr(transformers, name).from_pretrained(str(directory), **options)

    return made


def _spiece(name: str) -> Callable[[Path], Any]:
    def made(directory: Path) -> Any:
        (directory / "spiece.model").write_bytes(model_of(**T5_IDS))
        return getattr(transformers, name).from_pretrained(str(directory))

    return made


def _bart(directory: Path) -> Any:
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator([" ".join(WORDS)] * 20, vocab_size=300, special_tokens=special)
    bpe.save_model(str(directory))
    return transformers.BartTokenizer.from_pretrained(str(directory))


NLLB = ["eng_Latn", "fra_Latn"]
# For each family: the function for its tokenizer, and the class and fields of its model.
FAMILIES: dict[str, tuple[Callable[[Path], Any], str, dict[str, Any]]] = {
    "marian": (_marian, "MarianMT", {**BART, "activation_function": "swish"}),
    "m2m100": (_m2m100, "M2M100ForConditionalGeneration", BART),
    "nllb": (
        _spm("NllbTokenizer", "bpe", extra_special_tokens=NLLB, src_lang="eng_Latn"),
        "M2M100ForConditionalGeneration",
        BART,
    ),
    "mbart": (_spm("MBartTokenizer", src_lang="en_XX", tgt_lang="fr_XX"), "MBartForConditionalGeneration", BART),
    "mbart50": (_spm("MBart50Tokenizer", src_lang="en_XX", tgt_lang="fr_XX"), "MBartForConditionalGeneration", BART),
    "plbart": (
        _spm("PLBartTokenizer", src_lang="java", tgt_lang="en_XX"),
        "PLBartForConditionalGeneration",
        BART,
    ),
    "seamless": (
        _spm(
            "SeamlessM4TTokenizer", "bpe", extra_special_tokens=["__eng__", "__fra__"], src_lang="eng", tgt_lang="fra"
        ),
        "SeamlessM4TForTextToText",
        {"hidden_size": 16, **{key: value for key, value in BART.items() if key != "d_model"}},
    ),
    "t5": (_spiece("T5Tokenizer"), "T5ForConditionalGeneration", T5),
    "pegasus": (_spiece("PegasusTokenizer"), "PegasusForConditionalGeneration", BART),
    "bart": (_bart, "BartForConditionalGeneration", BART),
    "byt5": (lambda _: transformers.ByT5Tokenizer(), "T5ForConditionalGeneration", T5),
}
TARGETS = {
    "m2m100": "fr",
    "nllb": "fra_Latn",
    "mbart": "fr_XX",
    "mbart50": "fr_XX",
    "plbart": "en_XX",
    "seamless": "fra",
}
# Files of the original model that users keep beside the files of transformers 5.
KEPT = {"t5": "spiece.model", "pegasus": "spiece.model"}


def saved(family: str, directory: Path, beside: bool = True, tokens: Sequence[Any] = ADDED) -> Any:
    """Write a model with random weights and its tokenizer; return the tokenizer, loaded again by Hugging Face.

    Args:
        family: a key of `FAMILIES`.
        directory: directory to write.
        beside: keep the SentencePiece model beside the tokenizer.json.
        tokens: the added tokens.
    """
    make, name, fields = FAMILIES[family]
    scratch = directory.with_name(f"{directory.name}.files")
    scratch.mkdir()
    tokenizer = make(scratch)
    tokenizer.add_tokens(list(tokens))
    tokenizer.save_pretrained(directory)
    if family == "bart":  # as saved by transformers 4: no tokenizer.json
        added = {token.content: tokenizer.convert_tokens_to_ids(token.content) for token in tokens}
        write_json(directory / "added_tokens.json", added)
        listed = {i: tokenizer.added_tokens_decoder[i].__getstate__() for i in tokenizer.added_tokens_decoder}
        config = json.loads((directory / "tokenizer_config.json").read_text())
        write_json(directory / "tokenizer_config.json", {**config, "added_tokens_decoder": listed})
        (directory / "tokenizer.json").unlink()
        for file in ("vocab.json", "merges.txt"):
            shutil.copy(scratch / file, directory)
    elif beside and not (directory / "vocab.json").exists():
        for file in (*scratch.glob("*.model"),):
            shutil.copy(file, directory)
    _write_model(name, {**fields, "vocab_size": _rows(family, tokenizer)}, tokenizer, directory)
    if family == "bart":
        return tokenizer
    return type(tokenizer).from_pretrained(str(directory))


def _rows(family: str, tokenizer: Any) -> int:
    return len(tokenizer) + (8 if family == "m2m100" else 0)


def _write_model(name: str, fields: dict[str, Any], tokenizer: Any, directory: Path) -> None:
    kind = getattr(transformers, f"{name}Model" if name == "MarianMT" else name)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    first = tokenizer.eos_token_id if "M2M100" in name else tokenizer.pad_token_id
    start = {"decoder_start_token_id": first, "bos_token_id": tokenizer.bos_token_id or 0}
    model = kind(kind.config_class(**fields, **ids, **start))
    shake(model, 1, scale=2.0)
    model.tie_weights()
    model.save_pretrained(directory)
