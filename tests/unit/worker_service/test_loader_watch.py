"""What follows the loss of a loader is called once, whenever it is set."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from worker_service.loader_watch import LoaderWatch


class SettingLock:
    """A lock whose first release is followed by a call of `on_end`, before its holder goes on."""

    def __init__(self, watch: Any, calls: list[str]) -> None:
        self._lock = threading.Lock()
        self._watch = watch
        self._calls = calls
        self._is_first = True

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()
        if self._is_first:
            self._is_first = False
            self._watch.on_end(lambda: self._calls.append("ended"))


def test_what_is_set_while_the_loader_ends_is_called_once() -> None:
    watch: Any = LoaderWatch.__new__(LoaderWatch)
    calls: list[str] = []
    watch._answered, watch._ended = threading.Event(), threading.Event()
    watch._is_closed, watch._call, watch._on_end = False, [], lambda: None
    watch._lock = SettingLock(watch, calls)
    watch._follow()
    assert calls == ["ended"]
