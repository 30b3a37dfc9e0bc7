"""tx-translate: files or standard input to standard output or a file, line by line."""

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, TextIO

import click
from txport.runtime.arguments import check_reads_text
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.console.flags import DEVICE, ENGINE, TRUST_ENGINES, flags, refuse_unused
from txport.runtime.console.logs import show_log
from txport.runtime.console.progress import ProgressLine
from txport.runtime.documents.document import Document
from txport.runtime.errors import InputError
from txport.runtime.files import new_file
from txport.runtime.options import CHOICES, MINIMA, NUMBERS, OPTIONS
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
from txport.runtime.text.plain import check_name
from txport.runtime.translator import Translator

STANDARD_INPUT = "-"
# Options whose results do not fit in a line of text.
NEED_JSON = ("scores", "attention", "n_best", "alternatives")
# Arguments of click.option for each kind of option.
_FORMS: dict[str, dict[str, Any]] = {
    "Flag": {"is_flag": True},
    "Switch": {"is_flag": True},
    "Text": {"type": str},
    "Prefix": {"type": str},
    "Words": {"type": str, "multiple": True},
    "List": {"type": click.IntRange(0), "multiple": True},
}
for _kind, _minimum in MINIMA.items():
    _FORMS[_kind] = {"type": click.IntRange(_minimum)}
for _kind in NUMBERS:
    _FORMS[_kind] = {"type": float}
for _kind, _values in CHOICES.items():
    _FORMS[_kind] = {"type": click.Choice([json.dumps(value).strip('"') for value in _values])}
# A flag for each option of a translation.
of_options = flags(
    *(click.option(f"--{name.replace('_', '-')}", help=help, **_FORMS[kind]) for name, (kind, help) in OPTIONS.items())
)


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    set_options = {name: value for name, value in options.items() if value not in (None, ()) and value is not False}
    if "early_stopping" in set_options:
        set_options["early_stopping"] = {"true": True, "false": False}.get(set_options["early_stopping"], "never")
    return set_options


# Flags for the arguments of `Translator`: device, engine and batches.
of_engine = flags(
    DEVICE,
    ENGINE,
    click.option(
        "--lowering",
        help="For experts: decoder step graph: ort, scatter or tensorscatter. [default: the best for the "
        "installed library]",
    ),
    click.option(
        "--threads",
        type=click.IntRange(0),
        default=0,
        help="Threads per batch. [default: number of cores / --workers]",
    ),
    click.option(
        "--workers",
        type=click.IntRange(0),
        default=0,
        help="Batches that run in parallel on the CPU. [default: one per core, at most 4]",
    ),
    click.option(
        "--batch", type=click.IntRange(1), help="Maximum batch size in lines. [default: the bundle's maximum]"
    ),
    click.option(
        "--batch-tokens",
        type=click.IntRange(1),
        default=BATCH_TOKENS,
        show_default=True,
        help="Maximum batch size in source tokens, including padding.",
    ),
    TRUST_ENGINES,
)


_LONG = "|".join(name for name in OPTIONS if "_" in name)
_SHORT = "|".join(name for name in OPTIONS if "_" not in name)
# Names of options in messages. A name of a single word is replaced only in these places, since it may be an ordinary
# word elsewhere.
_FIELD_NAMES = re.compile(
    rf"\bthe option (\w+)|\b({_LONG})\b(?![./])"
    rf"|\b({_SHORT})(?= has no effect| excludes | contains | has the id | \S+ is (?:not|too) )"
    rf"|(?:(?<=\bwithout )|(?<=\bexcludes )|(?<=\braise ))({_SHORT})\b"
)


@contextmanager
def flags_in_messages() -> Iterator[None]:
    """Replace names of options in error messages by their flags, such as `--n-best` for `n_best`."""
    try:
        yield
    except InputError as error:
        message = _FIELD_NAMES.sub(lambda match: "--" + (match[match.lastindex or 0]).replace("_", "-"), str(error))
        raise type(error)(message) from error


