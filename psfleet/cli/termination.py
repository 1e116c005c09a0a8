"""Ends a command by SIGTERM as Ctrl-C does: what it has made is removed first, and its processes end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from psfleet.errors import SIGNAL_BASE


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Context manager in which SIGTERM raises SystemExit; a second one does not interrupt what then follows."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(SIGNAL_BASE + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
