"""tx-translate: files or standard input to standard output or a file, line by line."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields
from math import isfinite
from pathlib import Path
from typing import Any, TextIO

import click
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.console.flags import TRUST_ENGINES, flags
from txport.runtime.console.logs import show_log
from txport.runtime.console.progress import Line
from txport.runtime.documents.document import Document
from txport.runtime.errors import InputError
from txport.runtime.files import new_file
from txport.runtime.options import Options
from txport.runtime.results import Translation
from txport.runtime.search.scheduler import BATCH_TOKENS
from txport.runtime.text.lines import (
    FIRST_LINES,
    ON_ERROR,
    WINDOW_LINES,
    as_line,
    check_file,
    open_text,
    text_windows,
    whole_text,
    windows,
    write_all,
)
from txport.runtime.translator import Translator

STANDARD_INPUT = "-"
# Options whose results have no place in a line of text.
NEED_JSON = ("scores", "attention", "n_best", "alternatives")
# How click takes each kind of option; one that may be given many times has the name of one.
_FORMS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "flag": lambda _: {"is_flag": True},
    "text": lambda _: {"type": str},
    "texts": lambda _: {"type": str, "multiple": True},
    "count": lambda bounds: {"type": click.IntRange(bounds["least"])},
    "number": lambda _: {"type": float},
    "ids": lambda _: {"type": click.IntRange(0), "multiple": True},
    "choice": lambda bounds: {"type": click.Choice([json.dumps(each).strip('"') for each in bounds["choices"]])},
}


def _flag(option: Field[Any]) -> Callable[[Any], Any]:
    form = _FORMS[option.metadata["kind"]](option.metadata)
    return click.option(f"--{option.name.replace('_', '-')}", help=option.metadata["help"], **form)


# A flag for each field of `Options`; what is not given is left out.
of_options = flags(*map(_flag, fields(Options)))


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the caller gave."""
    given = {name: value for name, value in options.items() if value not in (None, ()) and value is not False}
    if "early_stopping" in given:
        given["early_stopping"] = {"true": True, "false": False}.get(given["early_stopping"], "never")
    return given


# Flags for the arguments of `Translator`: where and how a bundle runs.
of_engine = flags(
    click.option("--device", default="auto", show_default=True, help="Where to run: auto, cpu or cuda."),
    click.option("--engine", default="auto", show_default=True, help="What runs it there: auto, fused, ort or trt."),
    click.option(
        "--lowering",
        help="For experts: the graph of the decoder step: ort, scatter or tensorscatter. [default: the best here]",
    ),
    click.option(
        "--threads",
        type=click.IntRange(0),
        default=0,
        help="Threads per batch. [default: the cores divided by --workers]",
    ),
    click.option(
        "--workers",
        type=click.IntRange(0),
        default=0,
        help="Batches that run side by side on the CPU. [default: one per core, at most 4]",
    ),
    click.option("--batch", type=click.IntRange(1), help="Most lines that run together. [default: the bundle's]"),
    click.option(
        "--batch-tokens",
        type=click.IntRange(1),
        default=BATCH_TOKENS,
        show_default=True,
        help="Most source tokens, padding included, that run together.",
    ),
    TRUST_ENGINES,
)


_NAMED = re.compile(
    r"\bthe option (\w+)|\b(\w+)(?= has no effect)|(?<=no effect without )(sample)\b|\b("
    + "|".join(option.name for option in fields(Options) if "_" in option.name)
    + r")\b(?![./])"
)


@contextmanager
def flags_in_messages() -> Iterator[None]:
    """Options by their flags in what a command says, as `--n-best` for `n_best`."""
    try:
        yield
    except InputError as error:
        message = _NAMED.sub(lambda match: "--" + (match[match.lastindex or 0]).replace("_", "-"), str(error))
        raise InputError(message) from error


