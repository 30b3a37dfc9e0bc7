"""An open bundle: owner of the model and its queue until it is closed."""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

from txport.runtime.arguments import check_reads
from txport.runtime.bundle.archive import Archive, Files, files_of
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.names import find_bundle
from txport.runtime.bundle.shortlist import open_shortlist
from txport.runtime.calls.requests import Call, Sentence
from txport.runtime.calls.search_options import ModelFacts, check_pieces
from txport.runtime.engine import Engine
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.errors import InputError
from txport.runtime.libraries import needs
from txport.runtime.options import Options
from txport.runtime.results import Piece, Translation, best_of, empty, translations_of
from txport.runtime.scoring import Scorer
from txport.runtime.search.decoding import check_streams
from txport.runtime.search.queue import Load, Pending, Queue
from txport.runtime.search.requests import Result, Token
from txport.runtime.search.shared import SharedBatches
from txport.runtime.system import cores

with needs(""):
    from txport.runtime.text.tokenizer import TextStream, open_tokenizer

T = TypeVar("T")
# A bundle by path, name or bytes.
Source = str | os.PathLike[str] | bytes | bytearray | memoryview
# Maximum number of workers that `workers=0` selects. More of them exceed caches and memory bandwidth.
MAX_WORKERS = 4


class _Memory(NamedTuple):
    """The objects that own the memory of the model."""

    scorer: Scorer
    queue: Queue


