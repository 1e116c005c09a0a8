"""Memory for messages that two processes of one machine map: the sender copies a message into it, and nobody else.

A Unix socket copies each byte twice, into the kernel and out of it. The receiver makes the memory, and passes it to the
sender on the connection. It names a free buffer in each message of its own, so that none is filled while it is in use.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import sys
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from psfleet.exchange.buffers import OWN_REFERENCES
from psfleet.exchange.connection import Connection
from psfleet.exchange.message_layout import MessageLayout
from psfleet.exchange.messages import NOWHERE

MIN_BYTES = 1 << 10
"""Of a message, from which on it takes no more time than a socket."""
NUM_BUFFERS = 3
"""For each kind of message. One that is never filled takes no memory."""
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEALS = 0x1 | 0x2 | 0x4
"""F_SEAL_SEAL, F_SEAL_SHRINK and F_SEAL_GROW: SIGBUS ends a process that reads beyond the end of a shortened file.

By their numbers in Linux (fcntl.h), since Python has those names only if the C library did when it was built.
"""
K = TypeVar("K", bound=Hashable)

logger = logging.getLogger("psfleet")


class ReceivedMemory(Generic[K]):
    """The buffers of the messages that one end of a connection receives. Thread-safe.

    As with `BufferPool` a buffer is free once no array refers to it.

    Args of the constructor:
        layouts: Of the messages, by what they are for; those below `MIN_BYTES` have no buffers.
    """

    def __init__(self, layouts: Mapping[K, MessageLayout]) -> None:
        self._lock = threading.Lock()
        self._layouts = {key: layout for key, layout in layouts.items() if layout.num_bytes >= MIN_BYTES}
        self._buffers: dict[K, dict[int, np.ndarray]] = {}
        self._named: dict[K, int] = {}

    def share(self, connection: Connection) -> None:
        """Makes the memory, and passes it to the other end, which calls `FilledMemory.received`.

        If the memory cannot be allocated, the peer is notified. Over TCP no memory is shared, and nothing is sent.

        Raises:
            OSError: As `Connection`.
        """
        if not connection.is_local:
            return
        size = sum(NUM_BUFFERS * _in_pages(layout.size) for layout in self._layouts.values())
        made = _new_memory(size) if size else None
        if made is None:
            connection.send_file(None)
            return
        file, memory = made
        try:
            connection.send_file(file)
        finally:
            os.close(file)
        self._divide(memory)

    def _divide(self, memory: mmap.mmap) -> None:
        at = 0
        for key, layout in self._layouts.items():
            self._buffers[key] = {}
            for _ in range(NUM_BUFFERS):
                # With an array of its own, to which those of the message refer.
                self._buffers[key][at] = np.frombuffer(memory, np.uint8, layout.size, at)
                at += _in_pages(layout.size)

    def free(self, key: K) -> int:
        """Where the other end may put the next message, for one that it is sent; `NOWHERE`: it sends it as it is."""
        with self._lock:
            if key in self._named:
                return self._named[key]
            buffers = self._buffers.get(key, {})
            for at in buffers:
                buffer = buffers[at]
                if sys.getrefcount(buffer) == OWN_REFERENCES:
                    self._named[key] = at
                    return at
            return NOWHERE

    def arrived(self, key: K, at: int) -> list[np.ndarray]:
        """The tensors of a message that the other end has put where it may.

        Raises:
            ConnectionError: It may not.
        """
        with self._lock:
            if self._named.get(key) != at:
                raise ConnectionError(f"the other end has put a message at {at}, where it may not")
            del self._named[key]
            return self._layouts[key].arrays(self._buffers[key][at])


class FilledMemory:
    """The memory into which one end of a connection puts its messages.

    Args of the constructor:
        content: uint8; None: there is none.
    """

    def __init__(self, content: np.ndarray | None = None) -> None:
        self._content = np.empty(0, np.uint8) if content is None else content

    @classmethod
    def received(cls, connection: Connection) -> FilledMemory:
        """That which the other end shares; without any if it has none, or if it cannot be mapped.

        Raises:
            OSError: As `Connection`; `ConnectionError` if the other end could shorten the file.
        """
        file = connection.receive_file() if connection.is_local else None
        if file is None:
            return cls()
        try:
            is_sealed = fcntl.fcntl(file, F_GET_SEALS) & SEALS == SEALS
            content = np.frombuffer(mmap.mmap(file, 0), np.uint8) if is_sealed else None
        except (OSError, ValueError) as error:
            logger.warning("messages to a process of this machine are not put into shared memory: %s", error)
            return cls()
        finally:
            os.close(file)
        if content is None:
            raise ConnectionError("the other end shares a file that it can shorten")
        return cls(content)

    def put(self, at: int, layout: MessageLayout, pieces: Sequence[np.ndarray]) -> bool:
        """Copies a message to a place that the other end has named; False: there is none.

        Raises:
            ConnectionError: The place is not within the memory.
        """
        if at == NOWHERE or not len(self._content):
            return False
        if at + layout.size > len(self._content):
            raise ConnectionError(f"the other end names {at}, which is not in its memory")
        layout.fill(self._content[at : at + layout.size], pieces)
        return True


def _new_memory(size: int) -> tuple[int, mmap.mmap] | None:
    """A file in memory whose size cannot change, and its content; None: there can be none."""
    if not hasattr(os, "memfd_create"):
        # It depends on the C library that Python was built with.
        logger.warning(
            "messages from a process of this machine are not put into shared memory: Python has no files in it"
        )
        return None
    try:
        file = os.memfd_create("psfleet-exchange", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, size)
            fcntl.fcntl(file, F_ADD_SEALS, SEALS)
            return file, mmap.mmap(file, size)
        except BaseException:
            os.close(file)
            raise
    except OSError as error:
        logger.warning("messages from a process of this machine are not put into shared memory: %s", error)
        return None


def _in_pages(size: int) -> int:
    """Rounded up, so that no two buffers have a page in common."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
