"""JSON to dataclasses: what has no example among the manifests."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from txport.runtime.bundle.strict_json import decode, encode, parse
from txport.runtime.errors import BundleError, CheckpointError, InputError


@dataclass(frozen=True)
class Inner:
    """A nested record."""

    kind: Literal["a", "b"]
    pair: tuple[int, str]


@dataclass(frozen=True)
class Outer:
    """Every kind of field."""

    whole: int
    number: float
    text: str
    flag: bool
    maybe: str | None
    either: int | str
    named: Literal["x"] | int
    many: tuple[Inner, ...]
    table: dict[str, Inner]


GOOD: dict[str, Any] = {
    "whole": 1,
    "number": 0.5,
    "text": "t",
    "flag": True,
    "maybe": None,
    "either": "s",
    "named": "x",
    "many": [{"kind": "a", "pair": [1, "p"]}],
    "table": {"k": {"kind": "b", "pair": [2, "q"]}},
}


def test_there_and_back() -> None:
    value = decode(Outer, GOOD, "x.json")
    assert value.many == (Inner("a", (1, "p")),)
    assert encode(value) == GOOD
    assert decode(Outer, GOOD | {"either": 3, "maybe": "m", "number": 2}, "x.json").number == 2.0


@pytest.mark.parametrize(
    ("field", "bad", "words"),
    [
        ("whole", True, "x.json: whole must be an integer, not true or false"),
        ("whole", 1.0, "must be an integer, not a number"),
        ("number", "1", "must be a number, not a string"),
        ("number", True, "must be a number"),
        ("text", None, "must be a string, not null"),
        ("flag", 1, "must be true or false, not an integer"),
        ("maybe", 1, "must be a string, not an integer"),
        ("either", 1.5, "must be an integer or a string"),
        ("named", "y", "x.json: named is 'y', not one of x"),
        ("named", None, "must be a string or an integer, not null"),
        ("many", {}, "must be an array, not an object"),
        ("many", [{"kind": "c", "pair": [1, "p"]}], "x.json: many[0].kind is 'c', not one of a, b"),
        ("many", [{"kind": "a", "pair": [1]}], "many[0].pair must be an array of 2, not of 1"),
        ("many", [{"kind": "a", "pair": [1, 2]}], "many[0].pair[1] must be a string"),
        ("table", {"k": None}, "x.json: table['k'] must be an object, not null"),
        ("table", {"k": {"kind": "a"}}, "lacks the field 'pair'"),
    ],
)
def test_faults_are_named(field: str, bad: object, words: str) -> None:
    with pytest.raises(BundleError) as caught:
        decode(Outer, GOOD | {field: bad}, "x.json")
    assert words in str(caught.value)


@dataclass(frozen=True)
class ByHand:
    """A record that people write."""

    name: str
    size: int = 3


def test_files_that_people_write_may_leave_out_defaults() -> None:
    assert decode(ByHand, {"name": "n"}, "x", InputError, by_hand=True) == ByHand("n", 3)
    for value, words in (({}, "x lacks the field 'name'"), ({"name": "n", "sise": 1}, "did you mean size?")):
        with pytest.raises(InputError, match=words):
            decode(ByHand, value, "x", InputError, by_hand=True)
    with pytest.raises(BundleError, match="lacks the field 'size'"):
        decode(ByHand, {"name": "n"}, "x")


def test_the_error_is_the_callers() -> None:
    for data in (b"[", b"[]", b"[" * 100_000):
        with pytest.raises(CheckpointError, match=r"^x\.json"):
            parse(data, "x.json", CheckpointError)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # beside other work the first draws are slow
@given(st.dictionaries(st.sampled_from(list(GOOD)), JSON))
def test_nothing_but_a_bundle_error_comes_out(changes: dict[str, Any]) -> None:
    with suppress(BundleError):
        assert encode(decode(Outer, GOOD | changes, "x.json")) == GOOD | changes


@given(st.binary(max_size=100))
def test_any_bytes(data: bytes) -> None:
    try:
        assert isinstance(parse(data, "x.json"), dict)
    except BundleError as error:
        assert str(error).startswith("x.json")
