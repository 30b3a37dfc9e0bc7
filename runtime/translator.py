"""Text in, text out: the one class that an application needs."""

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from txport.runtime import greedy
from txport.runtime.arguments import check_ids, check_lengths, check_pairs, check_sentence, check_text, listed
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.engine import Engine, Float32
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.errors import InputError
from txport.runtime.files import new_file
from txport.runtime.libraries import needs
from txport.runtime.options import DEFAULTS, Options
from txport.runtime.results import AttentionMaps, Piece, Score, Translation
from txport.runtime.text.affixes import affixes
from txport.runtime.text.alignment import Alignment, align_tokens, align_words, averaged, stripped, words_of
from txport.runtime.text.lines import as_line, open_lines, text_windows
from txport.runtime.workers import cores, shares

with needs("ort"):
    from txport.runtime.text.tokenizer import TextStream, open_tokenizer

if TYPE_CHECKING:
    from txport.runtime.engines.teacher_forcing import TeacherForcing

_CLOSED = "this Translator was closed: open the bundle again"
_log = logging.getLogger("txport")


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
        if not isinstance(bundle, (str, os.PathLike)):
            raise InputError(f"the bundle is of type {type(bundle).__name__}: give the path of its directory")
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
        self._directory, self._device, self._threads = directory, choice.device, threads
        self._forcing: TeacherForcing | None = None
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        """What runs the bundle.

        Raises:
            InputError: the translator was closed.
        """
        if self._engine is None:
            raise InputError(_CLOSED)
        return self._engine

    def close(self) -> None:
        """Give back the memory of the model, as soon as no call uses it any more. A second call does nothing."""
        self._engine = self._forcing = None

    def __enter__(self) -> "Translator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        runs = "closed" if self._engine is None else self._engine.name
        return f"<Translator of {self._directory}: {runs}>"

    def __reduce__(self) -> NoReturn:
        raise InputError("a Translator cannot be pickled: open the bundle in each process")

    def translate(
        self,
        sentences: Iterable[str],
        options: Options = DEFAULTS,
        **changes: Any,
    ) -> list[Translation]:
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
        self,
        windows: Iterable[Sequence[str]],
        options: Options = DEFAULTS,
        *,
        what: str = "line",
        **changes: Any,
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

    def translate_ids(
        self,
        sources: Iterable[Iterable[int]],
        options: Options = DEFAULTS,
        **changes: Any,
    ) -> list[Translation]:
        """As `translate`, from source ids, without a tokenizer unless `prefix` is text.

        Source ids are whole: eos and language tokens included. What the model's answers are forced to begin with
        stands before `prefix` by itself. Alignments are of tokens then: a source has no characters.

        Raises:
            InputError: a source is empty, longer than the bundle takes, or has an id outside the vocabulary.
        """
        whole = [self._source(source, f"sentence {number}") for number, source in enumerate(listed(sources), 1)]
        call = self._call(options, changes)
        work = [(call.request(source, call.target_prefix), "", False) for source in whole]
        return self._translations(work, call)

    def stream(self, sentence: str, options: Options = DEFAULTS, **changes: Any) -> Iterator[Piece]:
        """Translate one sentence and yield each token as it is made; options as for `translate`.

        The texts of all pieces, joined, are the text that `translate` gives.

        Raises:
            InputError: as `translate`, or alignments or attention are asked for: they need a whole translation.
        """
        call = self._call(options, changes)
        if call.options.alignments or call.options.attention:
            raise InputError("a stream has no alignments and no attention: use translate for these")
        request, _ = self._request(sentence, call, "the sentence")
        if request is None:
            return
        text = TextStream(self.tokenizer)
        for token in greedy.stream(self.engine, request, scores=call.options.scores):
            yield Piece(token.id, text.add(token.id, token.last), token.score)

    def _translate(self, texts: Iterable[str], call: "_Call", what: str, first: int) -> list[Translation]:
        sentences = listed(texts)
        found = [self._request(text, call, f"{what} {number}") for number, text in enumerate(sentences, first)]
        empty = Translation("", [], [] if call.options.scores else None, truncated=False, finished=True)
        work = [(request, sentences[i], cut) for i, (request, cut) in enumerate(found) if request is not None]
        made = iter(self._translations(work, call))
        return [empty if request is None else next(made) for request, _ in found]

    def _translations(self, work: Sequence[tuple[greedy.Request, str, bool]], call: "_Call") -> list[Translation]:
        """Of requests, each with its sentence (empty if only its ids are known) and whether it was cut."""
        made = self._decode([request for request, _, _ in work], call.options.scores)
        eos = self.manifest.tokens.eos
        translations = [
            Translation(self.tokenizer.decode(result.ids), result.ids, result.scores, cut, result.ids[-1:] == [eos])
            for result, (_, _, cut) in zip(made, work, strict=True)
        ]
        if call.options.alignments or call.options.attention:
            sources, targets = [list(request.source_ids) for request, _, _ in work], [each.ids for each in made]
            for index, reading in self._teacher.read(sources, targets, cross=True):
                assert reading.cross is not None
                (request, text, _), translation = work[index], translations[index]
                weights = averaged(reading.cross, self.manifest.alignment_heads)
                if call.options.alignments:
                    alignment = self._alignment(request, text, translation, call, weights)
                    translation = replace(translation, alignment=alignment)
                translations[index] = replace(translation, attention=weights if call.options.attention else None)
        return translations

    def _alignment(
        self, request: greedy.Request, text: str, translation: Translation, call: "_Call", weights: Float32
    ) -> Alignment:
        tokens, source = self.manifest.tokens, list(request.source_ids)
        forced = len(request.prefix) - len(call.prefix)
        special = (tokens.pad, tokens.bos, tokens.eos)
        aligned = {i for i, token in enumerate(translation.ids) if i >= forced and token not in special}
        spans, own = [(0, 0)] * len(source), [i for i, token in enumerate(source) if token not in special]
        if text:
            options = call.options
            _, around = self.tokenizer.encode_source(text, options.source_language, options.target_language)
            first, last = len(around.source_prefix), len(source) - len(around.source_suffix)
            own, found = list(range(first, last)), self.tokenizer.source_spans(text)
            spans[first:last] = [stripped(span, text) for span in found[: last - first]]
        made = [stripped(span, translation.text) for span in self.tokenizer.target_spans(translation.ids)]
        pairs = align_tokens(weights, own, aligned)
        words = words_of(text), words_of(translation.text)
        return Alignment(pairs, spans, made, *words, align_words(pairs, spans, made, *words))

    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str | Sequence[int]],
        options: Options = DEFAULTS,
        **changes: Any,
    ) -> list[Score]:
        """How likely the model takes given translations for: to rank some, or to filter a corpus.

        Args:
            sources: sentences.
            targets: a translation of each: text, which is tokenized and ended with eos, or ids as of `Translation`.
            options: as for `translate`; its languages and `strict` have a meaning here.
            changes: likewise.

        Raises:
            InputError: the two are not of one number, one is empty or too long, or an id is outside the vocabulary.
            BundleError: the bundle was exported without the graph that scores need.
        """
        call, texts, answers = self._call(options, changes), listed(sources), listed(targets)
        check_pairs(texts, answers)
        requests = [self._needed(text, call, f"sentence {number}") for number, text in enumerate(texts, 1)]
        made = []
        for number, (request, answer) in enumerate(zip(requests, answers, strict=True), 1):
            what = f"translation {number}"
            if isinstance(answer, str):
                check_text(answer, what)
                ids = self.tokenizer.encode_prefix(answer)
                if not ids:
                    raise InputError(f"{what} is empty: there is nothing to score")
                language = request.prefix[: len(request.prefix) - len(call.prefix)]
                answer = [*language, *ids, self.manifest.tokens.eos]
            made.append(self._target(answer, what))
        return self._scores([list(request.source_ids) for request in requests], made)

    def score_ids(self, sources: Iterable[Iterable[int]], targets: Iterable[Iterable[int]]) -> list[Score]:
        """As `score`, from whole source ids and target ids as `translate_ids` takes and gives them."""
        given, answers = listed(sources), listed(targets)
        check_pairs(given, answers)
        checked = [self._source(source, f"sentence {number}") for number, source in enumerate(given, 1)]
        return self._scores(
            checked, [self._target(answer, f"translation {number}") for number, answer in enumerate(answers, 1)]
        )

    def embed(
        self, sentences: Iterable[str], options: Options = DEFAULTS, *, pooled: bool = True, **changes: Any
    ) -> Float32 | list[Float32]:
        """What the encoder makes of sentences.

        Args:
            sentences: none of them empty.
            options: as for `translate`; its languages and `strict` have a meaning here.
            pooled: the mean over all ids of a sentence, eos and language included, instead of each.
            changes: as for `translate`.

        Returns:
            float32 `[sentences, d_model]`; if not `pooled`, for each sentence `[source ids, d_model]`.

        Raises:
            InputError: a sentence is empty, or too long and `strict` is set.
            BundleError: the bundle was exported without the graph that embeddings need.
        """
        call, texts = self._call(options, changes), listed(sentences)
        sources = [self._needed(text, call, f"sentence {number}").source_ids for number, text in enumerate(texts, 1)]
        found = dict(self._teacher.memories(sources))
        whole = [found[index] for index in range(len(sources))]
        if not pooled:
            return whole
        empty = np.empty((0, self.manifest.model.d_model), np.float32)
        return np.stack([memory.mean(axis=0) for memory in whole]) if whole else empty

    def attention_maps(
        self,
        sentence: str | Sequence[int],
        target: str | Sequence[int] | None = None,
        options: Options = DEFAULTS,
        **changes: Any,
    ) -> AttentionMaps:
        """Every layer's and head's attention for one sentence and its translation.

        Args:
            sentence: text or, for a bundle without a tokenizer, whole source ids.
            target: its translation, text or ids; None for what `translate` makes of it.
            options, changes: as for `translate`.

        Raises:
            InputError: as `score`.
            BundleError: the bundle was exported without the graphs that attention needs.
        """
        call, what = self._call(options, changes), "the sentence"
        if isinstance(sentence, str):
            request = self._needed(sentence, call, what)
        else:
            request = call.request(self._source(sentence, what), call.target_prefix)
        source = list(request.source_ids)
        if isinstance(target, str):
            ids = [*request.prefix[: len(request.prefix) - len(call.prefix)], *self.tokenizer.encode_prefix(target)]
            target = [*ids, self.manifest.tokens.eos]
        made = self._decode([request], False)[0].ids if target is None else self._target(target, "the translation")
        ((_, reading),) = self._teacher.read([source], [made], cross=True, own=True)
        ((_, encoder),) = self._teacher.attentions([source])
        assert reading.cross is not None and reading.own is not None
        pieces = self.tokenizer.source_labels(source), self.tokenizer.target_labels(made)
        scores = reading.log_probabilities.tolist()
        return AttentionMaps(source, made, *pieces, encoder, reading.own, reading.cross, scores)

    @property
    def _teacher(self) -> "TeacherForcing":
        """What reads given translations; it needs ONNX Runtime, which the engine may do without."""
        with needs("ort"):
            from txport.runtime.engines.teacher_forcing import TeacherForcing

        engine = self.engine
        with self._lock:
            if self._forcing is None:
                self._forcing = TeacherForcing(self._directory, self.manifest, engine, self._device, self._threads)
            return self._forcing

    def _scores(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Score]:
        found = {index: reading.log_probabilities for index, reading in self._teacher.read(sources, targets)}
        return [Score(list(target), found[index].tolist()) for index, target in enumerate(targets)]

    def _needed(self, text: str, call: "_Call", what: str) -> greedy.Request:
        request, _ = self._request(text, call, what)
        if request is None:
            raise InputError(f"{what} is empty: give text")
        return request

    def _source(self, ids: Iterable[int], what: str) -> list[int]:
        model, most = self.manifest.model, self.manifest.limits.source
        return check_sentence(ids, model.source_vocabulary, most, self.manifest.tokens.pad, what)

    def _target(self, ids: Iterable[int], what: str) -> list[int]:
        model, most = self.manifest.model, self.manifest.limits.target
        return check_sentence(ids, model.target_vocabulary, most, self.manifest.tokens.pad, what)

    def _decode(self, requests: Sequence[greedy.Request], scores: bool) -> list[greedy.Result]:
        return greedy.decode_all(
            self.engine,
            requests,
            rows=self._batch,
            batch_tokens=self._batch_tokens,
            scores=scores,
            workers=self._workers,
        )

    def _request(self, text: str, call: "_Call", what: str) -> tuple[greedy.Request | None, bool]:
        """The request for a text (None if the text is blank), and whether the text was cut to fit."""
        check_text(text, what)
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
            raise InputError(f"{message}: shorten it, or leave out the option strict to have it cut")
        _log.warning("%s: it was cut", message)
        return request, True

    def _call(self, options: Options, changes: Mapping[str, Any]) -> "_Call":
        if not isinstance(options, Options):
            raise InputError(
                f"options are of type {type(options).__name__}: give Options(...), or fields of it by name"
            )
        options = options.changed(changes)
        if options.alignments or options.attention:
            self._teacher.graph("decoder")  # refuses a bundle without it before any work is done
        # Languages are checked before any sentence is encoded.
        around = affixes(self.manifest.tokenizer, options.source_language, options.target_language)
        prefix: list[int] = []
        if isinstance(options.prefix, str):
            check_text(options.prefix, "the prefix")
            prefix = self.tokenizer.encode_prefix(options.prefix) if options.prefix else []
        elif options.prefix is not None:
            prefix = check_ids(options.prefix, self.manifest.model.target_vocabulary, "the prefix")
        begun = len(around.target_prefix) + len(prefix)
        check_lengths(options.max_length, options.min_length, begun, self.engine.limits.target)
        return _Call(options, around.target_prefix, prefix)


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
