"""Tokenizers in C++ against Python, the `tokenizers` library and Hugging Face, by many texts."""

import functools
import json
import os
import random
import subprocess
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import sentencepiece

pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

import added_tokens
import tied_models
from foreign_models import WHOLE_GRID, import_here, shake
from txport.exporter.export import ExportOptions, export_bundle
from txport.runtime.bundle.strict_json import encode
from txport.runtime.bundle.tokenizer_schema import ScoreSums, plain
from txport.runtime.text.sides import Bytes, SentencePieceSide, TokenizerSide, TokenizersSide
from txport.runtime.translator import Translator

tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'txport[dev]'")

BUILD = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere"))
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ROWS = 3000
# Number of random texts of scripts, and of bytes.
TEXTS = 10_000 if WHOLE_GRID else 1500
# Beginnings and ends of blocks that are written in: one script each.
BLOCKS = {
    "Latin": (0x61, 0x24F), "Greek": (0x370, 0x3FF), "Cyrillic": (0x400, 0x4FF), "Hebrew": (0x590, 0x5F4),
    "Arabic": (0x600, 0x6FF), "Devanagari": (0x900, 0x97F), "Thai": (0xE00, 0xE5B), "Georgian": (0x10A0, 0x10FF),
    "kana": (0x3040, 0x30FF), "Han": (0x4E00, 0x9FFF), "Hangul": (0xAC00, 0xD7A3), "emoji": (0x1F300, 0x1F6FF),
}  # fmt: skip
BETWEEN = [
    *" " * 12,
    *"  \t\n\r\u00a0\u3000\u2009\u0085\u200b\x1c.,!?'\"-_()0123456789½Ⅷ",
    "'s",
    "'ll",
    "<s>",
    " <mask> ",
]

pytestmark = pytest.mark.skipif(
    not (BUILD / "tests" / "txport_tokenizer_door").exists(), reason="needs the C++ build: make cpp"
)


def texts_of_blocks(draw: random.Random, count: int) -> list[str]:
    """Lines of words of each script in turn, with what stands between words, and now and then another script's."""
    names = list(BLOCKS)
    made = []
    for number in range(count):
        parts = []
        for _ in range(draw.randrange(1, 9)):
            name = names[number % len(names)] if draw.random() < 0.9 else draw.choice(names)
            parts += ["".join(chr(draw.randint(*BLOCKS[name])) for _ in range(draw.randrange(1, 7)))]
            parts += [draw.choice(BETWEEN) for _ in range(draw.choice((0, 1, 1, 1, 2, 3)))]
        made.append("".join(parts))
    return made


def texts_of_bytes(draw: random.Random, count: int) -> list[str]:
    """Random bytes, where what is no UTF-8 has been replaced, as the runtimes take texts."""
    return [draw.randbytes(draw.randrange(0, 24)).decode("utf-8", "replace") for _ in range(count)]


def texts() -> Iterator[str]:
    """Lines of each script, or all lines of the file that TXPORT_TEXTS names, and random bytes."""
    draw = random.Random(0)
    yield from [
        "",
        " ",
        "  ",
        "\n",
        "'",
        "''s",
        "'S it's we'll",
        "a  b",
        " a",
        "a ",
        "<s>a</s> <mask> b",
        "\x00a",
        "a\n\nb",
    ]
    if "TXPORT_TEXTS" in os.environ:
        yield from Path(os.environ["TXPORT_TEXTS"]).read_text(encoding="utf-8").split("\n")
    else:
        yield from texts_of_blocks(draw, TEXTS)
    yield from texts_of_bytes(draw, TEXTS)


@functools.cache
def trained(prefix_space: bool) -> str:
    bpe = tokenizers.ByteLevelBPETokenizer(add_prefix_space=prefix_space)
    lines = texts_of_blocks(random.Random(1), 3000) + ["the cat's bird sees what we'll see"] * 50
    bpe.train_from_iterator(lines, vocab_size=2000, special_tokens=SPECIAL)
    return str(bpe.to_str())


