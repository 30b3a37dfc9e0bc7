"""Tokenizers of TrOCR, Donut, Nougat and Whisper: texts of random ids are those of Hugging Face's tokenizers."""

import io
import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from foreign_models import import_here, write_json
from state_models import mbart, trocr, whisper
from txport.runtime.bundle.strict_json import encode
from txport.runtime.errors import CheckpointError
from txport.runtime.text.tokenizer import open_tokenizer

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'txport[dev]'")


TEXTS = ["the cat sees a bird", "2 birds, 13 cats: it's a test!", "été naïve 你好 😀", "def f(x): return [x]"] * 9
COUNT = 200
DOOR = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere")) / "tests" / "txport_tokenizer_door"
Theirs = Any


def pieces_of_texts() -> bytes:
    """A SentencePiece model that normalises, as XLM-RoBERTa's does."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=64, hard_vocab_limit=False, minloglevel=2
    )
    return model.getvalue()


def xlm_roberta(directory: Path) -> Theirs:
    """TrOCR-small's, as it was published."""
    directory.mkdir(exist_ok=True)
    (directory / "sentencepiece.bpe.model").write_bytes(pieces_of_texts())
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "XLMRobertaTokenizer"})
    return transformers.XLMRobertaTokenizer.from_pretrained(directory)


def xlm_roberta_json(directory: Path) -> Theirs:
    """The same, as transformers 5 writes it."""
    theirs = xlm_roberta(directory)
    (directory / "sentencepiece.bpe.model").unlink()
    theirs.save_pretrained(directory)
    assert (directory / "tokenizer.json").is_file()
    return theirs


def donut(directory: Path) -> Theirs:
    """Donut's, with the tokens of a form: some are special."""
    theirs = xlm_roberta_json(directory)
    theirs.add_tokens(["<sep/>", "<s_menu>", "</s_menu>"])
    theirs.add_special_tokens({"additional_special_tokens": ["<s_cord-v2>", "<s_iitcdip>"]})
    theirs.save_pretrained(directory)
    return theirs


def byte_level(directory: Path, *steps: Any, special: tuple[str, ...] = ("<s>", "<pad>", "</s>", "<unk>")) -> Any:
    """A byte-level BPE of the library, trained on these texts."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    pre = tokenizers.pre_tokenizers
    made.pre_tokenizer = pre.Sequence([*steps, pre.ByteLevel(add_prefix_space=False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=list(special), initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    directory.mkdir(exist_ok=True)
    return made


def roberta(directory: Path) -> Theirs:
    """TrOCR-base's and -large's, as they were published."""
    model = json.loads(byte_level(directory).to_str())["model"]
    write_json(directory / "vocab.json", model["vocab"])
    merges = [" ".join(pair) for pair in model["merges"]]
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"})
    return transformers.RobertaTokenizer.from_pretrained(directory)


def nougat(directory: Path) -> Theirs:
    """Nougat's: single digits and runs of punctuation are words."""
    pre = tokenizers.pre_tokenizers
    marks = tokenizers.Regex(r"[\(\)\[\]\{\}]|([!\"#\$%\&'\*\+,\-\./:;<=>\?\\\^_`\|\~])\1*")
    steps = pre.Digits(individual_digits=True), pre.Split(marks, "isolated")
    made = byte_level(directory, *steps, special=("<s>", "<pad>", "</s>", "<unk>", "[START_REF]"))
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    theirs = transformers.NougatTokenizer(tokenizer_object=made, **names)
    theirs.save_pretrained(directory)
    return theirs


def of_whisper(directory: Path) -> Theirs:
    """Whisper's, with timestamps: tokens that are not special."""
    made = byte_level(directory, special=())
    made.add_special_tokens(["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"])
    made.add_tokens([tokenizers.AddedToken(f"<|{i * 0.02:.2f}|>", normalized=False) for i in range(20)])
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|endoftext|>", pad_token="<|endoftext|>", unk_token="<|endoftext|>"
    )
    theirs.save_pretrained(directory)
    return theirs


KINDS: dict[str, tuple[Callable[[Path], Theirs], Callable[..., Any], str]] = {
    "trocr_small": (xlm_roberta, trocr, "sentencepiece"),
    "trocr_small_json": (xlm_roberta_json, trocr, "sentencepiece"),
    "trocr_large": (roberta, trocr, "tokenizers"),
    "donut": (donut, mbart, "sentencepiece"),
    "nougat": (nougat, mbart, "tokenizers"),
    "whisper": (of_whisper, whisper, "tokenizers"),
}


def by_cpp(checkpoint: Any, rows: int, lists: list[list[int]]) -> list[str]:
    """The texts of ids from the C++ runtime."""
    tokenizer, directory = checkpoint.tokenizer, checkpoint.directory
    arguments = ["tokenizers", directory / tokenizer.target.model, rows]
    if tokenizer.kind != "tokenizers":
        write_json(directory / "cpp.json", encode(tokenizer))
        arguments = [directory / "cpp.json", directory, rows, checkpoint.config.unk_id]
    lines = "".join(json.dumps(ids) + "\n" for ids in lists)
    done = subprocess.run([DOOR, *map(str, arguments)], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_random_ids_are_those_of_hugging_face(kind: str, tmp_path: Path) -> None:
    """Except spaces at the beginning, of which SentencePiece drops all and Hugging Face one. In Python and C++."""
    make, model, ours_kind = KINDS[kind]
    theirs = make(tmp_path / "model")
    rows = len(theirs) + 3  # an embedding has more rows than there are tokens
    model(tmp_path / "model", vocab_size=rows)
    checkpoint = import_here(tmp_path / "model", tmp_path / "checkpoint")
    assert checkpoint.tokenizer.kind == ours_kind
    ours = open_tokenizer(tmp_path / "checkpoint", checkpoint.tokenizer, checkpoint.config.vocabularies)
    draw = random.Random(0)
    texts = []
    lists = []
    for number in range(COUNT):
        ids = [draw.randrange(rows if number % 2 else len(theirs)) for _ in range(draw.randrange(1, 30))]
        lists.append(ids)
        texts.append(theirs.decode(ids, skip_special_tokens=True))
        assert ours.decode(ids).lstrip(" ") == texts[-1].lstrip(" "), ids
    assert len(set(texts)) > COUNT * 0.9
    if "TXPORT_CPP_BUILD" in os.environ:
        assert [text.lstrip(" ") for text in by_cpp(checkpoint, rows, lists)] == [text.lstrip(" ") for text in texts]
    for text in TEXTS[:4]:
        ids = theirs(text, add_special_tokens=False).input_ids
        assert ours.decode(ids).lstrip(" ") == theirs.decode(ids, skip_special_tokens=True).lstrip(" ")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    for kind in ("trocr_small", "trocr_small_json", "trocr_large", "nougat"):
        make, model, _ = KINDS[kind]
        theirs = make(tmp_path / kind)
        model(tmp_path / kind, vocab_size=len(theirs) - 5)
        with pytest.raises(CheckpointError, match=r"but the embedding has \d+ rows: .*belong"):
            import_here(tmp_path / kind, tmp_path / "checkpoint")


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    xlm_roberta(tmp_path / "spm")
    trocr(tmp_path / "spm")
    (tmp_path / "spm" / "sentencepiece.bpe.model").write_bytes(b"text")
    trocr(tmp_path / "json")
    (tmp_path / "json" / "tokenizer.json").write_text('{"model": 5}')
    for name, message in (("spm", "is not a SentencePiece model"), ("json", "is not a tokenizer")):
        with pytest.raises(CheckpointError, match=message):
            import_here(tmp_path / name, tmp_path / "checkpoint")
