"""A real tx-serve and its clients: answers are those of direct calls, all else is refused by one sentence."""

import copy
import json
import shutil
import stat
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from serving import PAIR, Served, events, serving
from toy import BUNDLE
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.tokenizer_schema import Languages
from txport.runtime.files import sha256
from unknown_words import texts as unknown_texts
from unknown_words import unknown_bundle, unknown_checkpoint

pytest.importorskip("uvicorn", reason="needs a server: pip install 'txport[serve]'")
pytest.importorskip("starlette", reason="needs a server: pip install 'txport[serve]'")
pytest.importorskip("prometheus_client", reason="needs a server: pip install 'txport[serve]'")

if TYPE_CHECKING:
    from txport.runtime.translator import Translator

TEXTS = ["the cat", "a dog sees two trees", "three", ""]
SECRET = "red bird hears the big tree"
KEY = "a key of some length"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server with limits that can be met."""
    with serving(PAIR, "--max-characters", "500", "--max-texts", "20", "--max-bytes", "5000") as served:
        yield served


def direct(toy: "Translator", *texts: str) -> list[str]:
    return [each.text for each in toy.translate(texts)]


def test_answers_are_those_of_direct_calls(server: Served, toy: "Translator") -> None:
    fields = {"source": "en", "target": "de"}
    assert server.ask(q=TEXTS, **fields) == (200, {"translatedText": direct(toy, *TEXTS)})
    for text in TEXTS[:3]:
        assert server.ask(q=text, **fields) == (200, {"translatedText": direct(toy, text)[0]})


def test_lines_are_translated_and_white_space_is_kept(server: Served, toy: "Translator") -> None:
    cat, dog = direct(toy, "the cat", "a dog")
    _, answer = server.ask(q="\n  the cat \n\n\ta dog\n", source="en", target="de")
    assert answer == {"translatedText": f"\n  {cat} \n\n\t{dog}\n"}


def test_alternatives_are_the_best_of_a_beam(server: Served, toy: "Translator") -> None:
    (result,) = toy.translate(["the cat"], beam=4, n_best=4)
    best, *others = dict.fromkeys(each.text for each in result.hypotheses)
    _, answer = server.ask(q=["the cat", ""], source="en", target="de", alternatives="3")
    assert answer == {"translatedText": [best, ""], "alternatives": [others, []]}


@pytest.mark.parametrize("text", ["a dog sees two trees", " the cat\n\n a dog \n three"])
def test_a_stream_is_the_translation_in_pieces(server: Served, text: str) -> None:
    _, whole = server.ask(q=text, source="en", target="de")
    status, streamed, headers = server.post(
        json.dumps({"q": text, "source": "en", "target": "de", "stream": True}).encode()
    )
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    *pieces, done = events(streamed)
    assert done == ("done", whole)
    assert {name for name, _ in pieces} == {"piece"} and len(pieces) > 3
    assert "".join(each["text"] for _, each in pieces) == whole["translatedText"]


def test_forms_are_taken_as_well(server: Served, toy: "Translator") -> None:
    urlencoded = b"q=the+cat%0D%0Aa+dog&source=en&target=de"
    parts = {"q": "the cat\r\na dog", "source": "en", "target": "de"}
    multipart = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts.items()
    )
    whole = "\n".join(direct(toy, "the cat", "a dog"))
    for body, kind in (
        (urlencoded, "application/x-www-form-urlencoded"),
        (f"{multipart}--x--\r\n".encode(), "multipart/form-data; boundary=x"),
    ):
        assert server.post(body, kind)[:2] == (200, {"translatedText": whole})


def test_the_client_of_libretranslate_finds_its_server(server: Served, toy: "Translator") -> None:
    libretranslatepy = pytest.importorskip(
        "libretranslatepy", reason="needs libretranslatepy: pip install 'txport[dev]'"
    )
    client = libretranslatepy.LibreTranslateAPI(f"http://127.0.0.1:{server.port}")
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]
    assert [client.translate(text, "en", "de") for text in TEXTS[:3]] == direct(toy, *TEXTS[:3])
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.translate("the cat", "en", "fr")


def test_a_list_as_weblate_sends_it(server: Served, toy: "Translator") -> None:
    texts = [f"{word} cat" for word in ("the", "a", "big", "small") for _ in range(5)]
    status, answer, _ = server.post(json.dumps({"api_key": "", "q": texts, "source": "en", "target": "de"}).encode())
    assert (status, answer["translatedText"]) == (200, direct(toy, *texts))


def test_the_only_source_language_is_the_one_of_auto(server: Served) -> None:
    _, answer = server.ask(q=["the cat", "a dog"], source="auto", target="de")
    assert answer["detectedLanguage"] == [{"confidence": 100, "language": "en"}] * 2


def test_what_clients_ask_before_they_translate(server: Served) -> None:
    assert server.get("/health") == server.get("/health/live") == server.get("/health/ready") == (200, {"status": "ok"})
    _, settings = server.get("/frontend/settings")
    assert settings["charLimit"] == 500 and settings["language"]["target"] == {"code": "de", "name": "German"}
    assert not (settings["keyRequired"] or settings["suggestions"] or settings["filesTranslation"])


def test_the_page_needs_nothing_from_elsewhere(server: Served) -> None:
    connection = server.connection()
    connection.request("GET", "/")
    answer = connection.getresponse()
    text, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    connection.close()
    assert "<textarea" in text and "//" not in text.replace("// Characters", "").replace("// milliseconds", "")
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy


REFUSED = {
    "no JSON": (b"{", 400, "not JSON"),
    "no object": (b"[1]", 400, "not an object"),
    "too deep": (b"[" * 4000, 400, "not JSON"),
    "other encoding": ('{"q": "é"}'.encode("latin-1"), 400, "not UTF-8"),
    "nothing": (b"{}", 400, "q is missing"),
    "a misspelt field": (b'{"q": "a", "sorce": "en", "target": "de"}', 400, "no field 'sorce': did you mean source?"),
    "an empty list": (b'{"q": [], "source": "en", "target": "de"}', 400, "q is missing"),
    "a number": (b'{"q": 5, "source": "en", "target": "de"}', 400, "neither a text"),
    "a list of others": (b'{"q": ["a", null], "source": "en", "target": "de"}', 400, "neither a text"),
    "no source": (b'{"q": "a", "source": 7, "target": "de"}', 400, "are text"),
    "unknown source": (b'{"q": "a", "source": "xx", "target": "de"}', 400, "source language is not served"),
    "unknown target": (b'{"q": "a", "source": "en", "target": "tlh"}', 400, "target language is not served"),
    "unknown model": (b'{"q": "a", "source": "en", "target": "de", "model": "other"}', 404, "no model of this name"),
    "html": (b'{"q": "<p>a</p>", "source": "en", "target": "de", "format": "html"}', 422, "strip the tags"),
    "another format": (b'{"q": "a", "source": "en", "target": "de", "format": "pdf"}', 400, "only the format text"),
    "many alternatives": (b'{"q": "a", "source": "en", "target": "de", "alternatives": 10000}', 422, "at most"),
    "a fraction of them": (
        b'{"q": "a", "source": "en", "target": "de", "alternatives": 1.5}',
        400,
        "must be 0 or more",
    ),
    "less than none": (b'{"q": "a", "source": "en", "target": "de", "alternatives": "-1"}', 400, "must be 0 or more"),
    "a stream of a list": (b'{"q": ["a"], "source": "en", "target": "de", "stream": true}', 422, "one text"),
    "a stream of alternatives": (
        b'{"q": "a", "source": "en", "target": "de", "stream": true, "alternatives": 2}',
        422,
        "leave out alternatives",
    ),
    "perhaps a stream": (b'{"q": "a", "source": "en", "target": "de", "stream": "maybe"}', 400, "neither true"),
    "no alignments": (b'{"q": "a", "source": "en", "target": "de", "alignments": true}', 422, "--with-attention"),
    "half a character": (b'{"q": "a\\ud800", "source": "en", "target": "de"}', 422, "not valid text"),
    "a large number": (b'{"q": ' + b"9" * 4500 + b"}", 400, "not JSON"),
    "many characters": (b'{"q": "' + b"a" * 501 + b'", "source": "en", "target": "de"}', 413, "501 characters"),
    "many characters in all": (
        b'{"q": ["' + b"a" * 300 + b'", "' + b"b" * 300 + b'"], "source": "en", "target": "de"}',
        413,
        "600 characters",
    ),
    "many texts": (b'{"q": ["a"' + b', "a"' * 20 + b'], "source": "en", "target": "de"}', 413, "21 texts"),
    "a large body": (b'{"q": "a"' + b" " * 5000 + b"}", 413, "5000 bytes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_answered_is_refused_by_one_sentence(server: Served, what: str) -> None:
    body, status, words = REFUSED[what]
    found, answer, headers = server.post(body)
    assert (found, list(answer)) == (status, ["error"]), answer
    assert words in answer["error"] and "\n" not in answer["error"] and "Retry-After" not in headers


def test_forms_and_addresses_that_are_refused(server: Served) -> None:
    assert server.post(b"--x", "multipart/form-data")[0] == 400
    assert server.post(b"q=%ff&source=en&target=de", "application/x-www-form-urlencoded")[0] == 400
    assert server.post(b"&".join([b"a=b"] * 200), "application/x-www-form-urlencoded")[0] == 400
    assert server.get("/detect") == (404, {"error": "not found"})
    wrong = "GET is not supported here: /translate and /features take POST, other addresses take GET"
    assert [server.get(path) for path in ("/translate", "/features")] == [(405, {"error": wrong})] * 2


def test_metrics_count(server: Served, toy: "Translator") -> None:
    before = {name: server.metric(name) for name in ("txport_tokens_total", "txport_sentences_total")}
    server.ask(q=["the cat", "a dog"], source="en", target="de")
    made = sum(len(each.ids) for each in toy.translate(["the cat", "a dog"]))
    assert server.metric("txport_tokens_total", model="en-de") == before["txport_tokens_total"] + made
    assert server.metric("txport_sentences_total", model="en-de") == before["txport_sentences_total"] + 2
    assert server.metric("txport_requests_total", path="/translate", status="200") >= 1
    assert server.metric("txport_request_seconds_count", path="/translate") >= 1
    rows, steps = server.metric("txport_batch_rows_total"), server.metric("txport_batch_steps_total")
    assert 1 <= rows / steps <= server.metric("txport_batch_most_rows") == 8
    assert server.metric("txport_queue_sentences") == 0 and server.metric("txport_model_loaded") == 1
    assert server.metric("process_resident_memory_bytes") > 1 << 20


def status_of(served: Served, path: str) -> int:
    """The status of an answer of any kind, without following it."""
    connection = served.connection()
    connection.request("GET", path)
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def test_metrics_on_their_port_are_nowhere_else() -> None:
    with serving(PAIR, "--metrics-port", "0") as served:
        metrics = copy.copy(served)
        metrics.port = served.wait("listening")["metrics_port"]
        assert "txport_queue_sentences" in metrics.get("/metrics")[1]
        for path in ("/metrics", "/metrics%0A", "/metrics/", "//metrics", "/metrics?x", "/%6Detrics"):
            assert status_of(served, path) in (307, 404), path
        for path in ("/", "/frontend/settings", "/languages", "/health", "/metrics%0A", "/metrics/", "//languages"):
            assert status_of(metrics, path) == 404, path
        assert metrics.ask(q="the cat", source="en", target="de")[0] == 404
        assert served.ask(q="the cat", source="en", target="de")[0] == 200


def test_metrics_do_not_grow_with_what_clients_ask(server: Served) -> None:
    for number in range(20):
        server.get(f"/no/{number}")
    _, text = server.get("/metrics")
    assert text.count('path="none"') < 25 and "/no/" not in text


def test_keys_are_needed_and_compared(tmp_path: Path, toy: "Translator") -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n# of a service\n", encoding="utf-8-sig")
    body = {"q": "the cat", "source": "en", "target": "de"}
    with serving(PAIR, "--api-keys", str(keys), TXPORT_API_KEYS="another-key-of-the-environment") as server:
        assert server.ask(**body)[0] == 401
        assert server.ask(**body, api_key="not the key at all")[0] == 403
        assert server.ask(**body, api_key="ключ")[0] == 403
        for key in (KEY, "another-key-of-the-environment"):
            assert server.ask(**body, api_key=key) == (200, {"translatedText": direct(toy, "the cat")[0]})
        data = json.dumps(body).encode()
        assert server.post(data, Authorization=f"Bearer {KEY}")[0] == 200
        assert server.post(data, Authorization=f"Bearer {KEY}x")[0] == 403
        assert server.get("/health/ready")[0] == server.get("/languages")[0] == 200
        server.end()
    assert KEY not in "".join(server.raw)


def test_logs_hold_no_text(toy: "Translator") -> None:
    with serving(PAIR, "--max-alternatives", "50", "--max-per-client", "3") as server:
        (translated,) = direct(toy, SECRET)
        fields: dict[str, Any] = {"q": SECRET, "source": "en", "target": "de"}
        for more in (
            {},
            {"stream": True},
            {"alternatives": 30},
            {"target": SECRET},
            {"model": SECRET},
            {"format": SECRET},
        ):
            server.ask(**fields | more)
        server.post(SECRET.encode())
        server.post(json.dumps(fields).encode(), path=f"/translate?q={SECRET.replace(' ', '+')}")
        server.get(f"/{SECRET.replace(' ', '+')}")
        server.end()
    text = "".join(server.raw)
    for words in (SECRET, SECRET.replace(" ", "+"), SECRET.replace(" ", "%20"), translated):
        assert words not in text
    assert {line["event"] for line in server.logs} == {"listening", "model loaded", "ready", "request", "ended"}
    (good, *_) = (line for line in server.logs if line["event"] == "request")
    assert good["status"] == 200 and good["characters"] == len(SECRET) and good["tokens"] > 1


def with_languages(directory: Path) -> None:
    """The toy bundle as one of several languages, as NLLB and M2M100 name theirs."""
    shutil.copytree(BUNDLE, directory)
    manifest = Manifest.load(directory)
    languages = Languages(
        {"eng_Latn": 90, "deu_Latn": 91}, {"fr": 40, "zho_Hans": 41, "zho_Hant": 42}, None, None, False
    )
    tokenizer = replace(manifest.tokenizer, source_prefix=("source_language",), languages=languages)
    Manifest(**{**vars(manifest), "tokenizer": replace(tokenizer, target_prefix=("target_language",))}).write(directory)


def test_several_bundles_by_name_and_by_languages(tmp_path: Path, toy: "Translator") -> None:
    from txport.runtime.translator import Translator

    with_languages(tmp_path / "many")
    many = Translator(tmp_path / "many", threads=1)
    (to_chinese,) = many.translate(["the cat"], source_language="deu_Latn", target_language="zho_Hant")
    with serving(PAIR, str(tmp_path / "many"), f"plain={BUNDLE}") as server:
        assert server.get("/languages")[1] == [
            {"code": "de", "name": "German", "targets": ["fr", "zh-Hans", "zh-Hant"]},
            {"code": "en", "name": "English", "targets": ["de", "fr", "zh-Hans", "zh-Hant"]},
        ]
        (cat,) = direct(toy, "the cat")
        for languages in (("de", "zh-Hant"), ("deu_Latn", "zho_Hant")):
            fields = dict(zip(("source", "target"), languages, strict=True))
            assert server.ask(q="the cat", **fields) == (200, {"translatedText": to_chinese.text})
        assert server.ask(q="the cat", source="en", target="de")[1] == {"translatedText": cat}
        assert server.ask(q="the cat", model="plain")[1] == {"translatedText": cat}
        assert server.ask(q="the cat")[0] == 400
        assert server.ask(q="the cat", source="auto", target="fr") == (
            400,
            {"error": "languages are not detected, and there are several: give the source language"},
        )
        assert server.ask(q="the cat", source="en", model="many")[0] == 422


def test_models_are_loaded_and_unloaded_by_memory(tmp_path: Path, toy: "Translator") -> None:
    """Three of which two have room: the one that was not used for the longest time makes it."""
    names = []
    for name in ("one", "two", "three"):
        shutil.copytree(BUNDLE, tmp_path / name)
        weights = tmp_path / name / WEIGHTS
        weights.chmod(stat.S_IRUSR | stat.S_IWUSR)
        manifest = Manifest.load(tmp_path / name)
        half = (1 << 20) // 2 - 8
        weights.write_bytes(weights.read_bytes().ljust(half, b"\0"))
        manifest.files[WEIGHTS] = replace(manifest.files[WEIGHTS], bytes=half, sha256=sha256(weights))
        manifest.write(tmp_path / name)
        names.append(str(tmp_path / name))
    (cat,) = direct(toy, "the cat")

    def loaded(server: Served) -> list[str]:
        return [name for name in ("one", "two", "three") if server.metric("txport_model_loaded", model=name)]

    with serving(*names, "--memory", "1") as server:
        assert loaded(server) == ["one", "two"]
        for name, expected in (("one", ["one", "two"]), ("three", ["one", "three"]), ("two", ["two", "three"])):
            assert server.ask(q="the cat", model=name) == (200, {"translatedText": cat})
            assert loaded(server) == expected
        assert server.metric("txport_model_loads_total", model="two") == 2


def test_words_that_belong_together_are_said(attention_bundle: Path) -> None:
    from txport.runtime.translator import Translator

    text = "It cost $12.50.\n\n See you at 5 pm."
    with Translator(attention_bundle, threads=1) as translator:
        results = translator.translate(["It cost $12.50.", "See you at 5 pm."], alignments=True)
    with serving(f"en-en={attention_bundle}") as server:
        _, answer = server.ask(q=text, source="en", target="en", alignments=True)
        assert server.get("/frontend/settings")[1]["models"][0]["alignments"] is True
    whole = answer["translatedText"]
    pairs = []
    for pair in answer["alignments"]:
        pairs.append((text[slice(*pair["source"])], whole[slice(*pair["target"])]))
    expected = []
    for sentence, result in zip(text.split("\n\n "), results, strict=True):
        found = result.alignment
        assert found is not None
        for source, target in found.words:
            words = sentence[slice(*found.source_words[source])], result.text[slice(*found.target_words[target])]
            expected.append(words)
    assert pairs == expected and pairs


def test_a_bundle_in_one_file_is_served_by_its_name(tmp_path: Path, toy: "Translator") -> None:
    shutil.copyfile(BUNDLE.with_suffix(".txb"), tmp_path / "en-de.txb")
    with serving(str(tmp_path / "en-de.txb")) as server:
        assert server.get("/languages")[1][0]["targets"] == ["de"]
        status, answer = server.ask(q=TEXTS[0], source="en", target="de")
        assert status == 200 and [answer["translatedText"]] == direct(toy, TEXTS[0])


def test_pages_of_an_allowed_origin_may_send_json(toy: "Translator") -> None:
    """A browser asks before it sends: with OPTIONS, and the method and headers that it will use."""
    with serving(PAIR, "--allow-origin", "https://a.example") as server:
        for origin, allowed in (("https://a.example", True), ("https://b.example", False)):
            connection = server.connection()
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST",
                     "Access-Control-Request-Headers": "content-type"}  # fmt: skip
            connection.request("OPTIONS", "/translate", None, asked)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            assert (answer.status == 200) == allowed
            assert not allowed or "POST" in answer.headers["Access-Control-Allow-Methods"]
        body = json.dumps({"q": "the cat", "source": "en", "target": "de"}).encode()
        status, answered, headers = server.post(b"\xef\xbb\xbf" + body, Origin="https://a.example")
        assert (status, answered) == (200, {"translatedText": direct(toy, "the cat")[0]})
        assert headers["access-control-allow-origin"] == "https://a.example"


def test_what_may_surprise_is_logged_as_a_warning_and_the_address_can_be_clicked() -> None:
    with serving(str(BUNDLE), "--host", "0.0.0.0") as server:
        assert server.wait("open to the network without API keys")["level"] == "warning"
        assert server.wait("bundle without languages")["level"] == "warning"
        assert server.wait("listening")["url"] == f"http://0.0.0.0:{server.port}/"
        found, answer = server.ask(q="the cat", source="en", target="de")
        assert found == 400 and "leave out source and target" in answer["error"]
        assert server.ask(q="the cat")[0] == 200
        server.end()


def test_unknown_tokens_are_replaced(tmp_path: Path) -> None:
    """By the option, and by the settings of the model: a stream has one piece then."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
    unknown_checkpoint(tmp_path / "checkpoint")
    unknown_bundle(tmp_path / "checkpoint", tmp_path / "bundle")
    from txport.runtime.translator import Translator

    translator = Translator(tmp_path / "bundle", "cpu")
    text = unknown_texts(7)[6]
    for argument, options in (("--replace-unknowns", {"replace_unknowns": True}), ("model", {"generation": "model"})):
        arguments = [argument] if argument != "model" else ["--generation", "model"]
        with serving(f"en-de={tmp_path / 'bundle'}", f"de-en={BUNDLE}", *arguments) as server:
            expected = translator.translate_document(text, **options).text
            assert expected != translator.translate_document(text).text
            assert server.ask(q=text, source="en", target="de") == (200, {"translatedText": expected})
            ask = {"q": text, "source": "en", "target": "de", "stream": True}
            _, streamed, _ = server.post(json.dumps(ask).encode())
            done = ("done", {"translatedText": expected})
            assert events(streamed) == [("piece", {"text": expected}), done]
            status, _ = server.ask(q=text, source="de", target="en")
            assert status == (422 if argument == "--replace-unknowns" else 200)


