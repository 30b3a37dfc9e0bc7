"""Translation for a client: from what it asks for to its answer, or to the events of a stream."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
from txport.runtime.documents.document import Document
from txport.runtime.options import Options
from txport.runtime.serve.admission import Admission
from txport.runtime.serve.documents import alignments, alternatives, tokens, translate
from txport.runtime.serve.errors import NO_TIME, Refusal
from txport.runtime.serve.metrics import Metrics
from txport.runtime.serve.models import AUTO, Choice, Models
from txport.runtime.serve.requests import Ask
from txport.runtime.serve.settings import Settings

# Of a short sentence.
CHARACTERS = 40


@dataclass
class Record:
    """Figures of one request, for logs and metrics: none of its words.

    Attributes:
        start: of the request, by `time.monotonic`.
        figures: values for the log.
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
        """Return the members of the answer.

        Raises:
            Refusal, TxportError: there is none.
        """
        return await self._translate(ask, client, record, None)

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

        send("done", await self._translate(ask, client, record, take))

    async def _translate(
        self, ask: Ask, client: str, record: Record, take: Callable[[str], object] | None
    ) -> dict[str, Any]:
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
        with self.admission.place(sum(map(_sentences, ask.texts)), client):
            try:
                async with self.models.lease(choice.model, self._left(record)) as translator:
                    left = self._left(record)
                    work = translate(translator, ask.texts, options, left, take)
                    documents = await asyncio.wait_for(work, left)
            except asyncio.TimeoutError:
                raise Refusal(503, NO_TIME, retry=True) from None
        self._count(choice, documents, record)
        return _members(ask, choice, documents)

    async def features(
        self, array: npt.NDArray[Any], model: str, alignments: bool, client: str, record: Record
    ) -> dict[str, Any]:
        """Return the members of the answer for an array of feature vectors.

        Raises:
            Refusal, TxportError: there is none.
        """
        choice = self.models.choose(model, "", "")
        record.figures |= {"model": choice.model.name, "vectors": sum(array.shape[:1])}
        options = Options(alignments=alignments, generation=self.settings.generation)
        with self.admission.place(1, client):
            try:
                async with self.models.lease(choice.model, self._left(record)) as translator:
                    left = self._left(record)
                    made = await asyncio.wait_for(translator.submit_features(array, options, seconds=left), left)
            except asyncio.TimeoutError:
                raise Refusal(503, NO_TIME, retry=True) from None
        record.figures["tokens"] = len(made.ids)
        self.metrics.tokens.labels(choice.model.name).inc(len(made.ids))
        members: dict[str, Any] = {"translatedText": made.text, "ids": made.ids, "finished": made.finished}
        if made.alignment is not None:
            members |= {"vectors": made.alignment.tokens, "seconds": made.alignment.times}
        return members

    def _left(self, record: Record) -> float:
        """Seconds until a request must have its answer."""
        return max(0.0, record.start + self.settings.seconds - time.monotonic())

    def _count(self, choice: Choice, documents: list[Document], record: Record) -> None:
        made = sum(map(tokens, documents))
        sentences = sum(len(each.parts) for each in documents)
        record.figures |= {"tokens": made, "sentences": sentences}
        self.metrics.tokens.labels(choice.model.name).inc(made)
        self.metrics.sentences.labels(choice.model.name).inc(sentences)


def _sentences(text: str) -> int:
    """About how many sentences a text has, before it is cut: one for each line and for each 40 characters."""
    return max(text.count("\n") + 1, -(-len(text) // CHARACTERS))


def _members(ask: Ask, choice: Choice, documents: list[Document]) -> dict[str, Any]:
    def of(values: list[Any]) -> Any:
        if ask.several:
            return values
        return values[0]

    members = {"translatedText": of([document.text for document in documents])}
    if ask.source == AUTO and choice.source is not None:
        # The only one that can be asked for: nothing was detected.
        members["detectedLanguage"] = of([{"confidence": 100, "language": choice.source}] * len(documents))
    if ask.alternatives:
        members["alternatives"] = of([alternatives(document, ask.alternatives) for document in documents])
    if ask.alignments:
        members["alignments"] = of([alignments(*each) for each in zip(ask.texts, documents, strict=True)])
    return members


def event(name: str, members: Mapping[str, Any]) -> bytes:
    """Return a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(members, ensure_ascii=False)}\n\n".encode()
