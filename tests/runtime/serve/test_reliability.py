"""What a server must bear: real processes, traffic to the loopback address only, bounded in count and time.

`TXPORT_SERVE_REQUESTS` makes more requests of the two tests that repeat them: 10,000 of which one in twenty is hostile,
or 100,000 after which memory must be flat, are asked for before a release.
"""

import http.client
import json
import os
import random
import signal
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from serving import PAIR, RUN, Served, events, memory_of, serving, slow_engine
from toy import BUNDLE

pytest.importorskip("uvicorn", reason="needs a server: pip install 'txport[serve]'")
pytest.importorskip("starlette", reason="needs a server: pip install 'txport[serve]'")
pytest.importorskip("prometheus_client", reason="needs a server: pip install 'txport[serve]'")

if TYPE_CHECKING:
    from txport.runtime.translator import Translator

REQUESTS = int(os.environ.get("TXPORT_SERVE_REQUESTS", 0))
ASK = {"q": "the cat", "source": "en", "target": "de"}
WORDS = "the a cat dog bird tree sees likes hears big small red blue and or not one two three four".split()
# The answer of the toy model to "the cat" has 26 steps, which take more than SLOW_SECONDS with this engine.
SLOW = slow_engine(0.25)
SLOW_SECONDS = 6

FAILING = (
    """
from txport.runtime.engines.ort_state import OrtState
from txport.runtime.errors import EngineError
step, calls = OrtState.step, 0
def fail(self, *arguments):
    global calls
    calls += 1
    if calls {when}:
        raise EngineError("the planted fault")
    return step(self, *arguments)
OrtState.step = fail
"""
    + RUN
)

# Sends that fill fast: the kernel would else take megabytes for a client that reads nothing.
SMALL_BUFFERS = f"""
import socket
from txport.runtime.serve import command
listen = command._listen
def small(*where):
    listener = listen(*where)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return listener
command._listen = small
{RUN}"""


def sentences(count: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 8))) for _ in range(count)]


