"""Connections with timeouts for slow clients and a share for each client, and a server that ends cleanly on signals."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import h11
import uvicorn
from txport.runtime.serve.admission import Shares, is_listed, network_of
from txport.runtime.serve.errors import Refusal
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEADERS = 64 << 10  # bytes of a request's headers
# A body of more than MAX_PIECES chunks needs MIN_BYTES per chunk on average: handling a chunk costs as much time as
# many bytes, so a client could block the server with tiny chunks.
MAX_PIECES = 512
MIN_BYTES = 64
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)


class _Connection(h11.Connection):
    """A connection that refuses bodies in chunks of a few bytes."""

    _pieces = _bytes = 0

    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: the body comes in chunks that are too small, or h11 has found an error.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > MAX_PIECES and self._bytes < MIN_BYTES * self._pieces:
                raise h11.RemoteProtocolError("the body comes in pieces that are too small", 400)
        return event


class Protocol(H11Protocol):
    """HTTP/1.1 with timeouts for the headers of a request and for a client that does not read its response.

    A client that has its share of the connections gets status 503 on further ones.

    Attributes:
        slow_seconds: the timeout.
        proxies: addresses and networks whose connections are of many clients, so that they have no share.
        shares: connections of the other clients.
    """

    slow_seconds = 20.0
    proxies: Sequence[str] = ()
    shares = Shares(1024)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _Connection(h11.SERVER, MAX_HEADERS)
        self._place = ExitStack()

    _headers: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for headers, or refuse the connection."""
        super().connection_made(transport)
        try:
            if self.client and not is_listed(self.client[0], self.proxies):
                self._place.enter_context(self.shares.place(network_of(self.client[0])))(1)
        except Refusal as refusal:
            body = json.dumps({"error": refusal.sentence}).encode()
            transport.write(_TOO_MANY % (len(body), body))
            transport.close()
        else:
            self._watch_headers()

    def data_received(self, data: bytes) -> None:
        """Receive data. Stop the timeout for headers if they are complete."""
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts, and free the place."""
        self._place.close()
        self._forget("_headers")
        self._forget("_stalled")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read its response."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.slow_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue sending: the client reads again."""
        self._forget("_stalled")
        super().resume_writing()

    def _watch_headers(self) -> None:
        waits = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        if waits and self._headers is None:
            self._headers = self.loop.call_later(self.slow_seconds, self.transport.abort)
        elif not waits:
            self._forget("_headers")

    def _forget(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
        setattr(self, name, None)


class Server(uvicorn.Server):
    """A server that exits normally after SIGTERM and SIGINT.

    Args:
        config: configuration of uvicorn.
        listening: called when the server accepts connections.
        reload: called at SIGHUP.
    """

    def __init__(self, config: uvicorn.Config, listening: Callable[[], object], reload: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening
        self._reload = reload

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets)
        self._listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain at SIGTERM or SIGINT; a second SIGINT ends at once.

        uvicorn raises the signals again at the end, which would end the process with an error status; this does not.
        """
        handlers = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGTERM, signal.SIGINT)}
        handlers[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: self._reload())
        try:
            yield
        finally:
            for each, handler in handlers.items():
                signal.signal(each, handler)
