"""Bounds on what is under way: sentences of all clients, and requests of each."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from txport.runtime.serve.errors import Refusal, too_many_of_client

# Sentences of one request that are in the queue at the same time, about: a document has no more there.
MAX_OF_A_REQUEST = 64


class Admission:
    """Lets requests in.

    Args:
        max_waiting, max_per_client: see `txport.runtime.serve.settings.Settings`.
    """

    def __init__(self, max_waiting: int, max_per_client: int) -> None:
        self._max_waiting = max_waiting
        self._max_per_client = max_per_client
        self._waiting = 0
        self._clients: Counter[str] = Counter()

    @contextmanager
    def place(self, sentences: int, client: str) -> Iterator[None]:
        """Yield a place for a request, which counts for at most `MAX_OF_A_REQUEST` sentences.

        Raises:
            Refusal: 429, this client has its share; 503, all places are taken.
        """
        count = max(1, min(sentences, MAX_OF_A_REQUEST))
        if self._max_per_client and self._clients[client] >= self._max_per_client:
            raise too_many_of_client()
        if self._waiting and self._waiting + count > self._max_waiting:
            raise Refusal(503, "too many requests wait for an answer: try again later", retry=True)
        self._waiting += count
        self._clients[client] += 1
        try:
            yield
        finally:
            self._waiting -= count
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]
