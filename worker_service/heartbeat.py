"""A worker's sign of life to every ps, each second, and what it hears back."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control.client import CALL_SECS, FleetClient
from psfleet.errors import BadJobError, LostPeerError, PsfleetError
from psfleet.service.process import Stop
from worker_service.fleet_state import States
from worker_service.progress import Meter

logger = logging.getLogger("psfleet.worker")

BEAT_SECS = 1.0
CALLS_AT_ONCE = 1 + math.ceil(CALL_SECS / BEAT_SECS)
"""To a ps that does not answer: it is asked again after each loss, while calls of before wait for their deadline."""
UNWIND_SECS = 3.0
"""How long a worker may take to leave a step when its run is over; then the process ends without it."""


class Heartbeat:
    """Beats on a thread of its own until it is closed.

    Attributes:
        step, pushed: What the training loop reports.
        meter: What the training loop measures.
        generation: The one in training; -1 between generations.
        states: What each ps said last; None where it was silent, or was not heard since `listen_afresh`.
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
        self._calls: dict[int, Future[pb.ShardState]] = {}
        self._pool = ThreadPoolExecutor(CALLS_AT_ONCE * len(fleet.ps), "heartbeat")
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._beat_until_closed, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begins to beat."""
        self._thread.start()

    def close(self) -> None:
        """Says goodbye to each ps."""
        self._closing = True
        self._now.set()
        self._thread.join(BEAT_SECS)
        goodbyes = [self._pool.submit(client.heartbeat, self._request(leaving=True)) for client in self._fleet.ps]
        wait(goodbyes, CALL_SECS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def listen_afresh(self) -> None:
        """Forgets what every ps has said so far, and asks all anew: one of them may be gone."""
        with self._lock:
            self._calls = {}
            self.states = [None] * len(self._fleet.ps)
        self._now.set()

    def _beat_until_closed(self) -> None:
        while not self._closing:
            began = time.monotonic()
            self._now.clear()
            self._beat()
            try:
                self.on_beat(self.states)
            except (PsfleetError, OSError) as error:
                logger.error("the chief's duties: %s", error, extra={"event": "duty_failed"})
            if self._is_in_vain():
                self.interrupt()
            if self.outcome is not None:
                self._end_soon(self.outcome.exit_code)
                return
            self._now.wait(max(0.0, BEAT_SECS - (time.monotonic() - began)))

    def _beat(self) -> None:
        """A sign of life to every ps at once: one that does not answer delays none of the others."""
        with self._lock:
            calls = self._calls
            for shard, client in enumerate(self._fleet.ps):
                if shard not in calls:
                    calls[shard] = self._pool.submit(client.heartbeat, self._request(leaving=False))
        done, _ = wait(calls.values(), BEAT_SECS)
        heard = {shard: _state(call) for shard, call in calls.items() if call in done}
        with self._lock:
            if calls is self._calls:
                self._calls = {shard: call for shard, call in calls.items() if shard not in heard}
                self.states = [heard.get(shard, state) for shard, state in enumerate(self.states)]
            if self.outcome is None:
                over = [state for state in heard.values() if state is not None and state.phase == pb.FINISHED]
                self.outcome = over[0].outcome if over else None

    def _request(self, leaving: bool) -> pb.HeartbeatRequest:
        return pb.HeartbeatRequest(
            index=self.index,
            step=self.step,
            pushed=self.pushed,
            leaving=leaving,
            generation=self.generation,
            address=self._address,
        )

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


def _state(call: Future[pb.ShardState]) -> pb.ShardState | None:
    """What a ps answered; None if it did not."""
    error = call.exception()
    if error is None:
        return call.result()
    if not isinstance(error, LostPeerError | BadJobError):
        raise error
    logger.debug("no answer: %s", error)
    return None
