"""At most one stream of a kind at a time: a stream whose other end is frozen would never end by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class OnlyStream:
    """The present stream; the next one ends it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present: list[Callable[[], object]] = []

    @contextmanager
    def only(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Context manager for a stream; ends the one before.

        Args:
            cancel: Ends this stream, from another thread.
        """
        mine = [cancel]
        with self._lock:
            before, self._present = self._present, mine
        _cancel(before)
        try:
            yield
        finally:
            with self._lock:
                if self._present is mine:
                    self._present = []

    def end(self) -> None:
        """Ends the present stream, if there is one."""
        with self._lock:
            present, self._present = self._present, []
        _cancel(present)


def admitted(items: Iterator[T], admit: Callable[[], object]) -> Iterator[T]:
    """The items of a stream, as long as its caller is admitted.

    Args:
        admit: Called before each item; raises an error once the caller is not admitted.
    """
    for item in items:
        admit()
        yield item


def _cancel(streams: list[Callable[[], object]]) -> None:
    for cancel in streams:
        cancel()
