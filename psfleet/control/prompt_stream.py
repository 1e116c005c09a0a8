"""Reads a stream of messages whose sender must not pause: one that is frozen, or cut off, would hold up this process.

No keepalive of the connection finds such a sender: a process whose control port serves many calls sends no pings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECS = 30.0
"""Longest wait for the next message; as long as a handle waits for a sign of life of its chief."""


def prompt(messages: Iterator[T], cancel: Callable[[], object]) -> Iterator[T]:
    """The same messages; the call is cancelled if the next one does not come within `PAUSE_SECS`.

    Only the wait for a message counts, and not what is done with it.

    Args:
        messages: Of a call of gRPC; they end with its error once it is cancelled.
        cancel: Cancels the call.
    """
    while True:
        timer = threading.Timer(PAUSE_SECS, cancel)
        timer.daemon = True
        timer.start()
        try:
            message = next(messages)
        except StopIteration:
            return
        finally:
            timer.cancel()
        yield message