def engine_of(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Translator`, taken out of the options of a command."""
    names = ("device", "engine", "lowering", "threads", "workers", "batch", "batch_tokens", "trust_engines")
    return {name: options.pop(name) for name in names}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE)
@click.argument("files", metavar="[FILE]...", nargs=-1)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write, whole or not at all. [default: standard output]",
)
@click.option(
    "--errors",
    type=click.Choice(ON_ERROR),
    default=ON_ERROR[0],
    show_default=True,
    help="For a line that is not UTF-8: stop, put U+FFFD where it is wrong, or write an empty line.",
)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object a line: text, ids, truncated, finished.")
@click.option(
    "--document",
    is_flag=True,
    help="Translate each file as a whole, sentence by sentence, and keep its layout; with --json, one object a file.",
)
@of_options
@of_engine
@click.option(
    "--window", type=click.IntRange(1), default=WINDOW_LINES, show_default=True, help="Most lines to read ahead."
)
def main(
    bundle: Path,
    files: Sequence[str],
    output: Path | None,
    errors: str,
    as_json: bool,
    document: bool,
    window: int,
    **options: Any,
) -> None:
    r"""Translate lines with BUNDLE, from each FILE in turn, or from standard input ("-"), to standard output.

    One line out for each line in. A single line is translated at once; many lines are sorted by length and run in
    batches, the first of them small. Lines are UTF-8 and end at "\n" only; empty ones stay empty.

    With --document a file is a text of sentences, and comes out with the same paragraphs, indentation and lists.
    """
    files = files or [STANDARD_INPUT]
    chosen = engine_of(options)
    options = given_options(options)
    needy = (*NEED_JSON, "alignments") if document else NEED_JSON
    _check(files, output, [name for name in needy if name in options and not as_json])
    show_log()
    translator = Translator(bundle, **chosen)
    first = FIRST_LINES if output is None else window
    line_of = as_json_line if as_json else _with_alignment if "alignments" in options else _as_line
    with flags_in_messages(), _writer(output) as target, _Rate(_is_watched(files, output)) as progress:
        for file in files:
            with _reader(file) as (descriptor, what):
                if document:
                    text = whole_text(descriptor, errors, what)
                    made = translator.translate_document(text, what=what, **options)
                    write_all(target, as_json_document(made) if as_json else made.text.encode())
                    progress.add(text.count("\n"))
                    continue
                texts = text_windows(windows(descriptor, window, first), errors, what)
                for results in translator.translate_windows(texts, what=what, **options):
                    write_all(target, b"".join(line_of(result) for result in results))
                    progress.add(len(results))


def _check(files: Sequence[str], output: Path | None, unseen: Sequence[str]) -> None:
    """Refuse what could only fail after the work was done."""
    for name in unseen:
        flag = name.replace("_", "-")
        raise InputError(f"--{flag} needs --json: lines of text have no place for it")
    for file in files:
        if file == STANDARD_INPUT:
            _descriptor(sys.stdin, "input")
        else:
            check_file(Path(file))
    if output is None:
        _descriptor(sys.stdout, "output")


@contextmanager
def _reader(file: str) -> Iterator[tuple[int, str]]:
    """A file's descriptor, and what a line of it is called in messages."""
    if file == STANDARD_INPUT:
        yield _descriptor(sys.stdin, "input"), "line"
    else:
        with open_text(Path(file)) as descriptor:
            yield descriptor, f"{file}, line"


@contextmanager
def _writer(output: Path | None) -> Iterator[int]:
    """The descriptor to write to."""
    if output is None:
        yield _descriptor(sys.stdout, "output")
    else:
        with new_file(output) as file:
            yield file.fileno()


def _descriptor(stream: TextIO | None, name: str) -> int:
    # A closed one is None, and its descriptor may by now belong to any other file.
    if stream is None:
        raise InputError(f"standard {name} is closed: give a file or a pipe")
    return stream.fileno()


def _is_watched(files: Sequence[str], output: Path | None) -> bool:
    """Whether standard error is a terminal while input and output are not."""
    seen = [0] if STANDARD_INPUT in files else []
    seen += [1] if output is None else []
    return os.isatty(2) and not any(map(os.isatty, seen))


class _Rate(Line):
    """Lines done and lines a second."""

    def __init__(self, shown: bool) -> None:
        super().__init__(self._rate, shown, refresh=0)
        self._lines = 0
        self._start = time.monotonic()

    def add(self, lines: int) -> None:
        """Count so many more as done."""
        self._lines += lines
        self.draw()

    def _rate(self) -> str:
        return f"{self._lines} lines, {self._lines / max(time.monotonic() - self._start, 1e-3):.0f} a second"


def _as_line(result: Translation) -> bytes:
    """The text."""
    return as_line(result.text)


def _with_alignment(result: Translation) -> bytes:
    """The text, and after it the alignment as Marian writes it."""
    return as_line(f"{result.text} ||| {'' if result.alignment is None else result.alignment.pharaoh}".rstrip(" "))


def as_json_line(result: Translation) -> bytes:
    """One JSON object, the same bytes as the C++ runtime writes.

    Scores and attention have six decimals; those that are not finite are null.

    An alignment adds the pairs of words, as `Alignment.pharaoh` has them, and the characters of each word; attention
    is a list of rows, one a target id. Hypotheses are objects as the line itself is one.
    """
    return f"{_as_object(result)}\n".encode()


def as_json_document(document: Document) -> bytes:
    """One JSON object: the text, and its parts with their characters in the source and in the text."""
    parts = (
        f'{{"source": {json.dumps(part.source)}, "target": {json.dumps(part.target)}, "cut": {json.dumps(part.cut)}, '
        f"{_as_object(part.translation)[1:]}"
        for part in document.parts
    )
    return f'{{"text": {json.dumps(document.text, ensure_ascii=False)}, "parts": [{", ".join(parts)}]}}\n'.encode()


def _as_object(result: Translation) -> str:
    members = {"text": json.dumps(result.text, ensure_ascii=False), "ids": str(result.ids)}
    if result.score is not None:
        members["score"] = _six_decimals([result.score])[1:-1]
    if result.scores is not None:
        members["scores"] = _six_decimals(result.scores)
    if result.alignment is not None:
        members["alignment"] = f'"{result.alignment.pharaoh}"'
        members["source_words"] = json.dumps([list(word) for word in result.alignment.source_words])
        members["target_words"] = json.dumps([list(word) for word in result.alignment.target_words])
    if result.attention is not None:
        members["attention"] = f"[{', '.join(map(_six_decimals, result.attention.tolist()))}]"
    for name in ("truncated", "finished", "looped"):
        members[name] = json.dumps(getattr(result, name))
    if result.hypotheses:
        parts = [_as_object(each) for each in result.hypotheses]
        members["hypotheses"] = f"[{', '.join(parts)}]"
    listed = (f'"{name}": {value}' for name, value in members.items())
    return f"{{{', '.join(listed)}}}"


def _six_decimals(numbers: Sequence[float]) -> str:
    texts = (f"{number:.6f}" if isfinite(number) else "null" for number in numbers)
    # Whether a probability of one has the logarithm 0 or -0 depends on the order of a sum.
    return f"[{', '.join(text.removeprefix('-') if text == '-0.000000' else text for text in texts)}]"
