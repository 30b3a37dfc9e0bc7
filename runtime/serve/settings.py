"""Limits of a server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Limits, and who may ask.

    Attributes:
        most_bytes: of a request's body.
        most_characters: of all texts of a request.
        most_texts: in the list of a request.
        most_alternatives: of each text.
        most_waiting: sentences that are being translated or wait for it; a request beyond is refused.
        most_of_a_client: requests of one key, or of one address without keys, at the same time; 0 for no limit.
        seconds: from the first byte of a request to its answer.
        slow_seconds: that a client may take to send its headers, and its body, or to take what was sent to it.
        memory: bytes of weights that are loaded at the same time; None for all bundles.
        generation: as in `txport.runtime.options.Options`.
        origins: of web pages that may ask; "*" for all.
        hosts: names by which clients may call the server; none or "*" for any.
        most_connections: open at the same time; a request on another one is refused.
    """

    most_bytes: int = 1 << 20
    most_characters: int = 20_000
    most_texts: int = 256
    most_alternatives: int = 8
    most_waiting: int = 1024
    most_of_a_client: int = 0
    seconds: float = 60.0
    slow_seconds: float = 20.0
    memory: int | None = None
    generation: str = "greedy"
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    most_connections: int = 1024
