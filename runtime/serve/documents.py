"""Texts of a request as documents: submitted to the queue, and formatted for LibreTranslate's API."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from txport.runtime.documents.document import Document
from txport.runtime.options import Options
from txport.runtime.results import Piece
from txport.runtime.search.queue import Pending
from txport.runtime.text.alignment import Span
from txport.runtime.translator import Translator

T = TypeVar("T")
# Maximum number of texts of one request in the queue, so that a long list does not delay other requests.
MAX_AT_ONCE = 32
# Maximum number of characters of a text that is split and tokenized in the event loop. Longer texts would block other
# requests, so a thread does it.
SHORT = 1000
# Few threads, because a hostile text of the allowed length may take seconds of processor time.
_THREADS = ThreadPoolExecutor(2, "txport-split")


async def translate(
    translator: Translator,
    texts: Sequence[str],
    options: Options,
    seconds: float,
    take: Callable[[str], object] | None = None,
) -> list[Document]:
    """Translate texts. Cancelling this coroutine cancels its requests in the queue.

    Args:
        translator: translator of the model.
        texts: the texts, any number.
        options: options of the request.
        seconds: time until the deadline.
        take: called with each piece of the translation, in order, in the thread of the event loop; for one text only.

    Raises:
        TxportError: as for `Translator.submit_document` and its answers.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    documents: dict[int, Document] = {}
    waiting = iter(enumerate(texts))

    def on_piece(piece: Piece) -> None:
        if take is not None and piece.text:
            loop.call_soon_threadsafe(take, piece.text)

    def submit(text: str) -> Pending:
        callback = None if take is None else on_piece
        return translator.submit_document(text, options, seconds=deadline - loop.time(), on_piece=callback)

    async def work() -> None:
        for number, text in waiting:
            documents[number] = await (submit(text) if len(text) <= SHORT else _in_thread(submit, text))

    await _together(work() for _ in range(min(MAX_AT_ONCE, len(texts))))
    return [documents[number] for number in range(len(texts))]


def tokens(document: Document) -> int:
    """Return the number of generated tokens."""
    return sum(len(part.translation.ids) for part in document.parts)


def alternatives(document: Document, count: int) -> list[str]:
    """Return up to `count` distinct alternatives. Alternative r joins the r-th best translations of all parts."""
    texts = dict.fromkeys(_of_rank(document, rank) for rank in range(1, count + 1))
    return [text for text in texts if text != document.text]


def _of_rank(document: Document, rank: int) -> str:
    """Return the document with the translation of this rank for each part, or its last one if it has fewer."""
    texts = []
    end = 0
    for part in document.parts:
        among = part.translation.hypotheses or (part.translation,)
        texts += [document.text[end : part.target[0]], among[min(rank, len(among) - 1)].text]
        end = part.target[1]
    return "".join([*texts, document.text[end:]])


def alignments(text: str, document: Document) -> list[dict[str, list[int]]]:
    """Return pairs of aligned words. Each is given by its first character and the one after its last, in both texts."""
    pairs = []
    for part in document.parts:
        alignment = part.translation.alignment
        if alignment is None:
            continue
        sources = _positions_in_text(part.text, text, part.source)
        targets = _positions_in_text(part.translation.text, document.text, part.target)
        for source, target in alignment.words:
            (first, after), (start, end) = alignment.source_words[source], alignment.target_words[target]
            if first in sources:
                source_span = [sources[first], sources[after - 1] + 1]
                pairs.append({"source": source_span, "target": [targets[start], targets[end - 1] + 1]})
    return pairs


def _positions_in_text(inner: str, text: str, span: Span) -> dict[int, int]:
    """Return the index in the whole text of each character of a part's text.

    White space is ignored, because it differs where lines were wrapped. The characters are matched from the end,
    because the text of the part may begin with a marker that selects its language.
    """
    start, end = span
    inner_positions = [position for position, character in enumerate(inner) if not character.isspace()]
    text_positions = [position for position in range(start, end) if not text[position].isspace()]
    return dict(zip(reversed(inner_positions), reversed(text_positions), strict=False))


async def _in_thread(submit: Callable[[str], Pending], text: str) -> Document:
    """Wait for the result of another thread. If the wait is cancelled, the result is cancelled as well."""

    def drop(future: "Future[Pending]") -> None:
        if not future.cancelled() and future.exception() is None:
            future.result().cancel()

    future = _THREADS.submit(submit, text)
    try:
        pending = await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        future.add_done_callback(drop)
        raise
    document: Document = await pending
    return document


async def _together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all coroutines. If one fails or this one is cancelled, cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
