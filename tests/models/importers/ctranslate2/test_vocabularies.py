"""Vocabularies and config.json as people have them: answers are those of CTranslate2, or both refuse them."""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ctranslate2_models import BOS, EOS, PAD, UNK, ctranslate2, tokens, write_model
from foreign_models import MADE, changed_json, greedy, import_here
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.runtime.errors import CheckpointError, TxportError
from txport.runtime.text.tokenizer import open_tokenizer

MARK = "\ufeff"


def replaced(place: int, *others: str) -> list[str]:
    """The vocabulary with other tokens from this id on."""
    return [*tokens()[:place], *others, *tokens()[place + len(others) :]]


def renamed(**names: str) -> list[str]:
    """The vocabulary with other names of special tokens."""
    special = {UNK: names["unk_token"], BOS: names["bos_token"], EOS: names["eos_token"]}
    return [special.get(token, token) for token in tokens()]


class Case(NamedTuple):
    """A directory: tokens of both sides, files, ends of lines, changes of config.json, and the type of weights."""

    tokens: list[str] = tokens()  # never changed
    files: tuple[str, ...] = ("shared_vocabulary.json",)
    end: str = "\n"
    last: str = "\n"
    config: dict[str, Any] = {}
    quantization: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        defaults = {"unk_token": UNK, "bos_token": BOS, "eos_token": EOS}
        return {**defaults, "add_source_bos": False, "add_source_eos": False, **self.config}

    def write(self, directory: Path) -> Path:
        write_model(directory, quantization=self.quantization)
        (directory / "shared_vocabulary.json").unlink()
        for name in self.files:
            text = self.end.join(self.tokens) + self.last
            if name.endswith("json"):
                text = json.dumps(self.tokens)
            (directory / name).write_text(text, encoding="utf-8", newline="")
        changed_json(directory / "config.json", **self.config)
        return directory

    def ids(self, row: list[str]) -> list[int]:
        """The ids of a source. Of a token that is in the vocabulary twice, the first one counts."""
        known = {token: index for index, token in reversed(list(enumerate(self.tokens)))}
        ids = [known.get(token, known.get(self.settings["unk_token"], len(self.tokens))) for token in row]
        prefix, suffix = (
            [known[self.settings[f"{each}_token"]]] if self.settings[f"add_source_{each}"] else []
            for each in ("bos", "eos")
        )
        return [*prefix, *ids, *suffix]


TEXT = ("shared_vocabulary.txt",)
NAMES = {"unk_token": "[UNK]", "bos_token": "[CLS]", "eos_token": "[SEP]", "decoder_start_token": "[CLS]"}
ENDS = {"add_source_bos": True, "add_source_eos": True}
CASES = {
    "text": Case(files=TEXT),
    "text_of_two_sides": Case(files=("source_vocabulary.txt", "target_vocabulary.txt")),
    "no_last_line_end": Case(files=TEXT, last=""),
    "windows": Case(files=TEXT, end="\r\n", last="\r\n"),
    "carriage_return_in_a_token": Case(replaced(20, "a\r"), TEXT),
    "blank_token": Case(replaced(10, ""), TEXT),
    "blank_last_token": Case(replaced(59, ""), TEXT),
    "token_twice": Case(replaced(30, tokens()[10]), TEXT),
    "token_twice_in_json": Case(replaced(30, tokens()[10])),
    "unknown_token_twice": Case(replaced(30, UNK)),
    "spaces": Case(replaced(20, " ", "\u2581", "\u3000", "\u2028", "\x85", "\ue000"), TEXT),
    "spaces_in_json": Case(replaced(20, " ", "\u2581", "a\u2581b", "\u3000", "\u00a0", "\t")),
    "no_unknown_token": Case(tokens()[:-1], config={"unk_token": "<nothing>"}),
    "mark_inside": Case(replaced(20, f"a{MARK}", MARK), TEXT),
    "names": Case(renamed(**NAMES), config=NAMES),
    "names_around_sources": Case(renamed(**NAMES), config={**NAMES, **ENDS}),
    "starts_from_padding": Case(config={"decoder_start_token": PAD}),
    "starts_from_the_unknown_token": Case(config={"decoder_start_token": UNK}),
    "starts_from_a_word": Case(config={"decoder_start_token": "w7"}),
    "one_token_for_both_ends": Case(config={"bos_token": EOS, "decoder_start_token": BOS, **ENDS}),
    "no_epsilon": Case(config={"layer_norm_epsilon": None}),
    "unknown_fields": Case(config={"model_type": "x", "multi_query_attention": False}),
    "json_before_text": Case(files=("shared_vocabulary.json", *TEXT), end="\n\n"),
    "shared_before_sides": Case(files=("shared_vocabulary.json", "source_vocabulary.txt"), end="\n\n"),
    **{kind: Case(quantization=kind) for kind in ("int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16")},
}


