"""Error responses: a status, one sentence, and the header Retry-After if the client should try again."""

from txport.runtime.errors import InputError, ResourceError, TxportError
from txport.runtime.search.queue import DeadlineExceeded

RETRY_SECONDS = 1
NO_TIME = "there was no answer in time: try again later, or with less text"
_BUSY = "the server has too much to do: try again later"
_FAILED = "the engine failed, not because of the request: try again, or report it to the operator of the server"


class Refusal(Exception):
    """An error response.

    Args:
        status: HTTP status.
        sentence: the error and what to do.
        retry: whether the same request may succeed after `RETRY_SECONDS`.
    """

    def __init__(self, status: int, sentence: str, retry: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        if retry:
            self.headers = {"Retry-After": str(RETRY_SECONDS)}
        else:
            self.headers = {}
        if status in (408, 413):  # the rest of the body may still arrive; it must not be read as a request
            self.headers["Connection"] = "close"


def too_many_of_client() -> Refusal:
    """Return the answer for a client that has its share of requests."""
    return Refusal(429, "too many requests of one client at the same time: wait for an answer first", retry=True)


class ClientGone(Exception):
    """The client closed the connection, so that no answer can be sent."""


def refusal_of(error: Exception) -> Refusal:
    """Return the response for an exception. Details of internal errors are only in the log."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, DeadlineExceeded):
        return Refusal(503, NO_TIME, retry=True)
    if isinstance(error, InputError):
        return Refusal(422, str(error))
    if isinstance(error, (ResourceError, MemoryError)):
        return Refusal(503, _BUSY, retry=True)
    return Refusal(500, _FAILED if isinstance(error, TxportError) else "the server failed: report it to its operator")
