"""Clients of servers, with one sentence each: sentences a second, and how long each answer takes.

`python -m txport.benchmarks.studies.serving.service NAME=WHERE... --texts FILE`

WHERE is a server with LibreTranslate's API (http://127.0.0.1:5000/translate), a model of Triton
(http://127.0.0.1:8000/v2/models/NAME/infer), or the directory of a bundle, for threads that submit to its queue.
Each client asks for one sentence at a time, over a connection that it keeps; the ways take turns round by round, with
the same sentences. Timed: from the moment at which all clients are ready to the last answer. Not timed: connections and
warm-up.
"""

import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

import click
import numpy as np
from txport.runtime.text.lines import open_lines, text_windows
from txport.runtime.translator import Translator

# Makes what one client asks by: a text in, its translation out.
Client = Callable[[], Callable[[str], str]]


def of_server(url: str, fields: dict[str, str]) -> Client:
    """Clients of a server; by its path, the request and the answer are LibreTranslate's or those of Triton."""
    place = urlsplit(url)
    triton = "/v2/" in place.path

    def client() -> Callable[[str], str]:
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=600)
        connection.connect()

        def ask(text: str) -> str:
            inputs = {"inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": [text]}]}
            body = json.dumps(inputs if triton else {"q": text, **fields}).encode()
            connection.request("POST", place.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            found: Any = json.loads(answer.read())
            if answer.status != 200:
                raise click.ClickException(f"{url} answers {answer.status}: {found}")
            return str(found["outputs"][0]["data"][0] if triton else found["translatedText"])

        return ask

    return client


def of_bundle(directory: str) -> Client:
    """Threads that submit to the queue of a bundle."""
    translator = Translator(directory)
    return lambda: lambda text: str(translator.submit(text).result().text)


def by_clients(client: Client, texts: list[str], clients: int) -> tuple[float, list[float]]:
    """Return seconds for all texts, and seconds of each."""
    ready = Barrier(clients + 1)

    def work(number: int) -> list[float]:
        ask = client()
        seconds = []
        ready.wait()
        for text in texts[number::clients]:
            start = time.perf_counter()
            ask(text)
            seconds.append(time.perf_counter() - start)
        return seconds

    with ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(work, number) for number in range(clients)]
        ready.wait()
        start = time.perf_counter()
        each = [seconds for future in futures for seconds in future.result()]
        return time.perf_counter() - start, each


@click.command()
@click.argument("ways", metavar="NAME=WHERE...", nargs=-1, required=True)
@click.option("--texts", type=click.Path(path_type=Path), required=True, help="File of sentences, one per line.")
@click.option("--clients", default=64, show_default=True)
@click.option("--sentences", default=256, show_default=True, help="Requests per round.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--warm-up", default=1, show_default=True, help="Number of warm-up rounds.")
@click.option("--source", default="en", show_default=True)
@click.option("--target", default="de", show_default=True)
def main(
    ways: tuple[str, ...],
    texts: Path,
    clients: int,
    sentences: int,
    rounds: int,
    warm_up: int,
    source: str,
    target: str,
) -> None:
    """Print sentences a second and times of answers of each way, and how the first compares with the others."""
    with open_lines(texts) as windows:
        lines = [line for window in text_windows(windows, "strict", str(texts)) for line in window if line]
    asked = cycle(lines)
    fields = {"source": source, "target": target}
    named: dict[str, Client] = {}
    for name, _, where in (way.partition("=") for way in ways):
        named[name] = of_server(where, fields) if where.startswith("http") else of_bundle(where)
    rates: dict[str, list[float]] = {name: [] for name in named}
    times: dict[str, list[float]] = {name: [] for name in named}
    for turn in range(warm_up + rounds):
        some = list(islice(asked, sentences))
        for name, client in named.items():
            seconds, each = by_clients(client, some, clients)
            if turn >= warm_up:
                rates[name].append(len(some) / seconds)
                times[name] += each
    click.echo(f"{clients} clients with one sentence at a time, {sentences} sentences, {rounds} rounds")
    first = next(iter(named))
    for name in named:
        p50, p99 = np.quantile(times[name], [0.5, 0.99])
        ratio = np.median(np.array(rates[first]) / rates[name])
        click.echo(
            f"{name:16} {np.median(rates[name]):7.1f} sentences/s, p50 {p50:.3f} s, p99 {p99:.3f} s; "
            f"{first} is {ratio:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
