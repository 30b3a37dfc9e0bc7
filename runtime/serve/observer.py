"""Middleware around all routes: metrics, logs, error responses, and checks of the headers Host and Origin.

The checks protect a local server from foreign web pages. The host name of a page may resolve to this machine (DNS
rebinding); its requests then have that name as Host. Any page can send a form to this machine, with its own Origin.
"""

import ipaddress
import time
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from txport.runtime.serve.errors import ClientGone, Refusal
from txport.runtime.serve.logs import log
from txport.runtime.serve.metrics import Metrics
from txport.runtime.serve.service import Record

ANY = "*"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# Status in logs of a client that disconnected before the answer, as in nginx. It is never sent.
CLIENT_CLOSED = 499
# Monitoring requests these routes every few seconds, so they are not logged.
METRICS = "/metrics"
UNLOGGED = ("/health", "/health/live", "/health/ready", METRICS)


class Observer:
    """Middleware that counts and logs requests and turns errors into responses.

    Args:
        app: the wrapped application.
        metrics: metrics of the server.
        answer: converts an exception to a response.
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
            status = CLIENT_CLOSED
        except Exception as error:
            response = self._answer(error)
            if response.status_code == 500:
                log("failure", error=error)
            if not status:
                await response(scope, receive, watched)
        finally:
            self._write(scope, record, status or CLIENT_CLOSED)

    def _write(self, scope: Scope, record: Record, status: int) -> None:
        seconds = time.monotonic() - record.start
        # Only paths of routes become labels: with arbitrary paths, clients could make the metrics grow without limit.
        if scope.get("endpoint") is not None:
            path = scope["path"]
        else:
            path = "none"
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        if path not in UNLOGGED:
            if scope.get("client"):
                client = scope["client"][0]
            else:
                client = None
            log("request", path=path, status=status, seconds=round(seconds, 4), client=client, **record.figures)


def hosts_of(host: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the host names that clients may use: loopback names, the address of the server and the allowed names.

    Args:
        host: the address of the server. With an address of all interfaces, any name may be used if `allowed` is empty.
        allowed: further names, set by the user; "*" for any.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        server_name = host
    else:
        if address.version == 6:
            server_name = f"[{host}]"
        else:
            server_name = host
        if address.is_unspecified and not allowed:
            return (ANY,)
    return (*LOOPBACK, server_name.lower(), *(name.lower() for name in allowed))


class Guard:
    """Middleware that refuses requests to other hosts and from foreign web pages.

    Args:
        app: the wrapped application.
        hosts: the result of `hosts_of`; empty or "*" for any.
        origins: origins of web pages that may send requests; "*" for all.
        metrics_port: port that answers only /metrics.
    """

    def __init__(
        self, app: ASGIApp, hosts: Sequence[str], origins: Sequence[str], metrics_port: int | None = None
    ) -> None:
        self._app = app
        self._metrics_port = metrics_port
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request.

        Raises:
            Refusal: 400, the request is for another host; 403, its web page is not allowed; 404, the port of the
                metrics has no such page.
        """
        if scope["type"] == "http":
            headers = Request(scope).headers
            host = headers.get("Host", "").lower()
            if self._hosts and ANY not in self._hosts and _name(host) not in self._hosts:
                raise Refusal(400, "the header Host names another server: name this one by --allow-host")
            if scope["server"][1] == self._metrics_port and scope["path"] != METRICS:
                raise Refusal(404, "this port has /metrics only")
            origin = headers.get("Origin")
            foreign = origin is not None and origin.partition("://")[2].lower() != host
            if foreign and scope["method"] == "POST" and not {ANY, origin} & set(self._origins):
                raise Refusal(403, "web pages of other origins may not call the API: name them by --allow-origin")
        await self._app(scope, receive, send)


def _name(host: str) -> str:
    """Return the header Host without its port."""
    if host.startswith("["):
        end = host.find("]") + 1
    else:
        end = host.find(":")
    if end <= 0:
        return host
    return host[:end]
