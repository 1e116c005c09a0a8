"""Sends heartbeats to every ps, each second, and so renews this worker's lease; caches their replies."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control.fleet_client import FleetClient
from psfleet.errors import BUG, LOST_PEERS, PsfleetError, ReplacedError
from psfleet.service.process import Stop, log_end
from worker_service.fleet_state import States, has_generation, is_held, is_late, outcome_of
from worker_service.heartbeat_calls import BEAT_SECS, HeartbeatCalls
from worker_service.progress import TrainingProgress

logger = logging.getLogger("psfleet.worker")

HELD_BEAT_SECS = 0.2
"""While the run is held: a worker learns from the replies that it trains on."""
UNWIND_SECS = 3.0
"""Time for a worker to leave its step when its run is over; after that the process exits."""


def _ignore(states: States) -> None:
    """The listener before `listen`."""


def _no_step() -> None:
    """The interrupt of a worker without a session."""


class Heartbeat:
    """A thread that sends heartbeats until it is closed or the run is over.

    Every method and property may be used from any thread: one lock guards all that changes. The training thread calls
    `attach`, `detach` and `finish`; the heartbeat thread stores replies, and calls the listener and the interrupt.

    Args of the constructor:
        joins: Number of processes that have had the index.
        program: Digest of the training program.
    """

    def __init__(
        self,
        fleet: FleetClient,
        index: int,
        address: Address,
        stop: Stop,
        progress: TrainingProgress,
        joins: int = 1,
        program: str = "",
    ) -> None:
        self.index = index
        self._fleet = fleet
        self._address = address.data
        self._stop = stop
        self._progress = progress
        self._lock = threading.Lock()
        self._states: States = [None] * len(fleet.ps)
        self._outcome: pb.Outcome | None = None
        self._replaced = ""
        self.joins = joins
        self._program = program
        self._beats = itertools.count(1)
        self._beats_late = 0
        self._sessions_before = 0
        self._generation = -1
        self._interrupt: Callable[[], None] = _no_step
        self._listener: Callable[[States], None] = _ignore
        # Of the replies: a new one begins with `detach`.
        self._era = 0
        self._beat_now = threading.Event()
        self._closing = False
        self._calls = HeartbeatCalls(fleet.ps)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def states(self) -> States:
        """Each ps's newest reply; None where the newest call failed, or none was answered since `detach`."""
        with self._lock:
            return self._states

    @property
    def outcome(self) -> pb.Outcome | None:
        """How the run ended; None while it runs.

        Raises:
            ReplacedError: Another process has this worker's index; this one must end, and not open a session again.
        """
        with self._lock:
            if self._replaced:
                raise ReplacedError(self._replaced)
            return self._outcome

    @property
    def generation(self) -> int:
        """The generation that this worker has a session with; -1: none."""
        with self._lock:
            return self._generation

    def listen(self, listener: Callable[[States], None]) -> None:
        """Sets the function that the heartbeat thread calls with the states after each heartbeat."""
        with self._lock:
            self._listener = listener

    def attach(self, generation: int, interrupt: Callable[[], None]) -> None:
        """Reports from now on, and at once, that this worker has a session with a generation.

        Args:
            generation: Of the session.
            interrupt: Ends the running step. The heartbeat thread calls it when the step is useless: the run is over,
                this worker must leave or is replaced, a ps has another generation, or all have made the last step.
        """
        with self._lock:
            self._generation, self._interrupt = generation, interrupt
            self._sessions_before = self._progress.sessions
        self._beat_now.set()

    def detach(self) -> None:
        """Reports from now on that this worker has no session; discards all replies and asks again at once.

        A ps may be gone: a reply to a call from before must not say that it is there.
        """
        with self._lock:
            self._generation, self._interrupt = -1, _no_step
            self._era += 1
            self._states = [None] * len(self._fleet.ps)
        self._beat_now.set()

    def finish(self, outcome: pb.Outcome) -> None:
        """Stores how the run ended: the chief knows it before any ps replies."""
        with self._lock:
            self._outcome = outcome

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and reports to each ps that this worker leaves."""
        self._closing = True
        self._beat_now.set()
        self._thread.join(BEAT_SECS)
        self._calls.close(lambda: self._request(leaving=True))

    def _run(self) -> None:
        try:
            self._beat_until_closed()
        except Exception as error:
            # Any error: without this thread the process would learn nothing of the fleet, and its lease would end.
            if not self._closing:
                text = "a bug in psfleet: the heartbeats have ended"
                log_end(partial(logger.critical, text, exc_info=error), with_stacks=False)
                os._exit(BUG)

    def _beat_until_closed(self) -> None:
        while not self._closing:
            began = time.monotonic()
            self._beat_now.clear()
            self._beat()
            with self._lock:
                outcome, is_replaced = self._outcome, bool(self._replaced)
            if not is_replaced:
                self._notify_listener()
            self._interrupt_useless_step()
            if is_replaced or outcome is not None:
                self._exit_if_stuck(LOST_PEERS if is_replaced or outcome is None else outcome.exit_code, is_replaced)
                return
            secs = HELD_BEAT_SECS if is_held(self.states) else BEAT_SECS
            self._beat_now.wait(max(0.0, secs - (time.monotonic() - began)))

    def _beat(self) -> None:
        """Sends one heartbeat to every ps, and stores what they answer."""
        with self._lock:
            era = self._era
        found = self._calls.make(era, lambda: self._request(leaving=False), BEAT_SECS)
        with self._lock:
            if era == self._era:
                self._states = [found.states.get(shard, state) for shard, state in enumerate(self._states)]
            self._replaced = self._replaced or found.refusal
            if self._outcome is None:
                self._outcome = outcome_of([*found.states.values()])

    def _request(self, leaving: bool) -> pb.HeartbeatRequest:
        return pb.HeartbeatRequest(
            step=self._progress.step,
            pushed=self._progress.pushed,
            reading_first_batch=self._progress.reading_first_batch,
            leaving=leaving,
            generation=self.generation,
            address=self._address,
            joins=self.joins,
            program=self._program,
            beat=next(self._beats),
        )

    def _notify_listener(self) -> None:
        with self._lock:
            listener, states = self._listener, self._states
        try:
            listener(states)
        except (PsfleetError, OSError) as error:
            logger.error("the chief's periodic work failed: %s", error, extra={"event": "duty_failed"})

    def _interrupt_useless_step(self) -> None:
        """Outside of the lock: closing a session takes seconds."""
        with self._lock:
            own, states, interrupt = self._generation, self._states, self._interrupt
            is_over = self._outcome is not None or bool(self._replaced)
            is_open = own >= 0 and self._progress.sessions > self._sessions_before
        # Twice in a row: the first time the worker may be about to pull the last step.
        self._beats_late = self._beats_late + 1 if is_open and is_late(states, own, self._progress.step) else 0
        is_outdated = own >= 0 and any(state is not None and not has_generation(state, own) for state in states)
        if is_over or is_outdated or self._beats_late > 1 or self._stop.must_leave(self.index):
            interrupt()

    def _exit_if_stuck(self, exit_code: int, is_replaced: bool) -> None:
        """Exits if the training program does not return in time; the chief only if it is replaced: it reports."""
        deadline = time.monotonic() + UNWIND_SECS
        while time.monotonic() < deadline:
            if self._closing:
                return
            self._beat_now.wait(0.1)
            self._beat_now.clear()
        if self.index != 0 or is_replaced:
            end = "this worker's replacement" if is_replaced else "the run's end"
            text = "the training program did not return within %g s of %s: exiting"
            log_end(lambda: logger.warning(text, UNWIND_SECS, end))
            os._exit(exit_code)
