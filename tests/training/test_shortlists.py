"""tx-shortlist: what it counts, what it writes, and what it refuses."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from toy import BUNDLE as TOY
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.shortlist import open_shortlist
from txport.runtime.engines.native import missing
from txport.runtime.errors import InputError
from txport.runtime.text.tokenizer import TextTokenizer
from txport.runtime.translator import Translator
from txport.training.shortlists.command import main
from txport.training.shortlists.links import Links

SOURCES = ["It cost $5.", "See you at 5 pm.", "Call me at 9 am.", "It cost $12."]
TARGETS = ["it cost five dollars", "see you at five p m", "call me at nine a m", "it cost twelve dollars"]
MORE = ["It was $3.", "See you on Monday.", "Call me at 7 pm.", "I have 3 cats.", "Hello", "Good night, Anna."]
NO_CHECK = ("--frequent", "4", "--no-check")
needs_fused = pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")


@pytest.fixture
def aligned(attention_bundle: Path, tmp_path: Path) -> Path:
    """A bundle that gives attention, to change."""
    return Path(shutil.copytree(attention_bundle, tmp_path / "bundle"))


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "source").write_text("\n".join(SOURCES) + "\n")
    (tmp_path / "target").write_text("\n".join(TARGETS) + "\n")
    return "--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")


def shortlist(bundle: Path, *arguments: str) -> str:
    done = CliRunner().invoke(main, [str(bundle), "--threads", "1", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def words(bundle: Path, text: str) -> set[int]:
    manifest = Manifest.load(bundle)
    made = open_shortlist(bundle, manifest)
    assert made is not None
    with Translator(bundle, "cpu", threads=1) as translator:
        return set(made.words(translator.tokenizer.encode_source(text)[0]).tolist())


@pytest.mark.parametrize(("count", "expected"), [(1, [(2, 7), (3, 1)]), (2, [(2, 1), (2, 7), (3, 1)])])
def test_the_heaviest_links_of_each_source_id(count: int, expected: Sequence[tuple[int, int]]) -> None:
    links = Links(10)
    links.add([2, 2, 3], [7, 1, 1])
    links.add([2], [7])
    links.add([2], [8], [0.5])
    assert sorted(zip(*(each.tolist() for each in links.best(count)), strict=True)) == expected


@needs_fused
def test_attention_links_words_and_bleu_is_compared(aligned: Path, corpus: tuple[str, ...]) -> None:
    """Of a corpus of what the model says, so that its list has these words."""
    asked = [*SOURCES, *MORE]
    with Translator(aligned, "cpu", threads=1) as translator:
        made = dict(zip(asked, translator.translate(asked, scores=True), strict=True))
        encode = translator.tokenizer.encode_prefix
    # The model has learned little, and writes some words by other pieces than those that they are read as.
    sources = [source for source, each in made.items() if encode(each.text) == each.ids[: len(encode(each.text))]]
    plain = [made[source] for source in sources]
    assert len(sources) >= 4
    for file, lines in ((corpus[1], sources), (corpus[3], [each.text for each in plain])):
        Path(file).write_text("\n".join(lines) + "\n")
    check = ("--check-source", corpus[1], "--check-reference", corpus[3])
    said = shortlist(aligned, *corpus, "--frequent", "500", *check)
    assert f"{len(sources)} sentences: BLEU" in said and f"{len(sources)} translated the same" in said
    with Translator(aligned, "cpu", threads=1) as translator:
        listed = translator.translate(sources, scores=True, shortlist=True)
    assert [each.ids for each in listed] == [each.ids for each in plain]
    for one, other in zip(plain, listed, strict=True):  # fewer words share the probability
        assert (np.array(other.scores) >= np.array(one.scores) - 1e-5).all()


def test_alignments_of_words_link_their_pieces(aligned: Path, corpus: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "pharaoh").write_text("0-0 1-1 2-2 2-3\n\n\n0-0\n")
    shortlist(aligned, *corpus, "--alignments", str(tmp_path / "pharaoh"), *NO_CHECK)
    with Translator(aligned, "cpu", threads=1) as translator:
        expected = set(translator.tokenizer.encode_prefix("it cost five dollars"))
    assert expected <= words(aligned, SOURCES[0])


def test_a_lexical_table_links_its_pieces(aligned: Path, tmp_path: Path) -> None:
    with Translator(aligned, "cpu", threads=1) as translator:
        assert isinstance(translator.tokenizer, TextTokenizer)
        source, target = translator.tokenizer.source_pieces([20, 21]), translator.tokenizer.target_pieces([30, 31])
    table = tmp_path / "lex.s2t"
    table.write_text(f"{target[0]} {source[0]} 0.9\nNULL {source[0]} 0.1\n{target[1]} {source[0]} 0.05\n")
    shortlist(aligned, "--table", str(table), "--candidates", "1", *NO_CHECK)
    made = open_shortlist(aligned, Manifest.load(aligned))
    assert made is not None
    assert 30 in made.words([20]) and 31 not in made.words([20]) and 30 not in made.words([21])


BAD_TABLES = {
    "a 0.5": "line 1 is 'a 0.5', but a line has a target piece, a source piece and a probability",
    "a b c": "line 1 is 'a b c', but",
    "nosuchpiece x 0.5": "line 1 has the target piece 'nosuchpiece', which the model's vocabulary does not",
    "NULL x 1": "nothing links a source word with a target word",
}


@pytest.mark.parametrize("text", BAD_TABLES)
def test_a_table_of_another_model_is_refused(text: str, aligned: Path, tmp_path: Path) -> None:
    (tmp_path / "lex").write_text(text + "\n")
    with pytest.raises(InputError, match=BAD_TABLES[text]):
        shortlist(aligned, "--table", str(tmp_path / "lex"), *NO_CHECK)


@needs_fused
def test_nothing_is_written_if_bleu_falls(aligned: Path, corpus: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "pharaoh").write_text("0-0\n" * 4)
    before = {path: path.stat().st_mtime_ns for path in aligned.rglob("*")}
    texts = ["It cost $700.", "The train leaves at 8 pm."]
    with Translator(aligned, "cpu", threads=1) as translator:
        answers = [each.text for each in translator.translate(texts)]
    (tmp_path / "check").write_text("\n".join(texts) + "\n")
    (tmp_path / "answers").write_text("\n".join(answers) + "\n")
    check = ("--check-source", str(tmp_path / "check"), "--check-reference", str(tmp_path / "answers"))
    with pytest.raises(InputError, match="and nothing was written: raise --frequent"):
        shortlist(aligned, *corpus, "--alignments", str(tmp_path / "pharaoh"), "--frequent", "1", *check)
    assert {path: path.stat().st_mtime_ns for path in aligned.rglob("*")} == before


def test_bleu_is_compared_by_the_fused_engine(corpus: tuple[str, ...]) -> None:
    check = ("--check-source", corpus[1], "--check-reference", corpus[3])
    with pytest.raises(InputError, match=r"BLEU is compared by the fused engine, and .* runs .*toy_bundle: give --no-"):
        shortlist(TOY, *corpus, *check)


def test_what_cannot_be_together(aligned: Path, corpus: tuple[str, ...], tmp_path: Path) -> None:
    for arguments, words in (
        (corpus, "name sentences to compare BLEU on"),
        (("--no-check",), "name a corpus by --source and --target, or a lexical table by --table"),
        ((*corpus, "--alignments", "x", "--table", "y", "--no-check"), "choose one"),
    ):
        with pytest.raises(InputError, match=words):
            shortlist(aligned, *arguments)
    (tmp_path / "pharaoh").write_text("0-0\n")
    with pytest.raises(InputError, match="has 1 line, and the corpus 4"):
        shortlist(aligned, *corpus, "--alignments", str(tmp_path / "pharaoh"), *NO_CHECK)
