"""Removes what a start that failed has left on a platform, or names the command that does."""

from __future__ import annotations

import shlex
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


def down_command(name: str, on: str, context: str | None, namespace: str | None) -> str:
    """The command that ends a fleet on the platform `on`, with the options that name its place."""
    given = {"--on": on, "--context": context, "--namespace": namespace}
    words = [word for option, value in given.items() if value is not None for word in (option, value)]
    return shlex.join(["psfleet", "down", name, *words])
