"""Text in, text out: the one class that an application needs."""

import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from numbers import Integral
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

from txport.runtime.arguments import check_ids, listed
from txport.runtime.bundle.archive import Archive, Files, files_of
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.names import find_bundle
from txport.runtime.bundle.shortlist import open_shortlist
from txport.runtime.documents.document import Document, Draft
from txport.runtime.documents.feed import submit
from txport.runtime.engine import Engine, Float32
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.errors import InputError
from txport.runtime.files import new_file
from txport.runtime.libraries import needs
from txport.runtime.options import DEFAULTS, Options
from txport.runtime.results import AttentionMaps, Piece, Score, Translation, best_of, empty, translations_of
from txport.runtime.scoring import Answer, Scorer
from txport.runtime.search.decoding import check_streams, stream
from txport.runtime.search.queue import Load, Pending, Queue, answered
from txport.runtime.search.requests import Result, Token
from txport.runtime.search.scheduler import BATCH_TOKENS
from txport.runtime.search.shared import SharedBatches
from txport.runtime.text.lines import as_line, open_lines, text_windows
from txport.runtime.text.requests import Call, Sentence
from txport.runtime.text.search_options import Model
from txport.runtime.workers import cores, shares

with needs(""):
    from txport.runtime.text.tokenizer import TextStream, open_tokenizer

_CLOSED = "this Translator was closed: open the bundle again"


