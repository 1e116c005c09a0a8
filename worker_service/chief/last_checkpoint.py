"""Waits for the checkpoint of the last step, without which no run ends well, and verifies it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.parts import NOT_FINITE
from psfleet.checkpoint.store import verify
from psfleet.checkpoint.store_client import StoreError
from psfleet.control import control_pb2 as pb
from psfleet.errors import LOST_PEERS, DeadlineError, LostPeerError, ProgramError, StorageError, TemporaryError
from psfleet.polling import wait_until
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.disk import Disk
from worker_service.fleet_state import States
from worker_service.run_context import RunContext

logger = logging.getLogger("psfleet.chief")

RETRY_SECS = 1.0
"""Between two attempts to read the checkpoint from a store."""
LAST_PARTS = "the parts of the last checkpoint"


class LastStepMovedError(TemporaryError):
    """The last step of a ps was moved: it waits for gradients."""

    exit_code = LOST_PEERS


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

    def commit(self, generation: int, is_moved: Callable[[States], bool] = lambda states: False) -> Checkpoint:
        """Waits until every ps has written its part of the last step, and verifies the checkpoint.

        Args:
            generation: Of the checkpoint.
            is_moved: Whether this worker must train on, because a ps has got a later last step.

        Raises:
            LastStepMovedError: It must.
            ProgramError: The weights are not finite.
            LostPeerError: A ps was lost.
            StorageError: A part or the manifest cannot be written in that time.
            DeadlineError: The fleet did not reach its last step in that time.
        """
        checkpoint = self._await_last(generation, is_moved)
        wait_until(
            lambda: self._is_verified(checkpoint), self._secs, f"a read of {checkpoint.folder}", poll_secs=RETRY_SECS
        )
        step = checkpoint.step
        logger.info("step %d is saved and verified", step, extra={"event": "verified", "step": step})
        return checkpoint

    def _is_verified(self, checkpoint: Checkpoint) -> bool:
        """Verifies a checkpoint; False if it cannot be read now.

        Raises:
            NoCheckpointError: A part is corrupt.
        """
        with self._disk.reading(checkpoint.folder):
            try:
                verify(checkpoint)
            except (StoreError, StorageError) as error:
                logger.warning("not verified yet: %s", error, extra={"step": checkpoint.step})
                return False
        return True

    def _await_last(self, generation: int, is_moved: Callable[[States], bool]) -> Checkpoint:
        """Commits the last checkpoint; the ps and this chief try again what a full disk refused."""

        def poll() -> Checkpoint | None:
            states = self._poll_last()
            self._committer.update(states)
            if is_moved(states):
                raise LastStepMovedError("a ps refused the stop that another one had accepted: it is moved")
            if not _is_complete(states):
                return None
            if _is_lost(states, generation):
                raise LostPeerError("a ps was lost before the last checkpoint was complete")
            step = min(state.step for state in states if state is not None)
            error = self._committer.error(states, step)
            if error:
                raise ProgramError(error) if NOT_FINITE in error else StorageError(error)
            newest = self._committer.newest
            if newest is None or newest.step != step or newest.generation < generation:
                # One of an earlier generation is damaged: the fleet has trained that step again.
                return None
            return newest

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
