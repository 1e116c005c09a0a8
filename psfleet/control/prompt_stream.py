"""Streams of messages whose other end must not pause: one that is frozen, or cut off, would hold up this process.

Keepalive does not find such a sender: the control port of a run's processes sends no pings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        with _in_time(cancel):
            try:
                message = next(messages)
            except StopIteration:
                return
        yield message


def promptly_taken(messages: Iterator[T], cancel: Callable[[], object]) -> Iterator[T]:
    """The same messages, as the answer of a call, which is cancelled if one is not taken within `PAUSE_SECS`."""
    for message in messages:
        with _in_time(cancel):
            yield message


@contextmanager
def _in_time(cancel: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(PAUSE_SECS, cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
