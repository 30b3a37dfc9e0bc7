"""Middleware around all routes: counts, logs, and turns what was raised into an answer."""

import time
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from txport.runtime.serve.errors import ClientGone
from txport.runtime.serve.logs import log
from txport.runtime.serve.metrics import Metrics
from txport.runtime.serve.service import Record

# As nginx logs a client that did not wait.
GONE = 499
# Routes that are asked for every few seconds, and are not logged.
QUIET = ("/health", "/health/live", "/health/ready", "/metrics")


class Observer:
    """Middleware.

    Args:
        app: what it is around.
        metrics: that count requests.
        answer: makes an answer of what was raised.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, answer: Callable[[Exception], Response]) -> None:
        self._app = app
        self._metrics = metrics
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = scope["record"] = Record()
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientGone:
            status = GONE
        except Exception as error:
            response = self._answer(error)
            if response.status_code == 500:
                log("failure", error=error)
            if not status:
                await response(scope, receive, watched)
        finally:
            self._write(scope, record, status or GONE)

    def _write(self, scope: Scope, record: Record, status: int) -> None:
        seconds = time.monotonic() - record.start
        # Of a route, never what a client wrote: metrics must not grow with that.
        path = scope["path"] if scope.get("endpoint") is not None else "none"
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        if path not in QUIET:
            client = scope["client"][0] if scope.get("client") else None
            log("request", path=path, status=status, seconds=round(seconds, 4), client=client, **record.figures)
