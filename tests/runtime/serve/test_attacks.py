"""What strangers send to a server to stop it, to fill its memory, or to reach it from a web page."""

import asyncio
import itertools
import json
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import PAIR, serving, status_of
from toy import BUNDLE
from txport.runtime.bundle.schema import WEIGHTS

pytest.importorskip("uvicorn", reason="needs a server: pip install 'txport[serve]'")
pytest.importorskip("starlette", reason="needs a server: pip install 'txport[serve]'")
pytest.importorskip("prometheus_client", reason="needs a server: pip install 'txport[serve]'")

if TYPE_CHECKING:
    from txport.runtime.serve.models import Models

MEBIBYTE = 1 << 20
ASK = {"q": "the cat", "source": "en", "target": "de"}
FORM = "multipart/form-data; boundary=x"
# Bodies of a mebibyte that were, or may be, expensive to parse.
EXPENSIVE = {
    "lines": (b"\r\n" * (MEBIBYTE // 2), FORM),
    "boundaries": (b"--x\r\n" * (MEBIBYTE // 5), FORM),
    "nested forms": (b"--x\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n" * (MEBIBYTE // 52), FORM),
    "headers": (b"--x\r\n" + b"a: b\r\n" * (MEBIBYTE // 6), FORM),
    "folded header": (b"--x\r\nContent-Disposition: form-data;" + b"\r\n name=q;" * (MEBIBYTE // 10), FORM),
    "near boundaries": (b"\r\n--" + b"a" * MEBIBYTE, "multipart/form-data; boundary=" + "a" * 69 + "b"),
    "arrays": (b"[" + b"[]," * (MEBIBYTE // 3) + b"[]]", "application/json"),
    "objects": (b"[" + b"{}," * (MEBIBYTE // 3) + b"{}]", "application/json"),
    "depth": (b"[" * MEBIBYTE, "application/json"),
    "digits": (b"1" * MEBIBYTE, "application/json"),
    "fields": (b"&a=b" * (MEBIBYTE // 4), "application/x-www-form-urlencoded"),
}


def form(fields: list[tuple[str, str]], boundary: str = "x") -> bytes:
    parts = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields
    )
    return ("".join(parts) + f"--{boundary}--\r\n").encode()


@pytest.mark.parametrize("name", EXPENSIVE)
def test_no_body_takes_long(name: str) -> None:
    """The worst of them took Python's email half a minute, and a function call for each line.

    Each takes a few milliseconds; one that is quadratic inside a library would take minutes.
    """
    from txport.runtime.serve.errors import Refusal
    from txport.runtime.serve.requests import fields_of

    calls, start = itertools.count(), time.thread_time()
    sys.setprofile(lambda *_: next(calls))
    try:
        with pytest.raises(Refusal) as refused:
            fields_of(*EXPENSIVE[name], "")
    finally:
        sys.setprofile(None)
    assert refused.value.status == 400
    assert next(calls) < 10_000 and time.thread_time() - start < 10


WRONG_NAMES: dict[str, dict[str, object]] = {
    "field": {"q": "a", "x" * MEBIBYTE: 1},
    "model": {"q": "a", "model": "x" * MEBIBYTE},
    "empty field": {"q": "a", "": 1},
}


@pytest.mark.parametrize("fields", WRONG_NAMES.values(), ids=WRONG_NAMES)
def test_no_wrong_name_takes_long(fields: dict[str, object]) -> None:
    """A comparison of a long name with the known ones took a second, on the event loop."""
    from txport.runtime.serve.errors import Refusal
    from txport.runtime.serve.models import Model, Models
    from txport.runtime.serve.requests import translation_request
    from txport.runtime.serve.settings import ServiceSettings

    models = Models([Model.read(PAIR)], None, lambda _: pytest.fail("opens no bundle"))
    calls = itertools.count()
    sys.setprofile(lambda *_: next(calls))
    try:
        with pytest.raises(Refusal) as refused:
            models.choose(translation_request(fields, ServiceSettings()).model, "", "")
    finally:
        sys.setprofile(None)
    assert next(calls) < 10_000 and len(refused.value.sentence) < 1000


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=40)


@settings(deadline=None)
@given(st.lists(st.tuples(st.from_regex(r"[a-z_]{1,20}", fullmatch=True), TEXTS), min_size=1, max_size=20))
def test_forms_are_read_as_by_pythons_email(fields: list[tuple[str, str]]) -> None:
    from txport.runtime.serve.requests import parts_of

    body = form(fields)
    message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {FORM}\r\n\r\n".encode() + body)
    expected = []
    for part in message.iter_parts():
        content = part.get_payload(decode=True)
        assert isinstance(part, EmailMessage) and isinstance(content, bytes)
        expected.append((part.get_param("name", header="content-disposition"), content.decode()))
    assert parts_of(body, FORM) == expected == fields


@given(st.binary(max_size=300), st.lists(st.sampled_from([b"--x", b"\r\n", b"--x--", b"name=", b":", b'"', b";"])))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_form_or_a_value_error(noise: bytes, parts: list[bytes]) -> None:
    from txport.runtime.serve.requests import MAX_PARTS, parts_of

    body = noise.join(parts)
    for each in (body, b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n' + body + b"\r\n--x--"):
        with suppress(ValueError):
            assert len(parts_of(each, FORM)) <= MAX_PARTS


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (form([("q", "a")] * 101), FORM, "too many parts"),
        (form([("q", "a")])[:-6], FORM, "has no end"),
        (form([("q", "a")]), "multipart/form-data", "no boundary"),
        (form([("q" * 1100, "a")]), FORM, "no headers, or too many"),
        (b"--x\r\na: b\r\n--x--", FORM, "no headers, or too many"),
        (b"--x\r\n\r\na\r\n--x--", FORM, "has no name"),
        (b"--x\r\nContent-Type: text/plain\r\n\r\na\r\n--x--", FORM, "has no name"),
        (form([("q", "a")]).replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n"), FORM, "is encoded"),
    ],
)
def test_forms_that_are_refused(body: bytes, kind: str, words: str) -> None:
    from txport.runtime.serve.requests import parts_of

    with pytest.raises(ValueError, match=words):
        parts_of(body, kind)


def test_a_client_without_a_key_sends_little(tmp_path: Path) -> None:
    key, file = "a key of some length", tmp_path / "keys"
    file.write_text(f"{key}\n")
    file.chmod(0o600)
    with serving(PAIR, "--api-keys", str(file)) as server:
        large = json.dumps({**ASK, "q": ["the cat"] * 200, "secret": "x" * 70_000}).encode()
        status, answer, _ = server.post(large)
        assert status == 413 and "give the API key in the header Authorization" in answer["error"]
        assert server.post(large, Authorization=f"Bearer {key}")[0] == 200
        for path in ("/translate", "/features"):
            status, answer, _ = server.post(b"{}", path=f"{path}?{'a&' * 101}")
            assert status == 400 and "the URL has more than 100 fields" in answer["error"]
        assert server.post(json.dumps({**ASK, "api_key": key}).encode())[0] == 200
        assert not [line for line in server.logs if line["event"] == "other users can read the API keys"]


def test_keys_are_read_again_at_a_signal(tmp_path: Path) -> None:
    first, second, file = "the first of two keys", "the second of two keys", tmp_path / "keys"
    file.write_text(f"{first}\n")
    file.chmod(0o644)
    with serving(PAIR, "--api-keys", str(file)) as server:
        assert server.wait("other users can read the API keys")["file"] == str(file)
        file.write_text("short\n")
        server.process.send_signal(1)
        assert "shorter than" in server.wait("API keys not read again")["why"]
        assert server.ask(**ASK, api_key=first)[0] == 200, "they stay as they were"
        file.write_text(f"{second}\n")
        server.process.send_signal(1)
        server.wait("API keys read again")
        assert [server.ask(**ASK, api_key=key)[0] for key in (first, second)] == [403, 200]


def test_one_short_key_among_long_ones_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from txport.runtime.errors import InputError
    from txport.runtime.serve.keys import VARIABLE, Keys

    (tmp_path / "keys").write_text("a key of some length\nfifteen letters\n")
    with pytest.raises(InputError, match="an API key is shorter than 16 characters"):
        Keys.read(tmp_path / "keys")
    monkeypatch.setenv(VARIABLE, "a-key-of-some-length short")
    with pytest.raises(InputError, match="an API key is shorter than 16 characters"):
        Keys.read(None)


def test_a_server_with_keys_never_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys, everybody might ask."""
    from txport.runtime.errors import InputError
    from txport.runtime.serve.errors import Refusal
    from txport.runtime.serve.keys import VARIABLE, Keys

    monkeypatch.setenv(VARIABLE, "a-key-of-some-length")
    keys = Keys.read(None)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(InputError, match="no API key is left: the keys do not change"):
        keys.reload()
    keys.check("a-key-of-some-length")
    with pytest.raises(Refusal, match="an API key is needed"):
        keys.check("")
    open_to_all = Keys.read(None)
    open_to_all.reload()
    open_to_all.check("")


@pytest.mark.parametrize(("mode", "readable"), [(0o600, False), (0o640, True), (0o604, True), (0o622, False)])
def test_who_can_read_the_keys(tmp_path: Path, mode: int, readable: bool) -> None:
    from txport.runtime.serve.keys import Keys

    (tmp_path / "keys").write_text("a key of some length\n")
    (tmp_path / "keys").chmod(mode)
    assert Keys.read(tmp_path / "keys").readable is readable


def test_a_request_counts_for_its_sentences_and_gives_its_places_back() -> None:
    from txport.runtime.serve.admission import Admission
    from txport.runtime.serve.errors import Refusal

    admission = Admission(100, 2)
    for _ in range(3):
        with admission.place(1000, "a"), admission.place(36, "a"):  # 64 and 36
            with pytest.raises(Refusal, match="too many requests wait"), admission.place(1, "b"):
                pass
            with pytest.raises(Refusal, match="too many requests of one client"), admission.place(1, "a"):
                pass


def test_weights_of_another_model_are_not_served(tmp_path: Path) -> None:
    """The hash of weights, which other calls do not compare, is compared once at the start."""
    changed = Path(shutil.copytree(BUNDLE, tmp_path / "changed"))
    weights = changed / WEIGHTS
    weights.chmod(stat.S_IRUSR | stat.S_IWUSR)
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with serving(f"changed={changed}", PAIR) as server:
        assert "weights.bin was changed" in server.wait("model not loaded")["why"]
        assert server.ask(q="the cat", model="changed")[0] == 500
        assert server.ask(**ASK)[0] == 200


def test_a_body_in_tiny_pieces_is_refused() -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = json.dumps(ASK).encode()
    with serving(PAIR) as server:
        with server.socket() as client:
            client.sendall(head + b"1\r\nx\r\n" * 5000)
            assert status_of(client) == 400
        with server.socket() as client:  # as small as they are in a client that streams
            pieces = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 4]), body[i : i + 4]) for i in range(0, len(body), 4))
            client.sendall(head.replace(b"Tra", b"Content-Type: application/json\r\nTra") + pieces + b"0\r\n\r\n")
            assert status_of(client) == 200


def test_pieces_are_counted_in_each_request_of_a_connection() -> None:
    from h11 import CLIENT, SERVER, Connection, ConnectionClosed, Data, EndOfMessage, Request, Response
    from txport.runtime.serve.protocol import _Connection

    client, server = Connection(CLIENT), _Connection(SERVER)
    for pieces, size in ((600, 64), (8, 4)):
        head = [("Host", "localhost"), ("Transfer-Encoding", "chunked")]
        sent = [client.send(Request(method="POST", target="/translate", headers=head))]
        sent += [client.send(Data(data=b"x" * size)) for _ in range(pieces)] + [client.send(EndOfMessage())]
        server.receive_data(b"".join(filter(None, sent)))
        while not isinstance(event := server.next_event(), EndOfMessage):
            assert not isinstance(event, ConnectionClosed)
        answer = [
            server.send(Response(status_code=200, headers=[("Content-Length", "0")])),
            server.send(EndOfMessage()),
        ]
        client.receive_data(b"".join(filter(None, answer)))
        while not isinstance(client.next_event(), EndOfMessage):
            pass
        for side in (client, server):
            side.start_next_cycle()


def test_requests_for_other_hosts_and_of_other_pages_are_refused() -> None:
    body = json.dumps(ASK).encode()
    with serving(PAIR, "--allow-host", "translate.example", "--allow-origin", "https://other.example") as server:
        own = f"http://127.0.0.1:{server.port}"
        assert [server.get("/languages", Host=host)[0] for host in ("evil.example", "localhost.evil.example", "")] == [
            400
        ] * 3
        names = ("localhost", f"LOCALHOST:{server.port}", "[::1]:80", "translate.example:80")
        assert [server.get("/languages", Host=host)[0] for host in names] == [200] * 4
        status, answer, _ = server.post(body, Host="evil.example:5000")
        assert status == 400 and "--allow-host" in answer["error"]
        for origin in ("http://evil.example", "null", own.replace("127.0.0.1", "evil.example"), f"{own}0"):
            status, answer, _ = server.post(body, Origin=origin)
            assert status == 403 and "--allow-origin" in answer["error"]
        assert server.post(form([*ASK.items()]), FORM, Origin="http://evil.example")[0] == 403, "needs no preflight"
        assert server.post(body, Origin=own)[0] == server.post(body, Origin="https://other.example")[0] == 200


def test_names_of_a_server() -> None:
    from txport.runtime.serve.observer import LOOPBACK, hosts_of

    assert hosts_of("0.0.0.0", ()) == hosts_of("::", ()) == ("*",)
    assert hosts_of("0.0.0.0", ("A.example",)) == (*LOOPBACK, "0.0.0.0", "a.example")
    assert hosts_of("fe80::1", ()) == (*LOOPBACK, "[fe80::1]")
    assert hosts_of("Host.example", ()) == (*LOOPBACK, "host.example")


def test_a_client_does_not_choose_its_address() -> None:
    headers = {"X-Forwarded-For": "203.0.113.7\x85"}
    with serving(PAIR) as server:
        assert server.get("/languages", **headers)[0] == 200
        assert server.wait("request")["client"] == "127.0.0.1"
    with serving(PAIR, "--forwarded-from", "127.0.0.1") as server:
        assert server.get("/languages", **headers)[0] == 200
        assert server.wait("request")["client"].startswith("203.0.113.7")
        assert all(line.isascii() for line in server.raw)


def test_long_texts_count_as_many_sentences() -> None:
    from txport.runtime.serve.service import _sentences

    assert [_sentences(text) for text in ("", "a", "a\nb\n", "a" * 40, "a" * 41, "A. " * 4000)] == [1, 1, 3, 1, 2, 300]


class Opening:
    """Opens bundles slowly, and counts."""

    def __init__(self, seconds: float = 0.05, fail: BaseException | None = None) -> None:
        self.seconds, self.fail = seconds, fail
        self.now = self.most = self.count = self.closed = 0
        self._lock = threading.Lock()

    def __call__(self, _: Path) -> Any:
        with self._lock:
            self.count, self.now = self.count + 1, self.now + 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self._lock:
            self.now -= 1
        if self.fail is not None:
            raise self.fail
        return self

    def close(self) -> None:
        self.closed += 1


def models_of(opening: Callable[[Path], Any], count: int = 1, room: int = 1) -> "Models":
    from txport.runtime.serve.models import Model, Models

    models = [Model.read(f"m{number}={BUNDLE}") for number in range(count)]
    return Models(models, room * models[0].bytes, opening)


def test_cancelled_loads_go_on_once_and_are_kept() -> None:
    async def run() -> None:
        opening = Opening()
        models = models_of(opening)

        async def client() -> None:
            async with models.lease(models.models[0]):
                raise AssertionError("it went away before")

        clients = [asyncio.create_task(client()) for _ in range(12)]
        await asyncio.sleep(0.01)
        for each in clients:
            each.cancel()
        assert all(
            isinstance(found, asyncio.CancelledError)
            for found in await asyncio.gather(*clients, return_exceptions=True)
        )
        async with models.lease(models.models[0]):
            pass
        assert (opening.count, opening.most, opening.closed) == (1, 1, 0)
        await models.close()

    asyncio.run(run())


def test_clients_that_wait_less_than_a_load_takes_have_their_model_in_the_end() -> None:
    async def run() -> None:
        opening = Opening(0.2)
        models = models_of(opening, 2)
        for _ in range(4):
            with pytest.raises(asyncio.TimeoutError):
                async with models.lease(models.models[1], 0.02):
                    raise AssertionError("it is not loaded yet")
        await asyncio.sleep(0.3)
        async with models.lease(models.models[1], 0.02):
            assert models.models[1].loads == 1
        for model in models.models * 2:  # they take turns, since there is room for one
            async with models.lease(model):
                assert sum(each.loaded is not None for each in models.models) == 1
        assert opening.most == 1
        await models.close()

    asyncio.run(run())


class Panic(BaseException):
    """As tokenizers raises it."""


def test_a_server_is_ready_if_a_model_could_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from txport.runtime.errors import BundleError

    async def run(fail: BaseException | None) -> bool:
        models = models_of(Opening(0, fail))
        await models.load()
        return models.ready

    assert [asyncio.run(run(fail)) for fail in (BundleError("damaged"), Panic("a panic"), None)] == [False, False, True]
