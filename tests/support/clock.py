"""A clock that a test sets."""

from __future__ import annotations


class Clock:
    """Called for the time in seconds, as `time.monotonic`; it stands still.

    Attributes:
        now: The time.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
