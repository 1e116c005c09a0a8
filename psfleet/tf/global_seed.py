"""TensorFlow's global seed, which is one for the process, set by one thread at a time.

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
    """Sets the global seed for a block that makes a data set, and waits until no other thread is in a block.

    It must be alone: in eager mode, operations without a seed draw theirs from one generator of the process.

    Args:
        seed: The seed, which remains set after the block.
        wait_secs: How long to wait.

    Yields:
        A function that says whether no trace has set the seed since.

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
    """Sets the global seed for a block that traces a function, which reads it when it begins.

    It waits for other blocks for `wait_secs` at most: a function of the user's may block in them for ever. Then the
    seed is set all the same, and a block of `data_seed` learns of it.
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
