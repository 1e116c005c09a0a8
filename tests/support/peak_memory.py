"""The memory of a call, arrays included, as Python's allocators report it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that a call holds at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