def engine_of(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the arguments of `Translator` from the options of a command and return them."""
    names = ("device", "engine", "lowering", "threads", "workers", "batch", "batch_tokens", "trust_engines")
    return {name: options.pop(name) for name in names}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE)
@click.argument("files", metavar="[FILE]...", nargs=-1)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write. It appears only when complete. [default: standard output]",
)
@click.option(
    "--errors",
    type=click.Choice(ON_ERROR),
    default=ON_ERROR[0],
    show_default=True,
    help="What to do with a line that is not UTF-8: stop (strict), insert U+FFFD (replace), or write an "
    "empty line (skip).",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line: text, ids, truncated, finished.")
@click.option(
    "--document",
    is_flag=True,
    help="Translate each file as a document: split it into sentences and keep its layout. With --json, "
    "write one object per file.",
)
@of_options
@of_engine
@click.option(
    "--window",
    type=click.IntRange(1),
    default=WINDOW_LINES,
    show_default=True,
    help="Maximum number of lines to read ahead.",
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
    r"""Translate lines of each FILE, or of standard input ("-"), with BUNDLE and write them to standard output.

    Each input line gives one output line. A single line is translated at once. Many lines are sorted by length and
    translated in batches, beginning with small ones. Lines are UTF-8 and end at "\n" only. Empty lines stay empty.

    With --document a file is a document of sentences, and the output has the same paragraphs, indentation and lists.
    """
    files = files or [STANDARD_INPUT]
    refuse_unused(document, "with --document", "window")
    engine_options = engine_of(options)
    options = given_options(options)
    needy = (*NEED_JSON, "alignments") if document else NEED_JSON
    _check(files, output, [name for name in needy if name in options and not as_json])
    show_log()
    translator = Translator(bundle, **engine_options)
    check_reads_text(bundle, translator.manifest.model.feature_size)
    first = FIRST_LINES if output is None else window
    line_of = as_json_line if as_json else _with_alignment if "alignments" in options else _as_line
    with flags_in_messages(), _writer(output) as target, _Rate(_is_watched(files, output)) as progress:
        for file in files:
            with _reader(file) as (descriptor, what):
                if document:
                    text = whole_text(descriptor, errors, what)
                    translated = translator.translate_document(text, what=what, **options)
                    write_all(target, as_json_document(translated) if as_json else translated.text.encode())
                    progress.add(text.count("\n"))
                    continue
                texts = text_windows(windows(descriptor, window, first), errors, what)
                for results in translator.translate_windows(texts, what=what, **options):
                    write_all(target, b"".join(line_of(result) for result in results))
                    progress.add(len(results))


def _check(files: Sequence[str], output: Path | None, unseen: Sequence[str]) -> None:
    """Refuse arguments that would fail only after the translation."""
    for name in unseen:
        flag = name.replace("_", "-")
        raise InputError(f"--{flag} needs --json: it does not fit in a line of text")
    for file in files:
        if file == STANDARD_INPUT:
            _descriptor(sys.stdin, "input")
        else:
            check_file(Path(file))
            check_name(file)
    if output is None:
        _descriptor(sys.stdout, "output")


@contextmanager
def _reader(file: str) -> Iterator[tuple[int, str]]:
    """Yield the descriptor of a file, and the name of its lines in messages."""
    if file == STANDARD_INPUT:
        yield _descriptor(sys.stdin, "input"), "line"
    else:
        with open_text(Path(file)) as descriptor:
            yield descriptor, f"{file}, line"


@contextmanager
def _writer(output: Path | None) -> Iterator[int]:
    """Yield the output descriptor."""
    if output is None:
        yield _descriptor(sys.stdout, "output")
    else:
        with new_file(output) as file:
            yield file.fileno()


def _descriptor(stream: TextIO | None, name: str) -> int:
    # A closed stream is None, and its descriptor may belong to another file by now.
    if stream is None:
        raise InputError(f"standard {name} is closed: give a file or a pipe")
    return stream.fileno()


def _is_watched(files: Sequence[str], output: Path | None) -> bool:
    """Return whether standard error is a terminal while input and output are not."""
    if STANDARD_INPUT in files:
        streams = [0]
    else:
        streams = []
    if output is None:
        streams.append(1)
    return os.isatty(2) and not any(map(os.isatty, streams))


class _Rate(ProgressLine):
    """Progress line: finished lines and lines per second."""

    def __init__(self, is_shown: bool) -> None:
        super().__init__(self._rate, is_shown, refresh=0)
        self._lines = 0
        self._start = time.monotonic()

    def add(self, lines: int) -> None:
        """Add finished lines."""
        self._lines += lines
        self.draw()

    def _rate(self) -> str:
        return f"{self._lines} lines, {self._lines / max(time.monotonic() - self._start, 1e-3):.0f} per second"


def _as_line(result: Translation) -> bytes:
    """Return the text as a line."""
    return as_line(result.text)


def _with_alignment(result: Translation) -> bytes:
    """Return the text and its alignment in Marian's format."""
    return as_line(f"{result.text} ||| {'' if result.alignment is None else result.alignment.pharaoh}".rstrip(" "))


def as_json_line(result: Translation) -> bytes:
    """Return one JSON object, byte-identical to the C++ runtime.

    Scores and attention have six decimals; a value that is not finite is null.

    An alignment adds pairs of words in the format of `Alignment.pharaoh`, and the character span of each word.
    Attention is a list of rows, one per target id. Hypotheses are nested objects of the same form.
    """
    return f"{_as_object(result)}\n".encode()


def as_json_document(document: Document) -> bytes:
    """Return one JSON object: the text, and its parts with their character spans in source and text."""
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
    pairs = (f'"{name}": {value}' for name, value in members.items())
    return f"{{{', '.join(pairs)}}}"


def _six_decimals(numbers: Sequence[float]) -> str:
    texts = (f"{number:.6f}" if isfinite(number) else "null" for number in numbers)
    # The logarithm of probability 1 can be 0 or -0, depending on the order of summation.
    return f"[{', '.join(text.removeprefix('-') if text == '-0.000000' else text for text in texts)}]"
