"""Nothing of a table is cut, however narrow the terminal."""

import io
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from txport.exporter.tables import print_table
from txport.exporter.verification.errors import ErrorSizes
from txport.exporter.verification.report import LoweringReport, Rounding, VerificationReport
from txport.exporter.verification.table import print_report


def printed(heads: list[str], rows: list[list[str]], width: int) -> str:
    output = io.StringIO()
    print_table(heads, rows, Console(file=output, width=width), text_columns=heads[:1])
    return output.getvalue()


CELL = st.text(string.ascii_letters + string.digits + " ./", max_size=12)


@settings(deadline=None)
@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(CELL, min_size=n, max_size=n), min_size=2, max_size=4)))
def test_every_character_is_there(lines: list[list[str]]) -> None:
    heads, *rows = lines
    for width in (40, 80):
        text = printed(heads, rows, width)
        assert "…" not in text and max(map(len, text.splitlines()), default=0) <= width
        found, wanted = (re.sub(r"[\s─]", "", each) for each in (text, "".join(map("".join, lines))))
        assert sorted(found) == sorted(wanted)


def test_words_stay_whole_where_there_is_room() -> None:
    text = printed(["lowering", "largest logit error"], [["tensorscatter", "1e-6"]], 22)
    assert all(word in text for word in ("lowering", "largest", "logit", "error", "tensorscatter", "1e-6"))


@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_the_report_of_a_verification_fits_80_columns(count: int) -> None:
    sizes = {"sentences": count, "token_identical": count, "loop_sentences": count, "loop_identical": count}
    errors = {"max_logit_error": 4.3e-06, "mean_logit_error": 3e-07, "max_encoder_error": 2e-06}
    lowerings = [LoweringReport(name, **sizes, **errors) for name in ("ort", "scatter", "tensorscatter")]  # type: ignore[arg-type]
    rounding = Rounding("float32", ErrorSizes(1e-7, 1e-7, 1e-6), 4.0)
    report = VerificationReport(
        3, True, "float32", "float32", "x", rounding, count, 0, count, 10, 1e-6, [], lowerings, {}, ["a note"]
    )
    output = io.StringIO()
    print_report(report, Console(file=output, width=80))
    text = output.getvalue()
    assert "…" not in text and "a note" in text
    for words in ("lowering", "identical", "padded", "encoder", "tensorscatter", f"{count}/{count}", "4.3e-06"):
        assert words in text
    assert ("on 1 sentence (" in text) == (count == 1)
