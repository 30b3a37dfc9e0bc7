"""Structured logs: one JSON object per line on standard error. Logs never contain texts or keys.

For an unexpected error, only its class and its traceback are logged, because its message may contain a text.
"""

import json
import logging
import sys
import time
import traceback
from typing import Any

_LOG = logging.getLogger("txport.serve")


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
        }
        if "event" not in record.__dict__:
            fields["logger"], fields["message"] = record.name, record.getMessage()
        fields |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            fields["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(fields)


def start_logs() -> None:
    """Write all logs of this process as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_AsJson())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # Otherwise the warning about each truncated sentence would be a line.
    logging.getLogger("txport").setLevel(logging.ERROR)
    _LOG.setLevel(logging.INFO)


def log(event: str, *, error: BaseException | None = None, warn: bool = False, **fields: Any) -> None:
    """Log an event. `fields` must not contain text of a request."""
    if error is not None:
        level = logging.ERROR
    elif warn:
        level = logging.WARNING
    else:
        level = logging.INFO
    _LOG.log(level, event, exc_info=error, extra={"event": event, "fields": fields})
