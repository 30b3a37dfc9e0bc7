"""Routes of the server: LibreTranslate's, those of Kubernetes and Prometheus, and the page."""

import asyncio
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from txport.runtime.serve.admission import Shares, network_of
from txport.runtime.serve.errors import ClientGone, Refusal, refusal_of
from txport.runtime.serve.keys import Keys
from txport.runtime.serve.languages import name_of
from txport.runtime.serve.logs import log
from txport.runtime.serve.observer import METRICS, Guard, Observer
from txport.runtime.serve.requests import (
    TranslationRequest,
    array_of,
    feature_request,
    fields_of,
    query_of,
    translation_request,
)
from txport.runtime.serve.service import Record, Service, event
from txport.runtime.serve.settings import ServiceSettings

T = TypeVar("T")
# Maximum size of a body whose client has not sent its key in the header.
MAX_BYTES_WITHOUT_KEY = 64 << 10
# Memory for arriving bodies, in bodies of the maximum size. One client may use half of it.
BODIES = 64
_SMALL = 16 << 10  # bytes. Parsing a body of this size takes less than a millisecond; a thread parses larger bodies.


def create_app(service: Service, keys: Keys) -> Starlette:
    """Return the application.

    Args:
        service: answers requests.
        keys: API keys of the clients.
    """
    routes = Routes(service, keys)
    settings = service.settings

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        loading = asyncio.create_task(routes.load())
        yield
        loading.cancel()
        await service.models.close()

    observer = Middleware(Observer, metrics=service.metrics, answer=answer_of)
    guard = Middleware(Guard, hosts=settings.hosts, origins=settings.origins, metrics_port=settings.metrics_port)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        max_age=86_400,
    )
    return Starlette(
        routes=[
            Route("/", routes.page),
            Route("/translate", routes.translate, methods=["POST"]),
            Route("/features", routes.features, methods=["POST"]),
            Route("/languages", routes.languages),
            Route("/frontend/settings", routes.settings),
            Route("/health", routes.health),
            Route("/health/live", routes.live),
            Route("/health/ready", routes.ready),
            Route(METRICS, routes.metrics),
        ],
        middleware=[cors, observer, guard] if settings.origins else [observer, guard],
        exception_handlers={HTTPException: _of_http},
        lifespan=lifespan,
    )


def answer_of(error: Exception) -> Response:
    """Return the response for an exception."""
    refusal = refusal_of(error)
    return JSONResponse({"error": refusal.sentence}, refusal.status, refusal.headers)


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {
        404: "not found",
        405: f"{request.method} is not supported here: /translate and /features take POST, other addresses take GET",
    }
    sentence = sentences.get(error.status_code, error.detail)
    return JSONResponse({"error": sentence}, error.status_code, error.headers)


class Routes:
    """Handlers of the routes."""

    def __init__(self, service: Service, keys: Keys) -> None:
        self._service = service
        self._keys = keys
        self._bodies = Shares(BODIES * service.settings.max_bytes, service.settings.max_per_client)
        self._page, self._policy = page()

    async def load(self) -> None:
        """Load the first models. The server is ready when one is loaded."""
        await self._service.models.load()
        if self._service.models.ready:
            log("ready")

    async def page(self, _: Request) -> Response:
        """Return the page."""
        return HTMLResponse(self._page, headers={"Content-Security-Policy": self._policy})

    async def health(self, _: Request) -> Response:
        """Return the health in LibreTranslate's format."""
        return JSONResponse({"status": "ok"})

    async def live(self, _: Request) -> Response:
        """Return the liveness of the process: 503 if an engine keeps failing."""
        return _health(self._service.models.alive, "an engine keeps failing: restart the server")

    async def ready(self, _: Request) -> Response:
        """Return the readiness: 503 until a model has been loaded. A server that drains accepts no connections."""
        return _health(self._service.models.ready, "no model is loaded yet, or none could be: see the log")

    async def metrics(self, request: Request) -> Response:
        """Return all metrics, only on the separate port if one is set."""
        port = self._service.settings.metrics_port
        if port is not None and request.scope["server"][1] != port:
            raise HTTPException(404)
        text = generate_latest(self._service.metrics.registry)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def languages(self, _: Request) -> Response:
        """Return the source languages, each with its target languages."""
        pairs = self._service.models.pairs()
        return JSONResponse(
            [{"code": code, "name": name_of(code), "targets": targets} for code, targets in pairs.items()]
        )

    async def settings(self, _: Request) -> Response:
        """Return the settings of LibreTranslate's page and, for the page of this server, the names of the models."""
        models = self._service.models
        settings = self._service.settings
        pairs = models.pairs()
        source = next(iter(pairs), "")
        if source:
            target = pairs[source][0]
        else:
            target = ""
        return JSONResponse(
            {
                "charLimit": settings.max_characters,
                "frontendTimeout": 500,
                "apiKeys": bool(self._keys),
                "keyRequired": bool(self._keys),
                "suggestions": False,
                "filesTranslation": False,
                "supportedFilesFormat": [],
                "language": {
                    "source": {"code": source, "name": name_of(source)},
                    "target": {"code": target, "name": name_of(target)},
                },
                "models": [
                    {
                        "name": model.name,
                        "alignments": model.aligns,
                        "sources": {code: name_of(code) for code in model.sources},
                        "targets": {code: name_of(code) for code in model.targets},
                    }
                    for model in models.models
                ],
            }
        )

    async def features(self, request: Request) -> Response:
        """Translate feature vectors. The body is a NumPy array `[vectors, size]`."""
        key, body = await self._body(request)
        query = query_of(request.url.query)
        key = key or query.get("api_key", "")
        self._keys.check(key)
        model, alignments = feature_request(query)
        array = await asyncio.to_thread(array_of, body, request.headers.get("Content-Type", ""))
        client = key or _host(request)
        work = self._service.features(array, model, alignments, client, request.scope["record"])
        answer = await unless_gone(request.receive, work)
        return Response(json.dumps(answer, ensure_ascii=False).encode(), media_type="application/json")

    async def _body(self, request: Request) -> tuple[str, bytes]:
        """Return the API key in the header (or "") and the body."""
        bearer = request.headers.get("Authorization", "")
        if bearer[:7].lower() == "bearer ":
            key = bearer[7:].strip()
        else:
            key = ""
        if key:
            self._keys.check(key)
        is_known = bool(key) or not self._keys
        settings = self._service.settings
        with self._bodies.place(key or _host(request), is_known) as add:
            return key, await _in_time(body_of(request, settings, add, is_known=is_known), settings)

    async def translate(self, request: Request) -> Response:
        """Translate with LibreTranslate's API; with `stream`, answer by a stream of events."""
        settings = self._service.settings
        key, body = await self._body(request)
        arguments = body, request.headers.get("Content-Type", ""), request.url.query
        if len(body) <= _SMALL:
            fields = fields_of(*arguments)
        else:
            fields = await asyncio.to_thread(fields_of, *arguments)
        key = key or str(fields.get("api_key") or query_of(request.url.query).get("api_key") or "")
        self._keys.check(key)
        parsed = translation_request(fields, settings)
        client = key or _host(request)
        record: Record = request.scope["record"]
        if parsed.stream:
            return Events(self._service, parsed, client, record)
        answer = await unless_gone(request.receive, self._service.answer(parsed, client, record))
        return Response(json.dumps(answer, ensure_ascii=False).encode(), media_type="application/json")


