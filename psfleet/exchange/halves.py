"""Connections of replies that wait for the connection of pushes of the same session."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from psfleet.exchange.connection import Connection
from psfleet.exchange.messages import Greeting


@dataclass(frozen=True)
class Half:
    """A connection of replies.

    Attributes:
        timer: Drops it.
    """

    greeting: Greeting
    replies: Connection
    timer: threading.Timer


class Halves:
    """Keeps connections of replies for a while. Thread-safe.

    Args of the constructor:
        secs: For how long.
    """

    def __init__(self, secs: float) -> None:
        self._secs = secs
        self._lock = threading.Lock()
        self._kept: dict[str, Half] = {}
        self._is_over = False

    def keep(self, greeting: Greeting, replies: Connection) -> None:
        """Keeps a connection.

        Raises:
            ConnectionError: Its session has one, the ps ends, or no thread can be started.
        """
        timer = threading.Timer(self._secs, self._drop, [greeting.session])
        timer.daemon = True
        with self._lock:
            if greeting.session in self._kept or self._is_over:
                raise ConnectionError("a session has two connections of replies, or the ps ends")
            self._kept[greeting.session] = Half(greeting, replies, timer)
        try:
            timer.start()
        except RuntimeError as error:
            self._pop(greeting.session)
            raise ConnectionError(f"the connection of replies cannot be kept: {error}") from error

    def take(self, greeting: Greeting) -> Connection:
        """The connection of replies of the session of a connection of pushes, which is kept no longer.

        Raises:
            ConnectionError: There is none, or it is of another worker, and closed.
        """
        half = self._pop(greeting.session)
        if half is None:
            raise ConnectionError("a connection of pushes has no connection of replies")
        if half.greeting.model_copy(update={"carries": "pushes"}) != greeting:
            half.replies.close()
            raise ConnectionError("a connection of pushes and one of replies are of different workers")
        return half.replies

    def close(self) -> None:
        """Closes all connections, and keeps no further ones."""
        with self._lock:
            self._is_over = True
            sessions = list(self._kept)
        for session in sessions:
            self._drop(session)

    def _drop(self, session: str) -> None:
        half = self._pop(session)
        if half is not None:
            half.replies.close()

    def _pop(self, session: str) -> Half | None:
        with self._lock:
            half = self._kept.pop(session, None)
        if half is not None:
            half.timer.cancel()
        return half
