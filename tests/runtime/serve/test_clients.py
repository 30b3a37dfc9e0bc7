"""Shares of clients in the bodies and connections of a server, and by which address a client is counted."""

import json
import socket
import sys
import time
from collections.abc import Callable

import pytest
from serving import PAIR, Served, serving, status_of

pytest.importorskip("uvicorn", reason="needs a server: pip install 'txport[serve]'")
pytest.importorskip("starlette", reason="needs a server: pip install 'txport[serve]'")
pytest.importorskip("prometheus_client", reason="needs a server: pip install 'txport[serve]'")

ASK = {"q": "the cat", "source": "en", "target": "de"}


def test_unfinished_bodies_of_all_clients_are_bounded() -> None:
    head = (
        "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20000\r\n\r\n"
    )
    with serving(PAIR, "--max-bytes", "20000") as server:
        clients = [server.socket() for _ in range(40)]  # one client has room for 32 bodies
        for client in clients:
            client.sendall(head.encode() + b"x" * 19_990)
        refused = [client for client in clients if _answered(client, 0.5)]
        assert len(refused) >= 8 and all(status_of(client) == 503 for client in refused)
        with _from_another_address(server) as other:
            other.sendall(head.encode() + json.dumps(ASK).encode().ljust(20_000))
            assert status_of(other) == 200, "one client does not starve another"
        for client in clients:
            client.close()
        server.wait("request", 40)
        assert server.ask(**ASK)[0] == 200, "what they had sent is forgotten"


def test_unfinished_bodies_of_one_client_are_counted() -> None:
    """Before, requests counted only after their bodies."""
    head = (
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 200\r\n\r\n"
    )
    with serving(PAIR, "--max-per-client", "2") as server:
        slow = [server.socket() for _ in range(2)]
        for client in slow:
            client.sendall(head)
            assert not _answered(client, 0.3)
        assert server.ask(**ASK)[0] == 429
        with _from_another_address(server) as other:
            other.sendall(head + json.dumps(ASK).encode().ljust(200))
            assert status_of(other) == 200
        for client in slow:
            client.close()
        server.wait("request", 4)
        assert server.ask(**ASK)[0] == 200


def _from_another_address(server: Served) -> socket.socket:
    if sys.platform != "linux":
        pytest.skip("needs several loopback addresses, as Linux has them")
    return socket.create_connection(("127.0.0.1", server.port), timeout=30, source_address=("127.0.0.2", 0))


def _answered(client: socket.socket, seconds: float) -> bool:
    client.settimeout(seconds)
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except OSError:  # of Python 3.10 too
        return False


def _wait_until(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_reached():
        assert time.monotonic() < deadline


def test_connections_are_bounded() -> None:
    with serving(PAIR, "--max-connections", "5", "--forwarded-from", "127.0.0.0/8") as server:
        idle = [server.socket() for _ in range(5)]  # of a proxy, which may use all
        with server.socket() as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status_of(client) == 503
        for each in idle:
            each.close()
        _wait_until(lambda: server.get("/health")[0] == 200)


def test_one_address_gets_half_of_the_connections() -> None:
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(PAIR, "--max-connections", "20") as server:
        idle = [server.socket() for _ in range(40)]
        _wait_until(lambda: sum(_answered(client, 0.01) for client in idle) >= 30)
        refused = [client for client in idle if _answered(client, 0.2)]
        assert len(refused) == 30
        assert status_of(refused[0]) == 503
        with _from_another_address(server) as other:
            other.sendall(ask)
            assert status_of(other) == 200
        for each in idle:
            each.close()
        _wait_until(lambda: server.get("/health")[0] == 200)


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_is_one_client(address: str, client: str) -> None:
    from txport.runtime.serve.admission import network_of

    assert network_of(address) == client


@pytest.mark.parametrize(
    ("names", "listed"),
    [(["*"], True), (["10.0.0.1"], True), (["x", "10.0.0.0/8"], True), (["10.0.0.1/8", "::1"], False), ([], False)],
)
def test_proxies_are_named_by_address_or_network(names: list[str], listed: bool) -> None:
    from txport.runtime.serve.admission import is_listed

    assert is_listed("10.0.0.1", names) is listed
