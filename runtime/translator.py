"""Text in, text out: the one class that an application needs."""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from txport.runtime import greedy
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.errors import InputError
from txport.runtime.files import new_file
from txport.runtime.libraries import needs
from txport.runtime.text.affixes import affixes
from txport.runtime.text.lines import as_line, open_lines, text_windows
from txport.runtime.workers import cores, shares

with needs("ort"):
    from txport.runtime.text.tokenizer import TextStream, open_tokenizer

_log = logging.getLogger("txport")


@dataclass(frozen=True)
class Options:
    """What may be asked for every sentence of a call.

    Attributes:
        max_length: the most tokens to make, eos included; None for as many as the bundle makes.
        min_length: tokens to make before eos may be.
        prefix: text that each translation must begin with.
        scores: compute `Translation.scores`.
        strict: refuse a sentence that is longer than the bundle takes, instead of cutting it with a warning.
        source_language: the language of the sentences, for a bundle that has several; None for its default.
        target_language: the language to translate into, likewise. A sentence may choose another one by its beginning
            if the bundle has that (`>>name<<`).
    """

    max_length: int | None = None
    min_length: int = 0
    prefix: str | None = None
    scores: bool = False
    strict: bool = False
    source_language: str | None = None
    target_language: str | None = None


@dataclass(frozen=True)
class Translation:
    """What came out for one sentence.

    Attributes:
        text: the translation; empty for an empty sentence.
        ids: target ids without bos; the last is eos unless the maximum length came first.
        scores: the natural logarithm of each id's probability, if asked for.
        truncated: the sentence was longer than the bundle takes and was cut.
    """

    text: str
    ids: list[int]
    scores: list[float] | None
    truncated: bool


@dataclass(frozen=True)
class Piece:
    """One step of a stream: the id, the text that became certain by it (perhaps none), its score if asked for."""

    id: int
    text: str
    score: float | None


