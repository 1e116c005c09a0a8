"""Sets TensorFlow's global seed, by one thread at a time: the process has only one.

A worker traces its step on one thread and calls the training program's `train` on another. Both depend on the seed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from psfleet.errors import DataStallError

_lock = threading.Lock()
_changes = itertools.count(1)
_last_change = 0


@contextmanager
def data_seed(seed: int, wait_secs: float) -> Iterator[Callable[[], bool]]:
    """Context manager that sets the global seed for a block that makes a data set, once no other thread is in a block.

    Blocks exclude each other, because in eager mode operations without a seed draw from one generator of the process.

    Args:
        seed: The seed, which remains set after the block.
        wait_secs: How long to wait for other blocks.

    Yields:
        A function that returns whether the seed is still that of this block: `trace_seed` does not wait for ever.

    Raises:
        DataStallError: Another thread was in its block for `wait_secs`.
    """
    if not _lock.acquire(timeout=wait_secs):
        raise DataStallError("another call of train() or a trace of the step to end", wait_secs)
    try:
        own = _set(seed)
        yield lambda: _last_change == own
    finally:
        _lock.release()


@contextmanager
def trace_seed(seed: int, wait_secs: float) -> Iterator[None]:
    """Context manager that sets the global seed for a block that traces a function, which reads it when it begins.

    It waits for other blocks for at most `wait_secs`, because a user's function may block in them for ever. Then it
    sets the seed nevertheless, and the function that `data_seed` yielded to the other block returns False.
    """
    is_alone = _lock.acquire(timeout=wait_secs)
    try:
        _set(seed)
        yield
    finally:
        if is_alone:
            _lock.release()


def _set(seed: int) -> int:
    """Sets the seed; returns the number of the change."""
    global _last_change
    number = _last_change = next(_changes)
    tf.random.set_seed(seed)
    return number
