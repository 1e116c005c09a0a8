"""Samples in a thread of its own, until a block of code ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def sampling(sample: Callable[[], object], period_secs: float) -> Iterator[None]:
    """Calls a function after each period that ends within the block; no call is running after the block."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(period_secs):
            sample()

    thread = threading.Thread(target=run, name="sampling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
