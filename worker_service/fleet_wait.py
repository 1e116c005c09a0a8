"""A worker's waits for the rest of the fleet: each ends at a deadline, with the run, or with a signal."""

from __future__ import annotations

from collections.abc import Callable

from psfleet.errors import DeadlineError
from psfleet.polling import wait_until
from worker_service.fleet_state import States, is_held, shown
from worker_service.heartbeat import Heartbeat
from worker_service.run_context import RunContext

POLL_SECS = 0.05


class FleetWait:
    """The waits of one worker; it reads the states of the ps from its heartbeat's replies."""

    def __init__(self, context: RunContext, heartbeat: Heartbeat) -> None:
        self._context = context
        self._heartbeat = heartbeat

    def until(self, what: str, done: Callable[[States], bool], extra_secs: float = 0.0) -> None:
        """Waits until `done` is true of the states of all ps, or the run is over; without a deadline while it is held.

        Args:
            extra_secs: Beyond `deadlines.stall_secs`.

        Raises:
            DeadlineError: Neither came in time: see `stall_secs`.
            StoppedError: A signal came.
        """
        while not self._until_stalled(what, done, self._context.job.deadlines.stall_secs + extra_secs):
            pass

    def _until_stalled(self, what: str, done: Callable[[States], bool], stall_secs: float) -> bool:
        """As `until`; False if the run was held meanwhile: a fleet may stand still for so long after that."""
        was_held = False

        def is_done(states: States) -> bool:
            nonlocal was_held
            was_held = was_held or is_held(states)
            return done(states)

        try:
            self._wait(what, is_done, stall_secs)
        except DeadlineError:
            if was_held:
                # Not only now: a ps that has just been lost has the whole time to come back.
                return False
            total_secs = self.stall_secs(self._heartbeat.states)
            if total_secs <= stall_secs:
                raise
            try:
                self._wait(what, is_done, total_secs - stall_secs)
            except DeadlineError as error:
                if was_held:
                    return False
                raise DeadlineError(what, total_secs, error.last_seen) from None
        return True

    def until_step(self, step: int, what: str, is_replaced: Callable[[States], bool]) -> None:
        """Waits until ps 0 has reached a step: as long as it makes progress.

        Args:
            step: To reach.
            what: For the message at the deadline.
            is_replaced: Whether the fleet trains another generation, which ends the wait.

        Raises: As `until`, if no step is made in `stall_secs`.
        """
        reached = -1

        def has_moved(states: States) -> bool:
            return is_replaced(states) or _step(states) > reached

        while reached < step and self._heartbeat.outcome is None:
            self.until(f"{what}; it has made {max(reached, 0)}", has_moved)
            if is_replaced(self._heartbeat.states):
                return
            reached = max(reached, _step(self._heartbeat.states))

    def stall_secs(self, states: States) -> float:
        """How long the fleet may stand still: longer while another worker reads its first batch."""
        deadlines = self._context.job.deadlines
        is_reading = any(state is not None and state.reading_first_batch for state in states)
        return deadlines.first_secs if is_reading else deadlines.stall_secs

    def _wait(self, what: str, done: Callable[[States], bool], timeout_secs: float) -> None:
        stop, index = self._context.stop, self._context.index

        def is_done(states: States) -> bool:
            if self._heartbeat.outcome is not None:
                return True
            if stop.must_leave(index):
                raise stop.error()
            return done(states)

        try:
            wait_until(lambda: self._heartbeat.states, timeout_secs, what, done=is_done, poll_secs=POLL_SECS)
        except DeadlineError as error:
            raise DeadlineError(what, timeout_secs, shown(self._heartbeat.states)) from error


def _step(states: States) -> int:
    """The global step of ps 0; -1 if it cannot be reached."""
    return -1 if states[0] is None else int(states[0].step)
