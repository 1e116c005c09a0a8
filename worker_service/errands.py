"""A queue of calls that the thread that trains makes while the run is held: they use the program and its data."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import contextmanager
from typing import Any, TypeVar

from psfleet.errors import LostPeerError, PsfleetError
from worker_service.fleet_state import States, is_held

T = TypeVar("T")

POLL_SECS = 0.2
"""Between two looks at whether the caller still waits."""


class Errands:
    """A queue of calls; `submit` is called by threads of the control plane, all else by the thread that trains."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether this worker waits in a held run, and does what is submitted."""
        return self._is_open

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Has a call made; its result. `LostPeerError` is that of a call that will not be made: try again."""
        result: Future[T] = Future()
        self._waiting.put((work, result))
        if not self._is_open:
            self._refuse()
        return result

    def run(self, states: States) -> None:
        """Makes the calls that wait, if the run is held."""
        self._is_open = is_held(states)
        while self._is_open and (errand := self._next()) is not None:
            work, result = errand
            if not result.set_running_or_notify_cancel():
                continue
            try:
                result.set_result(work())
            except PsfleetError as error:
                result.set_exception(error)
            except BaseException as error:
                # The one who waits for the result has to know, too.
                result.set_exception(error)
                raise

    @contextmanager
    def during(self, done: Callable[[States], bool]) -> Iterator[Callable[[States], bool]]:
        """Context manager for a wait of the thread that trains, which makes the calls meanwhile.

        Args:
            done: Whether the wait is over.

        Yields:
            The same, to be called with each look at the states.
        """

        def is_done(states: States) -> bool:
            self.run(states)
            return done(states)

        try:
            yield is_done
        finally:
            self.close()

    def close(self) -> None:
        """This worker does not wait any more."""
        self._is_open = False
        self._refuse()

    def _next(self) -> tuple[Callable[[], Any], Future[Any]] | None:
        """Takes the next call; None: there is none, because another thread may have refused it meanwhile."""
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    def _refuse(self) -> None:
        while (errand := self._next()) is not None:
            _, result = errand
            if result.set_running_or_notify_cancel():
                result.set_exception(LostPeerError("this worker is not held at a step at present"))


def awaited(result: Future[T], check: Callable[[], None], poll_secs: float = POLL_SECS) -> T:
    """The result of a call, which is not made any more if `check` raises before it has begun.

    Args:
        result: See `Errands.submit`.
        check: Called again and again; raises if nobody waits for the result any more.
        poll_secs: Between two calls of it.
    """
    while True:
        try:
            return result.result(poll_secs)
        except NotYetError:
            try:
                check()
            except BaseException:
                result.cancel()
                raise
