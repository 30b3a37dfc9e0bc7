"""Texts of any number of lines, translated part by part: the one place where the server submits text.

White space around parts is kept. At most `MOST_AT_ONCE` parts of a request wait in the queue, so that a long text does
not stand before all others.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from txport.runtime.options import Options
from txport.runtime.results import Piece, Translation
from txport.runtime.search.queue import Pending
from txport.runtime.translator import Translator

T = TypeVar("T")
MOST_AT_ONCE = 32
# A text of more characters is tokenized in a thread of its own: it takes longer than others should wait.
SHORT = 1000


@dataclass(frozen=True)
class Part:
    """A part of a text.

    Attributes:
        start: its first character in the text.
        gap: white space before it, which is kept.
        translation: of the part; None of white space at the end, which has none.
    """

    start: int
    gap: str
    translation: Translation | None


@dataclass(frozen=True)
class Document:
    """The translation of a text."""

    parts: Sequence[Part]

    @property
    def text(self) -> str:
        """The text of the best translations."""
        return self._of_rank(0)

    @property
    def sentences(self) -> int:
        """Parts that were translated."""
        return sum(part.translation is not None for part in self.parts)

    @property
    def tokens(self) -> int:
        """Tokens that were made."""
        return sum(len(part.translation.ids) for part in self.parts if part.translation is not None)

    def alternatives(self, count: int) -> list[str]:
        """At most so many other texts, each once: each of the translations of one rank of all parts."""
        texts = dict.fromkeys(self._of_rank(rank) for rank in range(count + 1))
        return [text for text in texts if text != self.text]

    def alignments(self) -> list[dict[str, list[int]]]:
        """Pairs of words that belong together: the characters of each, first and after the last, in both texts."""
        pairs = []
        end = 0
        for part in self.parts:
            end += len(part.gap)
            translation = part.translation
            if translation is not None and (found := translation.alignment) is not None:
                for source, target in found.words:
                    first = [part.start + at for at in found.source_words[source]]
                    pairs.append({"source": first, "target": [end + at for at in found.target_words[target]]})
            end += 0 if translation is None else len(translation.text)
        return pairs

    def _of_rank(self, rank: int) -> str:
        texts = []
        for part in self.parts:
            each = part.translation
            if each is not None and each.hypotheses:
                each = each.hypotheses[min(rank, len(each.hypotheses) - 1)]
            texts.append(part.gap + ("" if each is None else each.text))
        return "".join(texts)


class Texts:
    """Translates the texts of one request.

    Args:
        translator: of the model.
        options: of the request.
        seconds: to its deadline.
    """

    def __init__(self, translator: Translator, options: Options, seconds: float) -> None:
        self._translator, self._options = translator, options
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds

    async def translate(self, texts: Sequence[str], take: Callable[[str], object] | None = None) -> list[Document]:
        """Translate texts; to cancel this cancels what is in the queue.

        Args:
            texts: any number.
            take: gets the translation of the only text piece by piece, in order, in the event loop's thread.

        Raises:
            TxportError: as `Translator.submit` and its answers.
        """
        split_texts = [split(text) for text in texts]
        order = None if take is None else _InOrder([gap for _, gap, _ in split_texts[0][0]], take)
        lines = [line for found, _ in split_texts for _, _, line in found]
        translations = iter(await self._all(lines, order))
        documents = []
        for text, (found, end) in zip(texts, split_texts, strict=True):
            parts = [Part(start, gap, next(translations)) for start, gap, _ in found]
            documents.append(Document([*parts, Part(len(text), end, None)]))
            if take is not None and end:
                take(end)
        return documents

    async def _all(self, lines: Sequence[str], order: "_InOrder | None") -> list[Translation]:
        found: dict[int, Translation] = {}
        waiting = iter(enumerate(lines))

        async def work() -> None:
            for number, line in waiting:
                found[number] = await self._one(number, line, order)

        await together(work() for _ in range(min(MOST_AT_ONCE, len(lines))))
        return [found[number] for number in range(len(lines))]

    async def _one(self, number: int, line: str, order: "_InOrder | None") -> Translation:
        def on_piece(piece: Piece) -> None:
            if order is not None and piece.text:
                self._loop.call_soon_threadsafe(order.give, number, piece.text)

        def submit() -> Pending:
            left = self._deadline - self._loop.time()
            on = None if order is None else on_piece
            return self._translator.submit(line, self._options, seconds=left, on_piece=on)

        translation: Translation = await (submit() if len(line) <= SHORT else await _in_thread(submit))
        if order is not None:
            order.end(number)
        return translation


def split(text: str) -> tuple[list[tuple[int, str, str]], str]:
    """Lines of a text that are not blank: where each begins, the white space before it, and the line; then the rest."""
    lines = []
    gap, start = "", 0
    for line in text.split("\n"):
        core = line.strip()
        if core:
            before = len(line) - len(line.lstrip())
            lines.append((start + before, gap + line[:before], core))
            gap = line[before + len(core) :] + "\n"
        else:
            gap += line + "\n"
        start += len(line) + 1
    return lines, gap[:-1]


async def _in_thread(submit: Callable[[], Pending]) -> Pending:
    """What `submit` returns, by another thread; if nobody waits for it any more, it is cancelled when it is there."""

    def drop(task: "asyncio.Task[Pending]") -> None:
        if not task.cancelled() and task.exception() is None:
            task.result().cancel()

    task = asyncio.ensure_future(asyncio.to_thread(submit))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(drop)
        raise


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; when one fails, or this is cancelled, the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class _InOrder:
    """Gives pieces of parts that are translated side by side in the order of the text."""

    def __init__(self, gaps: Sequence[str], take: Callable[[str], object]) -> None:
        self._gaps, self._take = gaps, take
        self._held: list[list[str]] = [[gap] for gap in gaps]
        self._ended = [False] * len(gaps)
        self._current = 0

    def give(self, number: int, text: str) -> None:
        self._held[number].append(text)
        self._flush()

    def end(self, number: int) -> None:
        self._ended[number] = True
        self._flush()

    def _flush(self) -> None:
        while self._current < len(self._held):
            held, self._held[self._current] = self._held[self._current], []
            if text := "".join(held):
                self._take(text)
            if not self._ended[self._current]:
                return
            self._current += 1
