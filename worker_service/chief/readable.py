"""Waits for checkpoints that a store, or a disk, does not give for the moment."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from psfleet.checkpoint.location import bad_store
from psfleet.checkpoint.read_errors import UnreadableError
from psfleet.checkpoint.store_client import StoreError
from psfleet.errors import StorageError
from psfleet.service.process import Stop

T = TypeVar("T")

logger = logging.getLogger("psfleet.chief")

RETRY_SECS = 1.0
"""Between two attempts to read."""


def require_access(error: StoreError | UnreadableError) -> None:
    """Raises `BadJobError` if the store refuses the credentials, or has no such bucket: no wait helps."""
    if isinstance(error, StoreError) and error.is_denied:
        raise bad_store(error) from error


def once_readable(read: Callable[[], T], timeout_secs: float, stop: Stop) -> T:
    """Calls a function that reads checkpoints until they can be read, and returns its result.

    Args:
        stop: Ends the wait.

    Raises:
        BadJobError: The store refuses the credentials, or has no such bucket.
        StorageError: They could not be read in that time.
        StoppedError: A signal came.
    """
    deadline = time.monotonic() + timeout_secs
    said = ""
    while True:
        try:
            return read()
        except (StoreError, UnreadableError) as error:
            require_access(error)
            if stop.event.is_set():
                raise stop.error() from error
            if time.monotonic() >= deadline:
                raise StorageError(f"checkpoints cannot be read for {timeout_secs:g} s: {error}") from error
            if str(error) != said:
                said = str(error)
                logger.warning("waiting for the checkpoints: %s", said)
        stop.event.wait(RETRY_SECS)
