"""An event loop whose time passes at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Jumping(selectors.SelectSelector):
    """Selects what is ready; the time for which it would wait is over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen"
        self.now += max(timeout, 0.0)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _Jumping) -> None:
        self._virtual = selector
        super().__init__(selector)

    def time(self) -> float:
        return self._virtual.now


def run_virtually(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for timers and tasks only."""
    loop = _VirtualLoop(_Jumping())
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()
