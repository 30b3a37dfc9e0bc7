"""`Translator`, the main class of the API."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from txport.runtime.arguments import as_list, check_reads, check_vectors
from txport.runtime.calls.requests import Call, Sentence
from txport.runtime.calls.search_options import check_pieces
from txport.runtime.documents.document import Document, Draft
from txport.runtime.documents.feed import submit
from txport.runtime.engine import Engine, Float32
from txport.runtime.errors import InputError, nearest
from txport.runtime.files import new_file
from txport.runtime.open_bundle import OpenBundle, Source
from txport.runtime.options import DEFAULTS, Options
from txport.runtime.results import AttentionMaps, Piece, Score, Translation, empty
from txport.runtime.scoring import GivenTarget
from txport.runtime.search.decoding import check_streams, stream
from txport.runtime.search.queue import Load, Pending, answered
from txport.runtime.search.scheduler import BATCH_TOKENS
from txport.runtime.text.lines import as_line, open_lines, text_windows

Self = TypeVar("Self", bound="Translator")


class Translator:
    """A bundle, ready to translate. Threads may share one, since calls do not change it.

    Args:
        bundle: a directory of tx-export, a file of tx-pack, the bytes of such a file, or a name in the cache of tx-get.
            Bytes are not copied: they must stay unchanged while the bundle is open.
        device: "auto", "cpu" or "cuda".
        engine: "auto", "fused" (txport's engine for CPUs), "ort" (ONNX Runtime) or "trt" (TensorRT, with engines that
            tx-build has built for this user).
        lowering: for experts: the decoder step graph, "ort", "scatter" or "tensorscatter". None selects the best one.
        threads: threads of each operator; 0 for one per core.
        batch: maximum batch size in sentences, up to the bundle's maximum. None selects that maximum.
        batch_tokens: maximum batch size in source tokens, including padding.
        workers: batches that run in parallel on the CPU and share the weights. Each uses a share of `batch` and
            `batch_tokens`, and of the cores if `threads` is 0. One is best for single sentences, one per core for many
            sentences; 0 selects one per core.
        trust_engines: run TensorRT engines in the bundle. They are native code, so use only bundles that you trust.
        verify: compare the hash of the weights, as `tx-inspect --check` does. Hashes of other files are always
            compared.

    Raises:
        BundleError: the bundle is damaged, incomplete or has a newer format.
        InputError: an argument is invalid.
        MissingLibrary: a required library is not installed, or there is no GPU for the device.
        ResourceError: memory does not suffice.
        EngineError: the library or the GPU failed.
    """

    def __init__(
        self,
        bundle: Source,
        device: str = "auto",
        engine: str = "auto",
        lowering: str | None = None,
        threads: int = 0,
        batch: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        workers: int = 1,
        trust_engines: bool = False,
        verify: bool = False,
        **unknown: object,
    ) -> None:
        if unknown:
            raise TypeError(f"Translator() has no argument {_unknown(next(iter(unknown)))}")
        self._bundle = OpenBundle(
            bundle, device, engine, lowering, threads, batch, batch_tokens, workers, trust_engines, verify
        )
        self.manifest = self._bundle.manifest
        self.tokenizer = self._bundle.tokenizer

    @property
    def engine(self) -> Engine:
        """The engine that runs the bundle. Raises InputError after `close`."""
        return self._bundle.engine

    @property
    def load(self) -> Load:
        """Present load of the queue of `submit`."""
        return self._bundle.load

    def close(self) -> None:
        """Free the memory of the model as soon as no call uses it. A second call does nothing.

        Submitted sentences are answered first.
        """
        self._bundle.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._bundle!r}>"

    def __reduce__(self) -> NoReturn:
        raise InputError("a Translator cannot be pickled: open the bundle in each process")

    def translate(self, sentences: Iterable[str], options: Options = DEFAULTS, **changes: Any) -> list[Translation]:
        """Translate sentences and return the results in the same order. Empty sentences stay empty.

        Args:
            sentences: any number; they are sorted by length and translated in batches.
            options: see `Options`.
            changes: fields of `Options` that replace those of `options`: `translate(texts, scores=True)`.

        Raises:
            InputError: an option is invalid, or a sentence is too long and `strict` is set.
            BundleError: the bundle was exported without the graphs for alignments and attention.
            ResourceError: memory does not suffice for the batch; a later call, or a smaller `batch`, may succeed.
            EngineError: the library or the GPU failed.
        """
        return self._translate(sentences, self._bundle.call(options, changes), "sentence", 1)

    def translate_windows(
        self, windows: Iterable[Sequence[str]], options: Options = DEFAULTS, *, what: str = "line", **changes: Any
    ) -> Iterator[list[Translation]]:
        """Translate a text of any length in windows of lines.

        Args:
            windows: lists of lines. Each list is sorted by length and translated in batches, so some hundred lines make
                good use of the batches.
            options, changes: as in `translate`.
            what: word for a line in messages: "line" gives "line 7".

        Returns:
            the results of each window, in order. They are computed as the iterator advances.

        Raises:
            InputError: as in `translate`, with the number of the line.
        """
        call = self._bundle.call(options, changes)

        # Options are checked above, in the call. A generator function would check them at the first `next`.
        def results() -> Iterator[list[Translation]]:
            first = 1
            for window in windows:
                yield self._translate(window, call, what, first)
                first += len(window)

        return results()

    def translate_file(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        options: Options = DEFAULTS,
        *,
        errors: str = "strict",
        **changes: Any,
    ) -> int:
        r"""Translate a UTF-8 file line by line. The target file appears only when it is complete.

        Lines end at "\n". Memory use does not depend on the size of the file.

        Args:
            source, target: the files.
            options, changes: as in `translate`.
            errors: how to treat lines that are not UTF-8: "strict" raises an error, "replace" inserts U+FFFD, "skip"
                treats the line as empty.

        Returns:
            the number of lines.

        Raises:
            InputError: as in `translate`, or a file cannot be read or written, or a line is not UTF-8.
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
        """Translate a text of any length and keep its layout: line breaks, white space, bullets and item numbers.

        Each sentence is translated separately. A sentence that is longer than the model supports is split at
        punctuation or white space, with a warning. With `strict` it is refused.

        Args:
            text: any text. A text without words is returned unchanged.
            options, changes: as in `translate`.
            what: word for a line in messages: "line" gives "line 7".

        Raises:
            the same errors as `translate`.
        """
        call = self._bundle.call(options, changes)
        draft = Draft(call, text, self.manifest.tokenizer, what)
        return draft.document_of(self._bundle.translations(draft.sentences, call.options))

    def translate_ids(
        self, sources: Iterable[Iterable[int]], options: Options = DEFAULTS, **changes: Any
    ) -> list[Translation]:
        """Translate source ids as `translate` does. A tokenizer is required only if `prefix` is text.

        Source ids must include eos and language tokens, since they are used unchanged. A forced prefix of the model is
        added before `prefix`. Alignments are between tokens, since the source has no words.

        Raises:
            InputError: a source is empty, longer than the bundle supports, or has an id outside the vocabulary.
        """
        call = self._bundle.call(options, changes)
        scorer = self._bundle.scorer
        checked_sources = [
            scorer.source(source, f"sentence {number}") for number, source in enumerate(as_list(sources), 1)
        ]
        sentences = [call.of_ids(source, number) for number, source in enumerate(checked_sources, 1)]
        return self._bundle.translations(sentences, call.options)

    def translate_features(
        self, arrays: Iterable[Any], options: Options = DEFAULTS, **changes: Any
    ) -> list[Translation]:
        """Translate feature vectors as `translate` does, such as frames of a spectrogram or states of an encoder.

        Alignments are between vectors and tokens; see `Alignment.times`.

        Args:
            arrays: float `[vectors, feature_size]` each; they are sorted by length and translated in batches.
            options, changes: as in `translate`; options for text, such as `strict`, have no effect.

        Raises:
            InputError: the bundle reads text, or an array has another shape, too many vectors, or NaN.
        """
        call = self._bundle.call(options, changes, features=True)
        sentences = [
            self._of_vectors(call, array, f"array {number}", number) for number, array in enumerate(_arrays(arrays), 1)
        ]
        return self._bundle.translations(sentences, call.options)

    def stream_features(self, array: Any, options: Options = DEFAULTS, **changes: Any) -> Iterator[Piece]:
        """Translate one array of vectors and yield each token as soon as it is generated; see `stream`."""
        call = self._bundle.call(options, changes, features=True)
        return self._stream(call, self._of_vectors(call, array, "the array"))

    def submit_features(
        self,
        array: Any,
        options: Options = DEFAULTS,
        *,
        seconds: float | None = None,
        on_piece: Callable[[Piece], object] | None = None,
        **changes: Any,
    ) -> Pending:
        """Submit one array of vectors to the running batch; see `translate_features` and `submit`."""
        call = self._bundle.call(options, changes, features=True)
        return self._bundle.enqueue(self._of_vectors(call, array, "the array"), call.options, on_piece, seconds)

    def stream(self, sentence: str, options: Options = DEFAULTS, **changes: Any) -> Iterator[Piece]:
        """Translate one sentence and yield each token as soon as it is generated.

        Options are as in `translate`. The concatenated texts of all pieces equal the text of `translate`.

        Raises:
            InputError: as in `translate`, or alignments or attention are requested, which need a complete translation.
        """
        call = self._bundle.call(options, changes)
        return self._stream(call, call.sentence(sentence, "the sentence"))

    def submit(
        self,
        sentence: str,
        options: Options = DEFAULTS,
        *,
        seconds: float | None = None,
        on_piece: Callable[[Piece], object] | None = None,
        **changes: Any,
    ) -> Pending:
        """Submit one sentence to the running batch. Any thread may call this at any time.

        Args:
            sentence, options, changes: as in `translate`.
            seconds: time limit. After it, the future raises `DeadlineExceeded`.
            on_piece: called with each token as soon as it is generated, in the decoding thread. It must return at once.

        Returns:
            a `concurrent.futures.Future` of the `Translation`, which can also be awaited. `cancel` frees its row.

        Raises:
            InputError: as in `translate`, or `on_piece` is set for a search with several answers.
            ResourceError: 1,024 requests of `submit` have no answer yet, the maximum.
        """
        call = self._bundle.call(options, changes)
        encoded = call.sentence(sentence, "the sentence")
        if encoded is None:
            return answered(empty(call.options))
        return self._bundle.enqueue(encoded, call.options, on_piece, seconds)

    def submit_document(
        self,
        text: str,
        options: Options = DEFAULTS,
        *,
        seconds: float | None = None,
        on_piece: Callable[[Piece], object] | None = None,
        **changes: Any,
    ) -> Pending:
        """Submit a document to the running batch; see `translate_document` and `submit`.

        Args:
            text, options, changes: as in `translate_document`.
            seconds: time limit of the whole document, as in `submit`.
            on_piece: called in the order of the document. Text that is not a token has the id -1: layout, and
                sentences over several lines, which come as one piece. The concatenated texts equal the text of the
                document.

        Returns:
            a future of the `Document`. `cancel` frees the rows of all its parts.

        Raises:
            InputError, ResourceError: as in `submit`. A document counts as one waiting request.
        """
        draft = Draft(self._bundle.call(options, changes), text, self.manifest.tokenizer, "line")
        return submit(draft, self._bundle.enqueue, on_piece, seconds)

    def score(
        self, sources: Iterable[str], targets: Iterable[GivenTarget], options: Options = DEFAULTS, **changes: Any
    ) -> list[Score]:
        """Score given translations, to rank them or to filter a corpus.

        Args:
            sources: sentences. One that is too long is truncated with a warning, or refused with `strict`.
            targets: one translation of each sentence: text, or ids as in `Translation.ids`.
            options, changes: as in `translate`. The languages and `strict` are used; other options have no effect.

        Raises:
            InputError: the numbers of sources and targets differ, a text is empty, a target is longer than the bundle
                supports, or an id is outside the vocabulary.
            BundleError: the bundle was exported without `--with-attention`.
        """
        return self._bundle.scorer.score(self._bundle.call(options, changes), sources, targets)

    def score_ids(self, sources: Iterable[Iterable[int]], targets: Iterable[Iterable[int]]) -> list[Score]:
        """Score source and target ids as `score` does. The ids are in the form that `translate_ids` reads and returns.

        Raises:
            InputError: the numbers of sources and targets differ, the bundle reads vectors, or a sequence of ids is
                empty, longer than the bundle supports, or has an id outside the vocabulary.
            BundleError: as in `score`.
        """
        check_reads(False, self.manifest.model.feature_size)
        return self._bundle.scorer.score_ids(sources, targets)

    def embed(
        self, sentences: Iterable[str], options: Options = DEFAULTS, *, pooled: bool = True, **changes: Any
    ) -> Float32 | list[Float32]:
        """Return the encoder's output for sentences.

        Args:
            sentences: the sentences, not empty.
            options, changes: as in `score`.
            pooled: return the mean over all ids of a sentence, eos and language tokens included.

        Returns:
            float32 `[sentences, d_model]`; if not `pooled`, a list with `[source ids, d_model]` for each sentence.

        Raises:
            InputError: a sentence is empty, or too long and `strict` is set.
            BundleError: as in `score`.
        """
        return self._bundle.scorer.embed(self._bundle.call(options, changes), sentences, pooled)

    def attention_maps(
        self,
        sentence: str | Sequence[int],
        target: GivenTarget | None = None,
        options: Options = DEFAULTS,
        **changes: Any,
    ) -> AttentionMaps:
        """Return the attention of all layers and heads for one sentence and its translation.

        Args:
            sentence: text, or source ids that include eos and language tokens.
            target: its translation, text or ids as in `Translation.ids`; None to let the model translate the sentence.
            options, changes: as in `translate`.

        Raises:
            InputError: as in `score`.
            BundleError: as in `score`.
        """
        return self._bundle.scorer.attention_maps(self._bundle.call(options, changes), sentence, target)

    def _of_vectors(self, call: Call, array: Any, what: str, number: int = 1) -> Sentence:
        """Return the sentence of an array of vectors, which is checked."""
        size = self.manifest.model.feature_size
        assert size is not None
        return call.of_ids(check_vectors(array, size, self.engine.limits.source, what), number)

    def _stream(self, call: Call, sentence: Sentence | None) -> Iterator[Piece]:
        if call.options.alignments or call.options.attention:
            raise InputError("a stream has no alignments and no attention: use translate for these")
        check_streams(call.search)
        check_pieces(call.options)
        engine = self.engine

        # A nested generator, so that errors above are raised by the call and not by the first `next`.
        def pieces() -> Iterator[Piece]:
            if sentence is not None:
                yield from map(self._bundle.pieces(lambda piece: piece), stream(engine, sentence.request))

        return pieces()

    def _translate(self, texts: Iterable[str], call: Call, what: str, first: int) -> list[Translation]:
        sentences = [
            call.sentence(text, f"{what} {number}", number) for number, text in enumerate(as_list(texts), first)
        ]
        return self._bundle.translations(sentences, call.options)


def _arrays(arrays: Iterable[Any]) -> list[Any]:
    """Return the arrays as a list; one array of vectors is not a list of arrays."""
    # To iterate over one array would yield its vectors as if they were arrays.
    if getattr(arrays, "ndim", 3) == 2:
        raise InputError("arrays come as a list: put the one array in a list")
    return as_list(arrays, "arrays")


def _unknown(name: str) -> str:
    """Return an unknown argument name and a suggestion."""
    if name in (option.name for option in fields(Options)):
        return f"{name!r}, which is an option of translate"
    return f"{name!r}: {nearest(name, list(signature(Translator).parameters)[:-1])}"  # the last one is `unknown` itself
