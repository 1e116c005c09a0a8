"""How long a call of a handle waits for a checkpoint that cannot be written."""

from __future__ import annotations

import time
from collections.abc import Callable

from psfleet.errors import StorageError


class FailingWrites:
    """The failed writes that one call has waited for; a write that succeeds ends their time.

    Args of the constructor:
        cause: Returns why checkpoints cannot be written at present; empty: they can.
        stall_secs: How long the call waits.
        retry_secs: Between two attempts that the call asks for.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        cause: Callable[[], str],
        stall_secs: float,
        retry_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cause = cause
        self._stall_secs = stall_secs
        self._retry_secs = retry_secs
        self._clock = clock
        self._since: float | None = None
        self._next_retry = clock() + retry_secs

    def check(self) -> None:
        """Looks at the writes once.

        Raises:
            StorageError: They have failed for `stall_secs`.
        """
        cause, now = self._cause(), self._clock()
        if not cause:
            self._since = None
            return
        self._since = now if self._since is None else self._since
        if now - self._since >= self._stall_secs:
            raise StorageError(
                f"no checkpoint could be written for {self._stall_secs:g} s: {cause}; "
                "the run continues, and nothing has changed"
            )

    def is_retry_due(self) -> bool:
        """Whether the call is to ask for another attempt now; it does if this returns True."""
        if self._since is None or self._clock() < self._next_retry:
            return False
        self._next_retry = self._clock() + self._retry_secs
        return True
