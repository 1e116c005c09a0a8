"""A worker's sign of life to every ps, each second, and what it hears back."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable

from psfleet.cluster import Address
from psfleet.control import control_pb2 as pb
from psfleet.control.client import FleetClient
from psfleet.errors import BadJobError, LostPeerError, PsfleetError
from psfleet.process import Stop
from worker_service.fleet import States
from worker_service.meter import Meter

logger = logging.getLogger("psfleet.worker")

BEAT_SECS = 1.0
UNWIND_SECS = 3.0
"""How long a worker may take to leave a step when its run is over; then the process ends without it."""


class Pulse:
    """Beats on a thread of its own until it is closed.

    Attributes:
        step, pushed: What the training loop reports.
        meter: What the training loop measures.
        generation: The one in training; -1 between generations.
        states: What each ps said last; None where it was silent.
        outcome: How the run ended, once it did.
        on_beat: Called with the states after each beat, on this thread.
        interrupt: Called when the step under way is in vain: the run is over, or its generation is not the fleet's.
    """

    def __init__(self, fleet: FleetClient, index: int, address: Address, stop: Stop) -> None:
        self.index = index
        self.step = 0
        self.pushed = 0
        self.meter = Meter()
        self.generation = -1
        self.states: States = [None] * len(fleet.ps)
        self.outcome: pb.Outcome | None = None
        self.on_beat: Callable[[States], None] = lambda states: None
        self.interrupt: Callable[[], None] = lambda: None
        self._fleet = fleet
        self._address = address.data
        self._stop = stop
        self._now = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._beat_until_closed, name="pulse", daemon=True)

    def start(self) -> None:
        """Begins to beat."""
        self._thread.start()

    def close(self) -> None:
        """Says goodbye to each ps."""
        self._closing = True
        self._now.set()
        self._thread.join(BEAT_SECS)
        self._hear(leaving=True)

    def beat_now(self) -> None:
        """Has the next beat come at once."""
        self._now.set()

    def _beat_until_closed(self) -> None:
        while not self._closing:
            self._now.clear()
            self._hear(leaving=False)
            try:
                self.on_beat(self.states)
            except (PsfleetError, OSError) as error:
                logger.error("the chief's duties: %s", error, extra={"event": "duty_failed"})
            if self._is_in_vain():
                self.interrupt()
            if self.outcome is not None:
                self._end_soon(self.outcome.exit_code)
                return
            self._now.wait(BEAT_SECS)

    def _hear(self, leaving: bool) -> None:
        states: list[pb.ShardState | None] = []
        for client in self._fleet.ps:
            try:
                request = pb.HeartbeatRequest(
                    index=self.index,
                    step=self.step,
                    pushed=self.pushed,
                    leaving=leaving,
                    generation=self.generation,
                    address=self._address,
                )
                states.append(client.heartbeat(request))
            except (LostPeerError, BadJobError) as error:
                logger.debug("no answer: %s", error)
                states.append(None)
        self.states = states
        if self.outcome is None:
            self.outcome = next((s.outcome for s in states if s is not None and s.phase == pb.FINISHED), None)

    def _is_in_vain(self) -> bool:
        if self.outcome is not None:
            return True
        if self._stop.must_leave(self.index):
            return True
        mine = self.generation
        return mine >= 0 and any(state is not None and state.generation != mine for state in self.states)

    def _end_soon(self, exit_code: int) -> None:
        """Ends the process if the training program does not give the thread back; not for the chief, who reports."""
        deadline = time.monotonic() + UNWIND_SECS
        while time.monotonic() < deadline:
            if self._closing:
                return
            self._now.wait(0.1)
            self._now.clear()
        if self.index != 0:
            logger.warning("the run is over, but the training program does not return")
            faulthandler.dump_traceback()
            os._exit(exit_code)
