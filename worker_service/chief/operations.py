"""Operations of the chief for handles on its run: one at a time; each waits for the fleet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import verify
from psfleet.checkpoint.tensors import read_tensors
from psfleet.control import control_pb2 as pb
from psfleet.control import run_control_pb2 as run_pb
from psfleet.errors import DONE, LostPeerError, NoCheckpointError, UsageError
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.failing_writes import FailingWrites
from worker_service.fleet_state import TRAINING, States, is_held, last_step
from worker_service.heartbeat import Heartbeat
from worker_service.run_context import RunContext

POLL_SECS = 0.05
"""Between two looks of an operation at the fleet."""
RETRY_SECS = 5.0
"""Between two requests for a checkpoint while checkpoints cannot be written; each ps logs each of them."""
MAX_READS = 5
"""A checkpoint can be deleted by newer ones while it is read: see `checkpoint.keep`."""


class CallEndedError(Exception):
    """The caller of an operation does not wait for it any more."""


class Operations:
    """The operations of one chief; each method may be called from any thread.

    Every wait ends with the caller (`CallEndedError`), or with the run: a fleet that does not make progress ends the
    run by its own deadlines. One for a checkpoint ends with `StorageError`, too, once it could not be written for
    `deadlines.stall_secs`; the run continues.
    """

    def __init__(self, context: RunContext, heartbeat: Heartbeat, committer: CheckpointCommitter) -> None:
        self.context = context
        self.committer = committer
        self._heartbeat = heartbeat
        self._changed = threading.Condition()
        self._present: tuple[str, str] | None = None
        self._pause = threading.Event()

    @contextmanager
    def turn(self, call: run_pb.RunCall, what: str) -> Iterator[None]:
        """Context manager for an operation: there is no other one meanwhile.

        Raises:
            UsageError: Another call is in progress; nothing has changed.
        """
        with self._changed:
            # The same call again, whose connection broke: the first one is about to find that its caller has gone.
            self._changed.wait_for(lambda: self._present is None or self._present[0] != call.call)
            if self._present is not None:
                raise UsageError(f"{self._present[1]} is in progress; expected one call at a time: try again after it")
            self._present = call.call, f"`{what}` of {call.owner}"
        try:
            yield
        finally:
            with self._changed:
                self._present = None
                self._changed.notify_all()

    @property
    def states(self) -> States:
        """The states of all ps at the last heartbeat; no request is made."""
        return self._heartbeat.states

    def view(self) -> run_pb.RunView:
        """How far the run is."""
        states = self._heartbeat.states
        # The fresh states, unless a call would wait for a ps that is gone.
        states = self.context.fleet.describe() if None not in states else states
        known = [state for state in states if state is not None and state.phase in TRAINING]
        steps, finals = [state.step for state in known], [state.final_step for state in known]
        return run_pb.RunView(
            step=min(steps, default=0),
            final_step=min(finals, default=self.context.job.train.steps),
            status=self._status(states),
            generation=max((state.generation for state in known), default=0),
        )

    def _status(self, states: States) -> str:
        if self._heartbeat.outcome is not None:
            return "ending"
        training = self.training(states)
        if training:
            held = all(last_step(state) <= state.step < state.final_step for state in training)
            return f"held at step {min(state.step for state in training)}" if held else "training"
        return "recovering" if any(state is not None and state.generation for state in states) else "starting"

    def save(self, is_active: Callable[[], bool]) -> Checkpoint:
        """Has a checkpoint written of a step at or after the present one, and verifies it.

        Args:
            is_active: Returns whether the caller still waits.

        Raises:
            UsageError: The run is over, and not done.
            NoCheckpointError: A part is corrupt.
            StorageError: Checkpoints cannot be written for `deadlines.stall_secs`.
        """
        while True:
            checkpoint = self._saved(is_active)
            try:
                verify(checkpoint)
            except NoCheckpointError:
                newest = self.committer.newest
                if newest is None or newest.folder == checkpoint.folder:
                    raise
                # It was deleted meanwhile, as `checkpoint.keep` newer ones are there.
                continue
            return checkpoint

    def read(self, is_active: Callable[[], bool]) -> dict[str, np.ndarray]:
        """All tensors, by name, of a checkpoint as of `save`, whose errors this raises."""
        for _ in range(MAX_READS - 1):
            with suppress(NoCheckpointError):
                return read_tensors(self.save(is_active))
        return read_tensors(self.save(is_active))

    def _saved(self, is_active: Callable[[], bool]) -> Checkpoint:
        since: tuple[int, int] | None = None
        failing = self._failing_writes()
        while True:
            self.check_active(is_active)
            states = self.context.fleet.describe()
            outcome = self._heartbeat.outcome
            if outcome is not None:
                return self._last(outcome)
            training = self.training(states)
            if training:
                # After a rollback the step of the call may lie ahead: what counts is the step that the fleet is at.
                is_new = since is None or since[0] != training[0].generation
                if since is None or is_new:
                    since = training[0].generation, max(state.step for state in training)
                # The ps try again only what they hold at: another checkpoint takes the place of one that failed.
                if (is_new or failing.is_retry_due()) and not is_held(states):
                    self.committer.request()
                self.committer.update(states)
                newest = self.committer.newest
                if newest is not None and _is_saved(newest, training[0], since[1]):
                    return newest
                failing.check()
            self.pause()

    def _failing_writes(self) -> FailingWrites:
        return FailingWrites(lambda: self.committer.cause, self.context.job.deadlines.stall_secs, RETRY_SECS)

    def held_checkpoint(self, generation: int, is_active: Callable[[], bool]) -> Checkpoint | None:
        """Waits until a generation is held at a step; its checkpoint of that step; None if the generation ends before.

        Raises:
            UsageError: The run has made its last step instead.
            StorageError: Checkpoints cannot be written for `deadlines.stall_secs`.
        """
        failing = self._failing_writes()
        while True:
            self.check_active(is_active)
            self.require_running("hold")
            states = self.context.fleet.describe()
            training = self.training(states)
            if not training or training[0].generation != generation:
                return None
            self.committer.update(states)
            step, newest = training[0].step, self.committer.newest
            if all(state.step >= state.final_step for state in training):
                raise UsageError(f"run {self.context.run} has made its last step, {step}; nothing has changed")
            is_at_hold = all(last_step(state) == state.step == step for state in training)
            if is_at_hold and newest is not None and (newest.generation, newest.step) == (generation, step):
                return newest
            failing.check()
            self.pause()

    def await_held(self, is_active: Callable[[], bool]) -> Checkpoint:
        """As `held_checkpoint`, of whichever generation is held."""
        while True:
            self.check_active(is_active)
            training = self.training(self.context.fleet.describe())
            found = self.held_checkpoint(training[0].generation, is_active) if training else None
            if found is not None:
                return found
            self.require_running("hold")
            self.pause()

    def is_running(self) -> bool:
        """Whether the run is not over."""
        return self._heartbeat.outcome is None

    def require_running(self, what: str) -> None:
        """Raises `UsageError` if the run is over."""
        if not self.is_running():
            self.final_step(what)
            raise UsageError(f"run {self.context.run} is done; nothing has changed for `{what}`")

    def final_step(self, what: str) -> int:
        """The final step of a run that is done; raises `UsageError` if it ended otherwise."""
        outcome = self._heartbeat.outcome
        if outcome is None or outcome.exit_code != DONE:
            message = "" if outcome is None else outcome.message
            raise UsageError(f"run {self.context.run} is over: {message}; `{what}` was not done")
        newest = self.committer.newest
        # Not that of the job: `evaluate.stop` can end a run before.
        return self.context.job.train.steps if newest is None else newest.step

    def check_active(self, is_active: Callable[[], bool]) -> None:
        """Raises `CallEndedError` if the caller does not wait any more."""
        if not is_active():
            raise CallEndedError

    def pause(self) -> None:
        """Waits until the next look at the fleet."""
        self._pause.wait(POLL_SECS)

    @staticmethod
    def training(states: States) -> list[pb.ShardState]:
        """The states, if every ps trains the same generation; else none."""
        found = [state for state in states if state is not None and state.phase in TRAINING]
        is_one = len(found) == len(states) and len({state.generation for state in found}) == 1
        return found if is_one else []

    def _last(self, outcome: pb.Outcome) -> Checkpoint:
        """The last checkpoint of a run that is done."""
        if outcome.exit_code != DONE:
            raise UsageError(f"run {self.context.run} is over: {outcome.message}; nothing was saved for this call")
        newest = self.committer.newest
        if newest is None:
            raise LostPeerError(f"run {self.context.run} is over, and this chief has not seen its last checkpoint")
        return newest


def _is_saved(newest: Checkpoint, state: pb.ShardState, step: int) -> bool:
    """Whether a checkpoint is of a step or a later one of a generation, or that which the generation started from."""
    if newest.generation == state.generation:
        return newest.step >= step
    return newest.step == step == state.first_step
