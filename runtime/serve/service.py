"""Translation requests: single responses and event streams."""

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
from txport.runtime.serve.models import AUTO, ModelChoice, Models
from txport.runtime.serve.requests import Ask
from txport.runtime.serve.settings import ServiceSettings

# Length of a short sentence, for an estimate of the number of sentences of a text.
CHARACTERS_PER_SENTENCE = 40


@dataclass
class Record:
    """Measurements of one request for logs and metrics; they contain no text.

    Attributes:
        start: when the request arrived, by `time.monotonic`.
        figures: values for the log.
    """

    start: float = field(default_factory=time.monotonic)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Service:
    """State that all requests share."""

    settings: ServiceSettings
    models: Models
    metrics: Metrics
    admission: Admission

    async def answer(self, ask: Ask, client: str, record: Record) -> dict[str, Any]:
        """Return the JSON fields of the response.

        Raises:
            Refusal, TxportError: the request cannot be answered.
        """
        return await self._translate(ask, client, record, None)

    async def stream(
        self, ask: Ask, client: str, record: Record, send: Callable[[str, Mapping[str, Any]], object]
    ) -> None:
        """Translate one text; `send` gets the events "piece" and, at the end, "done" with the result of `answer`.

        Raises:
            Refusal, TxportError: as for `answer`.
        """

        def on_piece(text: str) -> None:
            if "first_seconds" not in record.figures:
                seconds = time.monotonic() - record.start
                record.figures["first_seconds"] = round(seconds, 4)
                self.metrics.first_seconds.observe(seconds)
            send("piece", {"text": text})

        send("done", await self._translate(ask, client, record, on_piece))

    async def _translate(
        self, ask: Ask, client: str, record: Record, on_piece: Callable[[str], object] | None
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
                        documents = await self._leg(choice, texts, self._options(choice, ask), record, on_piece)
            except asyncio.TimeoutError:
                raise Refusal(503, NO_TIME, retry=True) from None
        return _response_fields(ask, route[0], documents)

    async def features(
        self, array: npt.NDArray[Any], model: str, alignments: bool, client: str, record: Record
    ) -> dict[str, Any]:
        """Return the JSON fields of the response for an array of feature vectors.

        Raises:
            Refusal, TxportError: the request cannot be answered.
        """
        choice = self.models.choose(model, "", "")
        record.figures |= {"model": choice.model.name, "vectors": sum(array.shape[:1])}
        options = Options(alignments=alignments, generation=self.settings.generation)
        with self.admission.place(1, client):
            try:
                async with self.models.lease(choice.model, self._seconds_left(record)) as translator:
                    left = self._seconds_left(record)
                    translation = await asyncio.wait_for(translator.submit_features(array, options, seconds=left), left)
            except asyncio.TimeoutError:
                raise Refusal(503, NO_TIME, retry=True) from None
        record.figures["tokens"] = len(translation.ids)
        self.metrics.tokens.labels(choice.model.name).inc(len(translation.ids))
        response: dict[str, Any] = {"translatedText": translation.text, "ids": translation.ids}
        response["finished"] = translation.finished
        if translation.alignment is not None:
            response |= {"vectors": translation.alignment.tokens, "seconds": translation.alignment.times}
        return response

    def _check(self, ask: Ask, route: list[ModelChoice]) -> None:
        """Refuse features that the models of a request do not support."""
        if ask.alignments and len(route) > 1:
            raise Refusal(422, "alignments need one model, and these languages are translated through another one")
        aligns = all(choice.model.aligns for choice in route)
        if ask.alignments and not aligns:
            raise Refusal(422, "this model has no alignments: export it with tx-export --with-attention")
        if self.settings.replace_unknowns and not aligns:
            raise Refusal(422, "this model cannot replace unknown tokens: export it with tx-export --with-attention")

    def _options(self, choice: ModelChoice, ask: Ask | None = None) -> Options:
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
        choice: ModelChoice,
        texts: list[str],
        options: Options,
        record: Record,
        on_piece: Callable[[str], object] | None,
    ) -> list[Document]:
        """Translate with one model of a route."""
        pieces = on_piece
        if not self._streams(choice):
            pieces = None
        async with self.models.lease(choice.model, self._seconds_left(record)) as translator:
            left = self._seconds_left(record)
            documents = await asyncio.wait_for(translate(translator, texts, options, left, pieces), left)
        if on_piece is not None and pieces is None:
            on_piece(documents[0].text)
        self._count(choice, documents, record)
        return documents

    def _streams(self, choice: ModelChoice) -> bool:
        """Return whether tokens are final as soon as they are generated; otherwise a stream has one piece."""
        generation = choice.model.manifest.generation
        if self.settings.replace_unknowns:
            return False
        if self.settings.generation != "model":
            return True
        return not (generation.replace_unknowns or generation.sample or (generation.beam or 1) > 1)

    def _seconds_left(self, record: Record) -> float:
        """Return the seconds until a request must be answered."""
        return max(0.0, record.start + self.settings.seconds - time.monotonic())

    def _count(self, choice: ModelChoice, documents: list[Document], record: Record) -> None:
        token_count = sum(map(tokens, documents))
        sentences = sum(len(each.parts) for each in documents)
        for name, number in (("tokens", token_count), ("sentences", sentences)):
            record.figures[name] = record.figures.get(name, 0) + number
        self.metrics.tokens.labels(choice.model.name).inc(token_count)
        self.metrics.sentences.labels(choice.model.name).inc(sentences)


def _sentences(text: str) -> int:
    """Estimate the number of sentences of a text: the number of lines or, if larger, of 40 characters."""
    return max(text.count("\n") + 1, -(-len(text) // CHARACTERS_PER_SENTENCE))


def _response_fields(ask: Ask, choice: ModelChoice, documents: list[Document]) -> dict[str, Any]:
    def one_or_list(values: list[Any]) -> Any:
        if ask.several:
            return values
        return values[0]

    response = {"translatedText": one_or_list([document.text for document in documents])}
    if ask.source == AUTO and choice.source is not None:
        # The language is not detected: it is the only source language of the model.
        response["detectedLanguage"] = one_or_list([{"confidence": 100, "language": choice.source}] * len(documents))
    if ask.alternatives:
        response["alternatives"] = one_or_list([alternatives(document, ask.alternatives) for document in documents])
    if ask.alignments:
        response["alignments"] = one_or_list([alignments(*each) for each in zip(ask.texts, documents, strict=True)])
    return response


def event(name: str, fields: Mapping[str, Any]) -> bytes:
    """Return a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()
