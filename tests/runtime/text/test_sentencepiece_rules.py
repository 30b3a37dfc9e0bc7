"""What a SentencePiece model may contain. Hostile tables are written unit by unit; tests/cpp reads the same ones."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_hostile_pieces import cases, chain, table, trained, with_table
from txport.runtime.errors import BundleError
from txport.runtime.text import sentencepiece_rules
from txport.runtime.text.sentencepiece_rules import check_sentencepiece
from txport.runtime.text.sides import SentencePieceSide

DATA = Path(__file__).parents[2] / "data"
SHARED = json.loads((DATA / "hostile_pieces.json").read_bytes())
MODEL = bytes.fromhex(SHARED["model"])


@pytest.mark.parametrize("name", cases())
def test_models_that_pass_and_that_do_not(name: str) -> None:
    added, words = cases()[name]
    if not words:
        check_sentencepiece(MODEL + added)
        return
    with pytest.raises(ValueError, match=words):
        check_sentencepiece(MODEL + added)


def test_the_files_that_cpp_reads_are_these() -> None:
    shared = {name: (bytes.fromhex(each["added"]), each["words"]) for name, each in SHARED["cases"].items()}
    assert shared.items() <= cases().items() and len(shared) == len(cases()) - 1


@pytest.mark.parametrize("model", sorted(DATA.glob("**/*.model")), ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_committed_models_pass(model: Path) -> None:
    check_sentencepiece(model.read_bytes())


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"])
def test_every_table_of_the_library_is_known_and_passes(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c aa ab ba bb abc cab bca aab bba"] * 20),
        model_writer=model,
        vocab_size=12,
        normalization_rule_name=rule,
        minloglevel=2,
    )
    with monkeypatch.context() as patched:
        patched.setattr(sentencepiece_rules, "_Table", None)  # follows unknown tables
        check_sentencepiece(model.getvalue())
    monkeypatch.setattr(sentencepiece_rules, "_TRUSTED_TABLES", set())
    check_sentencepiece(model.getvalue())


def test_the_tables_of_these_tests_are_what_the_library_reads(tmp_path: Path) -> None:
    """A chain of rules writes b for the longest run of a up to its length."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=trained() + with_table(table(chain(3))))
    assert [processor.Normalize(text) for text in ("a", "aaa", "aaaac")] == ["▁b", "▁b", "▁bbc"]


def test_a_bundle_with_a_hostile_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.model"
    file.write_bytes(MODEL + cases()["root leads out"][0])
    with pytest.raises(
        BundleError, match=r"x\.model has a normalisation table that leads out of itself: copy or export"
    ):
        SentencePieceSide(file)


def _follows(units: tuple[int, ...], text: bytes, key: bytes) -> None:
    """Search as Darts-clone does, with what it does not check: fails where it would read outside."""

    def offset(unit: int) -> int:
        return unit >> 10 << ((unit & 0x200) >> 6)

    place, rules = offset(units[0]), 0
    for byte in key:
        place ^= byte
        unit = units[place]
        if unit & 0x800000FF != byte:
            return
        place ^= offset(unit)
        if unit & 0x100:
            rules += 1
            assert text.index(b"\0", units[place] & 0x7FFFFFFF) >= 0
    assert rules <= 32


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_text_leads_out_of_a_changed_table_that_passes(data: st.DataObject) -> None:
    units, text = chain(data.draw(st.integers(1, 4))), b"b\0"
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.sampled_from([0, *range(256, 262), *(place ^ ord("a") for place in range(256, 262))]))
        units[at] = data.draw(st.integers(0, 2**32 - 1) | st.integers(0, 1024).map(lambda n: n << 10 | 97))
    try:
        check_sentencepiece(with_table(table(units, text)))
    except ValueError:
        return
    read = struct.unpack(f"<{len(units)}I", struct.pack(f"<{len(units)}I", *units))
    for key in (b"a" * 40, bytes(range(256)), data.draw(st.binary(max_size=20)), b"\0" * 20):
        _follows(read, text, key)
