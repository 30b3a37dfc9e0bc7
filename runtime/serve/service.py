"""Translation for a client: from what it asks for to its answer, or to the events of a stream."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
        route = self.models.route(ask.model, ask.source, ask.target)
        names = "+".join(choice.model.name for choice in route)
        record.figures |= {"model": names, "texts": len(ask.texts), "characters": ask.characters}
        self._check(ask, route)
        sentences = len(route) * sum(map(_sentences, ask.texts))
        texts = ask.texts
        with self.admission.place(sentences, client):
            try:
                for number, choice in enumerate(route, 1):
                    if number < len(route):
                        documents = await self._leg(choice, texts, self._options(choice), record, None)
                        texts = [document.text for document in documents]
                    else:
                        documents = await self._leg(choice, texts, self._options(choice, ask), record, take)
            except asyncio.TimeoutError:
                raise Refusal(503, NO_TIME, retry=True) from None
        return _members(ask, route[0], documents)

    def _check(self, ask: Ask, route: list[Choice]) -> None:
        """Refuse what the models of a request cannot do."""
        if ask.alignments and len(route) > 1:
            raise Refusal(422, "alignments need one model, and these languages are translated through another one")
        aligns = all(choice.model.aligns for choice in route)
        if ask.alignments and not aligns:
            raise Refusal(422, "this model has no alignments: export it by tx-export --with-attention")
        if self.settings.replace_unknowns and not aligns:
            raise Refusal(422, "this model cannot replace unknown tokens: export it by tx-export --with-attention")

    def _options(self, choice: Choice, ask: Ask | None = None) -> Options:
        """Return the options of one model; those of the request are for the last model of its route."""
        count = 1 + (ask.alternatives if ask else 0)
        return Options(
            source_language=choice.source_language,
            target_language=choice.target_language,
            alignments=ask is not None and ask.alignments,
            generation=self.settings.generation,
            replace_unknowns=self.settings.replace_unknowns or None,
            beam=count if count > 1 else None,
            n_best=count,
        )

    async def _leg(
        self,
        choice: Choice,
        texts: list[str],
        options: Options,
        record: Record,
        take: Callable[[str], object] | None,
    ) -> list[Document]:
        """Translate by one model of a route."""
        pieces = take
        if not self._streams(choice):
            pieces = None
        async with self.models.lease(choice.model, self._left(record)) as translator:
            left = self._left(record)
            documents = await asyncio.wait_for(translate(translator, texts, options, left, pieces), left)
        if take is not None and pieces is None:
            take(documents[0].text)
        self._count(choice, documents, record)
        return documents

    def _streams(self, choice: Choice) -> bool:
        """Return whether tokens are final as soon as they are generated; otherwise a stream has one piece."""
        generation = choice.model.manifest.generation
        if self.settings.replace_unknowns:
            return False
        if self.settings.generation != "model":
            return True
        return not (generation.replace_unknowns or generation.sample or (generation.beam or 1) > 1)

    def _left(self, record: Record) -> float:
        """Seconds until a request must have its answer."""
        return max(0.0, record.start + self.settings.seconds - time.monotonic())

    def _count(self, choice: Choice, documents: list[Document], record: Record) -> None:
        made = sum(map(tokens, documents))
        sentences = sum(len(each.parts) for each in documents)
        for name, number in (("tokens", made), ("sentences", sentences)):
            record.figures[name] = record.figures.get(name, 0) + number
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
