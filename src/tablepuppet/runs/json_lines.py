"""A log as JSON lines, for tools that collect logs: each line an object with time, level and message."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Writes each record as one line of JSON.

    >>> record = logging.makeLogRecord({"msg": "ready at %s", "args": ("here",), "levelname": "INFO", "created": 0.0})
    >>> JsonLines().format(record)
    '{"time": "1970-01-01T00:00:00.000+00:00", "level": "INFO", "message": "ready at here"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON; the type of an exception, but not its text, which may quote a value."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found = {"time": time, "level": record.levelname, "message": record.getMessage()}
        if record.exc_info and record.exc_info[0] is not None:
            found["error"] = record.exc_info[0].__name__
        return json.dumps(found, ensure_ascii=False)
