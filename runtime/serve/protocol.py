"""Connections: those of clients that are too slow, in sending or in taking, are cut; and an end by signals."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol


class Protocol(H11Protocol):
    """HTTP/1.1, with a time for a request's headers, and for a client to take what was sent to it."""

    slow_seconds = 20.0
    _headers: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        """Take data, and wait for headers if those are not complete."""
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._forget("_headers")
        self._forget("_stalled")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not take its answer."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.slow_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: it takes the answer."""
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
    """A server that ends after SIGTERM and SIGINT as a program that has done its work.

    Args:
        config: of uvicorn.
        listening: is called once connections are taken.
    """

    def __init__(self, config: uvicorn.Config, listening: Callable[[], object]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to take connections."""
        await super().startup(sockets)
        self._listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain at either signal; they are not raised again at the end. A second SIGINT ends at once."""
        handlers = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in handlers.items():
                signal.signal(each, handler)
