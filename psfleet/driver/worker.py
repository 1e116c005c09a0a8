"""A worker as its driver sees it: the interface to its process, which runs here or in a container."""

from __future__ import annotations

from typing import Any, Protocol


class Worker(Protocol):
    """One worker and its present or last process; used by the driver's thread.

    Attributes:
        index: Of the worker.
    """

    index: int

    def start(self, cause: str = "") -> None:
        """Begins with a new process; a restart has a cause."""

    def is_there(self) -> bool:
        """Whether there is a process that can be given work, or that has ended."""

    def exit_code(self) -> int | None:
        """Exit code of the process, 128 + n if signal n killed it; None while it runs."""

    def failure(self) -> dict[str, Any] | None:
        """Why the process failed: `message`, `exit_code`, `details`; None: it has not said so."""

    def cause_of_end(self) -> str:
        """Why the process ended, in one line."""

    def newest_sign(self) -> object:
        """Changes with each sign of life."""

    def kill(self) -> None:
        """Ends the process: it reports nothing from here on, also if it was frozen and continues."""

    def close(self) -> None:
        """Nothing is left to do for it; does not wait for its end."""
