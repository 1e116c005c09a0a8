"""Removes what a start that failed has left on a platform."""

from __future__ import annotations

from collections.abc import Callable

from psfleet.errors import PsfleetError


def remove_failed(remove: Callable[[], object], error: PsfleetError, down: str) -> None:
    """Removes a fleet after a failure; if that fails, too, the error says that the fleet stays.

    Args:
        remove: Removes it.
        error: Why it failed.
        down: The command that removes it.
    """
    try:
        remove()
    except PsfleetError as failure:
        error.args = (f"{error}; what was started stays, `{down}` ends it: {failure}",)
