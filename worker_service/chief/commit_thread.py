"""Commits checkpoints after the chief's heartbeats; beside them if the checkpoints are in a store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from psfleet.errors import PsfleetError
from worker_service.fleet_state import States, check_chief

logger = logging.getLogger("psfleet.chief")


class CommitThread:
    """Calls the function that commits, which makes dozens of requests to a store, each of which may take long.

    Without a heartbeat for some seconds, the ps would consider the chief dead.

    Args of the constructor:
        commit: Commits what is complete by the states of the ps.
        incarnation: Of this chief.
        is_beside: Whether `update` calls it on a thread of its own, with the newest states at a time.
    """

    def __init__(self, commit: Callable[[States], None], incarnation: int, is_beside: bool) -> None:
        self._commit = commit
        self._incarnation = incarnation
        self._thread = ThreadPoolExecutor(1, "commit") if is_beside else None
        self._running: Future[None] | None = None

    def update(self, states: States) -> None:
        """Commits, or has the thread commit unless it still does.

        Raises:
            ReplacedError: There is a newer chief.
        """
        if self._thread is None:
            self._commit(states)
            return
        check_chief(states, self._incarnation)
        if self._running is None or self._running.done():
            if self._running is not None:
                # Raises what `_try` does not expect: nobody else would ever see it.
                self._running.result()
            self._running = self._thread.submit(self._try, states)

    def _try(self, states: States) -> None:
        try:
            self._commit(states)
        except (PsfleetError, OSError) as error:
            logger.error("the chief's periodic work failed: %s", error, extra={"event": "duty_failed"})
