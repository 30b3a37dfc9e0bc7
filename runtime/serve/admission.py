"""Limits on the load: sentences of all clients, simultaneous requests of each client, and shares of clients."""

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from txport.runtime.serve.errors import Refusal, too_many_of_client

# Approximate maximum number of sentences of one request that are in the queue at the same time: documents and lists of
# texts are submitted in pieces. A longer request counts as this number.
MAX_OF_A_REQUEST = 64


class Admission:
    """Admission control for requests.

    Args:
        max_waiting, max_per_client: see `txport.runtime.serve.settings.ServiceSettings`.
    """

    def __init__(self, max_waiting: int, max_per_client: int) -> None:
        self._max_waiting = max_waiting
        self._max_per_client = max_per_client
        self._unanswered = 0  # sentences
        self._clients: Counter[str] = Counter()

    @contextmanager
    def place(self, sentences: int, client: str) -> Iterator[None]:
        """Admit a request while the context lasts. It counts as at most `MAX_OF_A_REQUEST` sentences.

        Raises:
            Refusal: 429 for too many requests of this client; 503 for too many unanswered sentences of all clients.
        """
        count = max(1, min(sentences, MAX_OF_A_REQUEST))
        if self._max_per_client and self._clients[client] >= self._max_per_client:
            raise too_many_of_client()
        if self._unanswered and self._unanswered + count > self._max_waiting:
            raise Refusal(503, "too many requests wait for an answer: try again later", retry=True)
        self._unanswered += count
        self._clients[client] += 1
        try:
            yield
        finally:
            self._unanswered -= count
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]


@dataclass
class ClientShare:
    """Share of one client.

    Attributes:
        count: number of places.
        amount: sum of what all of them hold: bytes or connections.
    """

    count: int = 0
    amount: int = 0


class Shares:
    """Shares of clients in a limited resource: bytes of arriving bodies, or connections.

    A client may hold as much as is free (Choudhury and Hahne 1998, "Dynamic Queue Length Thresholds"). A single client
    can therefore hold half of the resource, and the rest stays free for other clients.

    Args:
        max_amount: maximum amount of all clients.
        max_per_client: maximum number of places of a client, 0 for no limit.
    """

    def __init__(self, max_amount: int, max_per_client: int = 0) -> None:
        self._max_amount = max_amount
        self._max_per_client = max_per_client
        self._amount = 0
        self._shares: dict[str, ClientShare] = {}

    @contextmanager
    def place(self, client: str, known: bool = True) -> Iterator[Callable[[int], None]]:
        """Give a client a place until the block ends. Yield a function that adds to the amount of the client.

        Args:
            client: key or address.
            known: whether the client is identified. Only then is the number of its places limited: an address may
                have several clients, whose keys are in the bodies.

        Raises:
            Refusal: 429, the client has too many places. The function raises 503 if the amount becomes too large.
        """
        share = self._shares.setdefault(client, ClientShare())
        if known and self._max_per_client and share.count >= self._max_per_client:
            raise too_many_of_client()
        share.count += 1
        total = 0

        def add(size: int) -> None:
            nonlocal total
            if share.amount + size > self._max_amount - self._amount - size:
                raise Refusal(503, "too many requests are being sent: try again later", retry=True)
            total += size
            share.amount += size
            self._amount += size

        try:
            yield add
        finally:
            self._amount -= total
            share.amount -= total
            share.count -= 1
            if not share.count:
                del self._shares[client]


def network_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 address.

    A host commonly has all 2**64 addresses of such a network (RFC 4291, section 2.5.1).
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed), 64), strict=False))


def is_listed(address: str, names: Sequence[str]) -> bool:
    """Return whether addresses and networks include an address. "*" includes all."""
    if "*" in names or address in names:
        return True
    for name in names:
        with suppress(ValueError):  # a host name, for example
            if ipaddress.ip_address(address) in ipaddress.ip_network(name):
                return True
    return False