def _host(request: Request) -> str:
    """Return the address or network of the client, or "" if it has none."""
    if request.client:
        return network_of(request.client.host)
    return ""


async def body_of(
    request: Request, settings: ServiceSettings, add: Callable[[int], None], *, is_known: bool = True
) -> bytes:
    """Return the body of a request.

    Args:
        request: the request.
        settings: limits of the server.
        add: function that counts received bytes, from `Shares.place`.
        is_known: whether the client needs no key or has sent a valid key in the header.

    Raises:
        Refusal: 413, the body is too long; 503, too many bodies are arriving.
    """
    if is_known:
        max_bytes = settings.max_bytes
    else:
        max_bytes = min(settings.max_bytes, MAX_BYTES_WITHOUT_KEY)
    if is_known:
        remedy = "send less at a time"
    else:
        remedy = "give the API key in the header Authorization, as Bearer KEY"
    too_long = Refusal(413, f"the body has more than {max_bytes} bytes: {remedy}")
    length = request.headers.get("Content-Length", "0")
    if int(length) > max_bytes:  # h11 has checked that it is a number
        raise too_long
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            add(len(chunk))
            size += len(chunk)
            if size > max_bytes:
                raise too_long
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


async def _in_time(body: Coroutine[Any, Any, bytes], settings: ServiceSettings) -> bytes:
    try:
        return await asyncio.wait_for(body, settings.slow_seconds)
    except asyncio.TimeoutError:
        raise Refusal(408, f"the body did not arrive in {settings.slow_seconds:g} seconds") from None


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of the work. If the client disconnects first, cancel the work.

    Raises:
        ClientGone: the client disconnected.
    """

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


class Events(Response):
    """A stream of server-sent events: "piece" with text, then "done", or "error" with one sentence."""

    def __init__(self, service: Service, parsed: TranslationRequest, client: str, record: Record) -> None:
        self._service = service
        self._parsed = parsed
        self._client = client
        self._record = record
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end. An error before the first event gives an ordinary error response."""
        events: asyncio.Queue[bytes | None] = asyncio.Queue()

        def enqueue(name: str, members: Any) -> None:
            events.put_nowait(event(name, members))

        async def translate() -> None:
            try:
                await self._service.stream(self._parsed, self._client, self._record, enqueue)
            finally:
                events.put_nowait(None)

        async def forward() -> None:
            first = await events.get()
            if first is None:
                await task  # raises the error of the translation
            await send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
            chunk: bytes | None = first
            while chunk is not None:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await events.get()
            await self._end(task, send)

        task = asyncio.ensure_future(translate())
        try:
            await unless_gone(receive, forward())
        finally:
            task.cancel()

    async def _end(self, task: "asyncio.Task[None]", send: Send) -> None:
        last = b""
        try:
            await task
        except Exception as error:
            refusal = refusal_of(error)
            self._record.figures["failure"] = refusal.status
            if refusal.status == 500:
                log("failure", error=error)
            last = event("error", {"error": refusal.sentence})
        await send({"type": "http.response.body", "body": last, "more_body": False})


_EVENT_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]


def _health(is_healthy: bool, error: str) -> Response:
    if is_healthy:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"error": error}, 503)


def page() -> tuple[str, str]:
    """Return the page and its Content-Security-Policy.

    The policy allows only the script and style of the page, by their hashes, and requests only to this server.
    """
    text = files("txport.runtime.serve").joinpath("page.html").read_text(encoding="utf-8")
    hashes = []
    for tag in ("style", "script"):
        ((content),) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        hashes.append(f"{tag}-src 'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}'")
    rest = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return text, f"default-src 'none'; {'; '.join(hashes)}; {rest}"