def test_two_bundles_translate_through_a_common_language(toy: "Translator") -> None:
    """Also in the order of the arguments: a direct bundle comes first, and the languages are listed."""
    with serving(f"de-en={BUNDLE}", f"en-fr={BUNDLE}", f"fr-it={BUNDLE}") as server:
        texts = ["the cat\n\na dog", "", "three"]
        middle = [toy.translate_document(text).text for text in texts]
        expected = [toy.translate_document(text).text for text in middle]
        assert middle != expected
        assert server.ask(q=texts, source="de", target="en") == (200, {"translatedText": middle})
        assert server.ask(q=texts, source="de", target="fr") == (200, {"translatedText": expected})
        _, listed = server.get("/languages")
        assert {each["code"]: each["targets"] for each in listed} == {
            "de": ["en", "fr"],
            "en": ["fr", "it"],
            "fr": ["it"],
        }
        ask = {"q": texts[0], "source": "de", "target": "fr", "stream": True}
        *pieces, done = events(server.post(json.dumps(ask).encode())[1])
        assert done == ("done", {"translatedText": expected[0]}) and len(pieces) > 3
        assert "".join(each["text"] for _, each in pieces) == expected[0]
        _, answer = server.ask(q="a dog", source="de", target="fr", alternatives=2)
        (first,) = toy.translate(["a dog"])
        several = toy.translate([first.text], beam=3, n_best=3)[0].hypotheses
        assert [answer["translatedText"], *answer["alternatives"]] == list(dict.fromkeys(each.text for each in several))
        for fields, status in (
            ({"source": "de", "target": "it"}, 400),  # two steps are the maximum
            ({"source": "de", "target": "de"}, 400),
            ({"source": "auto", "target": "it", "model": "de-en"}, 400),
            ({"source": "de", "target": "fr", "model": "de-en"}, 400),
            ({"source": "de", "target": "fr", "alignments": True}, 422),
        ):
            assert server.ask(q="a dog", **fields)[0] == status, fields