def assert_same_answers(case: Case, directory: Path, output: Path) -> None:
    """Compare texts' ids with the definition, and answers with CTranslate2's. It takes tokens that no text can have."""
    draw = random.Random(1)
    rows = [draw.choices(case.tokens[len({UNK, PAD, BOS, EOS}) :], k=draw.randrange(1, 10)) for _ in range(60)]
    rows.append(["w7", "unheard-of", "w9"])
    translator = ctranslate2.Translator(str(directory), compute_type="float32", inter_threads=1, intra_threads=1)
    results = translator.translate_batch(rows, beam_size=1, max_decoding_length=MADE, min_decoding_length=0)
    checkpoint = import_here(directory, output)
    names = [*case.tokens, case.settings["unk_token"]]
    made = greedy(checkpoint, [case.ids(row) for row in rows])
    found = [[names[each] for each in row if each != checkpoint.config.eos_id] for row in made]
    assert found == [result.hypotheses[0] for result in results]
    assert len({tuple(row) for row in found}) > 5
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    texts = [row for row in rows if all(token.split() == [token] for token in row) and UNK not in row]
    assert [tokenizer.encode(" ".join(row)) for row in texts] == [case.ids(row) for row in texts]
    assert len(texts) > 20


@pytest.mark.parametrize("name", CASES)
def test_directories_as_people_have_them(name: str, tmp_path: Path) -> None:
    assert_same_answers(CASES[name], CASES[name].write(tmp_path / "theirs"), tmp_path / "ours")


def test_byte_order_marks_of_json(tmp_path: Path) -> None:
    directory = Case().write(tmp_path / "theirs")
    for file in directory.glob("*.json"):
        file.write_text(MARK + file.read_text(encoding="utf-8"), encoding="utf-8")
    assert_same_answers(Case(), directory, tmp_path / "ours")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case(files=TEXT, end="\r\n", last=""), "has carriage returns in most lines, but not at the end of all"),
        (Case(files=TEXT, end="\r", last="\r"), "has carriage returns in most lines, but not at the end of all"),
        (Case([MARK + tokens()[0], *tokens()[1:]], TEXT), "begins with a byte order mark (U+FEFF)"),
        (Case([f"{MARK}w", *tokens()[1:-1], UNK], TEXT), "begins with a byte order mark (U+FEFF)"),
    ],
)
def test_text_that_ctranslate2_reads_as_other_tokens(case: Case, words: str, tmp_path: Path) -> None:
    """CTranslate2 gives no error, and takes the marks and carriage returns for parts of tokens."""
    directory = case.write(tmp_path / "theirs")
    with pytest.raises(CheckpointError) as caught:
        import_model(str(directory), None, ImportOptions())
    assert words in str(caught.value) and str(caught.value).startswith(str(directory / TEXT[0]))


@pytest.mark.parametrize(
    "case",
    [
        Case(files=()),
        Case(files=("source_vocabulary.json",)),
        Case(files=("vocabulary.txt",)),
        Case(files=("vocabulary.json",)),
        Case(files=("source_1_vocabulary.json", "source_2_vocabulary.json", "target_vocabulary.json")),
        Case(config={"unk_token": None}),
        Case(config={"eos_token": None}),
        Case(config={"eos_token": "<end>"}),
    ],
)
def test_directories_that_both_refuse(case: Case, tmp_path: Path) -> None:
    directory = case.write(tmp_path / "theirs")
    with pytest.raises((RuntimeError, ValueError)):
        ctranslate2.Translator(str(directory), compute_type="float32").translate_batch([["w7"]], beam_size=1)
    with pytest.raises(TxportError) as caught:
        import_model(str(directory), None, ImportOptions())
    assert "\n" not in str(caught.value)
