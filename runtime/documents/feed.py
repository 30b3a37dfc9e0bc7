"""Translation of documents by the queue of requests, a few parts at a time."""

import time
from collections.abc import Callable
from functools import partial
from threading import Lock

from txport.runtime.calls.requests import Sentence
from txport.runtime.documents import layout
from txport.runtime.documents.document import Draft
from txport.runtime.options import Options
from txport.runtime.results import Piece, Translation, empty
from txport.runtime.search.queue import Pending

# Id of text that is not a token: layout, and parts that cannot be streamed token by token.
NO_ID = -1
# Maximum parts of a document in the queue: more than the rows of a batch, but few enough not to delay other requests.
_AT_ONCE = 64
# Adds a sentence to the queue. Arguments: the sentence, its options, the callback for its tokens, seconds to the
# deadline, and whether its document was admitted.
Enqueue = Callable[[Sentence, Options, Callable[[Piece], object] | None, float | None, bool], Pending]


def submit(
    draft: Draft, enqueue: Enqueue, on_piece: Callable[[Piece], object] | None, seconds: float | None
) -> Pending:
    """Return the future `Document`, whose parts are queued a few at a time; `seconds` is the time for all parts."""
    feed = _Feed(draft, enqueue, None if on_piece is None else _InOrder(draft, on_piece), seconds)
    feed.start()
    return feed.answer


class _Feed:
    """Parts of a document that pass through a queue."""

    def __init__(self, draft: Draft, enqueue: Enqueue, in_order: "_InOrder | None", seconds: float | None) -> None:
        self.answer = Pending()
        if seconds is None:
            self._deadline = None
        else:
            self._deadline = time.monotonic() + seconds
        self._draft = draft
        self._enqueue = enqueue
        self._in_order = in_order
        empty_translation = empty(draft.call.options)
        self._translations: list[Translation] = [empty_translation] * len(draft.sentences)
        work = [(index, sentence) for index, sentence in enumerate(draft.sentences) if sentence is not None]
        self._unfinished = len(work)
        self._work = iter(work)
        self._lock = Lock()  # of `_work`, `_running` and `_admitted`
        self._running: set[Pending] = set()
        self._admitted = False

    def start(self) -> None:
        """Queue the first parts.

        Raises:
            InputError, ResourceError: as `Queue.submit`; no part is in the queue then.
        """
        if not self._unfinished:
            self._finish()
        self.answer.add_done_callback(lambda done: self._cancel() if done.cancelled() else None)
        try:
            for _ in range(min(_AT_ONCE, self._unfinished)):
                self._next()
        except Exception:
            self._cancel()
            raise

    def _next(self) -> None:
        with self._lock:
            index, sentence = next(self._work, (0, None))
            if sentence is None:
                return
            if self._in_order is None:
                on_piece = None
            else:
                on_piece = partial(self._in_order.add, index)
            if self._deadline is None:
                seconds = None
            else:
                seconds = self._deadline - time.monotonic()
            future = self._enqueue(sentence, self._draft.call.options, on_piece, seconds, self._admitted)
            self._admitted = True
            self._running.add(future)
        future.add_done_callback(partial(self._take, index))

    def _take(self, index: int, future: Pending) -> None:
        """Store the translation of a part; runs in the queue's thread."""
        with self._lock:
            self._running.discard(future)
        if self.answer.done():
            return
        try:
            if future.cancelled():
                self.answer.cancel()
                return
            self._translations[index] = future.result()
            if self._in_order is not None:
                self._in_order.finish(index, self._translations[index])
            self._unfinished -= 1
            if self._unfinished:
                self._next()
            else:
                self._finish()
        except Exception as error:
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_exception(error)
            self._cancel()

    def _finish(self) -> None:
        if self._in_order is not None:
            self._in_order.end()
        document = self._draft.document_of(self._translations)
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(document)

    def _cancel(self) -> None:
        with self._lock:
            self._work = iter(())
            running = list(self._running)
        for future in running:
            future.cancel()


class _InOrder:
    """Sends the pieces of all parts in the order of the document, with the layout between them."""

    def __init__(self, draft: Draft, on_piece: Callable[[Piece], object]) -> None:
        self._draft = draft
        self._on_piece = on_piece
        self._waiting: dict[int, list[Piece]] = {}  # of parts that are not the current one
        self._finished: dict[int, Translation] = {}
        self._current = 0
        self._layout_sent = False  # whether the layout before the current part was sent
        self._before: tuple[layout.Segment, str] | None = None

    def add(self, index: int, piece: Piece) -> None:
        """Send a token of a part, or keep it until earlier parts are complete."""
        self._waiting.setdefault(index, []).append(piece)
        self._send()

    def finish(self, index: int, translation: Translation) -> None:
        """End a part."""
        self._finished[index] = translation
        self._send()

    def end(self) -> None:
        """Send the remaining layout after the last part."""
        self._send()
        self._layout(self._draft.text[self._before[0].end if self._before else 0 :])

    def _send(self) -> None:
        sentences = self._draft.sentences
        while self._current < len(sentences):
            segment = self._draft.segments[self._current]
            is_blank = sentences[self._current] is None
            translation = self._finished.get(self._current)
            if not segment.breaks:
                for token in self._waiting.pop(self._current, []):
                    if token.text and not self._layout_sent:
                        self._send_layout(segment, token.text)
                    self._on_piece(token)
            if translation is None and not is_blank:
                return
            if translation is None:
                text = ""
            else:
                text = translation.text
            if not self._layout_sent:
                self._send_layout(segment, text)
            if segment.breaks:
                self._layout(layout.with_breaks(segment, text))
            self._before = segment, text
            self._current = self._current + 1
            self._layout_sent = False

    def _send_layout(self, segment: layout.Segment, text: str) -> None:
        self._layout(layout.layout_before(self._draft.text, segment, text, self._before))
        self._layout_sent = True

    def _layout(self, text: str) -> None:
        if text:
            self._on_piece(Piece(NO_ID, text, None))
