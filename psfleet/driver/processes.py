"""Workers that are processes of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psfleet.driver.silence import file_time
from psfleet.processes.child import Task


class ProcessWorker:
    """See `Worker`.

    Args of the constructor:
        task: The process.
        life: The file that it renews each second.
    """

    def __init__(self, task: Task, life: Path) -> None:
        self.index = task.index
        self._task = task
        self._sign = file_time(life)

    def start(self, cause: str = "") -> None:
        """See `Worker`."""
        self._task.start(cause)

    def is_there(self) -> bool:
        """See `Worker`. What it is given waits for it."""
        return True

    def exit_code(self) -> int | None:
        """See `Worker`."""
        return self._task.exit_code()

    def failure(self) -> dict[str, Any] | None:
        """See `Worker`."""
        return self._task.failure()

    def cause_of_end(self) -> str:
        """See `Worker`."""
        return self._task.cause_of_end()

    def newest_sign(self) -> object:
        """See `Worker`."""
        return self._sign()

    def signal(self, number: int) -> None:
        """Sends a signal, if the process still runs."""
        self._task.signal(number)

    def kill(self) -> None:
        """See `Worker`."""
        self._task.kill()

    def close(self) -> None:
        """See `Worker`. It ends at once."""
        self._task.kill()
