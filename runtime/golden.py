"""golden.json: sentences and their expected ids, by which a device checks itself without PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from txport.runtime.bundle.manifest import GOLDEN
from txport.runtime.bundle.strict_json import load

if TYPE_CHECKING:  # it needs SentencePiece, which is not there where engines are only built
    from txport.runtime.translator import Translator


@dataclass(frozen=True)
class Case:
    """A source text, its ids (with eos), and the expected ids (without bos).

    The expected ids are complete if they end with eos or reach the bundle's limit, else the beginning of an answer.
    In a bundle without a tokenizer the text means nothing and may be empty.
    """

    source: str
    source_ids: tuple[int, ...]
    target_ids: tuple[int, ...]


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


def load_golden(directory: Path) -> Golden:
    """Read golden.json of a bundle.

    Raises:
        BundleError: it is missing, damaged, or of a newer format.
    """
    return load(Golden, directory / GOLDEN, 1)


def run_golden(translator: "Translator", golden: Golden) -> list[Difference]:
    """Tokenize and translate every case, in batches and then each alone.

    Returns:
        what differs; nothing if the bundle gives the same ids here as where it was exported.
    """
    sources = [case.source_ids for case in golden.cases]
    # No more than is compared; None, for all that the bundle makes, if there is no case at all.
    longest = min(max((len(case.target_ids) for case in golden.cases), default=0), translator.engine.limits.target)

    def translate(sources: Sequence[Sequence[int]]) -> list[list[int]]:
        return [result.ids for result in translator.translate_ids(sources, max_length=longest or None)]

    found = [
        ("ids of a batch", translate(sources)),
        ("ids of the sentence alone", [translate([source])[0] for source in sources]),
    ]
    differences = [
        Difference(number, what, list(case.target_ids), ids)
        for what, results in found
        for number, (case, ids) in enumerate(zip(golden.cases, results, strict=True))
        if list(case.target_ids) != ids[: len(case.target_ids)]
    ]
    if translator.manifest.tokenizer.kind != "none":
        for number, case in enumerate(golden.cases):
            ids = translator.tokenizer.encode(case.source)
            if list(case.source_ids) != ids:
                differences.append(Difference(number, "source ids", list(case.source_ids), ids))
    return differences
