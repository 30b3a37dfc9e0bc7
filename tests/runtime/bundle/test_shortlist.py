"""Files of shortlists: what is written is read, by both languages' rules, and what cannot be is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy import BUNDLE, TOKENS, VOCABULARY
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.shortlist import Shortlist, put_shortlist
from txport.runtime.errors import BundleError, InputError
from txport.runtime.options import Options
from txport.runtime.translator import Translator

Int32 = "<i4"
IDS = st.sets(st.integers(0, VOCABULARY - 1), max_size=9).map(sorted)


def shortlist(*own: list[int], always: tuple[int, ...] = (TOKENS.eos, 18, 35)) -> Shortlist:
    """That of the toy bundle: `own` are of the first source ids."""
    lists = [*own, *[[]] * (VOCABULARY - len(own))]
    starts = np.cumsum([0, *map(len, lists)])
    return Shortlist(
        np.array(always), starts, np.array([word for each in lists for word in each], np.int64), VOCABULARY
    )


def load(path: Path) -> Shortlist:
    return Shortlist.load(path, VOCABULARY, VOCABULARY, TOKENS.eos)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(own=st.lists(IDS, max_size=9), source=st.lists(st.integers(0, 20), max_size=9), more=IDS)
def test_what_is_written_is_read(own: list[list[int]], source: list[int], more: list[int], tmp_path: Path) -> None:
    file = tmp_path / "shortlist"
    file.write_bytes(shortlist(*own).to_bytes())
    expected = {TOKENS.eos, 18, 35, *more}.union(*(own[word] for word in source if word < len(own)))
    assert load(file).words(source, more).tolist() == sorted(expected)


def _numbers(change: Callable[[np.ndarray], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        numbers = np.frombuffer(data, Int32).copy()
        change(numbers)
        return numbers.tobytes()

    return changed


def _put(place: int, value: int) -> Callable[[bytes], bytes]:
    return _numbers(lambda numbers: numbers.__setitem__(place, value))


DAMAGES = {
    "is not a shortlist": lambda data: b"",
    "is not a shortlist: make": lambda data: b"PK" + data[2:],
    "is of version 2": _put(1, 2),
    "is for vocabularies of 95 and 96 ids, but the model has 96 and 96": _put(2, 95),
    "has 97 words in every list, more than the vocabulary of 96": _put(4, 97),
    "bytes, which differs from its header": lambda data: data[:-4],
    "bytes, which differs from its header: make": _put(5, -1),
    "lacks the end of sequence, 3": _put(6, 2),
    "has the word 96, outside the vocabulary of 96": _put(8, 96),
    "has the word -1, outside": _put(-1, -1),
    "has words that are not in ascending order": _put(7, 3),
    "ascending order: make it again with tx-shortlist": _put(-1, 5),
    "has word ranges that are not consecutive": _put(10, 9),
    "that are not consecutive: make it again": _put(9, 1),  # the first word of id 0 would be left out
}


@pytest.mark.parametrize("words", DAMAGES)
def test_what_cannot_be_is_refused(words: str, tmp_path: Path) -> None:
    file = tmp_path / "shortlist"
    file.write_bytes(DAMAGES[words](shortlist([5, 9], [6, 7, 8]).to_bytes()))
    with pytest.raises(BundleError, match=words):
        load(file)


def test_an_empty_list_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(shortlist(always=()).to_bytes())
    with pytest.raises(BundleError, match="lacks the end of sequence"):
        load(tmp_path / "x")
    with pytest.raises(BundleError, match="cannot be read"):
        load(tmp_path / "y")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))


def test_a_bundle_gets_another_one_and_notices_a_changed_file(bundle: Path) -> None:
    first = put_shortlist(shortlist([5]), bundle, Manifest.load(bundle))
    second = put_shortlist(shortlist([6]), bundle, Manifest.load(bundle))
    assert not first.exists() and put_shortlist(shortlist([6]), bundle, Manifest.load(bundle)) == second
    data = bytearray(second.read_bytes())
    data[-4] ^= 1
    second.write_bytes(data)
    with pytest.raises(BundleError, match="was changed"):
        Translator(bundle, "cpu")
    second.unlink()
    with pytest.raises(BundleError, match="missing"):
        Translator(bundle, "cpu")


def test_prefixes_and_ends_outside_a_list_are_added_to_it(bundle: Path) -> None:
    put_shortlist(shortlist(), bundle, Manifest.load(bundle))
    with Translator(bundle, "cpu") as translator:

        def tokens_of(**options: Any) -> set[int]:
            call = translator._bundle.call(Options(shortlist=True, **options), {})
            words = call.of_ids([5, 9, 3]).request.words
            assert words is not None
            return set(words.tolist())

        assert tokens_of() == {3, 18, 35}
        assert tokens_of(prefix=[40, 41]) == {3, 18, 35, 40, 41}
        assert tokens_of(forced_end=50) == {3, 18, 35, 50}
        assert tokens_of(end_ids=[60]) == {3, 18, 35, 60}
        with pytest.raises(InputError, match="a shortlist needs the fused engine, and ONNX Runtime"):
            translator.translate_ids([[5, 9, 3]], shortlist=True)


def test_a_bundle_without_one_says_so() -> None:
    with Translator(BUNDLE, "cpu") as translator, pytest.raises(InputError, match="has no shortlist: make one with"):
        translator.translate(["a cat"], shortlist=True)
