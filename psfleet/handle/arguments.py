"""Checks what a caller gives to a handle, before anything is sent."""

from __future__ import annotations

import operator
from typing import Any

from psfleet.errors import UsageError

MAX_WHOLE = 2**63 - 1


def whole(value: Any, call: str, name: str) -> int:
    """A number of things.

    Args:
        call, name: The method and its argument, for the message.

    Raises:
        UsageError: It is not a whole number of at least 1.
    """
    try:
        found = operator.index(value)
    except TypeError:
        found = 0
    if isinstance(value, bool) or not 1 <= found <= MAX_WHOLE:
        raise UsageError(f"{call}({name}={value!r}): expected a whole number of at least 1")
    return found
