"""Log formats: JSON lines in services, with run, role, index and step; plain lines on the command line."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object: Unix time, level, message, common fields, and the record's extras."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter; values that JSON cannot represent are converted to text."""
        line: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower(), **self._fields}
        line["message"] = record.getMessage()
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def parse_line(line: str | bytes) -> dict[str, Any] | None:
    """A line of a service's log; None if it is not one (TensorFlow prints lines of its own)."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the run to each record, for a process that serves several runs."""

    def __init__(self, logger: logging.Logger, run: str) -> None:
        super().__init__(logger)
        self._run = run

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """See logging.LoggerAdapter."""
        return msg, {**kwargs, "extra": {"run": self._run, **(kwargs.get("extra") or {})}}


def log_json(**fields: Any) -> None:
    """Logs to standard output as JSON lines, each with the given fields."""
    _install(JsonLines(**fields), logging.StreamHandler(sys.stdout))


def log_plain() -> None:
    """Logs warnings and errors to standard error as plain lines."""
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    formatter.converter = time.localtime
    _install(formatter, logging.StreamHandler(sys.stderr), level=logging.WARNING)


def _install(formatter: logging.Formatter, handler: logging.Handler, level: int = logging.INFO) -> None:
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("psfleet").setLevel(level)
