"""golden.json: sentences and their expected ids, for self-checks of a device without PyTorch."""

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

if TYPE_CHECKING:  # it needs SentencePiece, which tx-build does not require
    from txport.runtime.translator import Translator


@dataclass(frozen=True)
class Case:
    """A source text, its ids (with eos), and the expected ids (without bos).

    The expected ids are complete if they end with eos or reach the bundle's limit. Otherwise they are the beginning of
    an answer. In a bundle without a tokenizer, the text is not used and may be empty. For a model that reads vectors,
    `vectors` replaces the source ids: each is little-endian float32 in base64.
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
        """Input of the model: ids or vectors."""
        if not self.vectors:
            return self.source_ids
        rows = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in self.vectors]
        return np.stack(rows).astype(np.float32)


@dataclass(frozen=True)
class Golden:
    """Contents of the file."""

    format_version: int
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Difference:
    """A case that differs: its number (from 0), the name of the comparison, and both lists of ids."""

    case: int
    what: str
    expected: list[int]
    actual: list[int]


def load_golden(bundle: Files) -> Golden:
    """Read golden.json of a bundle.

    Raises:
        BundleError: the file is missing, damaged or of a newer format.
    """
    return load(Golden, files_of(bundle) / GOLDEN, 1)


def check(
    engine: Engine,
    golden: Golden,
    prefix: Sequence[int],
    *,
    rows: int | None = None,
    order: Sequence[int] | None = None,
    min_tokens: int = 0,
) -> list[Difference]:
    """Decode the cases in batches whose rows are refilled, and compare the answers.

    Args:
        engine: the engine to check. Expected answers beyond its maximum length are compared up to this length.
        golden: the cases.
        prefix: forced beginning of every answer.
        rows: maximum number of rows of a batch; None for the maximum of the engine.
        order: numbers of the cases, which may repeat; None for each once.
        min_tokens: minimum number of tokens to decode of an unfinished answer, up to the maximum of the engine.

    Returns:
        the differences.
    """
    numbers = range(len(golden.cases)) if order is None else order
    cases = [golden.cases[number] for number in numbers]
    max_tokens = engine.limits.target
    requests = [Request(c.read, min(max_tokens, max(1, min_tokens, len(c.target_ids))), prefix=prefix) for c in cases]
    if len(cases) > 1:
        what = f"ids in batches of {rows or engine.limits.batch}"
    else:
        what = "ids of the sentence alone"
    return [
        Difference(number, what, list(expected), result.ids)
        for number, case, result in zip(numbers, cases, decode_all(engine, requests, rows=rows), strict=True)
        if result.ids[: len(expected := case.target_ids[:max_tokens])] != list(expected)
    ]


def check_translator(translator: "Translator", golden: Golden) -> list[Difference]:
    """Tokenize and translate every case, in batches and then each alone.

    Returns:
        the differences; empty if the bundle gives the same ids on this machine as at its export.
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