def raw_request(fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def closed_within(connection: socket.socket, seconds: float) -> bytes:
    """What comes until the server closes the connection, which must be soon."""
    connection.settimeout(seconds)
    found = b""
    try:
        while data := connection.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass
    return found


def test_clients_that_send_slowly_are_cut(toy: "Translator") -> None:
    with serving(PAIR, "--slow-seconds", "0.5") as server:
        silent, headers, body = server.socket(), server.socket(), server.socket()
        headers.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nX-Slow")
        body.sendall(raw_request(ASK)[:-5])
        assert server.ask(**ASK)[0] == 200, "others are answered meanwhile"
        assert closed_within(silent, 5) == closed_within(headers, 5) == b""
        assert closed_within(body, 5).startswith(b"HTTP/1.1 408 ")
        with server.socket() as again:
            again.sendall(raw_request(ASK))
            assert again.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            again.sendall(b"GET / HT")  # the next request of a connection has as much time
            assert b"HTTP" not in closed_within(again, 5)


def test_a_client_that_reads_nothing_holds_no_row() -> None:
    text = "\n".join(["the cat"] * 900)
    with serving(PAIR, "--slow-seconds", "1", code=SMALL_BUFFERS) as server:
        with server.socket(receive_buffer=2048) as client:
            client.sendall(raw_request({**ASK, "q": text, "stream": True}))
            server.until("txport_queue_sentences", 64)
            assert server.ask(**ASK)[0] == 200
            server.wait("request", 2)  # its connection was cut
            server.until("txport_queue_sentences", 0)
            found = closed_within(client, 5)
        assert found.startswith(b"HTTP/1.1 200 ") and len(found) < 200_000 and b"event: done" not in found


def test_a_client_that_goes_away_frees_its_row_at_once() -> None:
    with serving(PAIR, code=SLOW) as server:
        for number, stream in enumerate((True, False), 1):
            with server.socket() as client:
                client.sendall(raw_request({**ASK, "stream": stream}))
                if stream:
                    assert b"event: piece" in client.recv(1 << 12) + client.recv(1 << 12)
                server.until("txport_queue_sentences", 1)
                client.shutdown(socket.SHUT_RDWR)
            gone = time.monotonic()
            server.until("txport_queue_sentences", 0)
            assert time.monotonic() - gone < SLOW_SECONDS - 1, "the whole answer would take longer"
            assert server.wait("request", number)["status"] == 499
        assert server.metric("txport_sentences_total") == 0


def hostile(draw: random.Random) -> bytes:
    """One of many wrong bodies."""
    kinds: list[Any] = [
        b"\xff\xfe\x00",
        b"{",
        b"[" * draw.randint(1, 5000),
        json.dumps({**ASK, "q": "a" * 200_000}).encode(),
        json.dumps({**ASK, "target": "tlh"}).encode(),
        json.dumps({**ASK, "alternatives": draw.choice([-5, 10**30, "many", 1e308, [], {}])}).encode(),
        json.dumps({**ASK, "q": draw.choice([{}, 5, [None], [[]], True, [{"q": 1}]])}).encode(),
        json.dumps({**ASK, "format": "html", "q": "<p>a</p>" * 9}).encode(),
        json.dumps({**ASK, "q": "\ud800"}).encode(),
        json.dumps({**ASK, "api_key": {"$ne": ""}, "model": "../../etc/passwd"}).encode(),
        json.dumps({**ASK, "stream": "perhaps", "q": "\0" * 99}).encode(),
        json.dumps({**ASK, "q": ["x"] * 5000}).encode(),
        ('{"q": "é"}'.encode("latin-1")),
        b" " * (3 << 20),
    ]
    return bytes(draw.choice(kinds))


def exchange(
    server: Served, requests: int, hostile_share: float, threads: int, answers: dict[str, str]
) -> Counter[int]:
    """Statuses of requests over connections that stay; each good one must be answered, and right."""

    def client(number: int) -> Counter[int]:
        draw = random.Random(number)
        connection = server.connection()
        statuses: Counter[int] = Counter()
        for _ in range(requests // threads):
            text = draw.choice(list(answers))
            bad = draw.random() < hostile_share
            body = hostile(draw) if bad else json.dumps({**ASK, "q": text}).encode()
            try:
                connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                found = json.loads(answer.read())
            except (ConnectionError, json.JSONDecodeError):
                assert bad, "a good request lost its connection"
                connection.close()
                continue
            statuses[answer.status] += 1
            assert (answer.status == 200) != bad, (answer.status, found)
            assert bad or found == {"translatedText": answers[text]}
        connection.close()
        return statuses

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(client, range(threads)), Counter())


def test_hostile_requests_harm_nobody(toy: "Translator") -> None:
    texts = sentences(50)
    answers = dict(zip(texts, (each.text for each in toy.translate(texts)), strict=True))
    count = REQUESTS or 400
    with serving() as server:
        statuses = exchange(server, count, 0.05, 8, answers)
        assert set(statuses) <= {200, 400, 404, 413, 422}
        assert sum(statuses.values()) > 0.97 * count and statuses[200] > 0.9 * count
        server.until("txport_queue_sentences", 0)
        assert server.end() == 0
    assert not [line for line in server.logs if line["level"] != "info"]


def test_memory_is_flat(toy: "Translator") -> None:
    texts = sentences(50)
    answers = dict(zip(texts, (each.text for each in toy.translate(texts)), strict=True))
    with serving() as server:
        exchange(server, max(300, REQUESTS // 10), 0.05, 4, answers)
        before = memory_of(server.process.pid)
        exchange(server, REQUESTS or 400, 0.05, 4, answers)
        grown = memory_of(server.process.pid) - before
        print(f"{before / 2**20:.1f} MiB, and {grown / 2**20:.2f} more after {REQUESTS or 400} requests")
        assert grown < (4 if REQUESTS else 12) << 20


def test_overload_is_refused_and_good_requests_go_on(toy: "Translator") -> None:
    (right,) = toy.translate(["the cat"])
    body = json.dumps(ASK).encode()
    for limit, status in (("--max-waiting", 503), ("--max-per-client", 429)):
        with serving(PAIR, limit, "4", code=slow_engine(0.02)) as server, ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: server.post(body), range(48)))
            assert server.ask(**ASK) == (200, {"translatedText": right.text})
        refused = [(answer, headers) for found, answer, headers in answers if found == status]
        assert len(refused) + sum(found == 200 for found, _, _ in answers) == 48
        assert len(refused) > 4 and sum(found == 200 for found, _, _ in answers) >= 4
        assert all(headers["retry-after"] == "1" and "wait" in answer["error"] for answer, headers in refused)
        assert all(answer == {"translatedText": right.text} for found, answer, _ in answers if found == 200)


def test_what_takes_too_long_ends_at_its_time() -> None:
    with serving(PAIR, "--seconds", "2", code=SLOW) as server:
        start = time.monotonic()
        status, answer, headers = server.post(json.dumps(ASK).encode())
        assert time.monotonic() - start < SLOW_SECONDS, "the whole answer would take longer"
        assert (status, headers["retry-after"]) == (503, "1") and "in time" in answer["error"]
        server.until("txport_queue_sentences", 0)
        _, text, _ = server.post(json.dumps({**ASK, "stream": True}).encode())
        assert text.startswith("event: piece") and text.rstrip().endswith('{"error": "' + answer["error"] + '"}')


def test_sigterm_answers_what_is_here(toy: "Translator") -> None:
    (right,) = toy.translate(["the cat"])
    with serving(PAIR, code=slow_engine(0.08)) as server, ThreadPoolExecutor(2) as pool:
        asked = [json.dumps({**ASK, "stream": stream}).encode() for stream in (False, True)]
        whole, streamed = (pool.submit(server.post, body) for body in asked)
        server.until("txport_queue_sentences", 2)
        assert server.end(signal.SIGTERM) == 0
        assert whole.result()[:2] == (200, {"translatedText": right.text})
        assert events(streamed.result()[1])[-1] == ("done", {"translatedText": right.text})
        with pytest.raises(ConnectionRefusedError):
            server.ask(**ASK)
    assert server.logs[-1]["event"] == "ended"


def test_after_the_time_to_drain_the_rest_is_given_up() -> None:
    with serving(PAIR, "--drain-seconds", "0.3", code=slow_engine(0.6)) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, json.dumps(ASK).encode())
        server.until("txport_queue_sentences", 1)
        start = time.monotonic()
        assert server.end(signal.SIGTERM) == 0
        assert time.monotonic() - start < 12, "the whole answer would take 15 seconds"
        assert answer.exception() is not None or answer.result()[0] >= 500


