"""Every option of a translation, and every door by which it can be set: Python, the commands, C and C++.

`CASES` has each field of `Options` at least once, and `DOORS` translates `TEXTS` with the options of a case. All doors
must agree; tests/cpp/test_options.py compares them. A new option needs a row here, or that test fails.
"""

import ctypes
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.tokenizer_schema import Languages, TokenizerDescription
from txport.runtime.errors import BundleError, InputError
from txport.runtime.translator import Translator

TEXTS = ("the cat sees a bird", "four likes", "cat " * 30)

# What comes out: (ids, scores with four decimals or None) of each text, or that a text was refused as too long.
Outcome = list[tuple[list[int], list[float] | None]] | str
Door = Callable[[Path, Mapping[str, Any]], Outcome]


@dataclass(frozen=True)
class Case:
    """One option with a value that changes what comes out; `ids` if no command line can say it."""

    option: str
    value: Any
    ids: bool = False


CASES = (
    Case("max_length", 5),
    Case("full_length", True),
    Case("min_length", 20),
    Case("prefix", "a dog"),
    Case("prefix", [5, 9, 11], ids=True),
    Case("scores", True),
    Case("strict", True),
    Case("alignments", True),
    Case("attention", True),
    Case("source_language", "deu"),
    Case("target_language", "ita"),
)


def multilingual(directory: Path) -> Path:
    """Give a copy of the toy bundle two languages on each side, with defaults."""
    manifest = Manifest.load(directory)
    languages = Languages({"eng": 90, "deu": 91}, {"fra": 40, "ita": 41}, "eng", "fra", False)
    description = TokenizerDescription(
        **{
            **vars(manifest.tokenizer),
            "source_prefix": ("source_language",),
            "target_prefix": ("target_language",),
            "languages": languages,
        }
    )
    Manifest(**{**vars(manifest), "tokenizer": description}).write(directory)
    return directory


def _outcome(results: Sequence[tuple[Sequence[int], Sequence[float] | None]]) -> Outcome:
    return [(list(ids), None if scores is None else [round(s, 4) for s in scores]) for ids, scores in results]


def _refused(message: str) -> Outcome:
    if "--with-attention" in message:
        return "without the graph"
    assert "tokens, more than the" in message, message
    return "too long"


def by_python(bundle: Path, options: Mapping[str, Any]) -> Outcome:
    """`Translator.translate`."""
    try:
        results = Translator(bundle, "cpu").translate(TEXTS, **options)
    except (InputError, BundleError) as error:
        return _refused(str(error))
    return _outcome([(result.ids, result.scores) for result in results])


def by_stream(bundle: Path, options: Mapping[str, Any]) -> Outcome:
    """`Translator.stream`, each text by itself."""
    translator = Translator(bundle, "cpu")
    try:
        streams = [list(translator.stream(text, **options)) for text in TEXTS]
    except (InputError, BundleError) as error:
        return _refused(str(error))
    scores = [[piece.score for piece in pieces] if options.get("scores") else None for pieces in streams]
    return _outcome([([piece.id for piece in pieces], of) for pieces, of in zip(streams, scores, strict=True)])


def by_command(command: str | Path) -> Door:
    """tx-translate or txport-translate."""

    def door(bundle: Path, options: Mapping[str, Any]) -> Outcome:
        flags = []
        for name, value in options.items():
            flag = f"--{name.replace('_', '-')}"
            flags += [flag] if value is True else [flag, str(value)]
        done = _run([command, bundle, "--device", "cpu", "--json", *flags])
        if done.returncode:
            return _refused(done.stderr.decode())
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return _outcome([(line["ids"], line.get("scores")) for line in lines])

    return door


def by_cpp_api(program: Path) -> Door:
    """txport.hpp, through tests/cpp/abi/options_door.cpp."""

    def door(bundle: Path, options: Mapping[str, Any]) -> Outcome:
        arguments = [
            f"{name}_ids={' '.join(map(str, value))}" if isinstance(value, list) else f"{name}={value}"
            for name, value in options.items()
        ]
        done = _run([program, bundle, *arguments])
        if done.returncode:
            return _refused(done.stderr.decode())
        lines = [line.split("|") for line in done.stdout.decode().splitlines()]
        return _outcome(
            [
                ([int(word) for word in ids.split()], [float(word) for word in scores.split()] or None)
                for ids, scores in lines
            ]
        )

    return door


def _run(arguments: Sequence[object]) -> "subprocess.CompletedProcess[bytes]":
    text = "".join(f"{line}\n" for line in TEXTS).encode()
    return subprocess.run([str(item) for item in arguments], input=text, capture_output=True, timeout=120)


class COptions(ctypes.Structure):
    """`txport_options` of txport.h."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("max_length", ctypes.c_int32),
        ("min_length", ctypes.c_int32),
        ("prefix", ctypes.c_char_p),
        ("prefix_ids", ctypes.POINTER(ctypes.c_int64)),
        ("prefix_count", ctypes.c_size_t),
        ("scores", ctypes.c_int32),
        ("strict", ctypes.c_int32),
        ("source_language", ctypes.c_char_p),
        ("target_language", ctypes.c_char_p),
        ("alignments", ctypes.c_int32),
        ("attention", ctypes.c_int32),
        ("full_length", ctypes.c_int32),
    ]


def c_options(options: Mapping[str, Any]) -> COptions:
    """The struct as an application fills it."""
    result = COptions(struct_size=ctypes.sizeof(COptions))
    for name, value in options.items():
        if isinstance(value, list):
            result.prefix_ids = (ctypes.c_int64 * len(value))(*value)
            result.prefix_count = len(value)
        else:
            setattr(result, name, value.encode() if isinstance(value, str) else int(value))
    return result


def by_c(library_path: Path) -> Door:
    """libtxport.so, by ctypes."""

    def door(bundle: Path, options: Mapping[str, Any]) -> Outcome:
        library = ctypes.CDLL(str(library_path))
        library.txport_message.restype = ctypes.c_char_p
        library.txport_result_ids.restype = ctypes.POINTER(ctypes.c_int64)
        library.txport_result_scores.restype = ctypes.POINTER(ctypes.c_double)
        translator, result, length = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        assert library.txport_open(str(bundle).encode(), None, ctypes.byref(translator)) == 0
        texts = (ctypes.c_char_p * len(TEXTS))(*(text.encode() for text in TEXTS))
        asked = ctypes.byref(c_options(options))
        code = library.txport_translate(
            translator, texts, None, ctypes.c_size_t(len(TEXTS)), asked, ctypes.byref(result)
        )
        try:
            if code:
                return _refused(library.txport_message().decode())
            results = []
            for index in map(ctypes.c_size_t, range(len(TEXTS))):
                ids = library.txport_result_ids(result, index, ctypes.byref(length))
                scores = library.txport_result_scores(result, index, None)
                results.append((ids[: length.value], scores[: length.value] if scores else None))
            return _outcome(results)
        finally:
            library.txport_result_free(result)
            library.txport_close(translator)

    return door
