"""Records what happens to loaders, which join no ps: restarts, and processes that give no answer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from psfleet.control import control_pb2 as pb
from psfleet.control.fleet_client import FleetClient
from psfleet.errors import NoAnswerError
from worker_service.chief.data_epochs import DataEpochs
from worker_service.chief.events import Events

LOOK_SECS = 1.0
"""Between two looks at the loaders."""
UNRESPONSIVE_SECS = 15.0
"""Time without an answer after which a loader counts as frozen or cut off; workers need as long to find that."""
REPLACED = "it was replaced"
"""The cause where the platform, such as Kubernetes, passes none to a process that it restarts."""


class LoaderRestarts:
    """Finds the loaders that were started again, or that give no answer, and adds an event for each.

    Args of the constructor:
        clock: Monotonic, in seconds.
        epochs: Receives what the loaders know of the workers that read from them.
    """

    def __init__(
        self,
        fleet: FleetClient,
        events: Events,
        clock: Callable[[], float] = time.monotonic,
        epochs: DataEpochs | None = None,
    ) -> None:
        self._fleet = fleet
        self._events = events
        self._epochs = epochs or DataEpochs()
        self._clock = clock
        self._processes: dict[int, str] = {}
        # By loader that gives no answer: since when; never, once that is an event.
        self._silent: dict[int, float] = {}

    def follow(self) -> None:
        """Looks at the loaders from now on, on a thread that ends with the process."""
        threading.Thread(target=self._follow, name="loader-restarts", daemon=True).start()

    def update(self) -> None:
        """Asks each loader for its process once."""
        states = self._fleet.describe_loaders()
        self._epochs.note(states)
        for index, state in enumerate(states):
            if isinstance(state, NoAnswerError):
                self._note_silence(index)
                continue
            # One that is not reached is being started again.
            self._silent.pop(index, None)
            if state is not None:
                self._note_process(index, state)

    def _note_process(self, index: int, state: pb.ShardState) -> None:
        before = self._processes.get(index)
        self._processes[index] = state.process
        if before is None:
            # A restarted chief does not know the process that the chief before it may have recorded.
            was_restarted = bool(state.cause) and not self._events.restarts["loader", index]
        else:
            was_restarted = before != state.process
        if was_restarted:
            self._events.add("loader", index, "restarted", state.cause or REPLACED)

    def _note_silence(self, index: int) -> None:
        now = self._clock()
        if now - self._silent.setdefault(index, now) > UNRESPONSIVE_SECS:
            self._silent[index] = math.inf
            self._events.add("loader", index, "unresponsive", f"it has not answered for {UNRESPONSIVE_SECS:g} s")

    def _follow(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_SECS):
            self.update()
