"""Tokens that were added to a tokenizer: ids and texts as Hugging Face's tokenizers give them, for every family."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from foreign_models import changed_json, import_here, write_json

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

from added_tokens import ADDED, FAMILIES, TARGETS, TOKEN, saved, texts  # noqa: E402
from txport.models.checkpoint import Checkpoint  # noqa: E402
from txport.runtime.errors import CheckpointError  # noqa: E402
from txport.runtime.text.tokenizer import open_tokenizer  # noqa: E402


def opened(checkpoint: Checkpoint) -> Any:
    return open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)


@pytest.mark.parametrize("beside", [True, False], ids=["beside", "alone"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_texts(family: str, beside: bool, tmp_path: Path) -> None:
    # Hugging Face's PLBart loses the flags of the last four tokens when it is read again.
    tokens = [TOKEN(token.content) for token in ADDED] if family == "plbart" else ADDED
    theirs = saved(family, tmp_path / "theirs", beside, tokens)
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint", target_language=TARGETS.get(family))
    ours = opened(checkpoint)
    added = {theirs.convert_tokens_to_ids(token.content) for token in ADDED}
    met: set[int] = set()
    for text in texts():
        if family == "mbart" and "ｂ" in text:
            continue  # Hugging Face's does not normalise texts since version 5
        expected = list(theirs(text, add_special_tokens=False).input_ids)
        ids, spans, _ = ours.locate_source(text)
        assert ids == expected == ours.encode_source(text)[0], text
        assert len(spans) == len(ids) and all(0 <= start <= end <= len(text) for start, end in spans)
        # Hugging Face strips spaces of the ends, and shows what is unknown.
        known = [token for token in ids if token != theirs.unk_token_id]
        assert ours.decode(known).strip() == theirs.decode(known, skip_special_tokens=True).strip(), text
        met |= added & set(ids)
    assert met == added


@pytest.mark.parametrize("family", ["marian", "nllb", "t5", "pegasus"])
def test_tokens_like_pieces(family: str, tmp_path: Path) -> None:
    """A piece that is special as a whole word, a token that is a piece without its spaces, and a mask of T5's."""
    tokens = [TOKEN("s", single_word=True, special=True), TOKEN(" x "), *[TOKEN("<extra_id_3>")] * (family != "t5")]
    theirs = saved(family, tmp_path / "theirs", tokens=tokens)
    ours = opened(import_here(tmp_path / "theirs", tmp_path / "out", target_language=TARGETS.get(family)))
    texts = ["s", "a s b", "as cats", "a x b", "x", "ss", "the<extra_id_3> cat"]
    for text in texts[: len(texts) - (family == "t5")]:
        assert ours.encode_source(text)[0] == list(theirs(text, add_special_tokens=False).input_ids), text


def test_several_spaces_of_seamless(tmp_path: Path) -> None:
    """Its normaliser makes a mark of several spaces, which no token takes as white space."""
    tokens = [*ADDED, TOKEN("<after>", rstrip=True)]
    theirs = saved("seamless", tmp_path / "theirs", tokens=tokens)
    ours = opened(import_here(tmp_path / "theirs", tmp_path / "out", target_language=TARGETS["seamless"]))
    spaces = ("", " ", "  ", "    ", "\t\t", " \n", "\u3000\u3000", "\u00a0 ")
    parts = ("<left>", "<after>", "<ent>", "<raw>", "<all>", "<right>")
    texts = [f"{space}a{space}{part}{space}b" for space in spaces for part in parts]
    texts += [f"{space}{first}{space}{part}{space}" for space in spaces for part in parts for first in parts[:3]]
    for text in texts:
        assert ours.encode_source(text)[0] == list(theirs(text, add_special_tokens=False).input_ids), text


