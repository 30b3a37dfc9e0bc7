"""Text in, text out: the one class that an application needs."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from txport.runtime.arguments import listed
from txport.runtime.documents.document import Document, Draft
from txport.runtime.documents.feed import submit
from txport.runtime.engine import Float32
from txport.runtime.errors import InputError
from txport.runtime.files import new_file
from txport.runtime.open_bundle import OpenBundle
from txport.runtime.options import DEFAULTS, Options
from txport.runtime.results import AttentionMaps, Piece, Score, Translation, empty
from txport.runtime.scoring import Answer
from txport.runtime.search.decoding import check_streams, stream
from txport.runtime.search.queue import Pending, answered
from txport.runtime.text.lines import as_line, open_lines, text_windows
from txport.runtime.text.requests import Call


class Translator(OpenBundle):
    """A bundle, ready to translate. Threads may share one: calls leave no state in it.

    Args:
        bundle: the directory that tx-export wrote, the file that tx-pack wrote or its bytes, which are not copied, or
            the name by which tx-get keeps a bundle.
        device: "auto", "cpu" or "cuda".
        engine: what runs it there: "auto", "fused" (our own for CPUs), "ort" (ONNX Runtime) or "trt" (TensorRT, with
            engines that tx-build made for this user).
        lowering: for experts: the decoder step's graph, "ort", "scatter" or "tensorscatter"; None for the best one.
        threads: threads of each operator; 0 for as many as there are cores.
        batch: the most sentences that run together, up to what the bundle takes; None for that.
        batch_tokens: the most source tokens, padding included, that run together.
        workers: batches that run side by side on the CPU, over one set of weights: each takes a share of `batch` and
            `batch_tokens`, and of the cores if `threads` is 0. One is best for single sentences, one for each core for
            many; 0 for that.
        trust_engines: whether TensorRT engines in the bundle, which are native code by whoever made it, may run.
        verify: compare the hash of the weights too, as `tx-inspect --check` does; those of other files always are.

    Raises:
        BundleError: the bundle is damaged, incomplete or of a newer format.
        InputError: an argument cannot be used.
        MissingLibrary: a library that runs or tokenizes is not installed, or there is no GPU for the device.
        ResourceError: there is not enough memory.
        EngineError: the library or the GPU failed.
    """

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
        return self._translate(sentences, self._call(options, changes), "sentence", 1)

    def translate_windows(
        self, windows: Iterable[Sequence[str]], options: Options = DEFAULTS, *, what: str = "line", **changes: Any
    ) -> Iterator[list[Translation]]:
        """Translate a text of any length, some lines at a time.

        Args:
            windows: lines in portions of a size that is worth sorting, some hundred (see `txport.runtime.text.lines`).
            options, changes: as for `translate`.
            what: names a line in messages, before its number.

        Returns:
            the results of each window, in order, as they are asked for.

        Raises:
            InputError: as `translate`, with the number of the line.
        """
        call = self._call(options, changes)

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
        draft = Draft(call, text, self.manifest.tokenizer, what)
        return draft.built(self._translations(draft.sentences, call.options))

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
        asked = [call.of_ids(source, number) for number, source in enumerate(whole, 1)]
        return self._translations(asked, call.options)

    def stream(self, sentence: str, options: Options = DEFAULTS, **changes: Any) -> Iterator[Piece]:
        """Translate one sentence and give each token as it is made; options as for `translate`.

        The texts of all pieces, joined, are the text that `translate` gives.

        Raises:
            InputError: as `translate`, or alignments or attention are asked for: they need a whole translation.
        """
        call = self._call(options, changes)
        if call.options.alignments or call.options.attention:
            raise InputError("a stream has no alignments and no attention: use translate for these")
        check_streams(call.search)
        asked, engine = call.sentence(sentence, "the sentence"), self.engine

        def pieces() -> Iterator[Piece]:
            if asked is not None:
                yield from map(self._pieces(lambda piece: piece), stream(engine, asked.request))

        return pieces()

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
        draft = Draft(self._call(options, changes), text, self.manifest.tokenizer, "line")
        return submit(draft, self._enqueue, on_piece, seconds)

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
        return self._translations(asked, call.options)
