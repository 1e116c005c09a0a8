"""A queue of calls that the thread that trains makes while the run is held: they use the program and its data."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from psfleet.errors import LostPeerError, PsfleetError
from worker_service.fleet_state import States, is_held

T = TypeVar("T")


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
        while self._is_open and not self._waiting.empty():
            work, result = self._waiting.get_nowait()
            if not result.set_running_or_notify_cancel():
                continue
            try:
                result.set_result(work())
            except PsfleetError as error:
                result.set_exception(error)

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

    def _refuse(self) -> None:
        while True:
            try:
                _, result = self._waiting.get_nowait()
            except queue.Empty:
                return
            if result.set_running_or_notify_cancel():
                result.set_exception(LostPeerError("this worker is not held at a step at present"))
