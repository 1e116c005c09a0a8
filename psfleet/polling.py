"""Waiting for something, with a deadline and a message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from psfleet.errors import DeadlineError

T = TypeVar("T")


def wait_until(
    probe: Callable[[], T],
    timeout_secs: float,
    what: str,
    *,
    done: Callable[[T], bool] = bool,
    poll_secs: float = 0.1,
) -> T:
    """Calls `probe` until `done` holds for what it returns, and returns that.

    Args:
        probe: Looks at the world; called at least once.
        timeout_secs: How long to go on.
        what: Ends the sentence "gave up waiting for".
        done: Whether a value is the one; truth by default.
        poll_secs: Pause between two looks.

    Raises:
        DeadlineError: The deadline came first; it says what was last seen.
    """
    deadline = time.monotonic() + timeout_secs
    while True:
        seen = probe()
        if done(seen):
            return seen
        if time.monotonic() >= deadline:
            raise DeadlineError(what, timeout_secs, seen)
        time.sleep(min(poll_secs, max(0.0, deadline - time.monotonic())))
