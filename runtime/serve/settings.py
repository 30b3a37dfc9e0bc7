"""Limits of a server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServiceSettings:
    """Limits and access rules of the server.

    Attributes:
        max_bytes: maximum size of a request body.
        max_characters: maximum number of characters in all texts of a request.
        max_texts: maximum number of texts of a request.
        max_alternatives: maximum number of alternatives of each text.
        max_waiting: maximum number of unanswered sentences of all clients. Further requests are refused.
        max_per_client: maximum number of simultaneous requests of a key or, on a server without keys, of an address.
            0 is unlimited.
        seconds: timeout of a request, from its first byte to its answer.
        slow_seconds: read and write timeout of a client, for headers, body and answer.
        memory: maximum bytes of loaded weights. None keeps all bundles loaded.
        generation: as in `txport.runtime.options.Options`.
        replace_unknowns: as in `txport.runtime.options.Options`; a stream then has one piece.
        origins: origins of web pages that may call the API. "*" allows all.
        hosts: host names that requests may use. An empty tuple or "*" allows any.
        max_connections: maximum number of open connections. Requests on further ones are refused.
        metrics_port: port of /metrics, which then answers nothing else. None is the port of the API.
    """

    max_bytes: int = 1 << 20
    max_characters: int = 20_000
    max_texts: int = 256
    max_alternatives: int = 8
    max_waiting: int = 1024
    max_per_client: int = 0
    seconds: float = 60.0
    slow_seconds: float = 20.0
    memory: int | None = None
    generation: str = "greedy"
    replace_unknowns: bool = False
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_connections: int = 1024
    metrics_port: int | None = None
