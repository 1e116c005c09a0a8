"""Log lines: JSON in services, plain on a terminal; each with run, role, index and step."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One JSON object a line: time (unix seconds), level, message, who speaks, and the record's extra fields."""

    def __init__(self, **who: Any) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        """A record as JSON; what JSON cannot hold is written as text."""
        line: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower(), **self._who}
        line["message"] = record.getMessage()
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Names a run in each record: for a process that serves several."""

    def __init__(self, logger: logging.Logger, run: str) -> None:
        super().__init__(logger)
        self._run = run

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """See logging.LoggerAdapter."""
        return msg, {**kwargs, "extra": {"run": self._run, **(kwargs.get("extra") or {})}}


def log_json(**who: Any) -> None:
    """Sends all log records of this process to standard output as JSON lines."""
    _install(JsonLines(**who), logging.StreamHandler(sys.stdout))


def log_plain() -> None:
    """Sends warnings and worse to standard error as plain lines."""
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    formatter.converter = time.localtime
    _install(formatter, logging.StreamHandler(sys.stderr), level=logging.WARNING)


def _install(formatter: logging.Formatter, handler: logging.Handler, level: int = logging.INFO) -> None:
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("psfleet").setLevel(level)
