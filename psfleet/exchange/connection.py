"""One end of a connection that carries arrays: by TCP, plain or with TLS, or by a Unix socket."""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from psfleet.exchange.low_water import LowWater
from psfleet.exchange.tls import CLOSED, EncryptedSocket
from psfleet.exchange.unix_sockets import BUFFER_BYTES

MAX_PIECES = 512
"""In one system call, less than IOV_MAX."""
SMALL_BYTES = 1 << 16
"""With TLS: pieces below it are joined, since each write makes a record of its own."""
DESCRIPTOR = struct.Struct("=i")
FILE_BYTE = b"f"
"""A file is passed with at least one byte (unix(7))."""
PROBE_SECS = 10
"""Without a sign of the other machine, after which the kernel asks for one, and every so many after that."""
SILENT_SECS = 15.0
"""For which a worker that waits hears nothing of a ps that is frozen, or whose machine is lost."""


logger = logging.getLogger("psfleet")


class Connection:
    """A socket on which one thread at a time sends, or receives.

    Args of the constructor:
        encrypted: The same socket with TLS; None: it is plain.

    Raises (from `send` and the methods that receive):
        OSError: The connection is lost or closed; `TimeoutError`: nothing moved for the timeout.
    """

    def __init__(self, sock: socket.socket, encrypted: EncryptedSocket | None = None) -> None:
        set_options(sock)
        self._socket = sock
        self._lock = threading.Lock()
        self._num_users = 0
        self._is_closed = False
        self._encrypted = encrypted
        self._low_water = LowWater(sock)

    @property
    def is_local(self) -> bool:
        """Whether it is a Unix socket, on which files can be passed."""
        return self._socket.family == socket.AF_UNIX

    def set_timeout(self, secs: float | None) -> None:
        """For each piece of data that is sent or received, not for a whole message; None: without end."""
        self._socket.settimeout(secs)

    def send(self, pieces: Iterable[np.ndarray | bytes]) -> None:
        """Sends pieces one after the other; of arrays, contiguous ones, the memory."""
        left = [_memory(piece) for piece in pieces if len(piece)]
        with self._in_use():
            if self._encrypted is not None:
                for piece in joined(left):
                    self._encrypted.sendall(piece)
            else:
                send_pieces(self._socket, left)

    def can_send(self) -> bool:
        """Whether a few bytes can be sent now without waiting."""
        poller = select.poll()
        try:
            with self._in_use():
                poller.register(self._socket, select.POLLOUT)
                return bool(poller.poll(0))
        except OSError:
            return False

    def receive_into(self, *arrays: np.ndarray) -> None:
        """Fills contiguous arrays one after the other."""
        left = [_memory(each) for each in arrays if len(each)]
        with self._in_use():
            if self._encrypted is not None:
                for piece in left:
                    self._encrypted.recvall_into(piece)
            else:
                self._receive_pieces(left)

    def receive(self, num_bytes: int) -> bytes:
        """Receives so many bytes."""
        content = np.empty(num_bytes, np.uint8)
        self.receive_into(content)
        return content.tobytes()

    def send_file(self, file: int | None) -> None:
        """Passes an open file on a Unix socket, and a byte with it.

        Args:
            file: Its descriptor; None: only the byte is sent.
        """
        with self._in_use():
            socket.send_fds(self._socket, [FILE_BYTE], [] if file is None else [file])

    def receive_file(self) -> int | None:
        """The descriptor of a file that `send_file` passes; None: there is none, or this process may have no more."""
        with self._in_use():
            # `socket.recv_fds` passes no flags on, without which programs that other threads start have the file, too.
            flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            content, passed, found, _ = self._socket.recvmsg(len(FILE_BYTE), socket.CMSG_LEN(DESCRIPTOR.size), flags)
        files = [
            DESCRIPTOR.unpack(data)[0]
            for *kind, data in passed
            if kind == [socket.SOL_SOCKET, socket.SCM_RIGHTS] and len(data) == DESCRIPTOR.size
        ]
        if content != FILE_BYTE:
            for file in files:
                os.close(file)
            raise ConnectionResetError(CLOSED)
        if found & socket.MSG_CTRUNC:
            logger.warning(
                "a process of this machine shares memory that this one may not open, as if it had too many open files: "
                "messages go through the socket"
            )
        return files[0] if files else None

    def _receive_pieces(self, left: list[memoryview]) -> None:
        """Fills pieces of memory that are not empty one after the other.

        Args:
            left: Is changed.
        """
        first, num_left = 0, sum(map(len, left))
        while first < len(left):
            into = left[first : first + MAX_PIECES]
            count = self._low_water.receive(num_left, into)
            if not count:
                raise ConnectionResetError(CLOSED)
            first, num_left = _passed(left, first, count), num_left - count

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Context manager in which the socket stays open: the number of one that is closed can be that of a new one."""
        with self._lock:
            if self._is_closed:
                raise ConnectionAbortedError("the connection is closed")
            self._num_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_users -= 1
                if self._is_closed and not self._num_users:
                    self._socket.close()

    def close(self) -> None:
        """Ends the connection, and frees it once no thread uses it; from any thread, any number of times."""
        with suppress(OSError):
            # Closing alone would not wake a thread that waits, here or at the other end.
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._is_closed = True
            if not self._num_users:
                self._socket.close()


def set_options(sock: socket.socket) -> None:
    """Sets what a connection needs: small messages leave at once, and a lost machine is found."""
    if sock.family == socket.AF_UNIX:
        # The kernel doubles the value that is set (socket(7)).
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 2 * BUFFER_BYTES:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not TCP_USER_TIMEOUT, which also ends a connection whose other end computes and does not read.
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), PROBE_SECS)


def send_pieces(sock: socket.socket, left: list[memoryview]) -> None:
    """Sends pieces of bytes that are not empty one after the other, without a copy that joins them.

    Args:
        left: Is changed.
    """
    first = 0
    while first < len(left):
        first = _passed(left, first, sock.sendmsg(left[first : first + MAX_PIECES]))


def _passed(left: list[memoryview], first: int, count: int) -> int:
    """The first piece that is left after `count` bytes of those from `first` on; is cut if it has begun."""
    while first < len(left) and count >= len(left[first]):
        count -= len(left[first])
        first += 1
    if count:
        left[first] = left[first][count:]
    return first


def joined(pieces: Sequence[memoryview]) -> list[memoryview]:
    """The same bytes with small pieces joined."""
    found: list[memoryview] = []
    small = bytearray()
    for piece in pieces:
        if len(piece) < SMALL_BYTES:
            small += piece
            continue
        if small:
            found.append(memoryview(small))
            small = bytearray()
        found.append(piece)
    if small:
        found.append(memoryview(small))
    return found


def _memory(piece: np.ndarray | bytes) -> memoryview:
    """The bytes of a piece. NumPy gives no buffer of bfloat16."""
    return piece.view(np.uint8).data if isinstance(piece, np.ndarray) else memoryview(piece)
