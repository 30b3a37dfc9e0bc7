"""All options of a translation, and all interfaces ("doors") that set them: Python, the commands, C and C++.

`CASES` contains each field of `Options` at least once, and `DOORS` translates `TEXTS` with the options of a case. All
interfaces must agree; tests/cpp/test_options.py compares them. It fails if a new option has no case.
"""

import ctypes
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import commands
import numpy as np
from txport.runtime import entry
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Generation
from txport.runtime.bundle.shortlist import Shortlist, put_shortlist
from txport.runtime.bundle.tokenizer_schema import Languages, TokenizerDescription
from txport.runtime.errors import BundleError, InputError
from txport.runtime.translator import Translator

TEXTS = ("the cat sees a bird", "four likes", "cat " * 30)
LINES = "".join(f"{line}\n" for line in TEXTS).encode()

# Results of each text, (ids, scores with four decimals or None) of each hypothesis; or the reason of a refusal.
Outcome = list[list[tuple[list[int], list[float] | None]]] | str
NO_STREAM = "no stream"
Door = Callable[[Path, Mapping[str, Any]], Outcome]


@dataclass(frozen=True)
class Case:
    """An option with a value that changes results, and `others` that it needs; `ids` if no command line can set it."""

    option: str
    value: Any
    ids: bool = False
    others: Mapping[str, Any] = field(default_factory=dict)


_BEAM = {"beam": 4, "scores": True, "max_length": 12}
_PAIR = {"beam": 2, "n_best": 2, "max_length": 14}
_SAMPLE = {"sample": True, "temperature": 9.0, "n_best": 2}

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
    Case("replace_unknowns", True),
    Case("source_language", "deu"),
    Case("target_language", "ita"),
    Case("generation", "model"),
    Case("beam", 4, others={"repetition_penalty": 0.5}),
    Case("n_best", 3, others=_BEAM),
    Case("length_penalty", -2.0, others=_BEAM),
    Case("length_penalty", 0.0, others=_BEAM),
    Case("early_stopping", True, others=_PAIR),
    Case("early_stopping", "never", others={**_PAIR, "repetition_penalty": 0.5, "end_ids": [7, 38, 35]}),
    Case("patience", 3.0, others={**_PAIR, "early_stopping": True}),
    Case("repetition_penalty", 0.5),
    Case("no_repeat_ngram", 1),
    Case("bad_words", ["bird", "cat"]),
    Case("bad_words", [[19], [40, 10]], ids=True),
    Case("suppress", [18, 35]),
    Case("begin_suppress", [7, 11]),
    Case("end_ids", [18, 35, 7]),
    Case("forced_end", 0, others={"max_length": 4}),
    Case("renormalize", True, others={**_BEAM, "suppress": [18, 35]}),
    Case("sample", True),
    Case("temperature", 30.0, others=_SAMPLE),
    Case("top_k", 2, others=_SAMPLE),
    Case("top_p", 0.4, others=_SAMPLE),
    Case("min_p", 0.6, others=_SAMPLE),
    Case("seed", 2**40, others=_SAMPLE),
    Case("alternatives", 3),
    Case("shortlist", True),
)


