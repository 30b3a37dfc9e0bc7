"""golden.json: sentences and their expected ids, by which a device checks itself without PyTorch."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from txport.runtime.bundle.archive import Files, files_of
from txport.runtime.bundle.manifest import GOLDEN
from txport.runtime.bundle.strict_json import added, load
from txport.runtime.engine import Engine, Source
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request

if TYPE_CHECKING:  # it needs SentencePiece, which is not there where engines are only built
    from txport.runtime.translator import Translator


@dataclass(frozen=True)
class Case:
    """A source text, its ids (with eos), and the expected ids (without bos).

    The expected ids are complete if they end with eos or reach the bundle's limit, else the beginning of an answer.
    In a bundle without a tokenizer the text means nothing and may be empty. A model that reads vectors has `vectors`
    instead of source ids: each as little-endian float32 in base64.
    """

    source: str
    source_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    vectors: tuple[str, ...] = added(())

    @staticmethod
    def of(text: str, source: Source, target_ids: Sequence[int]) -> "Case":
        """Return the case of a source of ids or vectors."""
        if isinstance(source, np.ndarray):
            vectors = tuple(base64.b64encode(row.astype("<f4").tobytes()).decode() for row in source)
            return Case(text, (), tuple(target_ids), vectors)
        return Case(text, tuple(source), tuple(target_ids))

    @property
    def read(self) -> Source:
        """The source that the model reads."""
        if not self.vectors:
            return self.source_ids
        rows = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in self.vectors]
        return np.stack(rows).astype(np.float32)


@dataclass(frozen=True)
class Golden:
    """The file."""

    format_version: int
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Difference:
    """A case that differs: its number (from 0), what was compared, and both lists of ids."""

    case: int
    what: str
    expected: list[int]
    found: list[int]


def load_golden(bundle: Files) -> Golden:
    """Read golden.json of a bundle.

    Raises:
        BundleError: it is missing, damaged, or of a newer format.
    """
    return load(Golden, files_of(bundle) / GOLDEN, 1)


def check(
    engine: Engine,
    golden: Golden,
    prefix: Sequence[int],
    *,
    rows: int | None = None,
    order: Sequence[int] | None = None,
    least: int = 0,
) -> list[Difference]:
    """Answer the cases, in batches whose rows are refilled, and compare.

    Args:
        engine: what answers. Answers longer than it makes are compared as far as it goes.
        golden: the cases.
        prefix: what every answer is forced to begin with.
        rows: maximum number of rows of a batch; None for as many as the engine takes.
        order: the numbers of the cases, some perhaps more than once; None for each once.
        least: tokens to make of answers that do not end before, though no more than the engine makes.

    Returns:
        what differs.
    """
    numbers = range(len(golden.cases)) if order is None else order
    cases = [golden.cases[number] for number in numbers]
    most = engine.limits.target
    requests = [Request(c.read, min(most, max(1, least, len(c.target_ids))), prefix=prefix) for c in cases]
    if len(cases) > 1:
        what = f"ids in batches of {rows or engine.limits.batch}"
    else:
        what = "ids of the sentence alone"
    return [
        Difference(number, what, list(expected), result.ids)
        for number, case, result in zip(numbers, cases, decode_all(engine, requests, rows=rows), strict=True)
        if result.ids[: len(expected := case.target_ids[:most])] != list(expected)
    ]


def check_translator(translator: "Translator", golden: Golden) -> list[Difference]:
    """Tokenize and translate every case, in batches and then each alone.

    Returns:
        what differs; nothing if the bundle gives the same ids here as where it was exported.
    """
    engine = translator.engine
    prefix = translator.tokenizer.affixes().target_prefix
    differences = check(engine, golden, prefix)
    for number, case in enumerate(golden.cases):
        differences += check(engine, golden, prefix, order=[number])
        if translator.manifest.tokenizer.kind != "none" and not case.vectors:
            ids = translator.tokenizer.encode(case.source)
            if list(case.source_ids) != ids:
                differences.append(Difference(number, "source ids", list(case.source_ids), ids))
    return differences
