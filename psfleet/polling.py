"""Waiting with a timeout: for a condition, or for a call that cannot be interrupted; and time that was watched."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from psfleet.errors import DeadlineError

T = TypeVar("T")

MAX_LOOK_SECS = 1.0
"""Seconds between two looks at the clock count at most so much; see `WatchedTime`."""


def wait_until(
    probe: Callable[[], T],
    timeout_secs: float,
    what: str,
    *,
    done: Callable[[T], bool] = bool,
    poll_secs: float = 0.1,
) -> T:
    """Calls `probe` until `done` is true for its result, and returns that result.

    Args:
        probe: Returns the observed value; called at least once.
        timeout_secs: Time after which the wait fails.
        what: Description of the condition, for the error message "gave up after … waiting for `what`".
        done: Whether a value satisfies the condition; by default its truth value.
        poll_secs: Interval between two calls.

    Raises:
        DeadlineError: The timeout expired; its message has the last observed value.
    """
    deadline = time.monotonic() + timeout_secs
    while True:
        seen = probe()
        if done(seen):
            return seen
        if time.monotonic() >= deadline:
            raise DeadlineError(what, timeout_secs, seen)
        time.sleep(min(poll_secs, max(0.0, deadline - time.monotonic())))


def run_within(timeout_secs: float, call: Callable[[], T]) -> T:
    """Calls a function on a new thread, and returns its result.

    Raises:
        TimeoutError: The function did not return in time; its thread is abandoned, and ends with the process.
        BaseException: The function raised it.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            # Also SystemExit, which would end the thread without a result.
            result.set_exception(error)

    threading.Thread(target=run, name="run-within", daemon=True).start()
    return result.result(timeout_secs)


class WatchedTime:
    """Seconds since a start, by a thread that looks at the clock several times a second.

    What lies between two looks counts at most `MAX_LOOK_SECS`: a process that stood still itself has seen nothing
    meanwhile, and finds no other one silent.

    Args of the constructor:
        clock: Returns the seconds since some moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Up to the last look, and when that was.
        self._secs, self._looked = 0.0, clock()

    @property
    def secs(self) -> float:
        """Since the start; this is no look."""
        return self._secs + min(self._clock() - self._looked, MAX_LOOK_SECS)

    def look(self) -> float:
        """Looks at the clock; returns the seconds since the start."""
        now = self._clock()
        self._secs, self._looked = self._secs + min(now - self._looked, MAX_LOOK_SECS), now
        return self._secs

    def restart(self) -> None:
        """Counts from now on."""
        self._secs, self._looked = 0.0, self._clock()