@pytest.mark.parametrize("family", ["t5", "nllb"])
def test_long_texts_take_linear_time(family: str, tmp_path: Path) -> None:
    """Runs of unknown characters, and many tokens that take the white space around them."""
    theirs = saved(family, tmp_path / "theirs")
    ours = opened(import_here(tmp_path / "theirs", tmp_path / "out", target_language=TARGETS.get(family)))
    runs = ["漢字", "ｂé", "e\u0301\u0323", "\u1112\u1161\u11ab", "ﬃ㍿x"]
    texts = [f"the {run * 1200}<ent> {run * 1200} newword" for run in runs]
    for text in texts:
        assert ours.encode_source(text)[0] == list(theirs(text, add_special_tokens=False).input_ids), text[:20]
    started = time.process_time()
    ours.encode_source("漢字" * 300_000 + "<ent>" + "<right> <left> " * 5_000)
    assert time.process_time() - started < 15


@pytest.mark.parametrize("file", ["special_tokens_map.json", "tokenizer_config.json"])
@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_without_ids(family: str, file: str, tmp_path: Path) -> None:
    """transformers 5 gives such a token the next id or drops it, depending on the family and the file."""
    saved(family, tmp_path / "theirs", tokens=[])
    path = tmp_path / "theirs" / file
    fields = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**fields, "additional_special_tokens": ["<lost>"]}))
    with pytest.raises(CheckpointError, match="has the special token '<lost>' without an id") as error:
        import_here(tmp_path / "theirs", tmp_path / "out", target_language=TARGETS.get(family))
    assert len(str(error.value).splitlines()) == 1


KEEP_IDS = ("marian", "m2m100", "byt5", "plbart")
LISTS = [(family, file) for family in FAMILIES for file in ("added_tokens.json", "added_tokens_decoder")]
LISTS += [(family, "tokenizer.json") for family in FAMILIES if family not in (*KEEP_IDS, "bart")]


@pytest.mark.parametrize(("family", "file"), LISTS)
def test_gaps_between_ids(family: str, file: str, tmp_path: Path) -> None:
    """Where transformers 5 renumbers the tokens behind a gap, the import is refused; else the ids are the file's."""
    theirs = saved(family, tmp_path / "theirs", tokens=[TOKEN("<x>"), TOKEN("<y>"), TOKEN("<z>")])
    directory, last = tmp_path / "theirs", theirs.convert_tokens_to_ids("<z>")
    keeps = family in KEEP_IDS
    _without(directory, last - 1, file)
    read = type(theirs).from_pretrained(str(directory))
    assert (read.convert_tokens_to_ids("<z>") == last) == keeps
    arguments = (directory, tmp_path / "out")
    if keeps:
        ours = opened(import_here(*arguments, target_language=TARGETS.get(family)))
        assert ours.encode_source("a<z>")[0] == list(read("a<z>", add_special_tokens=False).input_ids)
    else:
        with pytest.raises(CheckpointError, match=f"adds the token '<z>' behind the id {last - 1}"):
            import_here(*arguments, target_language=TARGETS.get(family))


def _without(directory: Path, token: int, kept: str) -> None:
    """Remove a token from all lists of a directory, of which only `kept` remains."""
    config, listed = directory / "tokenizer_config.json", directory / "tokenizer.json"
    decoder = json.loads(config.read_text()).get("added_tokens_decoder", {})
    tokens = [{"id": int(number), **value} for number, value in decoder.items()]
    if listed.exists():
        tokens = json.loads(listed.read_text())["added_tokens"]
    tokens = [each for each in tokens if each["id"] != token]
    changed_json(config, added_tokens_decoder={each["id"]: each for each in tokens} if "decoder" in kept else None)
    (directory / "added_tokens.json").unlink(missing_ok=True)
    if kept == "tokenizer.json":
        changed_json(listed, added_tokens=tokens)
    else:
        listed.unlink(missing_ok=True)
    if kept == "added_tokens.json":
        write_json(directory / kept, {each["content"]: each["id"] for each in tokens})
