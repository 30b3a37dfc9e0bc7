"""Clients of servers with LibreTranslate's API: sentences a second, and how long each answer takes.

`python -m txport.benchmarks.studies.service NAME=URL... --texts FILE`

Each client keeps one connection and asks for one sentence at a time; the servers take turns round by round, with the
same sentences. Timed: from the moment at which all clients are ready to the last answer. Not timed: connections and
warm-up.
"""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from threading import Barrier
from urllib.parse import urlsplit

import click
import numpy as np
from txport.runtime.text.lines import open_lines, text_windows


def by_clients(
    url: str, texts: list[str], clients: int, fields: dict[str, str]
) -> tuple[float, list[float], list[str]]:
    """Seconds for all texts, seconds of each, and the translations."""
    ready = Barrier(clients + 1)
    place = urlsplit(url)

    def client(number: int) -> list[tuple[int, float, str]]:
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=600)
        connection.connect()
        ready.wait()
        found = []
        for index in range(number, len(texts), clients):
            start = time.perf_counter()
            body = json.dumps({"q": texts[index], **fields}).encode()
            connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = json.loads(answer.read())
            if answer.status != 200:
                raise click.ClickException(f"{url} answers {answer.status}: {text}")
            found.append((index, time.perf_counter() - start, text["translatedText"]))
        connection.close()
        return found

    with ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(client, number) for number in range(clients)]
        ready.wait()
        start = time.perf_counter()
        found = sorted(each for future in futures for each in future.result())
        seconds = time.perf_counter() - start
    return seconds, [each[1] for each in found], [each[2] for each in found]


@click.command()
@click.argument("servers", metavar="NAME=URL...", nargs=-1, required=True)
@click.option("--texts", type=click.Path(path_type=Path), required=True, help="Sentences, one a line.")
@click.option("--clients", default=64, show_default=True)
@click.option("--sentences", default=256, show_default=True, help="In each round.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--warm-up", default=1, show_default=True, help="Rounds that are not counted.")
@click.option("--source", default="en", show_default=True)
@click.option("--target", default="de", show_default=True)
def main(
    servers: tuple[str, ...],
    texts: Path,
    clients: int,
    sentences: int,
    rounds: int,
    warm_up: int,
    source: str,
    target: str,
) -> None:
    """Print sentences a second and times of answers of each server, and how the first compares with the others."""
    with open_lines(texts) as windows:
        lines = [line for window in text_windows(windows, "strict", str(texts)) for line in window if line]
    asked = cycle(lines)
    named = dict(each.split("=", 1) for each in servers)
    rates: dict[str, list[float]] = {name: [] for name in named}
    times: dict[str, list[float]] = {name: [] for name in named}
    for turn in range(warm_up + rounds):
        some = list(islice(asked, sentences))
        for name, url in named.items():
            seconds, each, _ = by_clients(url, some, clients, {"source": source, "target": target})
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
