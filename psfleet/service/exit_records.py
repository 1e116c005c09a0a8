"""Exit records of containers: after a permanent error, a process that Docker restarts ends with the same error."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from psfleet.errors import PERMANENT_CODES, PROGRAM_FAILED, PsfleetError, StorageError
from psfleet.files import replace_file

logger = logging.getLogger("psfleet.records")

KILLED = "it was killed"
CHANGED = "the program was changed after it failed"


class AlreadyEndedError(PsfleetError):
    """The container's previous process ended with a permanent error; this process ends with the same one."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ExitRecord:
    """The record of this container, `<hostname>.json`: number of starts, and exit code and message of the last process.

    A new container has another hostname, and therefore no record.

    Args of the constructor:
        folder: A folder on a volume that outlives the process; None: nothing is recorded.
        hostname: Host name of this container; read from the system by default.
        program: Digest of the training program: after a failure of the program, a changed one may start.
    """

    def __init__(self, folder: Path | None, hostname: str = "", program: str = "") -> None:
        self._path = folder / f"{hostname or os.uname().nodename}.json" if folder is not None else None
        self._program = program
        self._starts = 0

    def begin(self) -> str:
        """Records the start of a process.

        Returns:
            Cause of the restart; empty in a new container.

        Raises:
            AlreadyEndedError: The previous process ended with a permanent error, except for a failure of its program
                (70) if the program was changed since.
            StorageError: The record cannot be written.
        """
        if self._path is None:
            return ""
        previous = _read(self._path)
        self._starts = previous.get("starts", 0)
        code, message = previous.get("exit_code"), previous.get("message", "")
        if code == PROGRAM_FAILED and previous.get("program", "") != self._program:
            message = CHANGED
        elif code in PERMANENT_CODES:
            raise AlreadyEndedError(code, message)
        self._starts += 1
        try:
            self._path.parent.mkdir(mode=0o777, exist_ok=True)
            self._write(None, "")
        except OSError as error:
            raise StorageError(f"cannot write the exit record {self._path}: {error.strerror or error}") from error
        if self._starts == 1:
            return ""
        return KILLED if code is None else f"{message or 'it ended'} (exit code {code})"

    def end(self, code: int, message: str) -> None:
        """Records the exit code and the message of this process."""
        if self._path is None or self._starts == 0:
            return
        try:
            self._write(code, message)
        except OSError as error:
            logger.warning("cannot write the exit record %s: %s", self._path, error.strerror or error)

    def _write(self, code: int | None, message: str) -> None:
        assert self._path is not None, "begin() comes first"
        content = {"starts": self._starts, "exit_code": code, "message": message, "program": self._program}
        replace_file(self._path, json.dumps(content))


def last_code(folder: Path, hostname: str = "") -> int | None:
    """The exit code that the last process of this container has recorded; None: it has not ended by itself.

    Args:
        folder, hostname: As of `ExitRecord`.
    """
    code = _read(folder / f"{hostname or os.uname().nodename}.json").get("exit_code")
    return code if isinstance(code, int) else None


def _read(path: Path) -> dict[str, Any]:
    """Reads a record; empty if it is missing or unreadable."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