class Translator:
    """A bundle, ready to translate. Threads may share one: nothing of a call stays in it.

    Args:
        bundle: the directory that tx-export wrote.
        device: "auto", "cpu", "cuda" (ONNX Runtime) or "trt" (TensorRT engines of tx-build).
        lowering: the decoder step to use: "ort", "scatter" or "tensorscatter"; None for the best one here.
        threads: threads of each operator; 0 for as many as there are cores.
        batch: the most sentences that run together; None for as many as the bundle takes.
        batch_tokens: the most source tokens, padding included, that run together.
        workers: batches that run side by side on the CPU, over one set of weights: each takes a share of `batch` and
            `batch_tokens`, and of the cores if `threads` is 0. One is best for single sentences, one for each core for
            many; 0 for that.

    Raises:
        BundleError: the bundle is damaged, incomplete or of a newer format. Hashes of all files but the weights are
            compared here; `tx-inspect --check` compares those too.
        InputError: an argument cannot be used.
        MissingLibrary: ONNX Runtime or SentencePiece is not installed.
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
        if threads < 0 or workers < 0 or (batch is not None and batch < 1) or batch_tokens < 1:
            raise InputError("threads and workers must be 0 or more, batch and batch_tokens 1 or more")
        self.manifest = Manifest.load(directory)
        self.manifest.check_files(directory, hashes=lambda name: name != WEIGHTS)
        self.tokenizer = open_tokenizer(
            directory,
            self.manifest.tokenizer,
            self.manifest.tokens.unk,
            self.manifest.model.source_vocabulary,
            self.manifest.model.target_vocabulary,
        )
        choice = choose(self.manifest, device, lowering, directory)
        self._workers, threads = shares(workers, threads, cores()) if choice.device == "cpu" else (1, threads)
        self.engine = open_engine(directory, self.manifest, choice, threads)
        self._batch, self._batch_tokens = batch, batch_tokens

    def translate(
        self,
        sentences: Sequence[str],
        *,
        max_length: int | None = None,
        min_length: int = 0,
        prefix: str | None = None,
        scores: bool = False,
        strict: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> list[Translation]:
        """Translate sentences; the results are in their order. Empty ones, and ones of spaces only, stay empty.

        Args:
            sentences: any number; they are sorted by length and run in batches.
            max_length, min_length, prefix, scores, strict, source_language, target_language: see `Options`.

        Raises:
            InputError: an argument cannot be used, or a sentence is too long and `strict` is set.
        """
        if isinstance(sentences, str):
            raise InputError("translate takes a list of sentences: put the one sentence in a list")
        options = Options(max_length, min_length, prefix, scores, strict, source_language, target_language)
        return self._translate(sentences, self._call(options), "sentence", 1)

    def translate_windows(
        self, windows: Iterable[Sequence[str]], options: Options = Options()
    ) -> Iterator[list[Translation]]:
        """Translate a text of any length, some lines at a time.

        Args:
            windows: lines in portions of a size that is worth sorting, some hundred (see `txport.runtime.text.lines`).
            options: see `Options`.

        Yields:
            the results of each window, in order.

        Raises:
            InputError: as `translate`, with the number of the line.
        """
        call, first = self._call(options), 1
        for window in windows:
            yield self._translate(window, call, "line", first)
            first += len(window)

    def translate_file(
        self, source: str | os.PathLike[str], target: str | os.PathLike[str], options: Options = Options()
    ) -> int:
        r"""Translate a UTF-8 file line by line into another one, which is written whole or not at all.

        Lines end at "\n". Memory does not grow with the file.

        Returns:
            the number of lines.

        Raises:
            InputError: as `translate`, or a file cannot be read or written, or a line is not UTF-8.
        """
        count = 0
        with open_lines(Path(source)) as windows, new_file(Path(target)) as output:
            for results in self.translate_windows(text_windows(windows), options):
                output.writelines(as_line(result.text) for result in results)
                count += len(results)
        return count

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        *,
        max_length: int | None = None,
        min_length: int = 0,
        prefix: Sequence[int] = (),
        scores: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> list[Translation]:
        """As `translate`, from source ids and a prefix of target ids, without a tokenizer.

        Source ids are whole: eos and language tokens included. What the model's answers are forced to begin with
        stands before `prefix` by itself.

        Raises:
            InputError: a source is empty, longer than the bundle takes, or has an id outside the vocabulary.
        """
        for number, source in enumerate(sources, 1):
            _check_ids(source, self.manifest.model.source_vocabulary, f"sentence {number}")
        _check_ids(prefix, self.manifest.model.target_vocabulary, "the prefix")
        forced = affixes(self.manifest.tokenizer, source_language, target_language).target_prefix
        begin = [*forced, *prefix]
        self._check_lengths(max_length, min_length, begin)
        requests = [greedy.Request(source, max_length, min_length, begin) for source in sources]
        return [self._translation(result, truncated=False) for result in self._decode(requests, scores)]

    def stream(
        self,
        sentence: str,
        *,
        max_length: int | None = None,
        min_length: int = 0,
        prefix: str | None = None,
        scores: bool = False,
        strict: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Iterator[Piece]:
        """Translate one sentence and yield each token as it is made; arguments as for `translate`.

        The texts of all pieces, joined, are the text that `translate` gives.
        """
        options = Options(max_length, min_length, prefix, scores, strict, source_language, target_language)
        request, _ = self._request(sentence, self._call(options), "the sentence")
        if request is None:
            return
        text = TextStream(self.tokenizer)
        for token in greedy.stream(self.engine, request, scores=scores):
            yield Piece(token.id, text.add(token.id, token.last), token.score)

    def _translate(self, sentences: Sequence[str], call: "_Call", what: str, first: int) -> list[Translation]:
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
        """What to ask for a text, None if there is nothing in it to translate, and whether it was cut to fit."""
        if not text or text.isspace():
            return None, False
        options = call.options
        ids, around = self.tokenizer.encode_source(text, options.source_language, options.target_language)
        if not ids:
            return None, False
        source, most = around.around(ids), self.engine.limits.source
        request = greedy.Request(
            around.around(ids, most), options.max_length, options.min_length, [*around.target_prefix, *call.prefix]
        )
        if len(source) <= most:
            return request, False
        message = f"{what} has {len(source)} tokens, more than the {most} that this bundle takes"
        if options.strict:
            raise InputError(f"{message}: shorten it, or translate it cut short, without strict")
        _log.warning("%s: it was cut", message)
        return request, True

    def _call(self, options: Options) -> "_Call":
        # A language that is unknown or was not chosen is reported before any sentence is looked at.
        around = affixes(self.manifest.tokenizer, options.source_language, options.target_language)
        prefix = self.tokenizer.encode_prefix(options.prefix) if options.prefix else []
        self._check_lengths(options.max_length, options.min_length, [*around.target_prefix, *prefix])
        return _Call(options, prefix)

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
    """What the sentences of one call share: the options, and the ids of their `prefix`."""

    options: Options
    prefix: list[int]


def _check_ids(ids: Sequence[int], vocabulary: int, what: str) -> None:
    for token in ids:
        if not 0 <= token < vocabulary:
            raise InputError(f"{what} has the id {token}, which is not between 0 and {vocabulary - 1}")
