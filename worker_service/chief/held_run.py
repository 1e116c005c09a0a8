"""Calls of a handle on a held run: the chief has it train some steps, or evaluates."""

from __future__ import annotations

from collections.abc import Callable

from psfleet.checkpoint.tensors import read_values
from psfleet.control import run_control_pb2 as run_pb
from psfleet.errors import UsageError
from worker_service.chief.holding import Holding
from worker_service.chief.operations import POLL_SECS, CallEndedError, Operations
from worker_service.chief.recorder import Recorder
from worker_service.errands import Errands, awaited

IsActive = Callable[[], bool]


class HeldRun:
    """The calls for a run that was started to be held."""

    def __init__(self, operations: Operations, holding: Holding, recorder: Recorder, errands: Errands) -> None:
        self._operations = operations
        self._context = operations.context
        self._holding = holding
        self._recorder = recorder
        self._errands = errands

    def train(self, call: run_pb.RunCall, steps: int, is_active: IsActive) -> int:
        """Trains, and returns the step at which the run is held then, or the final one.

        Args:
            call: One that is repeated after a loss of the chief, or of the connection, trains no more steps.
            steps: At least 1.
            is_active: Returns whether the caller still waits; the steps are made anyway.

        Raises:
            UsageError: The run is not one that is held, or is over; no step is made for this call.
        """
        self._require_held("train")
        if steps < 1:
            raise UsageError(f"train(steps={steps}): expected at least 1")
        target: int | None = None
        while True:
            self._operations.check_active(is_active)
            states = self._context.fleet.describe()
            training = self._operations.training(states)
            if training and target is None:
                target = self._target(call, steps, min(state.final_step for state in training))
            self._holding.update(states, self._context.fleet.ps)
            if target is not None and training and min(state.step for state in training) >= target:
                return target
            if not self._operations.is_running():
                return self._operations.final_step("train")
            self._operations.pause()

    def _target(self, call: run_pb.RunCall, steps: int, final_step: int) -> int | None:
        """The step to be held at; None: where the run is held now is not known yet."""
        record, present = self._holding.record, self._holding.at
        if record is None or present is None:
            return None
        made = record.step_of(call.call)
        if made is not None:
            return made
        if present >= final_step:
            raise UsageError(f"the run ends at step {final_step}, expected one with steps left: see train.steps")
        target = min(self._context.job.update.due_step(present + steps), final_step)
        self._holding.hold_at(target, call.call)
        return target

    def evaluate(self, is_active: IsActive) -> dict[str, float]:
        """The metrics of the weights at the step at which the run is held; recorded as those of any evaluation.

        Raises:
            UsageError: The run is not one that is held, or the program has no evaluation data.
            ProgramError: The program failed, which ends the run.
            CallEndedError: The caller has gone.
        """
        self._require_held("evaluate")
        checkpoint = self._operations.await_held(is_active)

        def evaluate() -> dict[str, float] | None:
            return self._recorder.evaluate(checkpoint.step, lambda: read_values(checkpoint), lambda: not is_active())

        result = self._errands.submit(evaluate)
        metrics = awaited(result, lambda: self._operations.check_active(is_active), POLL_SECS)
        if metrics is None:
            raise CallEndedError
        if not metrics:
            raise UsageError("the program has no evaluation data; expected `evaluate` of the program")
        return metrics

    def _require_held(self, method: str) -> None:
        if self._holding.record is None:
            raise UsageError(f"`{method}` is for a run that is held, and this one is not: start it with paused=True")
