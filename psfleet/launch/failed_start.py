"""Removes what a start that failed has left on a platform."""

from __future__ import annotations

from collections.abc import Callable

from psfleet.errors import PsfleetError


def remove_failed(name: str, remove: Callable[[], object], error: PsfleetError) -> None:
    """Removes a fleet after a failure; if that fails, too, the error says that the fleet stays.

    Args:
        name: Of the fleet.
        remove: Removes it.
        error: Why it failed.
    """
    try:
        remove()
    except PsfleetError as failure:
        error.args = (f"{error}; what was started stays, `psfleet down {name}` ends it: {failure}",)
