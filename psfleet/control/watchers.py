"""Counts the peers that watch the health of this process."""

from __future__ import annotations

import threading

import grpc


class Watchers:
    """The open streams of health; from any thread. One of a peer that is frozen or cut off ends after 15 s."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0

    @property
    def number(self) -> int:
        """How many there are."""
        with self._lock:
            return self._number

    def add(self, context: grpc.ServicerContext) -> None:
        """Counts a stream until it ends."""
        self._count(1)
        if not context.add_callback(lambda: self._count(-1)):
            # It has ended already.
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._number += change
