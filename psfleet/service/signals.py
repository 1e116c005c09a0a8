"""Receives the signals that stop a service, also if the training program installs its own handlers.

Python runs signal handlers between two bytecode instructions of the main thread, which can be inside TensorFlow for a
minute. Therefore a separate thread reads the signals from the wake-up file descriptor. A process has one such
descriptor and one handler for each signal, and a program may replace both: asyncio's `loop.add_signal_handler` sets the
descriptor, and resets it and the signal's default action when the loop is closed (asyncio/unix_events.py). So this
module replaces `signal.set_wakeup_fd`, `signal.signal` and `signal.getsignal`. The program's descriptor and its
handlers of the stop signals are called as well, never instead.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

logger = logging.getLogger("psfleet")

_REPLACED = ("signal", "getsignal", "set_wakeup_fd")


class SignalListener:
    """Calls a function with the number of each signal that this process receives and handles in Python.

    Constructed by the main thread, once in a process. In a forked child, the handlers that the program has set, or else
    Python's own ones, are restored: SIGTERM ends a `multiprocessing` process and does not reach its parent.

    Args of the constructor:
        numbers: Signals that reach `received` even if the program installs a handler for them.
        received: Called with the number of each signal, on a separate thread.
    """

    def __init__(self, numbers: Sequence[signal.Signals], received: Callable[[int], None]) -> None:
        self._received = received
        self._original = {name: getattr(signal, name) for name in _REPLACED}
        self._handlers: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}
        self._program_fd = -1
        self._is_installed = True
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno())
        for number in numbers:
            signal.signal(number, _ignore_in_main_thread)
        for name, replacement in zip(_REPLACED, (self._signal, self._getsignal, self._set_wakeup_fd), strict=True):
            setattr(signal, name, replacement)
        self._masks = threading.local()
        os.register_at_fork(
            before=self._hold_signals, after_in_parent=self._release_signals, after_in_child=self._become_child
        )
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def uninstall(self) -> None:
        """Installs the handlers and the descriptor that the program has set; must be called in the main thread."""
        if not self._is_installed:
            return
        self._is_installed = False
        for name, function in self._original.items():
            setattr(signal, name, function)
        signal.set_wakeup_fd(self._program_fd, warn_on_full_buffer=False)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._writer.close()
        self._reader.close()

    def _hold_signals(self) -> None:
        """Blocks the signals over a fork: until the child has its own handlers, they would reach the parent."""
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, self._handlers) if self._is_installed else None

    def _release_signals(self) -> None:
        if self._masks.before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _become_child(self) -> None:
        self.uninstall()
        self._release_signals()

    def _listen(self) -> None:
        while numbers := self._read():
            for number in numbers:
                self._received(number)
            if self._program_fd >= 0:
                with suppress(OSError):
                    os.write(self._program_fd, numbers)

    def _read(self) -> bytes:
        try:
            return self._reader.recv(64)
        except OSError:
            return b""

    def _signal(self, number: int, handler: Any) -> Any:
        """Replaces `signal.signal`."""
        if number not in self._handlers:
            return self._original["signal"](number, handler)
        # The arguments and the thread are checked by the function itself.
        self._original["signal"](number, self._dispatch if callable(handler) else _checked(handler))
        before, self._handlers[number] = self._handlers[number], handler
        return before

    def _getsignal(self, number: int) -> Any:
        """Replaces `signal.getsignal`.

        Python's own handler of SIGINT, which is not called, is not returned: `asyncio.run` would replace it by one that
        ends the program with KeyboardInterrupt.
        """
        if number not in self._handlers:
            return self._original["getsignal"](number)
        handler = self._handlers[number]
        return _ignore_in_main_thread if handler is signal.default_int_handler else handler

    def _set_wakeup_fd(self, fd: int, *, warn_on_full_buffer: bool = True) -> int:
        """Replaces `signal.set_wakeup_fd`; raises the same errors."""
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("set_wakeup_fd only works in main thread of the main interpreter")
        if fd >= 0 and os.get_blocking(fd):
            raise ValueError(f"the fd {fd} must be in non-blocking mode")
        before, self._program_fd = self._program_fd, max(fd, -1)
        return before

    def _dispatch(self, number: int, frame: FrameType | None) -> None:
        """Calls the program's handler, which must not raise: the main thread may be anywhere in psfleet."""
        handler = self._handlers[number]
        if not callable(handler) or handler is signal.default_int_handler:
            return
        try:
            handler(number, frame)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            logger.warning(
                "the program's handler of %s raised %s: ignored, psfleet itself acts on the signal",
                signal.Signals(number).name,
                type(error).__name__,
            )


def _checked(handler: Any) -> Callable[[int, FrameType | None], None]:
    """What is installed for SIG_DFL and SIG_IGN.

    Raises:
        TypeError: The handler is neither.
    """
    if handler not in (signal.SIG_DFL, signal.SIG_IGN):
        raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
    return _ignore_in_main_thread


def _ignore_in_main_thread(number: int, frame: FrameType | None) -> None:
    """Replaces Python's default handlers, which would interrupt the main thread."""


@contextmanager
def collected_signals(received: list[int]) -> Iterator[None]:
    """Context manager that adds each SIGINT and SIGTERM to a list; only Python's main thread can receive them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: received.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