class OpenBundle:
    """A bundle in memory. For the arguments see `txport.runtime.translator.Translator`."""

    def __init__(
        self,
        bundle: Source,
        device: str,
        engine: str,
        lowering: str | None,
        threads: int,
        batch: int | None,
        batch_tokens: int,
        workers: int,
        trust_engines: bool,
        verify: bool,
    ) -> None:
        numbers = threads, workers, 1 if batch is None else batch, batch_tokens
        if not all(isinstance(n, Integral) and n >= minimum for n, minimum in zip(numbers, (0, 0, 1, 1), strict=True)):
            raise InputError("threads and workers must be 0 or more, batch and batch_tokens 1 or more")
        self._files = files = _files(bundle)
        self.manifest = manifest = Manifest.load(files)
        manifest.check_files(files, hashes=lambda name: verify or name != WEIGHTS)
        self.tokenizer = open_tokenizer(files, manifest.tokenizer, manifest.vocabularies)
        shortlist = open_shortlist(files, manifest)
        self._model = ModelFacts(manifest.tokens, manifest.model.target_vocabulary, manifest.generation, shortlist)
        choice = choose(manifest, device, engine, lowering, files, trust_engines)
        workers, threads = shares(workers, threads, cores()) if choice.device == "cpu" else (1, threads)
        loaded_engine = open_engine(files, manifest, choice, threads, concurrent=workers > 1)
        limit = loaded_engine.limits.batch
        if batch is not None and batch > limit:
            raise InputError(f"the batch {batch} is not between 1 and {limit}, the maximum of this bundle")
        # Each batch keeps `threads` cores busy. Sharing a batch pays only when all cores are in use.
        parallel_batches = max(1, cores() // (threads or cores()))
        self._shared = SharedBatches(
            rows=batch, batch_tokens=batch_tokens, workers=workers, parallel_batches=parallel_batches
        )
        scorer = Scorer(files, manifest, self.tokenizer, loaded_engine, choice.device, threads)
        queue = Queue(loaded_engine, rows=batch, batch_tokens=batch_tokens)
        self._memory: _Memory | None = _Memory(scorer, queue)
        # The thread of the queue keeps the model in memory, also if a caller forgets `close`.
        self._finalizer = weakref.finalize(self, queue.close, drain=False)

    @property
    def engine(self) -> Engine:
        """The engine that runs the bundle. Raises InputError after `close`."""
        return self.scorer.engine

    @property
    def load(self) -> Load:
        """Present load of the queue of `submit`."""
        if self._memory is None:
            return Load()
        return self._memory.queue.load

    def close(self) -> None:
        """Free the memory of the model as soon as no call uses it. A second call does nothing.

        Submitted sentences are answered first.
        """
        if (memory := self._memory) is not None:
            self._finalizer.detach()  # it references the queue, and so the engine
            memory.queue.close()
            self._memory = None

    def __repr__(self) -> str:
        if self._memory is None:
            state = "closed"
        else:
            state = self.engine.name
        return f"{self._files}: {state}"

    def call(self, options: Options, changes: Mapping[str, Any], *, features: bool = False) -> Call:
        """Return the checked call of options and their changes, for text or ids, or for vectors with `features`."""
        check_reads(features, self.manifest.model.feature_size)
        if not isinstance(options, Options):
            raise InputError(
                f"options are of type {type(options).__name__}: give Options(...), or fields of it by name"
            )
        options = options.changed(changes)
        call = Call.of(self.tokenizer, self.engine.limits, options, model=self._model)
        self.scorer.check(call.options)
        return call

    def translations(self, inputs: Sequence[Sentence | None], options: Options) -> list[Translation]:
        """Translate sentences in batches, together with other calls. The translation of None is empty."""
        sentences = [sentence for sentence in inputs if sentence is not None]
        results = self._shared.decode(self.engine, [sentence.request for sentence in sentences])
        answers = iter(self._build_translations(sentences, results, options))
        return [empty(options) if sentence is None else next(answers) for sentence in inputs]

    def enqueue(
        self,
        sentence: Sentence,
        options: Options,
        on_piece: Callable[[Piece], object] | None,
        seconds: float | None,
        admitted: bool = False,
    ) -> Pending:
        """Submit a sentence; see `txport.runtime.search.queue.Queue.submit`."""
        if on_piece is not None:
            check_streams(sentence.request.search)
            check_pieces(options)
        return self._owners.queue.submit(
            sentence.request,
            seconds=seconds,
            on_token=None if on_piece is None else self.pieces(on_piece),
            convert=lambda result: self._build_translations([sentence], [result], options)[0],
            admitted=admitted,
        )

    def pieces(self, on_piece: Callable[[Piece], T]) -> Callable[[Token], T]:
        """Return a callback for the tokens of one answer, which passes each with its text to `on_piece`."""
        text = TextStream(self.tokenizer)
        return lambda token: on_piece(Piece(token.id, text.add(token.id, token.last), token.score))

    def _build_translations(
        self, sentences: Sequence[Sentence], results: Sequence[Result], options: Options
    ) -> list[Translation]:
        hypothesis_sentences = [
            sentence for sentence, result in zip(sentences, results, strict=True) for _ in result.hypotheses
        ]
        translations = translations_of(self.tokenizer, self.manifest.tokens.eos, hypothesis_sentences, results)
        if options.alignments or options.attention or options.replace_unknowns:
            translations = self.scorer.align(options, hypothesis_sentences, translations)
        return best_of(translations, results)

    @property
    def scorer(self) -> Scorer:
        """The scorer for scores, alignments and embeddings. Raises InputError after `close`."""
        return self._owners.scorer

    @property
    def _owners(self) -> _Memory:
        if (memory := self._memory) is None:
            raise InputError("this Translator was closed: open the bundle again")
        return memory


def shares(workers: int, threads: int, cores: int) -> tuple[int, int]:
    """Return the number of workers and the threads of each; 0 selects a number from the cores."""
    if workers == 0:
        workers = max(1, min(MAX_WORKERS, cores // max(1, threads)))
    return workers, threads if threads or workers == 1 else max(1, cores // workers)


def _files(bundle: Source) -> Files:
    """Return the files of a bundle that is given by path, name or bytes."""
    if isinstance(bundle, (str, os.PathLike)):
        return files_of(find_bundle(bundle))
    try:
        data = memoryview(bundle).cast("B")
    except TypeError:  # not a buffer, or not contiguous
        kind = type(bundle).__name__
        raise InputError(f"the bundle is of type {kind}: give its path, or the bytes of its file") from None
    return Archive(data, "the bundle in memory")
