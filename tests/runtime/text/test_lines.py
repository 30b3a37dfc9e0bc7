"""Lines from files, pipes and people."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.lines import (
    FIRST_LINES,
    MAX_LINE_BYTES,
    as_line,
    open_lines,
    read_lines,
    text_windows,
    windows,
)


@contextmanager
def pipe(*chunks: bytes, pause: float = 0.0) -> Iterator[int]:
    """The reading end of a pipe into which another thread writes."""
    reading, writing = os.pipe()

    def write() -> None:
        for chunk in chunks:
            os.write(writing, chunk)
            time.sleep(pause)
        os.close(writing)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield reading
    finally:
        thread.join()
        os.close(reading)


def split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=20) | st.just(b"\n") | st.just(b"ab\ncd\n"), max_size=20),
    st.integers(1, 5),
    st.integers(1, 6),
)
def test_lines_are_those_of_the_bytes(chunks: list[bytes], most: int, first: int) -> None:
    with pipe(*chunks) as descriptor:
        found = list(windows(descriptor, most, first))
    assert [line for window in found for line in window] == split(b"".join(chunks))
    assert all(1 <= len(window) <= min(most, first * 2**i) for i, window in enumerate(found))


def test_other_line_ends_are_text(tmp_path: Path) -> None:
    data = "a\r\nb\x0bc\x0cd\x1ce\x85f\u2028g\rh\0i\n\nj".encode()
    (tmp_path / "x").write_bytes(data)
    with open_lines(tmp_path / "x") as found:
        assert list(found) == [split(data)]


def test_a_file_comes_in_full_windows(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"line\n" * 2500)
    with open_lines(tmp_path / "x") as found:
        assert [len(window) for window in found] == [1024, 1024, 452]


def test_windows_grow_where_somebody_waits(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"line\n" * 2500)
    with open_lines(tmp_path / "x", first=FIRST_LINES) as found:
        assert [len(window) for window in found] == [32, 64, 128, 256, 512, 1024, 484]
    with open_lines(tmp_path / "x", 1000, 2000) as found:
        assert [len(window) for window in found] == [1000, 1000, 500]


def test_large_lines_come_in_small_windows(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes((b"x" * 300_000 + b"\n") * 20)
    with open_lines(tmp_path / "x") as found:
        sizes = [len(window) for window in found]
    assert sum(sizes) == 20 and max(sizes) <= 4


def test_a_line_is_given_at_once() -> None:
    reading, writing = os.pipe()
    try:
        found = windows(reading)
        for text in (b"one", b"two"):
            os.write(writing, text + b"\nha")
            assert next(found) == [text if text == b"one" else b"ha" + text]
        os.close(writing)
        assert list(found) == [[b"ha"]]
    finally:
        os.close(reading)


def test_a_line_in_many_pieces() -> None:
    with pipe(b"a", b"b", b"c\nd", b"e", pause=0.01) as descriptor:
        assert list(windows(descriptor)) == [[b"abc"], [b"de"]]


def test_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with open_lines(tmp_path / "x") as found:
        assert list(found) == []


def test_bytes_that_are_not_utf8() -> None:
    texts = text_windows(iter([[b"a", b""], [b"b", "é".encode(), b"ab\xe9cd", b"z"]]))
    assert next(texts) == ["a", ""]
    assert next(texts) == ["b", "é"]
    with pytest.raises(InputError, match=r"line 5 is not UTF-8 \(byte 3 is 0xe9\)"):
        next(texts)


@pytest.mark.parametrize("data", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"a\xe2\x82"])
def test_all_that_is_not_utf8(data: bytes) -> None:
    with pytest.raises(InputError, match="line 1 is not UTF-8"):
        list(text_windows([[data]]))


@given(st.lists(st.binary(max_size=8) | st.sampled_from([b"", b"a\xff", "é🙂".encode(), b"\xe2\x82"]), max_size=9))
def test_lines_that_are_not_utf8_need_not_end_it(lines: list[bytes]) -> None:
    def strictly(line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            return ""

    (replaced,) = text_windows([lines], "replace")
    assert replaced == [line.decode("utf-8", "replace") for line in lines]
    (skipped,) = text_windows([lines], "skip")
    assert skipped == [strictly(line) for line in lines]


def test_what_may_become_of_them_is_named() -> None:
    with pytest.raises(InputError, match="errors 'ignore' is not known: use strict, replace, skip"):
        next(text_windows([], "ignore"))
    with pytest.raises(InputError, match=r"in\.txt, line 1 .* or choose --errors replace or skip"):
        next(text_windows([[b"\xff"]], what="in.txt, line"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"), open_lines(tmp_path / "nowhere"):
        pass
    with pytest.raises(InputError, match="is a directory"), open_lines(tmp_path):
        pass
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(InputError, match="the input cannot be read: Is a directory"):
        next(windows(descriptor))
    os.close(descriptor)


def test_a_line_break_in_a_translation_stays_in_its_line() -> None:
    assert as_line("a\nb\r") == b"a b\r\n"


@pytest.mark.parametrize(
    ("data", "lines"),
    [(b"", []), (b"\n", [""]), (b"a\n\nb", ["a", "", "b"]), (b"\xef\xbb\xbfa\r\nb\x0b\n", ["a", "b\x0b"])],
)
def test_the_lines_of_a_whole_file(tmp_path: Path, data: bytes, lines: list[str]) -> None:
    (tmp_path / "x").write_bytes(data)
    assert read_lines(tmp_path / "x") == lines


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\nb\xe9\n")
    with pytest.raises(CheckpointError, match=r"x, line 2 is not UTF-8 \(byte 2 is 0xe9\)"):
        read_lines(tmp_path / "x", CheckpointError)
    with pytest.raises(InputError, match="none cannot be read: No such file"):
        read_lines(tmp_path / "none")


def test_a_byte_order_mark_is_dropped_before_the_first_line_only() -> None:
    mark = b"\xef\xbb\xbf"
    found = list(text_windows(iter([[mark + b"a", mark + b"b"], [mark + b"c"]])))
    assert found == [["a", "\ufeffb"], ["\ufeffc"]]


def test_lines_that_are_too_long(tmp_path: Path) -> None:
    long = [b"a", b"b" * (MAX_LINE_BYTES + 1), b"c" * MAX_LINE_BYTES]
    for errors in ("strict", "replace"):
        found = text_windows(iter([long]), errors)
        assert next(found) == ["a"]
        with pytest.raises(InputError, match=r"line 2 has 1,048,577 bytes, more than 1,048,576: .* skip"):
            next(found)
    assert next(text_windows(iter([long]), "skip")) == ["a", "", "c" * MAX_LINE_BYTES]
    (tmp_path / "a").write_bytes(b"\n".join(long))
    with pytest.raises(InputError, match=r"a, line 2 has 1,048,577 bytes"):
        read_lines(tmp_path / "a")