def multilingual(directory: Path) -> Path:
    """Return a copy of the toy bundle with two languages on each side, defaults, and generation settings."""
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
    generation = Generation(beam=2, early_stopping=True, bad_words=((18,), (35, 7)), forced_end=0, max_length=7)
    manifest = Manifest(**{**vars(manifest), "tokenizer": description, "generation": generation})
    vocabularies = manifest.model.source_vocabulary, manifest.model.target_vocabulary
    starts = np.arange(vocabularies[0] + 1) * 2  # each source id has two words
    own = np.stack([starts[:-1] // 2 % 40 + 5, starts[:-1] // 2 % 40 + 9], axis=1).reshape(-1)
    put_shortlist(Shortlist(np.array([3, 18, 35]), starts, own, vocabularies[1]), directory, manifest)
    return directory


def _outcome(results: Sequence[Sequence[tuple[Sequence[int], Sequence[float] | None]]]) -> Outcome:
    def rounded(scores: Sequence[float] | None) -> list[float] | None:
        return None if scores is None else [round(score, 4) for score in scores]

    return [[(list(ids), rounded(scores)) for ids, scores in hypotheses] for hypotheses in results]


def _refused(message: str) -> Outcome:
    if "--with-attention" in message:
        return "without the graph"
    if "a stream is greedy" in message:
        return NO_STREAM
    if "a shortlist needs the fused engine" in message:
        return "no shortlists"
    assert "tokens, more than the" in message, message
    return "too long"


def by_python(bundle: Path, options: Mapping[str, Any], *, alone: bool = False) -> Outcome:
    """Translate by `Translator.translate`, all texts together or each alone."""
    translator = Translator(bundle, "cpu")
    calls = [[text] for text in TEXTS] if alone else [TEXTS]
    try:
        results = [result for texts in calls for result in translator.translate(texts, **options)]
    except (InputError, BundleError) as error:
        return _refused(str(error))
    return _outcome([[(each.ids, each.scores) for each in result.hypotheses or (result,)] for result in results])


def by_submit(bundle: Path, options: Mapping[str, Any]) -> Outcome:
    """Translate by `Translator.submit`, all texts in one batch."""
    with Translator(bundle, "cpu") as translator:
        try:
            futures = [translator.submit(text, **options) for text in TEXTS]
            results = [future.result(60) for future in futures]
        except (InputError, BundleError) as error:
            return _refused(str(error))
    return _outcome([[(each.ids, each.scores) for each in result.hypotheses or (result,)] for result in results])


def by_stream(bundle: Path, options: Mapping[str, Any]) -> Outcome:
    """Translate by `Translator.stream`, each text alone."""
    translator = Translator(bundle, "cpu")
    try:
        streams = [list(translator.stream(text, **options)) for text in TEXTS]
    except (InputError, BundleError) as error:
        return _refused(str(error))
    scores = [[piece.score for piece in pieces] if options.get("scores") else None for pieces in streams]
    return _outcome([[([piece.id for piece in pieces], of)] for pieces, of in zip(streams, scores, strict=True)])


def by_tx_translate(bundle: Path, options: Mapping[str, Any]) -> Outcome:
    """Translate by tx-translate, in this process."""
    return _written(commands.run_bytes(entry, "tx-translate", *_arguments(bundle, options), stdin=LINES))


def by_txport_translate(program: Path) -> Door:
    """Return the interface of txport-translate."""

    def door(bundle: Path, options: Mapping[str, Any]) -> Outcome:
        return _written(_run([program, *_arguments(bundle, options)]))

    return door


def _arguments(bundle: Path, options: Mapping[str, Any]) -> list[object]:
    flags = [word for name, value in options.items() for word in _flags(name, value)]
    return [bundle, "--device", "cpu", "--json", *flags]


def _written(done: "subprocess.CompletedProcess[bytes]") -> Outcome:
    if done.returncode:
        return _refused(done.stderr.decode())
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    hypotheses = [line.get("hypotheses", [line]) for line in lines]
    return _outcome([[(each["ids"], each.get("scores")) for each in of] for of in hypotheses])


def _flags(name: str, value: Any) -> Iterator[str]:
    """Yield the command-line arguments for an option."""
    for one in value if isinstance(value, list) else [value]:
        yield f"--{name.replace('_', '-')}"
        if name == "early_stopping":
            yield json.dumps(one).strip('"')
        elif one is not True:
            yield str(one)


def by_cpp_api(program: Path, *, submitted: bool = False) -> Door:
    """Return the interface of txport.hpp, by tests/cpp/abi/options_door.cpp: one call for all texts, or submitted."""

    def door(bundle: Path, options: Mapping[str, Any]) -> Outcome:
        words = [word for item in options.items() for word in _assignments(*item)]
        done = _run([program, bundle, *words, *["submitted"] * submitted])
        if done.returncode:
            return _refused(done.stderr.decode())
        lines = [[each.split("|") for each in line.split(";")[:-1]] for line in done.stdout.decode().splitlines()]
        return _outcome(
            [
                [
                    ([int(word) for word in ids.split()], [float(word) for word in scores.split()] or None)
                    for ids, scores in line
                ]
                for line in lines
            ]
        )

    return door


def _assignments(name: str, value: Any) -> Iterator[str]:
    """Yield the arguments of tests/cpp/abi/options_door.cpp for an option; lists of ids have separate names."""
    if name == "bad_words":
        for word in value:
            yield f"bad_words={word}" if isinstance(word, str) else f"bad_words_ids={' '.join(map(str, word))}"
    elif isinstance(value, list):
        yield f"{name}_ids={' '.join(map(str, value))}"
    else:
        yield f"{name}={json.dumps(value) if isinstance(value, bool) else value}"


def _run(arguments: Sequence[object]) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([str(item) for item in arguments], input=LINES, capture_output=True, timeout=500)


class CIds(ctypes.Structure):
    """The struct `txport_ids` of txport.h."""

    _fields_ = [("values", ctypes.POINTER(ctypes.c_int64)), ("count", ctypes.c_size_t)]

    @classmethod
    def of(cls, ids: Sequence[int]) -> "CIds":
        """Return the struct of these ids."""
        return cls((ctypes.c_int64 * len(ids))(*ids), len(ids))


class CWords(ctypes.Structure):
    """The struct `txport_words` of txport.h."""

    _fields_ = [
        ("texts", ctypes.POINTER(ctypes.c_char_p)),
        ("text_count", ctypes.c_size_t),
        ("sequences", ctypes.POINTER(CIds)),
        ("sequence_count", ctypes.c_size_t),
    ]

    @classmethod
    def of(cls, words: Sequence[str | Sequence[int]]) -> "CWords":
        """Return the struct of these texts and sequences."""
        texts = [word.encode() for word in words if isinstance(word, str)]
        ids = [CIds.of(word) for word in words if not isinstance(word, str)]
        return cls((ctypes.c_char_p * len(texts))(*texts), len(texts), (CIds * len(ids))(*ids), len(ids))


class COptions(ctypes.Structure):
    """The struct `txport_options` of txport.h."""

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
        ("generation", ctypes.c_char_p),
        ("beam", ctypes.c_int32),
        ("n_best", ctypes.c_int32),
        ("length_penalty", ctypes.POINTER(ctypes.c_double)),
        ("early_stopping", ctypes.c_char_p),
        ("patience", ctypes.c_double),
        ("repetition_penalty", ctypes.c_double),
        ("no_repeat_ngram", ctypes.c_int32),
        ("bad_words", CWords),
        ("suppress", CIds),
        ("begin_suppress", CIds),
        ("end_ids", CIds),
        ("forced_end", ctypes.POINTER(ctypes.c_int64)),
        ("renormalize", ctypes.c_int32),
        ("sample", ctypes.c_int32),
        ("temperature", ctypes.c_double),
        ("top_k", ctypes.POINTER(ctypes.c_int64)),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("seed", ctypes.c_int64),
        ("alternatives", ctypes.c_int32),
        ("shortlist", ctypes.c_int32),
        ("replace_unknowns", ctypes.c_int32),
    ]


def c_options(options: Mapping[str, Any]) -> COptions:
    """Return the struct, filled as by an application."""
    result = COptions(struct_size=ctypes.sizeof(COptions))
    kinds: dict[str, Any] = dict(COptions._fields_)
    for name, value in options.items():
        kind = kinds[name]
        if name == "prefix" and isinstance(value, list):
            result.prefix_ids = (ctypes.c_int64 * len(value))(*value)
            result.prefix_count = len(value)
        elif kind is ctypes.c_char_p:
            setattr(result, name, (value if isinstance(value, str) else json.dumps(value)).encode())
        elif kind in (CIds, CWords):
            setattr(result, name, kind.of(value))
        elif kind in (ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_int64)):
            setattr(result, name, ctypes.pointer(kind._type_(value)))
        else:
            setattr(result, name, value)
    return result


