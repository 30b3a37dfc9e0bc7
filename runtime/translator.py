"""Text in, text out: the one class that an application needs."""

import logging
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from txport.runtime import greedy
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.engine import Engine
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.errors import InputError
from txport.runtime.files import new_file
from txport.runtime.libraries import needs
from txport.runtime.options import DEFAULTS, Options
from txport.runtime.text.affixes import affixes
from txport.runtime.text.lines import as_line, open_lines, text_windows
from txport.runtime.workers import cores, shares

with needs("ort"):
    from txport.runtime.text.tokenizer import TextStream, open_tokenizer

T = TypeVar("T")
_log = logging.getLogger("txport")


@dataclass(frozen=True)
class Translation:
    """The translation of one sentence.

    Attributes:
        text: the translation; empty for an empty sentence.
        ids: target ids without bos; the last is eos unless the maximum length came first.
        scores: the natural logarithm of each id's probability, if requested.
        truncated: the sentence was longer than the bundle takes and was cut.
    """

    text: str
    ids: list[int]
    scores: list[float] | None
    truncated: bool


@dataclass(frozen=True)
class Piece:
    """One step of a stream: the id, the text that it completes (often none), and its score if requested."""

    id: int
    text: str
    score: float | None


class Translator:
    """A bundle, ready to translate. Threads may share one: calls leave no state in it.

    Args:
        bundle: the directory that tx-export wrote.
        device: "auto", "cpu", "cuda" (ONNX Runtime) or "trt" (TensorRT engines of tx-build).
        lowering: what runs the decoder step: "fused", the engine for CPUs, or a graph of the bundle by ONNX Runtime or
            TensorRT, "ort", "scatter" or "tensorscatter"; None for the best one here.
        threads: threads of each operator; 0 for as many as there are cores.
        batch: the most sentences that run together, up to what the bundle takes; None for that.
        batch_tokens: the most source tokens, padding included, that run together.
        workers: batches that run side by side on the CPU, over one set of weights: each takes a share of `batch` and
            `batch_tokens`, and of the cores if `threads` is 0. One is best for single sentences, one for each core for
            many; 0 for that.

    Raises:
        BundleError: the bundle is damaged, incomplete or of a newer format. Hashes of all files but the weights are
            compared here; `tx-inspect --check` compares those too.
        InputError: an argument cannot be used.
        MissingLibrary: a library that runs or tokenizes is not installed, or there is no GPU for the device.
        ResourceError: there is not enough memory.
        EngineError: the library or the GPU failed.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        device: str = "auto",
        lowering: str | None = None,
        threads: int = 0,
        batch: int | None = None,
        batch_tokens: int = greedy.BATCH_TOKENS,
        workers: int = 1,
    ) -> None:
        directory = Path(bundle)
        numbers = threads, workers, 1 if batch is None else batch, batch_tokens
        if not all(isinstance(n, Integral) and n >= least for n, least in zip(numbers, (0, 0, 1, 1), strict=True)):
            raise InputError("threads and workers must be 0 or more, batch and batch_tokens 1 or more")
        self.manifest = Manifest.load(directory)
        self.manifest.check_files(directory, hashes=lambda name: name != WEIGHTS)
        self.tokenizer = open_tokenizer(directory, self.manifest.tokenizer, self.manifest.vocabularies)
        choice = choose(self.manifest, device, lowering, directory)
        self._workers, threads = shares(workers, threads, cores()) if choice.device == "cpu" else (1, threads)
        many = self._workers > 1
        self._engine: Engine | None = open_engine(directory, self.manifest, choice, threads, many=many)
        most = self._engine.limits.batch
        if batch is not None and batch > most:
            raise InputError(f"the batch {batch} is not between 1 and {most}, the most of this bundle")
        self._batch, self._batch_tokens = batch, batch_tokens

    @property
    def engine(self) -> Engine:
        """What runs the bundle.

        Raises:
            InputError: the translator was closed.
        """
        if self._engine is None:
            raise InputError("this Translator was closed: open the bundle again")
        return self._engine

    def close(self) -> None:
        """Give back the memory of the model, as soon as no call uses it any more. A second call does nothing."""
        self._engine = None

    def __enter__(self) -> "Translator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InputError("a Translator cannot be pickled: open the bundle in each process")

    def translate(self, sentences: Iterable[str], options: Options = DEFAULTS, **changes: Any) -> list[Translation]:
        """Translate sentences; the results are in their order. Empty ones, and ones of spaces only, stay empty.

        Args:
            sentences: any number; they are sorted by length and run in batches.
            options: see `txport.runtime.options.Options`.
            changes: fields of `Options` by name, instead of those of `options`: `translate(texts, scores=True)`.

        Raises:
            InputError: an option cannot be used, or a sentence is too long and `strict` is set.
            ResourceError: there is not enough memory for the batch; a later call, or a smaller `batch`, may succeed.
            EngineError: the library or the GPU failed.
        """
        return self._translate(sentences, self._call(options, changes), "sentence", 1)

    def translate_windows(
        self, windows: Iterable[Sequence[str]], options: Options = DEFAULTS, *, what: str = "line", **changes: Any
    ) -> Iterator[list[Translation]]:
        """Translate a text of any length, some lines at a time.

        Args:
            windows: lines in portions of a size that is worth sorting, some hundred (see `txport.runtime.text.lines`).
            options, changes: as for `translate`.
            what: names a line in messages, before its number.

        Yields:
            the results of each window, in order.

        Raises:
            InputError: as `translate`, with the number of the line.
        """
        call, first = self._call(options, changes), 1
        for window in windows:
            yield self._translate(window, call, what, first)
            first += len(window)

    def translate_file(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        options: Options = DEFAULTS,
        *,
        errors: str = "strict",
        **changes: Any,
    ) -> int:
        r"""Translate a UTF-8 file line by line into another one, which is written whole or not at all.

        Lines end at "\n". Memory does not grow with the file.

        Args:
            source, target: the files.
            options, changes: as for `translate`.
            errors: what becomes of a line that is not UTF-8: "strict" raises, "replace" puts U+FFFD where the bytes are
                wrong, "skip" takes the line as empty.

        Returns:
            the number of lines.

        Raises:
            InputError: as `translate`, or a file cannot be read or written, or a line is not UTF-8.
        """
        count = 0
        with open_lines(Path(source)) as windows, new_file(Path(target)) as output:
            texts = text_windows(windows, errors, what := f"{source}, line")
            for results in self.translate_windows(texts, options, what=what, **changes):
                output.writelines(as_line(result.text) for result in results)
                count += len(results)
        return count

    def translate_ids(
        self, sources: Iterable[Iterable[int]], options: Options = DEFAULTS, **changes: Any
    ) -> list[Translation]:
        """As `translate`, from source ids, without a tokenizer unless `prefix` is text.

        Source ids are whole: eos and language tokens included. What the model's answers are forced to begin with
        stands before `prefix` by itself.

        Raises:
            InputError: a source is empty, longer than the bundle takes, or has an id outside the vocabulary.
        """
        most = self.manifest.model.source_vocabulary
        listed = [_ids(source, most, f"sentence {n}") for n, source in enumerate(_listed(sources), 1)]
        call = self._call(options, changes)
        requests = [call.request(source, call.target_prefix) for source in listed]
        return [self._translation(result, truncated=False) for result in self._decode(requests, call.options.scores)]

    def stream(self, sentence: str, options: Options = DEFAULTS, **changes: Any) -> Iterator[Piece]:
        """Translate one sentence and yield each token as it is made; options as for `translate`.

        The texts of all pieces, joined, are the text that `translate` gives.
        """
        call = self._call(options, changes)
        request, _ = self._request(sentence, call, "the sentence")
        if request is None:
            return
        text = TextStream(self.tokenizer)
        for token in greedy.stream(self.engine, request, scores=call.options.scores):
            yield Piece(token.id, text.add(token.id, token.last), token.score)

    def _translate(self, texts: Iterable[str], call: "_Call", what: str, first: int) -> list[Translation]:
        sentences = _listed(texts)
        found = [self._request(text, call, f"{what} {number}") for number, text in enumerate(sentences, first)]
        scores = call.options.scores
        work = [(index, request, cut) for index, (request, cut) in enumerate(found) if request is not None]
        results = [Translation("", [], [] if scores else None, False) for _ in sentences]
        made = self._decode([request for _, request, _ in work], scores)
        for (index, _, cut), result in zip(work, made, strict=True):
            results[index] = self._translation(result, cut)
        return results

    def _decode(self, requests: Sequence[greedy.Request], scores: bool) -> list[greedy.Result]:
        return greedy.decode_all(
            self.engine,
            requests,
            rows=self._batch,
            batch_tokens=self._batch_tokens,
            scores=scores,
            workers=self._workers,
        )

    def _translation(self, result: greedy.Result, truncated: bool) -> Translation:
        return Translation(self.tokenizer.decode(result.ids), result.ids, result.scores, truncated)

    def _request(self, text: str, call: "_Call", what: str) -> tuple[greedy.Request | None, bool]:
        """The request for a text (None if the text is blank), and whether the text was cut to fit."""
        _check_text(text, what)
        if not text or text.isspace():
            return None, False
        options = call.options
        ids, around = self.tokenizer.encode_source(text, options.source_language, options.target_language)
        if not ids:
            return None, False
        source, most = around.around(ids), self.engine.limits.source
        request = call.request(around.around(ids, most), around.target_prefix)
        if len(source) <= most:
            return request, False
        message = f"{what} has {len(source)} tokens, more than the {most} that this bundle takes"
        if options.strict:
            raise InputError(f"{message}: shorten it, or translate it cut short, without strict")
        _log.warning("%s: it was cut", message)
        return request, True

    def _call(self, options: Options, changes: Mapping[str, Any]) -> "_Call":
        # Languages are checked before any sentence is encoded.
        if not isinstance(options, Options):
            raise InputError(
                f"options are of type {type(options).__name__}: give Options(...), or fields of it by name"
            )
        options = options.changed(changes)
        around = affixes(self.manifest.tokenizer, options.source_language, options.target_language)
        prefix: list[int] = []
        if isinstance(options.prefix, str):
            _check_text(options.prefix, "the prefix")
            prefix = self.tokenizer.encode_prefix(options.prefix) if options.prefix else []
        elif options.prefix is not None:
            prefix = _ids(options.prefix, self.manifest.model.target_vocabulary, "the prefix")
        self._check_lengths(options.max_length, options.min_length, [*around.target_prefix, *prefix])
        return _Call(options, around.target_prefix, prefix)

    def _check_lengths(self, max_length: int | None, min_length: int, prefix: Sequence[int]) -> None:
        most = self.engine.limits.target
        if max_length is not None and not 1 <= max_length <= most:
            raise InputError(f"the maximum length {max_length} is not between 1 and {most}, the most of this bundle")
        most = max_length or most
        if not 0 <= min_length <= most:
            raise InputError(f"the minimum length {min_length} is not between 0 and {most}, the maximum length")
        if len(prefix) >= most:
            raise InputError(f"a prefix of {len(prefix)} tokens leaves no room for more: the maximum length is {most}")


@dataclass(frozen=True)
class _Call:
    """What the sentences of one call share.

    Attributes:
        options: of the call.
        target_prefix: ids that all answers begin with in its languages.
        prefix: ids of its `prefix`, which follow these.
    """

    options: Options
    target_prefix: Sequence[int]
    prefix: Sequence[int]

    def request(self, source: Sequence[int], target_prefix: Sequence[int]) -> greedy.Request:
        """Of one source; a sentence may choose a target language, and with it a target prefix, of its own."""
        limits = self.options.max_length, self.options.min_length
        return greedy.Request(source, *limits, prefix=[*target_prefix, *self.prefix])


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"{what} is of type {type(text).__name__}: give text (str)")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is not valid text ({error.reason} at {error.start}): decode it anew") from None


def _listed(items: Iterable[T]) -> list[T]:
    if isinstance(items, (str, bytes)):
        raise InputError("sentences come as a list: put the one sentence in a list")
    try:
        return list(items)
    except TypeError:
        raise InputError(f"sentences come as a list, and this is of type {type(items).__name__}") from None


def _ids(ids: Iterable[int], vocabulary: int, what: str) -> list[int]:
    try:
        found = [operator.index(token) for token in ids]
    except TypeError as error:
        raise InputError(f"{what} is not a list of ids, which are whole numbers ({error})") from None
    for token in found:
        if not 0 <= token < vocabulary:
            raise InputError(f"{what} has the id {token}, which is not between 0 and {vocabulary - 1}")
    return found
