"""Sentences by rules beside those of pysbd and sentencex, on the test cases of both, and how long each takes.

`python -m txport.benchmarks.studies.sentences PYSBD SENTENCEX`

PYSBD and SENTENCEX are clones of github.com/nipunsadvilkar/pySBD and github.com/wikimedia/sentencex, whose tests are
read; both packages must be installed. A case is right where all its sentences are, except for white space. What marks a
line (bullets, numbers of items) is layout here and text there, so that it is left out of what is compared with ours.
"""

import ast
import logging
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pysbd
import sentencex
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.documents.layout import split, without_mark
from txport.runtime.translator import Translator

LANGUAGES = {
    "amharic": "am", "arabic": "ar", "armenian": "hy", "bulgarian": "bg", "burmese": "my", "chinese": "zh",
    "danish": "da", "deutsch": "de", "dutch": "nl", "english": "en", "french": "fr", "greek": "el", "hindi": "hi",
    "italian": "it", "japanese": "ja", "kazakh": "kk", "marathi": "mr", "persian": "fa", "polish": "pl",
    "russian": "ru", "slovak": "sk", "spanish": "es", "urdu": "ur",
}  # fmt: skip


@dataclass
class Case:
    """A text, its language, the sentences that it has, and whose test it is."""

    of: str
    language: str
    text: str
    sentences: list[str]


def pysbd_cases(directory: Path) -> Iterator[Case]:
    """Cases of pysbd: lists named CASES of (text, sentences), perhaps inside pytest.param."""
    for name, language in LANGUAGES.items():
        tree = ast.parse((directory / "tests" / "lang" / f"test_{name}.py").read_text())
        for node in ast.walk(tree):
            named = isinstance(node, ast.Assign) and "CASES" in getattr(node.targets[0], "id", "")
            for item in getattr(node.value, "elts", []) if named else []:  # type: ignore[attr-defined]
                if isinstance(item, ast.Call):
                    parts = item.args
                else:
                    parts = item.elts
                text, sentences = (ast.literal_eval(part) for part in parts[:2])
                yield Case("pysbd", language, text, sentences)


def sentencex_cases(directory: Path) -> Iterator[Case]:
    """Cases of sentencex: a text, "---" and a sentence a line, parted by "==="; lines of "#" are left out."""
    for file in sorted((directory / "tests").glob("??.txt")):
        lines = [line for line in file.read_text().split("\n") if not line.startswith("#")]
        for block in "\n".join(lines).split("==="):
            text, parted, sentences = block.partition("---")
            if parted and text.strip():
                yield Case("sentencex", file.stem, text.strip(), sentences.strip().split("\n"))


def by_pysbd(text: str, language: str) -> list[str]:
    """Sentences of pysbd; none for a language that it has not."""
    try:
        return list(pysbd.Segmenter(language=language, clean=False).segment(text))
    except ValueError:
        return []


WAYS: dict[str, Callable[[str, str], list[str]]] = {
    "txport": lambda text, language: [text[each.start : each.end] for each in split(text, language)],
    "without the language": lambda text, _: [text[each.start : each.end] for each in split(text)],
    "pysbd": by_pysbd,
    "sentencex": lambda text, language: list(sentencex.segment(language, text)),
}


def plain(sentences: list[str], way: str) -> list[str]:
    """Sentences as they are compared."""
    if way in ("txport", "without the language"):
        sentences = [without_mark(sentence) for sentence in sentences]
    return [words for sentence in sentences if (words := re.sub(r"\s+", " ", sentence).strip())]


def share(text: str, bundle: Path) -> float:
    """Time of splitting a text over that of translating it, of which it is a part."""
    translator = Translator(bundle)
    logging.disable(logging.WARNING)
    translator.translate_document(text[:1000])
    start = time.perf_counter()
    split(text, "en")
    middle = time.perf_counter()
    translator.translate_document(text)
    return (middle - start) / (time.perf_counter() - middle)


@click.command()
@click.argument("pysbd_clone", type=click.Path(path_type=Path))
@click.argument("sentencex_clone", type=click.Path(path_type=Path))
@click.option("--wrong", help="Print the failing cases of this language.")
@click.option("--bundle", type=BUNDLE, help="Print the share of splitting in the time of a translation.")
def main(pysbd_clone: Path, sentencex_clone: Path, wrong: str | None, bundle: Path | None) -> None:
    """Print how many cases each way has right, by whose tests they are and by language, and microseconds a case."""
    warnings.simplefilter("ignore")  # pysbd's regular expressions
    cases = [*pysbd_cases(pysbd_clone), *sentencex_cases(sentencex_clone)]
    right = Counter[tuple[str, str, str]]()
    seconds = Counter[str]()
    for case in cases:
        for name, way in WAYS.items():
            start = time.perf_counter()
            found = way(case.text, case.language)
            seconds[name] += time.perf_counter() - start  # type: ignore[assignment]
            good = plain(found, name) == plain(case.sentences, name)
            for language in (case.language, "all"):
                right[case.of, language, name] += good
            if name == "txport" and case.language == wrong and not good:
                click.echo(f"{case.of}: {case.text!r}\n  {plain(case.sentences, name)}\n  {plain(found, name)}")
    total = Counter((case.of, language) for case in cases for language in (case.language, "all"))
    for (of, language), count in sorted(total.items()):
        counts = "  ".join(f"{name} {right[of, language, name]}" for name in WAYS)
        click.echo(f"{of:10} {language:4} {count:4} cases: {counts}")
    if bundle is not None:
        text = "\n".join(case.text for case in cases if case.language == "en")
        click.echo(f"splitting is {share(text, bundle):.2%} of translating")
    for name, taken in seconds.items():
        click.echo(f"{name:22} {taken / len(cases) * 1e6:7.1f} us a case")


if __name__ == "__main__":
    main()