def made(directory: Path, style: str) -> Path:
    """A tokenizer.json with the parts that a family has."""
    own = tokenizers.Tokenizer.from_str(trained(style == "blenderbot"))
    processors, added = tokenizers.processors, tokenizers.AddedToken
    pair = ("</s>", 2), ("<s>", 0)
    if style != "plain":
        own.post_processor = processors.RobertaProcessing(*pair, add_prefix_space=style == "blenderbot")
        own.add_special_tokens([added("<mask>", lstrip=True, special=True)])
    if style == "codet5":  # its 100 extra ids, and tokens that nothing hides
        own.add_special_tokens([added(f"<extra_id_{i}>", lstrip=True, special=True) for i in range(99, -1, -1)])
        own.add_tokens([added("été", normalized=True), added("<é>", rstrip=True, normalized=False)])
    value = json.loads(own.to_str())
    if style == "old":  # as releases before 0.20 wrote them
        value["model"]["merges"] = [" ".join(merge) for merge in value["model"]["merges"]]
    if style == "unknown":  # of a vocabulary without all bytes
        del value["model"]["vocab"]["Ð"], value["model"]["vocab"]["z"]
        value["model"]["merges"] = [merge for merge in value["model"]["merges"] if not {"Ð", "z"} & set("".join(merge))]
        kept = value["model"]["vocab"]
        value["model"]["vocab"] = {piece: i for piece, i in kept.items() if not {"Ð", "z"} & set(piece)}
        value["model"] |= {"unk_token": "<unk>", "fuse_unk": True}
    (directory / "tokenizer.json").write_text(json.dumps(value))
    return directory / "tokenizer.json"


def by_cpp(kind: str, file: Path | str, given: Sequence[Any], rows: int = ROWS) -> list[Any]:
    lines = "".join(json.dumps(each) + "\n" for each in given)
    command = [str(BUILD / "tests" / "txport_tokenizer_door"), kind, str(file), str(rows)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def by_description(description: Path, directory: Path, given: Sequence[Any], rows: int, unk: int) -> list[Any]:
    """As `by_cpp`, for a tokenizer of a checkpoint."""
    lines = "".join(json.dumps(each) + "\n" for each in given)
    command = [str(BUILD / "tests" / "txport_tokenizer_door"), *map(str, (description, directory, rows, unk))]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def in_characters(text: str, spans: list[list[int]]) -> list[tuple[int, int]]:
    """Spans of bytes as those of characters."""
    place, at = {0: 0}, 0
    for number, character in enumerate(text):
        at += len(character.encode())
        place[at] = number + 1
    return [(place[start], place[end]) for start, end in spans]


def random_ids(draw: random.Random, lines: list[list[int]]) -> list[list[int]]:
    """Parts of encoded texts, whose characters may be cut, and random ids, of which some are none."""
    cut = [ids[draw.randrange(len(ids)) :][: draw.randrange(1, 20)] for ids in lines if ids]
    return cut + [[draw.randrange(ROWS + 50) for _ in range(draw.randrange(12))] for _ in range(TEXTS)]


def check(kind: str, file: Path | str, ours: TokenizerSide) -> None:
    """Ids, places of ids, and texts of ids."""
    given = list(texts())
    answers = by_cpp(kind, file, given)
    lines = []
    for text, (ids, spans) in zip(given, answers, strict=True):
        expected = ours.locate(text)
        assert (ids, in_characters(text, spans)) == expected, repr(text)
        lines.append(ids)
    many = random_ids(random.Random(2), lines)
    for ids, text in zip(many, by_cpp(kind, file, many), strict=True):
        assert text == ours.decode(ids), ids


@pytest.mark.parametrize("style", ["plain", "bart", "blenderbot", "codet5", "old", "unknown"])
def test_byte_level_bpe_is_that_of_tokenizers(style: str, tmp_path: Path) -> None:
    file = made(tmp_path, style)
    check("tokenizers", file, TokenizersSide(file))


@pytest.mark.parametrize("normalization", ["nmt_nfkc", "identity"])
def test_sentencepiece_of_a_t5_is_that_of_python(normalization: str, tmp_path: Path) -> None:
    """Its first ids are pad, eos and unk, and ids from 2,500 on are of no piece, as T5's 100 extra ids."""
    alphabets = [text for text in texts_of_blocks(random.Random(1), 3000) if max(text) < "\u2e80"]
    with (tmp_path / "spiece.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(alphabets), model_writer=file, vocab_size=2500,
            normalization_rule_name=normalization, minloglevel=2, num_threads=1,
            pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        )  # fmt: skip
    check("sentencepiece", tmp_path / "spiece.model", SentencePieceSide(tmp_path / "spiece.model"))


@pytest.mark.parametrize("sums", get_args(ScoreSums))
def test_ties_are_segmented_as_in_python(sums: ScoreSums, tmp_path: Path) -> None:
    """Whatever arithmetic the two libraries have."""
    for seed in range(20):
        rng = random.Random(seed)
        (tmp_path / "x.model").write_bytes(tied_models.tied_model(rng))
        description = replace(plain("x.model", "x.model", 0), score_sums=sums)
        (tmp_path / "description.json").write_text(json.dumps(encode(description)))
        ours = SentencePieceSide(tmp_path / "x.model", None, sums)
        given = [tied_models.tied_text(rng) for _ in range(100)]
        answers = by_description(tmp_path / "description.json", tmp_path, given, ours.size, 0)
        for text, (ids, spans) in zip(given, answers, strict=True):
            assert (ids, in_characters(text, spans)) == ours.locate(text), (seed, text)


def test_bytes_are_those_of_python() -> None:
    check("bytes", "", Bytes())


def test_bytes_are_those_of_byt5() -> None:
    theirs = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'").ByT5Tokenizer()
    given = [text for text in texts() if not any(token in text for token in theirs.get_added_vocab())]
    assert len(given) > TEXTS
    for text, (ids, _) in zip(given, by_cpp("bytes", "", given), strict=True):
        assert ids == theirs.encode(text, add_special_tokens=False), repr(text)
    many = [[i for i in ids if 3 <= i < 259 + 125] for ids in random_ids(random.Random(3), [])]
    for ids, text in zip(many, by_cpp("bytes", "", many), strict=True):
        assert text == theirs.decode(ids, skip_special_tokens=True), ids


def test_every_character_of_unicode(tmp_path: Path) -> None:
    """Each letter continues letters, and each number numbers, as Python's own Unicode says too, which may be older.

    Without TXPORT_WHOLE_GRID=1, these are all characters beside one of another category, and a seventh of the others.
    """
    file = made(tmp_path, "plain")
    known = [chr(i) for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i)) not in ("Cn", "Cs")]
    if not WHOLE_GRID:
        kinds = [unicodedata.category(c) for c in known]
        beside = [len({*kinds[max(0, i - 1) : i + 2]}) > 1 for i in range(len(kinds))]
        known = [c for i, c in enumerate(known) if beside[i] or i % 7 == 0]
    given = ["".join(f"a{c}1{c}!{c}" for c in known[i : i + 50]) for i in range(0, len(known), 50)]
    theirs = tokenizers.Tokenizer.from_file(str(file)).encode_batch(given, add_special_tokens=False)
    for text, (ids, _), their in zip(given, by_cpp("tokenizers", file, given), theirs, strict=True):
        assert ids == their.ids, ascii(text)


