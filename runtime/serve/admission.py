"""Limits on the load: sentences of all clients, and simultaneous requests of each client."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from txport.runtime.serve.errors import Refusal, too_many_of_client

# Approximate maximum number of sentences of one request that are in the queue at the same time. Documents and lists of
# texts are submitted in pieces, so a long request does not count with its whole length.
MAX_OF_A_REQUEST = 64


class Admission:
    """Admission control for requests.

    Args:
        max_waiting, max_per_client: see `txport.runtime.serve.settings.ServiceSettings`.
    """

    def __init__(self, max_waiting: int, max_per_client: int) -> None:
        self._max_waiting = max_waiting
        self._max_per_client = max_per_client
        self._waiting = 0
        self._clients: Counter[str] = Counter()

    @contextmanager
    def place(self, sentences: int, client: str) -> Iterator[None]:
        """Admit a request while the context lasts. It counts as at most `MAX_OF_A_REQUEST` sentences.

        Raises:
            Refusal: 429 for too many requests of this client; 503 for too many waiting sentences of all clients.
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