def by_c(library_path: Path, *, submitted: bool = False) -> Door:
    """Return the interface of libtxport.so, by ctypes: one call for all texts, or each submitted."""

    def door(bundle: Path, options: Mapping[str, Any]) -> Outcome:
        library = ctypes.CDLL(str(library_path))
        library.txport_message.restype = ctypes.c_char_p
        library.txport_result_ids.restype = ctypes.POINTER(ctypes.c_int64)
        library.txport_result_scores.restype = ctypes.POINTER(ctypes.c_double)
        library.txport_result_hypotheses.restype = ctypes.c_void_p
        library.txport_result_count.restype = ctypes.c_size_t
        translator = ctypes.c_void_p()
        assert library.txport_open(str(bundle).encode(), None, ctypes.byref(translator)) == 0
        asked = ctypes.byref(c_options(options))
        try:
            results = (_submitted if submitted else _called)(library, translator, asked)
            return _refused(library.txport_message().decode()) if results is None else _outcome(results)
        finally:
            library.txport_close(translator)

    return door


_Read = list[list[tuple[list[int], list[float] | None]]]


def _called(library: ctypes.CDLL, translator: ctypes.c_void_p, asked: object) -> _Read | None:
    """Return the results of one call with all texts, or None if it failed."""
    texts = (ctypes.c_char_p * len(TEXTS))(*(text.encode() for text in TEXTS))
    result = ctypes.c_void_p()
    count = ctypes.c_size_t(len(TEXTS))
    if library.txport_translate(translator, texts, None, count, asked, ctypes.byref(result)):
        return None
    return _hypotheses(library, result, len(TEXTS))


