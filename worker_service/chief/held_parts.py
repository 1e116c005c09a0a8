"""What the chief does with the checkpoint parts that ps hold in memory: it fetches them, and then has them dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from psfleet.checkpoint.location import CHECKPOINTS
from psfleet.control import control_pb2 as pb
from psfleet.errors import PsfleetError
from psfleet.polling import wait_until
from worker_service.chief.part_fetcher import PartFetcher
from worker_service.chief.storage import Storage
from worker_service.fleet_state import last_step
from worker_service.run_context import RunContext

logger = logging.getLogger("psfleet.chief")


FOLLOW_SECS = 0.5
"""After a fetch, how long the chief looks for the next checkpoint, more often than by heartbeats."""


class HeldParts:
    """A ps holds one part at a time, and a step waits for its end if two more are due: none may be held for ever.

    Args of the constructor:
        what: The kind of file, for `storage`.
        look: Commits what is complete with fresh states of the ps.
    """

    def __init__(self, context: RunContext, storage: Storage, what: str, look: Callable[[], None]) -> None:
        self._context = context
        self._storage = storage
        self._what = what
        self._look = look
        self._last_step = context.job.train.steps
        self._fetcher = PartFetcher(context.fleet.ps, context.out / CHECKPOINTS, storage.disk, self._ended)
        self._releases = ThreadPoolExecutor(1, "release-parts")
        self._is_releasing: set[tuple[int, int, int]] = set()

    def are_written(self, states: Sequence[pb.ShardState], step: int, parts: Sequence[pb.SavedPart]) -> bool:
        """Whether all parts of a step are in the chief's folder; if not, begins to fetch them.

        Args:
            states: Of all ps, which train one generation.
            parts: Of the step, in the order of the ps.
        """
        # Or the step of a hold, whose checkpoint calls and a stop wait for.
        self._last_step = min(last_step(state) for state in states)
        return self._fetcher.fetch(states[0].generation, step, parts)

    def release_useless(self, states: Sequence[pb.ShardState], committed: int) -> None:
        """Has the parts dropped that are committed, or of a step that another ps will never have.

        A request can be lost, and a chief can die before it sends one: each look at the states repeats it.

        Args:
            states: Of all ps, which train one generation.
            committed: The newest committed step of that generation; -1: none.
        """
        for shard, state in enumerate(states):
            for part in state.parts:
                if part.held and (part.step <= committed or _is_incomplete(states, part.step)):
                    self._release([shard], state.generation, part.step, "")

    def _ended(self, generation: int, step: int, error: OSError | None) -> None:
        """Has the parts dropped that are written, or that the disk refuses; those of the last step are tried again."""
        cause = "" if error is None else f"{self._context.checkpoints_root}: {error.strerror or error}"
        if error is not None and step >= self._last_step:
            self._storage.failed(self._what, cause, "checkpoint_failed")
            return
        if error is None:
            self._storage.written(self._what)
        self._release(range(len(self._context.fleet.ps)), generation, step, cause)
        if error is None:
            self._follow()

    def _follow(self) -> None:
        """Does not wait for the next heartbeat: another snapshot may have waited for this checkpoint on every ps."""

        def look() -> bool:
            self._look()
            return self._fetcher.is_busy

        with suppress(PsfleetError):
            wait_until(look, FOLLOW_SECS, "the next checkpoint", poll_secs=FOLLOW_SECS / 10)

    def _release(self, shards: Iterable[int], generation: int, step: int, error: str) -> None:
        """Calls ps on another thread: heartbeats must not wait for one that does not answer."""
        keys = [key for shard in shards if (key := (shard, generation, step)) not in self._is_releasing]
        # All before the first call: a heartbeat that sees its result would release the others without the error.
        self._is_releasing.update(keys)
        for shard, *_ in keys:
            self._releases.submit(self._call, shard, generation, step, error)

    def _call(self, shard: int, generation: int, step: int, error: str) -> None:
        try:
            self._context.fleet.ps[shard].release_part(generation, step, error)
        except PsfleetError as lost:
            logger.debug("ps %d does not know that its part of step %d is written: %s", shard, step, lost)
        finally:
            self._is_releasing.discard((shard, generation, step))


def _is_incomplete(states: Sequence[pb.ShardState], step: int) -> bool:
    """Whether a ps will never have the part of a step: it could not write it, or has a later one only."""
    for state in states:
        found = [part for part in state.parts if part.step == step]
        is_past = any(part.step > step for part in state.parts)
        if (found and found[0].error) or (not found and is_past):
            return True
    return False
