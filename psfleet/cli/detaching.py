"""A command that follows a fleet with a driver, and leaves it running if it is interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from psfleet.errors import SIGNAL_BASE


@contextmanager
def detaching(
    show: Callable[[str], None], what: str, again: str, fresh: str, down: str
) -> Iterator[Callable[[], None]]:
    """Context manager for what containers do, which continues if this command is interrupted.

    Args:
        show: Called with each line for the user.
        what: Continues.
        again: The command line that attaches to it.
        fresh: The command line that starts it.
        down: The command line that ends it.

    Yields:
        A function that is called once the fleet is started.
    """
    started: list[bool] = []
    try:
        yield lambda: started.append(True)
    except KeyboardInterrupt:
        text = f"detached; the {what} continues. `{again}` reattaches to it"
        if not started:
            text = f"interrupted before the whole fleet was started. `{fresh}` starts it"
        show(f"{text}, `{down}` ends it.")
        raise typer.Exit(SIGNAL_BASE + signal.SIGINT) from None
