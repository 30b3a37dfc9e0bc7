"""Translation for a client: from what it asks for to its answer, or to the events of a stream."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from txport.runtime.options import Options
from txport.runtime.serve.admission import Admission
from txport.runtime.serve.documents import Document, Texts
from txport.runtime.serve.errors import NO_TIME, Refusal
from txport.runtime.serve.metrics import Metrics
from txport.runtime.serve.models import AUTO, Choice, Models
from txport.runtime.serve.requests import Ask
from txport.runtime.serve.settings import Settings


@dataclass
class Record:
    """Figures of one request, for logs and metrics: none of its words.

    Attributes:
        start: of the request, by `time.monotonic`.
        figures: what the log says of it.
    """

    start: float = field(default_factory=time.monotonic)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Service:
    """All that requests share."""

    settings: Settings
    models: Models
    metrics: Metrics
    admission: Admission

    async def answer(self, ask: Ask, client: str, record: Record) -> dict[str, Any]:
        """The members of the answer.

        Raises:
            Refusal, TxportError: there is none.
        """
        async with self._texts(ask, client, record) as (choice, texts):
            documents = await self._in_time(texts.translate(ask.texts), record)
            self._count(choice, documents, record)
        return _members(ask, choice, documents)

    async def stream(
        self, ask: Ask, client: str, record: Record, send: Callable[[str, Mapping[str, Any]], object]
    ) -> None:
        """Translate one text; `send` gets the events "piece" and, at the end, "done" with what `answer` gives.

        Raises:
            Refusal, TxportError: as `answer`.
        """

        def take(text: str) -> None:
            if "first_seconds" not in record.figures:
                seconds = time.monotonic() - record.start
                record.figures["first_seconds"] = round(seconds, 4)
                self.metrics.first_seconds.observe(seconds)
            send("piece", {"text": text})

        async with self._texts(ask, client, record) as (choice, texts):
            documents = await self._in_time(texts.translate(ask.texts, take), record)
            self._count(choice, documents, record)
        send("done", _members(ask, choice, documents))

    @asynccontextmanager
    async def _texts(self, ask: Ask, client: str, record: Record) -> AsyncIterator[tuple[Choice, Texts]]:
        choice = self.models.choose(ask.model, ask.source, ask.target)
        record.figures |= {"model": choice.model.name, "texts": len(ask.texts), "characters": ask.characters}
        if ask.alignments and not choice.model.aligns:
            raise Refusal(422, "this model has no alignments: export it by tx-export --with-attention")
        count = ask.alternatives + 1
        options = Options(
            source_language=choice.source_language,
            target_language=choice.target_language,
            alignments=ask.alignments,
            generation=self.settings.generation,
            beam=count if ask.alternatives else None,
            n_best=count,
        )
        sentences = sum(text.count("\n") + 1 for text in ask.texts)
        with self.admission.place(sentences, client):
            async with self.models.lease(choice.model) as translator:
                # Tokens of a stream have no alignments; those of the whole text come at its end.
                yield choice, Texts(translator, options, self._left(record))

    def _left(self, record: Record) -> float:
        return max(0.0, record.start + self.settings.seconds - time.monotonic())

    async def _in_time(self, work: Any, record: Record) -> list[Document]:
        try:
            found: list[Document] = await asyncio.wait_for(work, self._left(record))
        except asyncio.TimeoutError:
            raise Refusal(503, NO_TIME, retry=True) from None
        return found

    def _count(self, choice: Choice, documents: list[Document], record: Record) -> None:
        tokens, sentences = (sum(getattr(each, name) for each in documents) for name in ("tokens", "sentences"))
        record.figures |= {"tokens": tokens, "sentences": sentences}
        self.metrics.tokens.labels(choice.model.name).inc(tokens)
        self.metrics.sentences.labels(choice.model.name).inc(sentences)


def _members(ask: Ask, choice: Choice, documents: list[Document]) -> dict[str, Any]:
    def of(values: list[Any]) -> Any:
        return values if ask.several else values[0]

    members = {"translatedText": of([document.text for document in documents])}
    if ask.source == AUTO and choice.source is not None:
        # The only one that can be asked for: nothing was detected.
        members["detectedLanguage"] = of([{"confidence": 100, "language": choice.source}] * len(documents))
    if ask.alternatives:
        members["alternatives"] = of([document.alternatives(ask.alternatives) for document in documents])
    if ask.alignments:
        members["alignments"] = of([document.alignments() for document in documents])
    return members


def event(name: str, members: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return f"event: {name}\ndata: {json.dumps(members, ensure_ascii=False)}\n\n".encode()
