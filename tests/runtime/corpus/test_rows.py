"""One row out for each row in, in order, whatever the format, the parts and the rows."""

import bz2
import datetime
import gzip
import io
import json
import lzma
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from corpora import BUNDLE, LIMIT, all_rows, content, parts_of, rows_of, run, sentences, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from txport.runtime.corpus.loop import Corpus, Layout, Share
from txport.runtime.corpus.translation import Translate
from txport.runtime.errors import InputError
from txport.runtime.options import Options
from txport.runtime.translator import Translator

pytest.importorskip("pyarrow", reason="needs Arrow, zstd and fsspec: pip install 'txport[corpus]'")
TEXTS = sentences(60)
FORMATS = ["a.txt", "a.txt.gz", "a.en.zst", "a.jsonl", "a.jsonl.gz", "a.ndjson.zst", "a.parquet"]
FORMATS += ["A.TXT.GZ", "a.Jsonl", "a.txt.bz2", "a.jsonl.xz", "A.PARQUET"]


def translations(toy: Translator, texts: list[str]) -> list[str]:
    return [result.text for result in toy.translate(texts, max_length=LIMIT)]


def answers(rows: list[Any]) -> list[str]:
    return [row if isinstance(row, str) else row["translation"] for row in rows]


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_and_compression(toy: Translator, tmp_path: Path, name: str) -> None:
    said = run(write(tmp_path / name, TEXTS), tmp_path / "out", "--part-rows", 25, "--window-rows", 10)
    rows = all_rows(tmp_path / "out")
    assert answers(rows) == translations(toy, TEXTS)
    assert [len(rows_of(part)) for part in parts_of(tmp_path / "out")] == [25, 25, 10]
    assert said.startswith(f"{tmp_path / 'out'}: 3 parts made; 60 rows, ")
    if not isinstance(rows[0], str):
        assert [(row["n"], row["text"]) for row in rows] == list(enumerate(TEXTS)), "kept as they are"


