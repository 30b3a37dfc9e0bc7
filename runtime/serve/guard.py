"""Middleware that takes only requests that are meant for this server, by the headers Host and Origin.

A web page may have its own name resolve to this machine (DNS rebinding): its requests then bear that name. And any page
can send a form to this machine, with its origin.
"""

import ipaddress
from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from txport.runtime.serve.errors import Refusal

ANY = "*"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def hosts_of(host: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Names by which clients may call a server: of this machine, the address that it listens on and those allowed.

    Args:
        host: the address; one of all interfaces has any name, unless names are allowed.
        allowed: by the user; "*" for any.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        own = host
    else:
        own = f"[{host}]" if address.version == 6 else host
        if address.is_unspecified and not allowed:
            return (ANY,)
    return (*LOOPBACK, own.lower(), *(name.lower() for name in allowed))


class Guard:
    """Middleware.

    Args:
        app: what it is around.
        hosts: of `hosts_of`; none or "*" for any.
        origins: of other web pages that may send; "*" for all.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], origins: Sequence[str]) -> None:
        self._app, self._hosts, self._origins = app, hosts, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request.

        Raises:
            Refusal: 400, it is meant for another host; 403, it is of a web page that may not send.
        """
        if scope["type"] == "http":
            headers = Request(scope).headers
            host = headers.get("Host", "").lower()
            if self._hosts and ANY not in self._hosts and _name(host) not in self._hosts:
                raise Refusal(400, "the header Host names another server: name this one by --allow-host")
            origin = headers.get("Origin")
            foreign = origin is not None and origin.partition("://")[2].lower() != host
            if foreign and scope["method"] == "POST" and not {ANY, origin} & set(self._origins):
                raise Refusal(403, "web pages of other origins may not ask: name them by --allow-origin")
        await self._app(scope, receive, send)


def _name(host: str) -> str:
    """The header Host without its port."""
    end = host.find("]") + 1 if host.startswith("[") else host.find(":")
    return host if end <= 0 else host[:end]