def _submitted(library: ctypes.CDLL, translator: ctypes.c_void_p, asked: object) -> _Read | None:
    """Submit all texts to the queue, then wait for their results; return None if one was refused."""
    handles = [ctypes.c_void_p() for _ in TEXTS]
    results: _Read | None = []
    for text, handle in zip(TEXTS, handles, strict=True):
        whole = ctypes.c_size_t(-1)  # SIZE_MAX: the text ends at NUL
        if library.txport_submit(translator, text.encode(), whole, asked, None, ctypes.byref(handle)):
            results = None
            break
    for handle in handles:
        result = ctypes.c_void_p()
        if results is not None:
            assert library.txport_pending_wait(handle, ctypes.c_double(60), ctypes.byref(result)) == 0
            results += _hypotheses(library, result, 1)
        library.txport_pending_free(handle)
    return results


def _hypotheses(library: ctypes.CDLL, result: ctypes.c_void_p, count: int) -> _Read:
    """Return the ids and scores of each hypothesis of each sentence, and free the result."""
    found = []
    for index in range(count):
        several = library.txport_result_hypotheses(result, ctypes.c_size_t(index))
        found.append(_read(library, several) if several else _read(library, result)[index : index + 1])
    library.txport_result_free(result)
    return found


def _read(library: ctypes.CDLL, result: object) -> list[tuple[list[int], list[float] | None]]:
    """Return the ids and scores of each translation of a `txport_result`."""
    handle, length = ctypes.c_void_p(result) if isinstance(result, int) else result, ctypes.c_size_t()
    found = []
    for index in map(ctypes.c_size_t, range(library.txport_result_count(handle))):
        ids = library.txport_result_ids(handle, index, ctypes.byref(length))
        scores = library.txport_result_scores(handle, index, None)
        found.append((ids[: length.value], scores[: length.value] if scores else None))
    return found