@pytest.mark.parametrize("to", ["text", "jsonl", "parquet"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_from_each_format_to_each(toy: Translator, tmp_path: Path, name: str, to: str) -> None:
    run(write(tmp_path / name, TEXTS), tmp_path / "out", "--to", to, "--compress", "none", "--keep", "text")
    rows = all_rows(tmp_path / "out")
    assert answers(rows) == translations(toy, TEXTS)
    assert to == "text" or [row["text"] for row in rows] == TEXTS


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.txt", ["--column", "source"], "--column source has no effect on lines of text"),
        ("a.txt", ["--keep", "source,id"], "--keep source has no effect on lines of text"),
        ("a.txt", ["--to", "jsonl", "--keep", "id"], "--keep id has no effect on lines of text"),
        ("a.jsonl", ["--to", "text", "--keep", "id"], "--keep id has no effect on lines of text"),
        ("a.txt", ["--target", "fr"], "--target fr has no effect on lines of text"),
        ("a.jsonl", ["--to", "text", "--target", "fr"], "--target fr has no effect on lines of text"),
        ("a.jsonl", ["--to", "parquet", "--compress", "gz"], "--compress gz has no effect on Parquet"),
        ("a.parquet", ["--compress", "xz"], "--compress xz has no effect on Parquet"),
    ],
)
def test_options_of_formats_without_effect_are_refused(
    tmp_path: Path, name: str, options: list[str], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        run(write(tmp_path / name, TEXTS), tmp_path / "out", *options)


def test_files_of_one_part_are_shared_by_all_processes() -> None:
    shares = [Share(number, 3) for number in range(3)]
    assert [[share.includes(file, 0) for file in range(6)].count(True) for share in shares] == [2, 2, 2]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.sampled_from(TEXTS), max_size=30),
    part=st.integers(1, 12),
    window=st.integers(1, 12),
    shards=st.permutations(range(3)),
    name=st.sampled_from(["a.txt", "a.jsonl.zst", "a.parquet"]),
)
def test_any_parts_and_shares_are_the_whole(
    toy: Translator, tmp_path_factory: pytest.TempPathFactory, rows: list[str], part: int, window: int,
    shards: list[int], name: str,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("any")
    files = [write(folder / name, rows), write(folder / f"b{name[1:]}", rows[::-1])]
    task = Translate(BUNDLE, lambda: toy, Options(max_length=LIMIT))
    corpus = Corpus(list(map(str, files)), str(folder / "out"), Layout(part_rows=part, window_rows=window), task)
    totals = [corpus.run(Share(shard, 3)) for shard in shards]
    assert sum(total.rows for total in totals) == 2 * len(rows)
    assert answers(all_rows(folder / "out")) == translations(toy, rows + rows[::-1])
    assert len(parts_of(folder / "out")) == 2 * max(1, -(-len(rows) // part))


def test_columns_are_what_the_translator_says(tmp_path: Path) -> None:
    flags = ["--beam", 2, "--n-best", 2, "--scores", "--ids"]
    with Translator(BUNDLE, threads=1) as translator:
        expected = translator.translate(TEXTS[:12], max_length=LIMIT, beam=2, n_best=2, scores=True)
    found = {}
    for name in ("a.jsonl", "a.parquet"):
        run(write(tmp_path / name, TEXTS[:12]), tmp_path / name[2:], *flags)
        found[name] = all_rows(tmp_path / name[2:])
    assert found["a.jsonl"] == found["a.parquet"]
    for row, result in zip(found["a.jsonl"], expected, strict=True):
        assert (row["translation"], row["ids"]) == (result.text, result.ids)
        assert row["scores"] == pytest.approx(result.scores, abs=1e-5)
        best = [each.text for each in result.hypotheses or (result,)]
        assert [each["text"] for each in row["hypotheses"]] == best
        assert (row["finished"], row["truncated"], row["error"]) == (result.finished, result.truncated, None)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_alignments_and_scores_are_columns_of_each_hypothesis_too(
    attention_bundle: Path, tmp_path: Path, name: str
) -> None:
    texts = ["one hundred and five", "seven", "", "it is ten past nine"]
    asked: dict[str, Any] = {"beam": 3, "n_best": 2, "scores": True, "alignments": True}
    with Translator(attention_bundle, threads=1) as translator:
        expected = translator.translate(texts, max_length=LIMIT, **asked)
    flags = ["--beam", 3, "--n-best", 2, "--scores", "--alignments"]
    run(write(tmp_path / name, texts), tmp_path / "out", *flags, bundle=attention_bundle)
    rows = all_rows(tmp_path / "out")
    for row, result in zip(rows, expected, strict=True):
        for found, each in zip([row, *row["hypotheses"]], [result, *(result.hypotheses or [result])], strict=True):
            assert found["alignment"] == (each.alignment.pharaoh if each.alignment else "")
            assert found["scores"] == pytest.approx(each.scores or [], abs=1e-5)
            assert found["score"] == (None if each.score is None else pytest.approx(each.score, abs=1e-5))
    assert [len(row["hypotheses"]) for row in rows] == [2, 2, 1, 2] and sum(bool(row["alignment"]) for row in rows) == 3


def test_columns_have_their_types_where_all_is_null(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    flags = ["--beam", 2, "--n-best", 2, "--scores", "--ids"]
    whole = write(tmp_path / "a.parquet", ["one"])
    run(whole, tmp_path / "a", *flags)
    kinds = pyarrow.parquet.read_schema(tmp_path / "a" / "a-00000.parquet")
    for rows in ([], [None]):
        table = pyarrow.table({"n": pyarrow.array(range(len(rows)), "int64"), "text": pyarrow.array(rows, "string")})
        pyarrow.parquet.write_table(table, whole)
        run(whole, tmp_path / f"b{len(rows)}", *flags)
        assert pyarrow.parquet.read_schema(tmp_path / f"b{len(rows)}" / "a-00000.parquet") == kinds


BAD = {
    b'{"text": "t\xffo"}': "is not UTF-8 (byte 12 is 0xff)",
    b'{"text": null}': "is null",
    b'{"text": 3}': "of type int",
    b'{"txt": "one"}': "no 'text'",
    b'{"text": "one"': "not JSON (",
    b"": "not JSON (",
    b'["one"]': "not a JSON object",
    b"[" * 100_000: "not JSON (",
    b'{"text": "\\ud800"}': "not valid text",
    b'{"text": "one", "error": "mine"}': "'error' already",
    b'{"text": "' + b"a" * 2_000_000 + b'"}': "more than 1,048,576 bytes",
}


def test_a_poisoned_row_is_reported_and_shifts_nothing(toy: Translator, tmp_path: Path) -> None:
    good = [json.dumps({"text": text}).encode() for text in TEXTS[: len(BAD) + 1]]
    lines = [line for pair in zip(good, BAD, strict=False) for line in pair] + [good[-1]]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    said = run(tmp_path / "a.jsonl", tmp_path / "out", "--part-rows", 7, "--window-rows", 3)
    rows = all_rows(tmp_path / "out")
    assert answers(rows[::2]) == translations(toy, TEXTS[: len(BAD) + 1]) and len(rows) == len(lines)
    for row, reason in zip(rows[1::2], BAD.values(), strict=True):
        assert reason in row["error"] and row["translation"] is None
    assert f", {len(BAD)} errors" in said


def test_errors_in_a_text_have_a_file_of_their_own(toy: Translator, tmp_path: Path) -> None:
    long = "one two " * 40
    (tmp_path / "a.txt").write_bytes(f"one\n{long}\n".encode() + b"t\xffo\n\nthree")
    run(tmp_path / "a.txt", tmp_path / "out", "--part-rows", 2)
    assert all_rows(tmp_path / "out") == translations(toy, ["one", long, "", "", "three"]), "what is long is cut"
    run(tmp_path / "a.txt", tmp_path / "strict", "--part-rows", 2, "--strict")
    reports = [
        json.loads(line) for part in parts_of(tmp_path / "strict" / "_errors") for line in part.read_text().splitlines()
    ]
    assert [report["row"] for report in reports] == [1, 2]
    run(tmp_path / "a.txt", tmp_path / "windows", "--part-rows", 5, "--window-rows", 1, "--strict")
    assert (tmp_path / "windows" / "_errors" / "a-00000.txt.jsonl").read_bytes().splitlines() == [
        json.dumps(report).encode() for report in reports
    ]
    assert "more than the 24 tokens" in reports[0]["error"] and "0xff" in reports[1]["error"]
    assert all_rows(tmp_path / "strict") == translations(toy, ["one", "", "", "", "three"])
    run(tmp_path / "a.txt", tmp_path / "replace", "--errors", "replace")
    assert all_rows(tmp_path / "replace")[2] == translations(toy, ["t\ufffdo"])[0]


def test_strict_errors_stop_before_the_part(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\nt\xffo\n")
    with pytest.raises(
        InputError, match=r"a\.txt, row 3: the row is not UTF-8 \(byte 2 is 0xff\): repair it, or choose"
    ):
        run(tmp_path / "a.txt", tmp_path / "out", "--errors", "strict", "--part-rows", 2)
    assert [part.name for part in parts_of(tmp_path / "out")] == ["a-00000.txt"]


def test_bytes_nulls_and_dictionaries_of_parquet(toy: Translator, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    raw = pyarrow.array([b"one", b"t\xffo", None, b"", b"three"])
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 5, raw.buffers(), null_count=1)
    plain = pyarrow.array(["one", "two", None, "", "three"])
    columns = {"raw": raw, "broken": broken, "of": plain.dictionary_encode(), "large": plain.cast("large_string")}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    for name in columns:
        run(tmp_path / "a.parquet", tmp_path / name, "--column", name, "--keep", "")
        rows = all_rows(tmp_path / name)
        second = "two" if name in ("of", "large") else ""
        expected = translations(toy, ["one", second, "", "", "three"])
        assert [row["translation"] or "" for row in rows] == expected
        faults = [row["error"] for row in rows]
        assert faults[2] == "the row is null" and (faults[1] is None) == (second == "two"), faults
    run(tmp_path / "a.parquet", tmp_path / "replace", "--column", "broken", "--keep", "", "--errors", "replace")
    assert all_rows(tmp_path / "replace")[1]["translation"] == translations(toy, ["t\ufffdo"])[0]


def test_draws_do_not_depend_on_who_makes_a_part(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", TEXTS)
    flags = ["--part-rows", 20, "--sample", "--temperature", 3, "--seed", 5]
    run(file, tmp_path / "one", *flags)
    for shard in ("3/3", "1/3", "2/3"):
        run(file, tmp_path / "three", *flags, "--shard", shard)
    assert content(tmp_path / "one") == content(tmp_path / "three")
    run(file, tmp_path / "other", *flags[:-1], 6)
    assert all_rows(tmp_path / "one") != all_rows(tmp_path / "other")


def zipped(text: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", text)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.json", b'["one"]', r"a\.json is \.json, which is not read: convert it .* --from jsonl"),
        ("a.CSV", b"one,two", r"\.csv, which is not read"),
        ("a.tar.gz", gzip.compress(b"one", mtime=0), r"\.tar, which is not read"),
        ("a.txt", gzip.compress(b"one", mtime=0), "packed by gz, which its name does not end with: rename it"),
        ("a.txt.gz", bz2.compress(b"one"), "packed by bz2"),
        ("a.jsonl", lzma.compress(b"{}"), "packed by xz"),
        ("a", zipped(b"one"), "a zip archive, not text"),
        ("a.txt", "one\ntwo\n".encode("utf-16"), "UTF-16, not text"),
        ("a.txt", "one\ntwo\n".encode("utf-16-le"), "a binary file, not text"),
        ("a.txt.gz", gzip.compress(b"PAR1\x15\x04" + bytes(50), mtime=0), "Parquet, not text"),
        ("a.txt.bz2", b"BZh9 and no more", "is damaged, or ends too early"),
        ("a.txt.xz", lzma.compress(b"one" * 100)[:-9], "is damaged, or ends too early"),
    ],
)
def test_files_of_other_kinds_are_refused(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=reason):
        run(tmp_path / name, tmp_path / "out")


def test_text_that_begins_like_a_packed_file_is_text(toy: Translator, tmp_path: Path) -> None:
    texts = ["BZh is short", "ORC", "PK and", "PAR1 one", "%PDF", "7z"]
    run([write(tmp_path / f"{n}.txt", [text]) for n, text in enumerate(texts)], tmp_path / "out")
    assert all_rows(tmp_path / "out") == translations(toy, texts)


def test_a_named_format_overrides_the_name(toy: Translator, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": "one"}\n')
    run(tmp_path / "a.json", tmp_path / "out", "--from", "jsonl")
    assert answers(all_rows(tmp_path / "out")) == translations(toy, ["one"])


def test_all_files_below_a_directory(toy: Translator, tmp_path: Path) -> None:
    for folder in ("", "b", "b/c", "_logs", ".git"):
        (tmp_path / "in" / folder).mkdir(parents=True)
        write(tmp_path / "in" / folder / f"x{folder.replace('/', '')}.txt", [WORD[folder]])
    for n, files in enumerate(("in", "in/*", "in/**/*.txt", f"file://{tmp_path}/in", f"file://{tmp_path}/in/*")):
        place = files if "://" in files else str(tmp_path / files)
        run([place], tmp_path / f"out{n}")
        expected = [WORD[folder] for folder in ("", "b", "b/c", *["_logs"] * ("**" in files))]  # named by the pattern
        assert sorted(all_rows(tmp_path / f"out{n}")) == sorted(translations(toy, expected)), files
    (tmp_path / "in" / "b" / "gone.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"gone\.txt is not a file"):
        run([tmp_path / "in"], tmp_path / "gone")
    (tmp_path / "in" / "b" / "gone.txt").unlink()
    write(tmp_path / "in" / "b" / "x.txt", ["four"])
    with pytest.raises(InputError, match=r"two input files are called x"):
        run([tmp_path / "in"], tmp_path / "twice")


WORD = {"": "one", "b": "two", "b/c": "three", "_logs": "eight", ".git": "nine"}


def odd_columns() -> dict[str, Any]:
    """Columns of types that Python has no values for without pandas, or that JSON has not."""
    import pyarrow as pa

    def of(values: list[Any], raw: Any, kind: Any) -> Any:
        return pa.array(values, raw).cast(kind)

    nanoseconds = of([1, None, 10**18 + 1], pa.int64(), pa.timestamp("ns"))
    return {
        "ns": nanoseconds,
        "late": of([253402300805, None, 2**50], pa.int64(), pa.timestamp("s")),
        "zone": of([1, None, 2], pa.int64(), pa.timestamp("us", "Mars/Base")),
        "duration": of([1, None, 2], pa.int64(), pa.duration("ns")),
        "time": of([1, None, 2], pa.int64(), pa.time64("ns")),
        "date": of([1, None, 5_000_000], pa.int32(), pa.date32()),
        "decimal": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
        "float": pa.array([float("nan"), None, float("-inf")]),
        "bytes": pa.array([b"text", None, b"\xff\x00"]),
        "fixed": pa.array([b"abc", None, b"\xff\x00\x01"], pa.binary(3)),
        "nested": pa.array([{"a": [datetime.datetime(2020, 1, 2)]}, None, {"a": []}]),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "flag": pa.array([True, None, False]),
        "null": pa.nulls(3),
        "words": pa.array(["a", None, "b"]).dictionary_encode(),
        "lists": pa.array([["a", None], None, []], pa.large_list(pa.string())),
        "pairs": pa.array([[1, 2], [5, 6], [3, 4]], pa.list_(pa.int64(), 2)),  # pyarrow 25 cannot read a null back
    }


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_columns_that_pass_through_stay_as_they_are(tmp_path: Path) -> None:
    """And become JSON that any reader takes; without pandas, which no test here has."""
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table({**odd_columns(), "text": ["one", "two", "three"]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    stored = pa.parquet.read_table(tmp_path / "a.parquet")
    run(tmp_path / "a.parquet", tmp_path / "out", "--part-rows", 2)
    run(tmp_path / "a.parquet", tmp_path / "out", "--part-rows", 2, "--resume")
    parts = pa.concat_tables([pa.parquet.read_table(part) for part in parts_of(tmp_path / "out")])
    for name in stored.column_names:
        assert parts.column(name).combine_chunks().to_string() == stored.column(name).combine_chunks().to_string(), name
    run(tmp_path / "a.parquet", tmp_path / "json", "--to", "jsonl")
    lines = (tmp_path / "json" / "a-00000.jsonl").read_text().splitlines()
    first, _, last = (json.loads(line, parse_constant=refuse_constant) for line in lines)
    assert first["ns"] == "1970-01-01 00:00:00.000000001" and first["late"] == "10000-01-01 00:00:05.000"
    assert (first["zone"], first["duration"]) == ("1970-01-01 00:00:00.000001", 1)
    assert (first["decimal"], first["float"], last["float"]) == ("1.50", None, None)
    assert (first["bytes"], last["bytes"]) == ("text", {"base64": "/wA="})
    assert first["nested"] == {"a": ["2020-01-02 00:00:00.000000"]} and first["map"] == [["k", 1]]


def test_what_tells_rows_from_others_does_not_depend_on_where_they_lie() -> None:
    import pyarrow as pa
    from txport.runtime.corpus.arrow import content

    for name, column in odd_columns().items():
        alone = list(map(bytes, content(pa.concat_arrays([column.slice(1, 2), column.slice(0, 0)]))))
        assert list(map(bytes, content(column.slice(1)))) == alone, name
        rest = pa.concat_arrays([column.slice(2), column.slice(1, 1)])
        assert name == "null" or list(map(bytes, content(rest))) != alone, name


def test_json_that_is_not_finite_or_has_a_byte_order_mark(toy: Translator, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "one", "x": [NaN, {"y": -Infinity}]}\n{"text": "two", "x": "\\ud800", "z": NaN}\n'
    )
    run(tmp_path / "a.jsonl", tmp_path / "out")
    lines = (tmp_path / "out" / "a-00000.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse_constant) for line in lines]
    assert answers(rows) == translations(toy, ["one", "two"])
    assert rows[0]["x"] == [None, {"y": None}] and rows[1]["x"] == "\ud800"
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    run(tmp_path / "b.txt", tmp_path / "b")
    assert all_rows(tmp_path / "b") == translations(toy, ["one", "\ufefftwo"])
