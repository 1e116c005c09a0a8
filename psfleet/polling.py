"""Waiting with a timeout: for a condition, or for a call that cannot be interrupted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
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
