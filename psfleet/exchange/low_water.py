"""Has the kernel wake a thread that receives once much has arrived, instead of for every few packets."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Sequence
from contextlib import suppress

MIN_BYTES = 1 << 19
"""Of a message that is not there yet, from which on it pays."""
MAX_BYTES = 1 << 20
"""That must have arrived; the kernel lowers what a socket cannot hold."""


class LowWater:
    """The least that must have arrived at a socket before a thread is woken (SO_RCVLOWAT).

    For half of what is left of a message the thread is woken once: what has arrived is copied while the rest is on its
    way. Between two processes that send each other 7.5 MB in turn that takes a fifth of the CPU time off (3.8 instead
    of 4.7 ms); with messages below `MIN_BYTES` the wait for more costs more than it saves.

    A call without a timeout that has copied some bytes waits for a whole mark again, so that twice the mark must be
    on its way when it begins. A timeout is one in which nothing arrives, but ends up to twice as late: what came before
    a silence is received at the first one.

    Args of the constructor:
        sock: One thread at a time receives from it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._has_marks = sock.family != socket.AF_UNIX
        self._now = 1

    def receive(self, num_left: int, into: Sequence[memoryview]) -> int:
        """Receives a part of a message; returns its bytes, 0 if the other end has closed the connection.

        Args:
            num_left: Bytes that are on their way or there, at least.
            into: Is filled from its begin on.

        Raises:
            TimeoutError: Nothing has arrived for the timeout of the socket, or the kernel has given the machine up.
        """
        if self._has_marks:
            self._set(min(MAX_BYTES, num_left // 2) if num_left >= MIN_BYTES else 1)
        try:
            return self._socket.recvmsg_into(into)[0]
        except TimeoutError as error:
            # The kernel has given the machine up.
            if self._now == 1 or error.errno == errno.ETIMEDOUT:
                raise
            self._set(1)
            if not self._has_any():
                raise
            return self._socket.recvmsg_into(into)[0]

    def _set(self, num_bytes: int) -> None:
        if num_bytes != self._now:
            # A kernel that does not know the option wakes the thread more often.
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)
            self._now = num_bytes

    def _has_any(self) -> bool:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(0))
