"""Worker 0: trains like every other worker, and leads the run."""

from __future__ import annotations

import logging
import threading

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.control import control_pb2 as pb
from psfleet.errors import DONE, LostPeerError, PsfleetError, StoreAwayError
from psfleet.report.schema import Report
from worker_service.batches import Batches
from worker_service.chief.commit_thread import CommitThread
from worker_service.chief.components import ChiefComponents
from worker_service.chief.fleet_status import FleetStatusLogger
from worker_service.chief.last_checkpoint import LastStepMovedError
from worker_service.chief.readable import RETRY_SECS
from worker_service.chief.unbuilt_stop import is_unsaved
from worker_service.fleet_state import (
    TRAINING,
    States,
    has_moved_end,
    is_complete,
    is_held,
    is_late,
    outcome_of,
    stop_error,
    trains_past,
)
from worker_service.frontends.interface import FrontEnd
from worker_service.heartbeat import Heartbeat
from worker_service.progress import TrainingProgress
from worker_service.run_context import RunContext
from worker_service.worker import Worker

logger = logging.getLogger("psfleet.chief")


class Chief(Worker):
    """A worker that brings the fleet to a generation, commits its checkpoints and ends the run.

    Attributes:
        error: What ended the run before its final step; None while it trains and after a success.
    """

    def __init__(
        self,
        context: RunContext,
        front_end: FrontEnd,
        batches: Batches,
        heartbeat: Heartbeat,
        progress: TrainingProgress,
        components: ChiefComponents,
    ) -> None:
        super().__init__(context, front_end, batches, heartbeat, progress, components.recorder)
        self._components = components
        self._status_logger = FleetStatusLogger(context.job, components.events)
        is_beside = isinstance(context.checkpoints_root, StoreFolder)
        self._commits = CommitThread(components.committer.update, context.incarnation, is_beside)
        self._final_states: States = []
        self._checkpoint: Checkpoint | None = None
        self.error: PsfleetError | None = None
        heartbeat.listen(self._process_states)

    def await_generation(self) -> int | None:
        """Brings the fleet to a generation; None if the run is over. See `Worker`."""
        context = self._context
        while True:
            self._wait("all parameter servers to answer", self._can_recover)
            if self._heartbeat.outcome is not None:
                return None
            if context.stop.event.is_set() and not self._must_save(context.fleet.describe()):
                raise context.stop.error()
            try:
                states = [client.describe() for client in context.fleet.ps]
                ended = outcome_of(states)
                if ended is not None:
                    self._heartbeat.finish(ended)
                    return None
                result = self._components.recovery.recover(states, self._progress.step)
            except LostPeerError as error:
                self._handle_loss(error, progressed=False)
                if isinstance(error, StoreAwayError):
                    self._pause()
                continue
            if result.finished is not None:
                self._end(result.finished, context.fleet.describe())
                return None
            self._components.recorder.begin(result.generation, result.first_step)
            return result.generation

    def after_final_step(self, generation: int) -> None:
        """Ends the run, unless it is held, a ps is lost before its last part is written, or one gets a later last step.

        See `Worker`.
        """
        if not self._await_end(generation):
            return
        finisher = self._components.finisher
        try:
            checkpoint = finisher.commit_last(
                generation, lambda states: has_moved_end(states, generation, self._shards)
            )
        except LastStepMovedError as error:
            logger.info("training on after step %d: %s", self._progress.step, error)
            return
        except LostPeerError as error:
            self._handle_loss(error, progressed=False)
            return
        self._end(checkpoint, finisher.final_states(checkpoint.step))

    def _await_end(self, generation: int) -> bool:
        """Waits while the run is held; False if the fleet trains on, or starts another generation."""
        states = self._context.fleet.describe()
        newest = self._components.committer.newest
        if newest is not None and newest.generation > generation:
            return False
        if None in states and self._components.holding.at is not None:
            # Which of both it is, recovery finds out.
            return False
        if not is_held(states) and not trains_past(states, self._progress.step):
            return True
        super().after_final_step(generation)
        return False

    def is_passed(self, generation: int) -> bool:
        """As in `Worker`; also if weights were set, or a stop has made the step of the hold the last one."""
        newest = self._components.committer.newest
        is_set = newest is not None and newest.generation > generation
        return is_set or is_complete(self._heartbeat.states) or super().is_passed(generation)

    def train(self, generation: int) -> bool:
        """As `Worker.train`, unless the fleet has made the last step of a stop without this process."""
        if self._context.stop.event.is_set():
            states = self._states()
            if is_late(states, generation, step=-1):
                self._shards = np.array([(state.step, state.final_step) for state in states if state is not None])
                return True
        return super().train(generation)

    def before_build(self) -> None:
        """Waits for a running evaluation, which uses the program's model and functions too. See `Worker`.

        Raises:
            LostPeerError: The run is over, or stops and does not need this process to save what was trained.
        """

        def is_over() -> bool:
            if self._heartbeat.outcome is not None:
                return True
            if not self._context.stop.event.is_set():
                return False
            states = self._states()
            return is_complete(states) or not self._must_save(states)

        if not self._components.recorder.finish_evaluation(is_over):
            raise LostPeerError("the run ends while an evaluation runs")

    def report(self, error: PsfleetError | None, states: States = ()) -> Report:
        """The run's report.

        Args:
            error: What ended the run; None: it is done.
            states: Of the ps when it ended, if the chief has not ended it itself; empty: those that they give now.
        """
        states = self._final_states or states or self._context.fleet.describe()
        return self._components.finisher.report(states, self._checkpoint, error)

    def _pause(self) -> None:
        """Waits before the store is asked again, or until a signal comes."""
        event = self._context.stop.event
        # One that has come before shortens no pause: what was trained is to be saved.
        (threading.Event() if event.is_set() else event).wait(RETRY_SECS)

    def _can_recover(self, states: States) -> bool:
        """Whether every ps answers, or a signal came: without a ps there is nothing to save."""
        return self._context.stop.event.is_set() or all(state is not None for state in states)

    def _states(self) -> States:
        """Those of the newest heartbeat; asked for if one is missing, as each is after a lost session."""
        states = self._heartbeat.states
        return self._context.fleet.describe() if None in states else states

    def _must_save(self, states: States) -> bool:
        """Whether a stop waits for a checkpoint: the fleet has made steps of its generation that none has, or the last.

        Others can train on while this chief starts, and between two generations there is nothing to save. A checkpoint
        of the final step must be verified: then the run is done.
        """
        training = [state for state in states if state is not None and state.phase in TRAINING]
        if not self._context.stop.must_save() or len(training) < len(states):
            return False
        final_step = self._components.recorder.monitor.final_step
        if is_complete(states) and min(state.step for state in training) >= final_step:
            return True
        return is_unsaved(training, self._components.committer.newest)

    def _end(self, checkpoint: Checkpoint, states: States) -> None:
        if self._context.job.input.is_dynamic:
            # The loaders end with the run.
            self._components.finisher.count_examples(checkpoint.step)
        self._checkpoint, self._final_states = checkpoint, states
        if checkpoint.step < self._components.recorder.monitor.final_step:
            self.error = stop_error(self._context.stop.signal_number, states)
        else:
            self._components.finisher.save_draft(states, checkpoint)
        code = DONE if self.error is None else self.error.exit_code
        outcome = pb.Outcome(exit_code=code, message=f"step {checkpoint.step} is saved and verified")
        self._context.fleet.finish(outcome)
        self._heartbeat.finish(outcome)

    def _process_states(self, states: States) -> None:
        """After each heartbeat, on its thread."""
        self._components.events.record_restarts(states)
        self._status_logger.update(states)
        self._components.recorder.worker_rates.update(states)
        self._commits.update(states)
        self._components.recorder.monitor.reductions.update(states, self._context.fleet.ps)
        self._components.holding.update(states, self._context.fleet.ps)
