"""tx-serve: a server of one or more bundles."""

import hashlib
import ipaddress
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import uvicorn
from txport.runtime.bundle.kinds import kind_of
from txport.runtime.bundle.names import Name
from txport.runtime.console.flags import DEVICE, ENGINE, THREADS, TRUST_ENGINES, flags
from txport.runtime.errors import InputError
from txport.runtime.files import file_errors
from txport.runtime.search.scheduler import BATCH_TOKENS
from txport.runtime.serve.admission import Admission, Shares
from txport.runtime.serve.app import create_app
from txport.runtime.serve.keys import SHORTEST, VARIABLE, Keys
from txport.runtime.serve.logs import log, start_logs
from txport.runtime.serve.metrics import Metrics
from txport.runtime.serve.models import Model, Models
from txport.runtime.serve.observer import hosts_of
from txport.runtime.serve.protocol import Protocol, Server
from txport.runtime.serve.service import Service
from txport.runtime.serve.settings import ServiceSettings
from txport.runtime.translator import Translator

COUNT = click.IntRange(1)
SECONDS = click.FloatRange(0, min_open=True)
MEBIBYTE = 1 << 20
_GET = "import sys; sys.argv[0] = 'tx-get'; from txport.exporter.entry import get; get()"


def _setting(flag: str, name: str, kind: Any, text: str) -> Callable[[Any], Any]:
    """Return an option for a field of `ServiceSettings`."""
    return click.option(flag, name, type=kind, default=getattr(ServiceSettings, name), show_default=True, help=text)


_limits = flags(
    _setting("--max-bytes", "max_bytes", COUNT, "Maximum size of a request body in bytes."),
    _setting("--max-characters", "max_characters", COUNT, "Maximum number of characters per request."),
    _setting("--max-texts", "max_texts", COUNT, "Maximum number of texts per request."),
    _setting("--max-alternatives", "max_alternatives", click.IntRange(0), "Maximum number of alternatives per text."),
    _setting(
        "--max-waiting",
        "max_waiting",
        COUNT,
        "Maximum number of unanswered sentences of all clients. Further requests get status 503.",
    ),
    _setting(
        "--max-per-client",
        "max_per_client",
        click.IntRange(0),
        "Maximum number of simultaneous requests per key or address, 0 for no limit. Further requests get status 429.",
    ),
    _setting(
        "--max-connections",
        "max_connections",
        COUNT,
        "Maximum number of simultaneous connections. Further connections get status 503. One address may use half.",
    ),
    _setting("--seconds", "seconds", SECONDS, "Timeout of a request in seconds."),
    _setting("--slow-seconds", "slow_seconds", SECONDS, "Read and write timeout per client in seconds."),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundles", metavar="[NAME=]BUNDLE...", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5000,
    show_default=True,
    help="Port to listen on, 0 for a free one.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Port of /metrics, 0 for a free one. It answers nothing else. [default: the port of the API]",
)
@click.option(
    "--api-keys",
    type=click.Path(path_type=Path),
    help=f"File of API keys, one a line, of {SHORTEST} characters or more. Keys of {VARIABLE} are valid as well.",
)
@_limits
@click.option(
    "--memory",
    type=COUNT,
    help="Maximum MiB of loaded weights. Bundles are loaded on demand. [default: all bundles stay loaded]",
)
@click.option(
    "--generation",
    type=click.Choice(["greedy", "model"]),
    default="greedy",
    show_default=True,
    help="Search: greedy, or the generation settings of each model. With beams, a stream has one piece.",
)
@click.option(
    "--replace-unknowns",
    is_flag=True,
    help="Replace each unknown token by the source token with the most attention. Requires bundles of tx-export "
    "--with-attention. A stream then has one piece.",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    help='Origin of web pages that may call the API, "*" for all. Repeatable.',
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    help='Host name that requests may use, in addition to localhost and --host, "*" for any. Repeatable.',
)
@click.option(
    "--forwarded-from",
    multiple=True,
    help="Address of a proxy whose X-Forwarded-For header is trusted. Repeatable. [default: none]",
)
@click.option(
    "--drain-seconds",
    type=SECONDS,
    default=30.0,
    show_default=True,
    help="Seconds to finish running requests after SIGTERM.",
)
@DEVICE
@ENGINE
@TRUST_ENGINES
@THREADS
@click.option("--batch", type=COUNT, help="Maximum batch size in sentences. [default: the bundle's maximum]")
@click.option(
    "--batch-tokens",
    type=COUNT,
    default=BATCH_TOKENS,
    show_default=True,
    help="Maximum batch size in source tokens, including padding.",
)
def main(
    bundles: tuple[str, ...],
    host: str,
    port: int,
    metrics_port: int | None,
    api_keys: Path | None,
    memory: int | None,
    hosts: tuple[str, ...],
    forwarded_from: tuple[str, ...],
    drain_seconds: float,
    device: str,
    engine: str,
    trust_engines: bool,
    threads: int,
    batch: int | None,
    batch_tokens: int,
    **limits: Any,
) -> None:
    """Serve each BUNDLE over HTTP with LibreTranslate's API and a web page.

    The server listens on the loopback address unless --host is given. Clients select a bundle by NAME, by default the
    name of its directory. A NAME such as en-de sets the languages of a bundle that does not specify them. A BUNDLE may
    be a package of Argos Translate (.argosmodel): tx-get makes a bundle of it in its cache, once. Logs are JSON lines
    on standard error and never contain texts.
    """
    keys = Keys.read(api_keys)
    weights = None if memory is None else memory * MEBIBYTE
    entries = [Model.read(bundle_argument(each)) for each in bundles]  # fail before clients can connect
    listeners = [_listen(host, each) for each in (port, metrics_port) if each is not None]
    if metrics_port is not None:
        metrics_port = listeners[1].getsockname()[1]
    settings = ServiceSettings(memory=weights, hosts=hosts_of(host, hosts), metrics_port=metrics_port, **limits)

    def open_bundle(directory: Path) -> Translator:
        sizes = {"threads": threads, "batch": batch, "batch_tokens": batch_tokens}
        return Translator(directory, device, engine, trust_engines=trust_engines, verify=True, **sizes)  # type: ignore[arg-type]

    models = Models(entries, settings.memory, open_bundle)
    start_logs()
    service = Service(
        settings, models, Metrics(models.models), Admission(settings.max_waiting, settings.max_per_client)
    )
    if not keys and not _is_loopback(host):
        log("open to the network without API keys", warn=True, host=host)
    if keys.readable:
        log("other users can read the API keys", warn=True, file=str(api_keys))
    for model in models.models:
        if not (model.sources or model.targets):
            log("bundle without languages", warn=True, model=model.name, advice="name it as in en-de=BUNDLE")
    sys.exit(_run(service, keys, listeners, drain_seconds, forwarded_from))