def test_a_kill_under_load_ends_clients_and_harms_no_bundle(toy: "Translator") -> None:
    (right,) = toy.translate(["the cat"])
    before = {file: file.read_bytes() for file in BUNDLE.rglob("*") if file.is_file()}
    stop, failures = Event(), Counter[str]()

    def client(server: Served) -> None:
        while not stop.is_set():
            try:
                assert server.ask(**ASK) == (200, {"translatedText": right.text})
            except (OSError, http.client.HTTPException) as error:
                failures[type(error).__name__] += 1
                return

    with serving() as server:
        threads = [Thread(target=client, args=(server,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        server.wait("request", 20)
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        for thread in threads:
            thread.join(5)
        stop.set()
        assert not any(thread.is_alive() for thread in threads) and failures.total() == 8
    with serving(PAIR, "--host", "localhost") as again:
        assert again.ask(**ASK) == (200, {"translatedText": right.text})
    assert before == {file: file.read_bytes() for file in BUNDLE.rglob("*") if file.is_file()}


def test_an_engine_that_fails_once_answers_500_once(toy: "Translator") -> None:
    (right,) = toy.translate(["the cat"])
    with serving(PAIR, code=FAILING.format(when="== 3")) as server:
        status, answer, _ = server.post(json.dumps(ASK).encode())
        assert status == 500 and answer["error"].startswith("the engine failed") and "planted" not in answer["error"]
        assert server.ask(**ASK) == (200, {"translatedText": right.text})
        assert server.get("/health/live")[0] == 200 and server.metric("txport_model_loads_total") == 1
        failure = server.wait("failure")
        assert failure["error"] == "EngineError" and failure["level"] == "error" and failure["where"]


def test_an_engine_that_always_fails_is_opened_anew_and_then_reported(tmp_path: Path) -> None:
    with serving(PAIR, f"other={BUNDLE}", code=FAILING.format(when="> 0")) as server:
        for number in range(1, 7):
            assert server.get("/health/live")[0] == 200
            assert server.ask(**ASK, model="en-de")[0] == 500
            assert server.metric("txport_model_loaded", model="en-de") == (number % 3 != 0)
        assert server.get("/health/live")[0] == 503 and server.metric("txport_model_loads_total", model="en-de") == 2


def test_a_model_in_use_stays_and_others_wait_their_turn() -> None:
    size = (BUNDLE / "onnx/weights.bin").stat().st_size
    code = SLOW.replace(
        "import time", f"import time\nfrom txport.runtime.serve import command\ncommand.MEBIBYTE = {size}", 1
    )
    with serving(PAIR, f"other={BUNDLE}", "--memory", "1", code=code) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.ask, **ASK, model="en-de")
        server.until("txport_queue_sentences", 1)
        status, answer, headers = server.post(b'{"q": "the cat", "model": "other"}')
        assert (status, headers.get("retry-after")) == (503, "1"), (answer, server.raw)
        assert first.result()[0] == 200
        assert server.ask(q="the cat", model="other")[0] == 200
        assert server.metric("txport_model_loaded", model="en-de") == 0


def test_a_damaged_bundle_is_said_and_the_others_serve(damaged: Path) -> None:
    encoder = damaged / "onnx" / "encoder.onnx"
    encoder.write_bytes(bytes(encoder.stat().st_size))
    with serving(PAIR, f"broken={damaged}") as server:
        assert server.wait("model not loaded")["model"] == "broken"
        assert server.ask(**ASK)[0] == 200
        assert server.ask(q="the cat", model="broken")[0] == 500
