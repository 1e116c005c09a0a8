"""Makes the calls of one handle one after the other, in the order in which the program asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from psfleet.errors import UsageError

T = TypeVar("T")


class Calls:
    """The calls of one handle; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: Future[Any] = Future()
        self._last.set_result(None)
        self._on_this_thread = threading.local()

    def now(self, call: Callable[[], T]) -> T:
        """Makes a call on the caller's thread, once the calls before it are done; returns its result.

        Raises:
            UsageError: A signal handler has interrupted a call of this thread, for which this one would wait for ever.
        """
        if getattr(self._on_this_thread, "is_calling", False):
            raise UsageError("another call is in progress on this thread, which a signal handler has interrupted")
        turn: Future[None] = Future()
        earlier = self._enqueue(turn)
        try:
            self._on_this_thread.is_calling = True
            wait([earlier])
            return call()
        finally:
            self._on_this_thread.is_calling = False
            # At once, unless the wait was interrupted.
            earlier.add_done_callback(lambda _: turn.set_result(None))

    def later(self, call: Callable[[], T]) -> Future[T]:
        """Makes a call on another thread, once the calls before it are done.

        It is given up if the program ends without waiting for it: see `require_program`.
        """
        result: Future[T] = Future()
        earlier = self._enqueue(result)
        try:
            _CallThread(call, earlier, result).start()
        except RuntimeError as error:
            # There can be no further thread: those after it would wait for ever.
            reason = error
            earlier.add_done_callback(lambda _: result.set_exception(reason))
            raise
        return result

    def _enqueue(self, call: Future[Any]) -> Future[Any]:
        """Makes a call the last one; returns the one before it."""
        with self._lock:
            earlier, self._last = self._last, call
            return earlier


class _CallThread(threading.Thread):
    """Makes one call. No daemon: the interpreter would end it somewhere in gRPC."""

    def __init__(self, call: Callable[[], T], earlier: Future[Any], result: Future[T]) -> None:
        super().__init__(name="psfleet-call", daemon=False)
        self._call, self._earlier, self._result = call, earlier, result

    def run(self) -> None:
        """See `Calls.later`."""
        wait([self._earlier])
        if not self._result.set_running_or_notify_cancel():
            return
        try:
            self._result.set_result(self._call())
        except BaseException as error:
            self._result.set_exception(error)


def require_program() -> None:
    """Raises UsageError if nothing is left of the program but such calls: its end waits for their threads."""
    main = threading.main_thread()
    if not main.is_alive() and all(
        each.daemon or isinstance(each, _CallThread) for each in threading.enumerate() if each is not main
    ):
        raise UsageError("the program has ended without waiting for the call")
