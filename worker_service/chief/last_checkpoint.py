"""Waits for the checkpoint of the last step, without which no run ends well, and verifies it."""

from __future__ import annotations

import logging

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.parts import NOT_FINITE
from psfleet.checkpoint.store import verify
from psfleet.control import control_pb2 as pb
from psfleet.errors import DeadlineError, LostPeerError, ProgramError, StorageError
from psfleet.polling import wait_until
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.disk import Disk
from worker_service.fleet_state import States
from worker_service.run_context import RunContext

logger = logging.getLogger("psfleet.chief")

LAST_PARTS = "the parts of the last checkpoint"


class LastCheckpoint:
    """The chief's wait for the parts of the last step.

    Args of the constructor:
        secs: How long it may take; None: `deadlines.stall_secs`.
    """

    def __init__(
        self, context: RunContext, committer: CheckpointCommitter, disk: Disk, secs: float | None = None
    ) -> None:
        self._context = context
        self._committer = committer
        self._disk = disk
        self._secs = context.job.deadlines.stall_secs if secs is None else secs
        self._late: list[int] = []

    def commit(self, generation: int) -> Checkpoint:
        """Waits until every ps has written its part of the last step, and verifies the checkpoint.

        Raises:
            ProgramError: The weights are not finite.
            LostPeerError: A ps was lost.
            StorageError: A part or the manifest cannot be written in that time.
            DeadlineError: The fleet did not reach its last step in that time.
        """
        checkpoint = self._await_last(generation)
        with self._disk.reading(checkpoint.folder):
            verify(checkpoint)
        step = checkpoint.step
        logger.info("step %d is saved and verified", step, extra={"event": "verified", "step": step})
        return checkpoint

    def _await_last(self, generation: int) -> Checkpoint:
        """Commits the last checkpoint; the ps and this chief try again what a full disk refused."""

        def poll() -> Checkpoint | None:
            states = self._poll_last()
            self._committer.update(states)
            if not _is_complete(states):
                return None
            if _is_lost(states, generation):
                raise LostPeerError("a ps was lost before the last checkpoint was complete")
            step = min(state.step for state in states if state is not None)
            error = self._committer.error(states, step)
            if error:
                raise ProgramError(error) if NOT_FINITE in error else StorageError(error)
            newest = self._committer.newest
            return newest if newest is not None and newest.step == step else None

        try:
            checkpoint = wait_until(poll, self._secs, LAST_PARTS)
        except DeadlineError as error:
            if self._committer.cause:
                text = f"{LAST_PARTS} cannot be written for {self._secs:g} s: {self._committer.cause}"
                raise StorageError(text) from error
            raise
        assert checkpoint is not None, "wait_until checked it"
        return checkpoint

    def _poll_last(self) -> States:
        """The states of the ps; logs, once for each list of them, which ones still write."""
        states = self._context.fleet.describe()
        late = [shard for shard, state in enumerate(states) if state is not None and state.phase == pb.RUNNING]
        if late and late != self._late:
            step = max(state.step for state in states if state is not None)
            logger.info("waiting for ps %s to write its part of step %d", ", ".join(map(str, late)), step)
        self._late = late
        return states


def _is_complete(states: States) -> bool:
    return all(state is None or state.phase != pb.RUNNING for state in states)


def _is_lost(states: States, generation: int) -> bool:
    return any(state is None or state.phase != pb.COMPLETE or state.generation != generation for state in states)
