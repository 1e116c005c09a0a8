"""Reduces the learning rate by a plateau schedule: from the same step on at every ps, and again so after a rollback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from psfleet.control import MIN_STEPS_AHEAD
from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.errors import LostPeerError
from psfleet.job.job import Job
from psfleet.job.learning_rate import reduced_rate
from psfleet.report.reductions import Reduction, ReductionLog
from psfleet.report.schema import Evaluation
from worker_service.chief.plateau import next_reduction
from worker_service.chief.storage import Storage
from worker_service.fleet_state import TRAINING, States

logger = logging.getLogger("psfleet.chief")

REDUCED = "learning_rate_reduced"
"""Kind of the event that records a reduction."""
NOWHERE = -1
"""Not a generation."""
MAX_TRIES = 10
"""Steps that are proposed at one heartbeat, each twice as far ahead as the one before."""


class RateReductions:
    """The reductions of the learning rate; its methods may be called from any thread.

    The chief proposes a step at which every ps pauses. Once all have accepted it, and none can pass it, the chief
    records it in `reductions.jsonl`. Then it sends the recorded steps, which ends the pause. A chief that replaces this
    one first takes the log over: a line that this one wrote before counts, and one that it writes later, because it was
    frozen, does not. Then the new chief sends the recorded steps: that ends a pause that this one has left. A new
    generation starts with the recorded steps.

    Args of the constructor:
        evaluations: Returns those that are recorded.
    """

    def __init__(self, out: Path, job: Job, storage: Storage, evaluations: Callable[[], Sequence[Evaluation]]) -> None:
        self._job = job
        self._storage = storage
        self._evaluations = evaluations
        self._log = ReductionLog(out / ReductionLog.FILE_NAME)
        self._is_plateau = job.schedule is not None and job.schedule.kind == "plateau"
        self._made = self._log.made() if self._is_plateau else ()
        # None: this chief must take the log over.
        self._number: int | None = None
        self._sent_to = NOWHERE
        self._lock = threading.Lock()

    @property
    def steps(self) -> list[int]:
        """The steps from which on the rate is reduced, each once more."""
        return sorted(each.step for each in self._made)

    def settled(self) -> list[int]:
        """The steps once a proposal that is under way has been decided: a new generation starts with them."""
        with self._lock:
            self._take_over()
            return self.steps

    def update(self, states: States, ps: Sequence[PsClient]) -> None:
        """Makes the reduction that is due, if one is.

        Args:
            states: Of all ps.
            ps: Their control planes.

        Raises:
            ReplacedError: There is a newer chief.
        """
        training = [state for state in states if state is not None and state.phase in TRAINING]
        generations = {state.generation for state in training}
        if not self._is_plateau or len(training) < len(states) or len(generations) != 1:
            return
        with self._lock:
            generation = generations.pop()
            self._take_over()
            if self._sent_to != generation and not self._send(generation, ps):
                return
            due = next_reduction(self._job, self._evaluations(), self._made)
            if due is not None and self._number is not None:
                self._reduce(due, generation, ps, training)

    def _take_over(self) -> None:
        """Makes this chief the one whose lines count; if the disk refuses it, the next heartbeat tries again."""
        if self._is_plateau and self._number is None:
            with self._storage.writing(ReductionLog.FILE_NAME):
                self._number = self._log.take_over()
                self._made = self._log.made()
                self._sent_to = NOWHERE

    def _reduce(
        self, due: Evaluation, generation: int, ps: Sequence[PsClient], training: Sequence[pb.ShardState]
    ) -> None:
        """Makes a reduction, or none: then the next heartbeat tries again."""
        # Until it is sent: an error must not leave a ps in its pause.
        self._sent_to = NOWHERE
        present, final_step = max(state.step for state in training), min(state.final_step for state in training)
        step = self._agreed_step(due.step, generation, ps, present, final_step)
        if step is not None:
            self._record(due, step, self._number or 0)
        self._send(generation, ps)

    def _agreed_step(
        self, least: int, generation: int, ps: Sequence[PsClient], present: int, final_step: int
    ) -> int | None:
        """A step at which every ps pauses, at least `least`, which a rollback can have undone; None: they do not.

        None at or after `final_step`, which a stop can have set: no update follows it.

        A ps that is past a proposed step refuses it. The others may pause there meanwhile, so that the next proposal
        comes in time.
        """
        for attempt in range(MAX_TRIES):
            step = max(least, present + (2 * MIN_STEPS_AHEAD << attempt))
            if step >= final_step:
                return None
            try:
                replies = [client.schedule_reductions(generation, self.steps, pause_at=step) for client in ps]
            except LostPeerError as error:
                logger.debug("no reduction of the learning rate at step %d: %s", step, error)
                return None
            if all(reply.accepted for reply in replies):
                return step
            present = max(reply.step for reply in replies)
        return None

    def _record(self, due: Evaluation, step: int, chief: int) -> None:
        """Records a reduction; one that the disk refuses is not made, nor that of a chief that was replaced."""
        optimizer, number = self._job.rule, len(self._made)
        before, rate = reduced_rate(optimizer, number), reduced_rate(optimizer, number + 1)
        made = Reduction(evaluation=due.step, step=step, learning_rate=rate)
        with self._storage.writing(ReductionLog.FILE_NAME):
            if self._log.add(made, chief):
                self._made = (*self._made, made)
            else:
                # If that chief is not a newer one, but was replaced itself, no ps refuses this one.
                self._number = None
        if made in self._made:
            cause = f"from {before:g} to {rate:g} from step {step} on, by the evaluation at step {due.step}"
            self._storage.events.add("chief", 0, REDUCED, cause)

    def _send(self, generation: int, ps: Sequence[PsClient]) -> bool:
        """Sends the recorded steps to every ps and so ends its pause; False: one has not got them."""
        self._sent_to = generation
        for client in ps:
            # To the others, too, if one does not get them: they must not pause any longer.
            try:
                is_sent = client.schedule_reductions(generation, self.steps).accepted
            except LostPeerError as error:
                logger.debug("a ps has not got the steps of the learning rate: %s", error)
                is_sent = False
            self._sent_to = self._sent_to if is_sent else NOWHERE
        return self._sent_to == generation
