"""How the processes of one container ended: Docker starts a failed one again and cannot tell a permanent exit code."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from psfleet.errors import PERMANENT_CODES, PsfleetError, StorageError

logger = logging.getLogger("psfleet.records")

KILLED = "it was killed"


class AlreadyEndedError(PsfleetError):
    """The process that this container had before ended for good; so does this one, alike."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Records:
    """The record of this container, `<hostname>.json`: how often it was started, and how its last process ended.

    A new container has another hostname, and so no past.

    Args of the constructor:
        folder: On the volume that all containers of the fleet share; None: nothing is recorded.
    """

    def __init__(self, folder: Path | None, hostname: str = "") -> None:
        self._path = folder / f"{hostname or os.uname().nodename}.json" if folder is not None else None
        self._starts = 0

    def begin(self) -> str:
        """Notes the start of a process.

        Returns:
            Why there is a new process; empty in a new container.

        Raises:
            AlreadyEndedError: The one before ended for good.
            StorageError: The record cannot be written.
        """
        if self._path is None:
            return ""
        before = _read(self._path)
        self._starts = before.get("starts", 0)
        code, message = before.get("exit_code"), before.get("message", "")
        if code in PERMANENT_CODES:
            raise AlreadyEndedError(code, message)
        self._starts += 1
        try:
            self._path.parent.mkdir(mode=0o777, exist_ok=True)
            self._write(None, "")
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror or error}") from error
        if self._starts == 1:
            return ""
        return KILLED if code is None else f"{message or 'it ended'} (exit code {code})"

    def end(self, code: int, message: str) -> None:
        """Notes how this process ends."""
        if self._path is None or self._starts == 0:
            return
        try:
            self._write(code, message)
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error.strerror or error)

    def _write(self, code: int | None, message: str) -> None:
        assert self._path is not None, "begin() comes first"
        unfinished = self._path.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"starts": self._starts, "exit_code": code, "message": message}))
        unfinished.replace(self._path)


def _read(path: Path) -> dict[str, Any]:
    """A record; empty if there is none, or none that can be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