def _run(
    service: Service, keys: Keys, listeners: list[socket.socket], drain_seconds: float, forwarded_from: Sequence[str]
) -> int:
    """Serve until a signal arrives; return the exit code."""
    _raise_file_limit()
    settings = service.settings
    rules = {
        "slow_seconds": settings.slow_seconds,
        "proxies": forwarded_from,
        "shares": Shares(settings.max_connections),
    }
    protocol = type("Protocol", (Protocol,), rules)
    app = create_app(service, keys)
    address, port = listeners[0].getsockname()[:2]
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}/"
    metrics = service.settings.metrics_port or port
    names = [model.name for model in service.models.models]
    server = Server(
        uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(forwarded_from),
            forwarded_allow_ips=list(forwarded_from),
            limit_concurrency=service.settings.max_connections,
            timeout_graceful_shutdown=drain_seconds,  # type: ignore[arg-type]
        ),
        lambda: log("listening", address=address, port=port, url=url, metrics_port=metrics, models=names),
        lambda: _reload(keys),
    )
    server.run(sockets=listeners)
    log("ended")
    return 0


def _reload(keys: Keys) -> None:
    try:
        keys.reload()
    except (InputError, OSError) as error:
        log("API keys not read again", error=error, why=str(error))
    else:
        log("API keys read again")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise InputError(f"{host}, port {port}: {error.strerror}: choose others by --host and --port") from None
    return listener


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _raise_file_limit() -> None:
    """Raise the limit of open files, and so of connections, to the maximum of the system."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def bundle_argument(argument: str) -> str:
    """Return an argument of tx-serve that names a bundle: a package becomes NAME=BUNDLE, others stay unchanged.

    NAME is by default the package's own name. The bundle is kept under a name that contains a hash of the package.

    Raises:
        InputError: tx-get cannot make a bundle of the package.
    """
    name, equals, place = argument.partition("=")
    package = Path(place if equals else argument)
    if not package.exists() or kind_of(package) != "argos":
        return argument
    stem = package.resolve().name.removesuffix(".argosmodel")
    cached = Name(f"argos/{re.sub(r'[^A-Za-z0-9_.-]', '_', stem)}", _digest(package))
    if not cached.directory.exists():
        # In another process, because the conversion imports PyTorch, which would stay in the memory of the server.
        command = [sys.executable, "-c", _GET, str(cached), "--source", os.fspath(package.absolute())]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise InputError(f"tx-get could not make a bundle of {package}, for the reason above")
    return f"{name if equals else stem}={cached.directory}"


def _digest(package: Path) -> str:
    """Return a hash of a package, or of the files of an installed one."""
    digest = hashlib.sha256()
    with file_errors(package, ours=False):
        for file in sorted(package.rglob("*")) if package.is_dir() else [package]:
            if not file.is_file():
                continue
            digest.update(f"{file.relative_to(package)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(MEBIBYTE):
                    digest.update(block)
    return digest.hexdigest()[:16]
