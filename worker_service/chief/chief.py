"""Worker 0: trains like every other, and leads the run."""

from __future__ import annotations

from typing import Any

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.control import control_pb2 as pb
from psfleet.errors import DONE, LostPeerError, PsfleetError
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.events import Events
from worker_service.chief.fleet_status import FleetStatusLogger
from worker_service.chief.recorder import Recorder
from worker_service.chief.recovery import Recovery
from worker_service.chief.run_finisher import RunFinisher
from worker_service.fleet_state import States
from worker_service.worker import Worker


class Chief(Worker):
    """A worker that settles the fleet on a generation, commits its checkpoints and ends the run.

    Attributes:
        states: Of the ps at the end.
        checkpoint: The last one, verified; None before the end.
        error: What ended the run before its target.
    """

    def __init__(
        self,
        settler: Recovery,
        committer: CheckpointCommitter,
        conclusion: RunFinisher,
        recorder: Recorder,
        events: Events,
        **worker: Any,
    ) -> None:
        super().__init__(observer=recorder, **worker)
        self._settler = settler
        self._committer = committer
        self._conclusion = conclusion
        self._recorder = recorder
        self._events = events
        self._roster = FleetStatusLogger(self._job, events)
        self._pulse.on_beat = self._look
        self.states: States = []
        self.checkpoint: Checkpoint | None = None
        self.error: PsfleetError | None = None

    def agree(self) -> int | None:
        """Brings the fleet to a generation; None if the run is over. See `Worker`."""
        while True:
            self._wait("all parameter servers to answer", self._can_settle)
            if self._pulse.outcome is not None:
                return None
            if self._stop.event.is_set():
                raise self._stop.error()
            try:
                settled = self._settler.settle([client.describe() for client in self._fleet.ps], self._pulse.step)
            except LostPeerError as error:
                self._note_loss(error, progressed=False)
                continue
            if settled.finished is not None:
                self._end(settled.finished, self._fleet.describe())
                return None
            self._recorder.begin(settled.generation)
            return settled.generation

    def _can_settle(self, states: States) -> bool:
        """Whether every ps answers; also once the run is to stop: between generations there is nothing to save."""
        return self._stop.event.is_set() or all(state is not None for state in states)

    def after_target(self, generation: int) -> None:
        """Ends the run, unless a ps is lost before its last part is on the disk. See `Worker`."""
        try:
            checkpoint, _ = self._conclusion.commit_last(generation)
        except LostPeerError as error:
            self._note_loss(error, progressed=False)
            return
        self._end(checkpoint, self._conclusion.final_states(checkpoint.step))

    def _end(self, checkpoint: Checkpoint, states: States) -> None:
        self.checkpoint, self.states = checkpoint, states
        if checkpoint.step < self._job.train.steps:
            self.error = self._stop.error()
        code = DONE if self.error is None else self.error.exit_code
        message = f"step {checkpoint.step} is saved and verified"
        outcome = pb.Outcome(exit_code=code, message=message)
        self._fleet.finish(outcome)
        self._pulse.outcome = outcome

    def _look(self, states: States) -> None:
        self._events.watch(states)
        self._roster.look(states)
        self._committer.look(states)