def test_a_table_of_letters_that_python_agrees_with() -> None:
    file = Path(__file__).parents[3] / "runtime" / "cpp" / "src" / "text" / "letters.inc"
    items = file.read_text().split("\n", 1)[1].replace("{", "").split("}")
    kinds: dict[int, str] = {}
    for item in items:
        if fields := item.strip(", \n"):
            first, last, kind = fields.split(", ")
            kinds |= dict.fromkeys(range(int(first, 16), int(last, 16) + 1), kind)
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category != "Cn":  # perhaps assigned since
            assert kinds.get(code, "") == (category[0] if category[0] in "LN" else ""), hex(code)


@pytest.mark.parametrize(
    ("change", "words", "decodes"),
    [
        ({"normalizer": {"type": "NFKC"}}, "normalizer 'NFKC'", True),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "pre_tokenizer 'Metaspace'", True),
        ({"pre_tokenizer": None}, "pre_tokenizer 'none'", True),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}}, "pre_tokenizer 'Sequence'", True),
        ({"decoder": None}, "decoder 'none'", False),
        ({"model": {"type": "Unigram"}}, "model 'Unigram'", False),
        ({"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}}, "expression", True),
    ],
)
def test_what_only_python_has_is_named(change: dict[str, Any], words: str, decodes: bool, tmp_path: Path) -> None:
    """Texts are refused. Ids are decoded if that does not depend on it, as for Nougat."""
    file = made(tmp_path, "plain")
    ((ids, _),) = by_cpp("tokenizers", file, ["the cat's 12 birds"])
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(AssertionError, match=f"{words}.*, which only the Python runtime supports: give it ids"):
        by_cpp("tokenizers", file, ["a"])
    assert by_cpp("tokenizers", file, [ids]) == ["the cat's 12 birds" if decodes else ""]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"vocab": 3, "merges": []}}, "has no vocabulary"),
        ({"added_tokens": [{"id": "x", "content": "<y>"}]}, "is not a tokenizer.json"),
        ({"added_tokens": [{"id": 5000, "content": "<y>"}]}, "has the id 5000, outside the vocabulary of 3000"),
        ({"model": {"vocab": {"a": -1}, "merges": []}}, "has the id -1"),
        ({"model": {"vocab": {"a": 1, "b": 2}, "merges": ["a b"]}}, "lacks the piece 'ab'"),
        ({"model": {"vocab": {"a": 1}, "merges": ["ab"]}}, "has the merge 'ab', which is not a pair"),
        ({"model": {"vocab": {"a": 1}, "merges": [["a"]]}}, "is not a tokenizer.json"),
    ],
)
def test_damaged_files(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = made(tmp_path, "plain")
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(AssertionError, match=words):
        by_cpp("tokenizers", file, ["a"])


@pytest.mark.parametrize("family", ["bart", "codet5"])
def test_a_bundle_with_byte_level_bpe_is_translated_in_cpp(family: str, tmp_path: Path) -> None:
    """BART's and CodeT5's directories, from the import to `txport-translate`, which writes what Python does."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    special = {"vocab_size": ROWS, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 256}
    theirs = tmp_path / "theirs"
    if family == "bart":
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(**special, **sizes, **heads))
    else:
        t5 = {"d_model": 16, "num_layers": 1, "d_ff": 16, "num_heads": 2, "d_kv": 8}
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**special, **t5))
    shake(model, 3, scale=1.6)
    model.save_pretrained(theirs)
    file = made(theirs, family)
    parts = json.loads(file.read_text())["model"]
    (theirs / "vocab.json").write_text(json.dumps(parts["vocab"]))
    (theirs / "merges.txt").write_text("".join(" ".join(merge) + "\n" for merge in parts["merges"]))
    import_here(theirs, tmp_path / "checkpoint")
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(verify=False))
    lines = [
        text for text in texts_of_blocks(random.Random(5), 60) if len(text.split("\n")) == len(text.split("\r")) == 1
    ]
    expected = [each.text for each in Translator(tmp_path / "bundle", "cpu").translate(lines, max_length=12)]
    command = [str(BUILD / "txport-translate"), str(tmp_path / "bundle"), "--max-length", "12"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, encoding="utf-8", check=True)
    assert len({*expected}) > len(lines) // 2
    assert [" ".join(text.split("\n")) for text in done.stdout.split("\n")[:-1]] == expected


@pytest.mark.parametrize("family", [name for name in added_tokens.FAMILIES if name != "bart"])
def test_added_tokens_as_in_python(family: str, tmp_path: Path) -> None:
    """Ids, places and texts of every family's tokens, and those of other ways to treat the text around them."""
    from txport.runtime.text.tokenizer import open_tokenizer

    added_tokens.saved(family, tmp_path / "theirs")
    target = added_tokens.TARGETS.get(family)
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint", target_language=target)
    assert checkpoint.tokenizer.added is not None
    around = [{}, {"spaces": "kept_before_normalized", "prefix": "first"}, {"spaces": "kept", "rules": "tokenizers"}]
    runs = ["漢字" * 1500, "ｂé" * 1500, "e\u0301" * 1500, "\u1112\u1161\u11ab" * 1000, "thecat" * 500]
    given = [*added_tokens.texts(), *(f"{run}<ent>the {run} <left>{run}" for run in runs)]
    for changes in around if family in ("t5", "byt5") else around[:1]:
        description = replace(checkpoint.tokenizer, added=replace(checkpoint.tokenizer.added, **changes))
        sizes = checkpoint.config.vocabularies
        ours: Any = open_tokenizer(checkpoint.directory, description, sizes)
        (tmp_path / "description.json").write_text(json.dumps(encode(description)))

        def by_cpp_too(asked: Sequence[Any], sizes: Any = sizes) -> list[Any]:
            return by_description(
                tmp_path / "description.json", checkpoint.directory, asked, min(sizes.source, sizes.target), sizes.unk
            )

        lines = []
        for text, (ids, spans) in zip(given, by_cpp_too(given), strict=True):
            expected, places, _ = ours.locate_source(text)
            assert (ids, in_characters(text, spans)) == (expected, places), text
            lines.append(ids)
        rows = random_ids(random.Random(2), lines)[:3000]
        assert by_cpp_too(rows) == [ours.decode(row) for row in rows]


def test_a_text_chooses_its_language_as_in_python(tmp_path: Path) -> None:
    """MADLAD's `<2fr> the cat`, before a text, inside of it, twice, and what only looks like it."""
    theirs = tmp_path / "theirs"
    added_tokens.saved("t5", theirs, tokens=[])
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (theirs / file).unlink()
    model = added_tokens.model_of(**added_tokens.T5_IDS, user_defined_symbols=["<2de>", "<2fr>"])
    (theirs / "spiece.model").write_bytes(model)
    import_here(theirs, tmp_path / "checkpoint", target_language="de")
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(verify=False))
    marks = ["", "<2fr>", "<2de>", "<2fr> ", " <2fr>  ", "<2fr><2de>", "<2xx> ", "the <2fr> ", "<2fr", "\t<2fr>\u3000"]
    lines = [f"{mark}{text}" for mark in marks for text in ("the cat sees a bird", "a dog", "x")]
    translator = Translator(tmp_path / "bundle", "cpu")
    expected = [each.text for each in translator.translate(lines, max_length=12)]
    french = [each.text for each in translator.translate(["a dog"], max_length=12, target_language="fr")]
    command = [str(BUILD / "txport-translate"), str(tmp_path / "bundle"), "--max-length", "12"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split("\n")[:-1] == expected
    assert expected[4] == french[0] != expected[1]
