"""Each option of a translation, set through every door: the same ids come out, and others than without it."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from option_doors import (
    CASES,
    NO_STREAM,
    Case,
    COptions,
    Door,
    Outcome,
    by_c,
    by_cpp_api,
    by_python,
    by_stream,
    by_submit,
    by_tx_translate,
    by_txport_translate,
    multilingual,
)
from toy import BUNDLE as TOY
from txport.runtime.options import OPTIONS, Options

CPP = Path(__file__).parents[2] / "runtime" / "cpp"
BUILD = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere"))
SEARCHES = ("beam", "sample", "alternatives", "generation")  # for streams, which are greedy
NAMES = [field.name for field in fields(Options)]

needs_build = pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")
DOORS = [
    pytest.param(by_stream, id="stream"),
    pytest.param(by_tx_translate, id="tx-translate"),
    pytest.param(by_txport_translate(BUILD / "txport-translate"), id="txport-translate", marks=needs_build),
    pytest.param(by_c(BUILD / "libtxport.so"), id="C", marks=needs_build),
    pytest.param(by_cpp_api(BUILD / "tests" / "txport_options_door"), id="C++", marks=needs_build),
]
SUBMITTED = [
    pytest.param(by_submit, id="Python"),
    pytest.param(by_c(BUILD / "libtxport.so", submitted=True), id="C", marks=needs_build),
    pytest.param(by_cpp_api(BUILD / "tests" / "txport_options_door", submitted=True), id="C++", marks=needs_build),
]


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return multilingual(Path(shutil.copytree(TOY, tmp_path_factory.mktemp("languages") / "bundle")))


@pytest.fixture(scope="module")
def expected(languages: Path) -> Callable[..., Outcome]:
    """`expected(options, alone=False)`: the outcome by Python, which is computed once for all doors."""
    outcomes: dict[str, Outcome] = {}

    def translate(options: Mapping[str, Any], alone: bool = False) -> Outcome:
        key = json.dumps([options, alone], sort_keys=True)
        if key not in outcomes:
            outcomes[key] = by_python(languages, options, alone=alone)
        return outcomes[key]

    return translate


def test_the_table_has_every_option() -> None:
    assert {case.option for case in CASES} == set(NAMES)


def test_the_list_of_options_has_the_names_of_python_and_c() -> None:
    lines = (CPP / "include" / "txport" / "options.inc").read_text().splitlines()
    assert len(OPTIONS) == sum(line.startswith("TXPORT_OPTION(") for line in lines)
    assert list(OPTIONS) == NAMES
    header = (CPP / "include" / "txport" / "txport.h").read_text()
    members = header[header.index("typedef struct txport_options {") : header.index("} txport_options;")]
    declared = re.findall(r"^  \w[\w *]*[ *]+(\w+);", members, re.MULTILINE)
    assert declared == [name for name, *_ in COptions._fields_]
    assert set(NAMES) < set(declared)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.option}={case.value}")
@pytest.mark.parametrize("door", DOORS)
def test_an_option_says_the_same_through_every_door(
    languages: Path, expected: Callable[..., Outcome], door: Door, case: Case
) -> None:
    if case.ids and door.__qualname__.startswith("by_tx"):
        pytest.skip("a command line takes text only")
    options = {**case.others, case.option: case.value}
    assert expected(options) != expected(case.others), "the option changes nothing: choose another value"
    found = door(languages, options)
    if door is by_stream and any(name in options for name in SEARCHES):
        assert found == NO_STREAM
    else:
        assert found == expected(options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.option}={case.value}")
@pytest.mark.parametrize("door", SUBMITTED)
def test_a_submitted_text_is_translated_as_alone(
    languages: Path, expected: Callable[..., Outcome], door: Door, case: Case
) -> None:
    options = {**case.others, case.option: case.value}
    assert door(languages, options) == expected(options, alone=True)