class Translator:
    """A bundle, ready to translate. Threads may share one: calls leave no state in it.

    Args:
        bundle: the directory that tx-export wrote, the file that tx-pack wrote or its bytes, which are not copied, or
            the name by which tx-get keeps a bundle.
        device: "auto", "cpu" or "cuda".
        engine: what runs it there: "auto", "fused" (our own for CPUs), "ort" (ONNX Runtime) or "trt" (TensorRT, with
            engines of tx-build).
        lowering: for experts: the decoder step's graph, "ort", "scatter" or "tensorscatter"; None for the best one.
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
        bundle: str | os.PathLike[str] | bytes | bytearray | memoryview,
        device: str = "auto",
        engine: str = "auto",
        lowering: str | None = None,
        threads: int = 0,
        batch: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        workers: int = 1,
    ) -> None:
        numbers = threads, workers, 1 if batch is None else batch, batch_tokens
        if not all(isinstance(n, Integral) and n >= least for n, least in zip(numbers, (0, 0, 1, 1), strict=True)):
            raise InputError("threads and workers must be 0 or more, batch and batch_tokens 1 or more")
        files = _files(bundle)
        self.manifest = Manifest.load(files)
        self.manifest.check_files(files, hashes=lambda name: name != WEIGHTS)
        self.tokenizer = open_tokenizer(files, self.manifest.tokenizer, self.manifest.vocabularies)
        self._shortlist = open_shortlist(files, self.manifest)
        choice = choose(self.manifest, device, engine, lowering, files)
        self._workers, threads = shares(workers, threads, cores()) if choice.device == "cpu" else (1, threads)
        many = self._workers > 1
        opened = open_engine(files, self.manifest, choice, threads, many=many)
        limit = opened.limits.batch
        if batch is not None and batch > limit:
            raise InputError(f"the batch {batch} is not between 1 and {limit}, the most of this bundle")
        self._batch, self._batch_tokens = batch, batch_tokens
        most = max(1, cores() // (threads or cores()))
        self._shared = SharedBatches(rows=batch, batch_tokens=batch_tokens, workers=self._workers, most=most)
        self._files = files
        self._lock = Lock()  # of the queue's making
        self._queue: Queue | None = None
        self._opened: Scorer | None = Scorer(files, self.manifest, self.tokenizer, opened, choice.device, threads)

    @property
    def engine(self) -> Engine:
        """Engine that runs the bundle; raises InputError once the translator was closed."""
        return self._scorer.engine

    def close(self) -> None:
        """Give back the memory of the model, as soon as no call uses it any more. A second call does nothing.

        What was submitted is answered before.
        """
        with self._lock:
            queue, self._queue = self._queue, None
        if queue is not None:
            self._finalizer.detach()
            queue.close()
        self._opened = None

    def __enter__(self) -> "Translator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        runs = "closed" if self._opened is None else self._opened.engine.name
        return f"<Translator of {self._files}: {runs}>"

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
            BundleError: the bundle was exported without the graph that alignments and attention need.
            ResourceError: there is not enough memory for the batch; a later call, or a smaller `batch`, may succeed.
            EngineError: the library or the GPU failed.
        """
        call = self._call(options, changes)
        return self._translate(sentences, call, "sentence", 1)

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
        call = self._call(options, changes)
        first = 1
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

    def translate_document(
        self, text: str, options: Options = DEFAULTS, *, what: str = "line", **changes: Any
    ) -> Document:
        """Translate a text of any length and keep its layout: line breaks, white space, bullets, numbers of items.

        Each sentence is translated by itself. One that is longer than the model takes is cut into parts, with a
        warning, where punctuation or white space allows it; with `strict` it is refused.

        Args:
            text: any text; with nothing to translate in it, it stays as it is.
            options, changes: as for `translate`.
            what: names a line in messages, before its number.

        Raises:
            as `translate`.
        """
        call = self._call(options, changes)
        draft = self._draft(text, call, what)
        made = iter(self._translations([each for each in draft.sentences if each is not None], call.options))
        return draft.built([empty(call.options) if each is None else next(made) for each in draft.sentences])

    def translate_ids(
        self, sources: Iterable[Iterable[int]], options: Options = DEFAULTS, **changes: Any
    ) -> list[Translation]:
        """Translate as `translate` does, from source ids, without a tokenizer unless `prefix` is text.

        Source ids are whole: eos and language tokens included. What the model's answers are forced to begin with
        stands before `prefix` by itself. Alignments are of tokens then: a source has no characters.

        Raises:
            InputError: a source is empty, longer than the bundle takes, or has an id outside the vocabulary.
        """
        whole = [self._scorer.source(source, f"sentence {number}") for number, source in enumerate(listed(sources), 1)]
        call = self._call(options, changes)
        return self._translations([call.of_ids(*each) for each in zip(whole, count(1))], call.options)

    def stream(self, sentence: str, options: Options = DEFAULTS, **changes: Any) -> Iterator[Piece]:
        """Translate one sentence and yield each token as it is made; options as for `translate`.

        The texts of all pieces, joined, are the text that `translate` gives.

        Raises:
            InputError: as `translate`, or alignments or attention are asked for: they need a whole translation.
        """
        call = self._call(options, changes)
        if call.options.alignments or call.options.attention:
            raise InputError("a stream has no alignments and no attention: use translate for these")
        asked = call.sentence(sentence, "the sentence")
        if asked is None:
            return
        text = TextStream(self.tokenizer)
        for token in stream(self.engine, asked.request):
            yield Piece(token.id, text.add(token.id, token.last), token.score)

    def submit(
        self,
        sentence: str,
        options: Options = DEFAULTS,
        *,
        seconds: float | None = None,
        on_piece: Callable[[Piece], object] | None = None,
        **changes: Any,
    ) -> Pending:
        """Translate one sentence in the batch that runs; any thread may do so at any time.

        Args:
            sentence, options, changes: as for `translate`.
            seconds: time to a deadline, after which the answer is a `DeadlineExceeded`.
            on_piece: is called with each token as it is made, in the thread that decodes: it must return at once.

        Returns:
            the `Translation` to come: a `concurrent.futures.Future`, which may be awaited, too. `cancel` frees its row.

        Raises:
            InputError: as `translate`, or pieces are asked of a search that has several answers.
            ResourceError: as many requests wait as may (`txport.runtime.search.queue.MOST_WAITING`).
        """
        call = self._call(options, changes)
        asked = call.sentence(sentence, "the sentence")
        if asked is None:
            return answered(empty(call.options))
        return self._enqueue(asked, call.options, on_piece, seconds)

    def submit_document(
        self,
        text: str,
        options: Options = DEFAULTS,
        *,
        seconds: float | None = None,
        on_piece: Callable[[Piece], object] | None = None,
        **changes: Any,
    ) -> Pending:
        """Translate a document as `translate_document` does, in the batch that runs; otherwise as `submit`.

        Args:
            text, options, changes: as for `translate_document`.
            seconds: as for `submit`, to the deadline of the whole document.
            on_piece: is called in the order of the document, from the first sentence on. What is no token has the id
                `NO_ID`: layout, and sentences over several lines, which are given whole. All texts together are that
                of the document.

        Returns:
            the `Document` to come. `cancel` frees the rows of all its parts.

        Raises:
            InputError, ResourceError: as `submit`. A document counts as one request until it is taken.
        """
        draft = self._draft(text, self._call(options, changes), "line")
        deadline = None if seconds is None else time.monotonic() + seconds

        def enqueue(asked: Sentence, on_token: Callable[[Piece], object] | None, admitted: bool) -> Pending:
            left = None if deadline is None else deadline - time.monotonic()
            return self._enqueue(asked, draft.call.options, on_token, left, admitted)

        return submit(draft, enqueue, on_piece)

    def _enqueue(
        self,
        asked: Sentence,
        options: Options,
        on_piece: Callable[[Piece], object] | None,
        seconds: float | None,
        admitted: bool = False,
    ) -> Pending:
        return self._running_queue().submit(
            asked.request,
            seconds=seconds,
            on_token=None if on_piece is None else self._pieces(on_piece, asked),
            convert=lambda result: self._built([asked], [result], options)[0],
            admitted=admitted,
        )

    def _running_queue(self) -> Queue:
        with self._lock:
            queue = self._queue
            if queue is None:
                queue = self._queue = Queue(self.engine, rows=self._batch, batch_tokens=self._batch_tokens)
                self._finalizer = weakref.finalize(self, queue.close, drain=False)
        return queue

    def _draft(self, text: str, call: Call, what: str) -> Draft:
        return Draft(call, text, self.manifest.tokenizer, what)

    @property
    def load(self) -> Load:
        """Work of the queue of `submit`."""
        queue = self._queue
        return Load() if queue is None else queue.load

    def _pieces(self, on_piece: Callable[[Piece], object], asked: Sentence) -> Callable[[Token], object]:
        check_streams(asked.request.search)
        text = TextStream(self.tokenizer)
        return lambda token: on_piece(Piece(token.id, text.add(token.id, token.last), token.score))

    def score(
        self, sources: Iterable[str], targets: Iterable[Answer], options: Options = DEFAULTS, **changes: Any
    ) -> list[Score]:
        """Score given translations; see `txport.runtime.scoring.Scorer.score`."""
        return self._scorer.score(self._call(options, changes), sources, targets)

    def score_ids(self, sources: Iterable[Iterable[int]], targets: Iterable[Iterable[int]]) -> list[Score]:
        """Score as `score` does, from whole source ids and target ids as `translate_ids` takes and gives them."""
        return self._scorer.score_ids(sources, targets)

    def embed(
        self, sentences: Iterable[str], options: Options = DEFAULTS, *, pooled: bool = True, **changes: Any
    ) -> Float32 | list[Float32]:
        """Embed sentences by the encoder; see `txport.runtime.scoring.Scorer.embed`."""
        return self._scorer.embed(self._call(options, changes), sentences, pooled)

    def attention_maps(
        self, sentence: str | Sequence[int], target: Answer | None = None, options: Options = DEFAULTS, **changes: Any
    ) -> AttentionMaps:
        """All attention of a sentence and its translation; see `txport.runtime.scoring.Scorer.attention_maps`."""
        return self._scorer.attention_maps(self._call(options, changes), sentence, target)

    def _translate(self, texts: Iterable[str], call: Call, what: str, first: int) -> list[Translation]:
        asked = [call.sentence(text, f"{what} {at}", at) for at, text in enumerate(listed(texts), first)]
        translations = iter(self._translations([sentence for sentence in asked if sentence is not None], call.options))
        return [empty(call.options) if sentence is None else next(translations) for sentence in asked]

    def _translations(self, sentences: Sequence[Sentence], options: Options) -> list[Translation]:
        results = self._shared.decode(self.engine, [sentence.request for sentence in sentences])
        return self._built(sentences, results, options)

    def _built(self, sentences: Sequence[Sentence], results: Sequence[Result], options: Options) -> list[Translation]:
        asked = [sentence for sentence, result in zip(sentences, results, strict=True) for _ in result.hypotheses]
        translations = translations_of(self.tokenizer, self.manifest.tokens.eos, asked, results)
        if options.alignments or options.attention:
            translations = self._scorer.align(options, asked, translations)
        return best_of(translations, results)

    @property
    def _scorer(self) -> Scorer:
        if self._opened is None:
            raise InputError(_CLOSED)
        return self._opened

    def _call(self, options: Options, changes: Mapping[str, Any]) -> Call:
        if not isinstance(options, Options):
            raise InputError(
                f"options are of type {type(options).__name__}: give Options(...), or fields of it by name"
            )
        options = options.changed(changes)
        self._scorer.check(options)
        if options.prefix is not None and not isinstance(options.prefix, str):
            ids = check_ids(options.prefix, self.manifest.model.target_vocabulary, "the prefix")
            options = replace(options, prefix=ids)
        manifest = self.manifest
        model = Model(manifest.tokens, manifest.model.target_vocabulary, manifest.generation, self._shortlist)
        return Call.of(self.tokenizer, self.engine.limits, options, model=model)


def _files(bundle: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Files:
    """The files of a bundle that is named, or whose bytes are given."""
    if isinstance(bundle, (str, os.PathLike)):
        return files_of(find_bundle(bundle))
    try:
        data = memoryview(bundle).cast("B")
    except TypeError:  # it has no bytes, or not side by side
        kind = type(bundle).__name__
        raise InputError(f"the bundle is of type {kind}: give its path, or the bytes of its file") from None
    return Archive(data, "the bundle in memory")
