"""Any JSON value in any field of a Hugging Face directory: a model is understood, or refused by one sentence."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

from added_tokens import FAMILIES, TARGETS, saved  # noqa: E402
from txport.models.importers.choice import import_model  # noqa: E402
from txport.models.importers.imported import ImportOptions  # noqa: E402
from txport.runtime.bundle.schema import Generation  # noqa: E402
from txport.runtime.bundle.strict_json import decode, encode, parse  # noqa: E402
from txport.runtime.errors import TxportError  # noqa: E402

VALUES: list[Any] = [
    None, True, False, 0, -1, 2, 10**30, 1.5, float("nan"), float("inf"), "", "x", "é\ud800", [], [1], [[1]], ["x"],
    [None], [{}], {}, {"a": 1}, {"content": "x"}, {"content": 5}, [{"content": []}], {"1": {"content": "<q>"}},
    {"1": None}, {"x": {"content": "q"}},
]  # fmt: skip
# Fields that a directory may have and these do not.
MORE = {
    "config.json": (
        *("num_decoder_layers", "decoder_vocab_size", "tie_word_embeddings", "scale_decoder_outputs", "hidden_size"),
        *("is_gated_act", "dense_act_fn", "normalize_before", "forced_bos_token_id", "transformers_version"),
    ),
    "tokenizer_config.json": (
        *("tokenizer_class", "src_lang", "tgt_lang", "language_codes", "legacy_behaviour", "separate_vocabs", "offset"),
        *("extra_ids", "additional_special_tokens", "extra_special_tokens", "added_tokens_decoder", "mask_token"),
    ),
    "special_tokens_map.json": ("additional_special_tokens", "unk_token", "extra_special_tokens"),
    "generation_config.json": ("forced_bos_token_id", "eos_token_id", "bad_words_ids", "_from_model_config"),
    "added_tokens.json": ("<q>",),
}
TRIED = 60


def understood(directory: Path, target: str | None) -> None:
    """Import; what a bundle keeps of it can be read again."""
    found = import_model(str(directory), None, ImportOptions(target_language=target))
    assert decode(Generation, parse(json.dumps(encode(found.generation)).encode(), "it"), "it") == found.generation
    "".join(found.notes).encode()


@pytest.mark.parametrize("family", FAMILIES)
def test_any_value_in_any_field(family: str, tmp_path: Path) -> None:
    directory = tmp_path / "theirs"
    saved(family, directory)
    draw = random.Random(len(family))
    texts = {file: (directory / file).read_text() if (directory / file).exists() else "{}" for file in MORE}
    understood(directory, TARGETS.get(family))
    refused = 0
    for _ in range(TRIED):
        file = draw.choice(list(MORE))
        fields = json.loads(texts[file])
        name = draw.choice([*fields, *MORE[file]])
        (directory / file).write_text(json.dumps({**fields, name: draw.choice(VALUES)}))
        try:
            understood(directory, draw.choice([None, TARGETS.get(family)]))
        except TxportError as error:
            refused += 1
            assert "\n" not in str(error), (file, name)
        (directory / file).write_text(texts[file])
    assert refused > TRIED / 10


@pytest.mark.parametrize("family", FAMILIES)
def test_damaged_files_of_tokenizers(family: str, tmp_path: Path) -> None:
    """No library gets a SentencePiece model before it is checked."""
    directory = tmp_path / "theirs"
    saved(family, directory)
    files = [file for file in directory.iterdir() if file.suffix in (".spm", ".model")]
    for file in files:
        data = file.read_bytes()
        for damaged in (b"", data[: len(data) // 2], bytes(len(data)), b"\xff" * 100):
            file.write_bytes(damaged)
            with pytest.raises(TxportError) as refused:
                understood(directory, TARGETS.get(family))
            assert "\n" not in str(refused.value)
        file.write_bytes(data)
    understood(directory, TARGETS.get(family))


FIELDS: list[tuple[str, str, str, Any]] = [
    ("nllb", "tokenizer_config.json", "src_lang", ["eng_Latn"]),
    ("nllb", "tokenizer_config.json", "tokenizer_class", 5),
    ("nllb", "tokenizer_config.json", "legacy_behaviour", "yes"),
    ("m2m100", "tokenizer_config.json", "language_codes", ["m2m100"]),
    ("mbart50", "tokenizer_config.json", "tgt_lang", {"fr_XX": 1}),
    ("marian", "tokenizer_config.json", "separate_vocabs", "false"),
    ("marian", "config.json", "tie_word_embeddings", "false"),
    ("pegasus", "tokenizer_config.json", "offset", "103"),
    ("pegasus", "tokenizer_config.json", "offset", -1),
    ("t5", "config.json", "num_decoder_layers", "2"),
    ("t5", "config.json", "scale_decoder_outputs", 1),
]


@pytest.mark.parametrize(("family", "file", "name", "value"), FIELDS)
def test_fields_of_wrong_types_are_named(family: str, file: str, name: str, value: Any, tmp_path: Path) -> None:
    directory = tmp_path / "theirs"
    saved(family, directory, tokens=[])
    path = directory / file
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(TxportError, match=f"{file}: {name} must be ") as refused:
        import_model(str(directory), None, ImportOptions(target_language=TARGETS.get(family)))
    assert "\n" not in str(refused.value)
