"""Records restarts of loaders, which join no ps."""

from __future__ import annotations

import threading

from psfleet.control.fleet_client import FleetClient
from worker_service.chief.events import Events

LOOK_SECS = 1.0
"""Between two looks at the loaders."""


REPLACED = "it was replaced"
"""The cause where the platform tells a process none, as Kubernetes."""


class LoaderRestarts:
    """Finds the loaders that were started again, and adds an event for each."""

    def __init__(self, fleet: FleetClient, events: Events) -> None:
        self._fleet = fleet
        self._events = events
        self._processes: dict[int, str] = {}

    def follow(self) -> None:
        """Looks at the loaders from now on, on a thread that ends with the process."""
        threading.Thread(target=self._follow, name="loader-restarts", daemon=True).start()

    def update(self) -> None:
        """Asks each loader for its process once."""
        for index, state in enumerate(self._fleet.describe_loaders()):
            if state is None:
                continue
            before = self._processes.get(index)
            self._processes[index] = state.process
            if before is None:
                # A restarted chief does not know the process that the chief before it may have recorded.
                was_restarted = bool(state.cause) and not self._events.restarts["loader", index]
            else:
                was_restarted = before != state.process
            if was_restarted:
                self._events.add("loader", index, "restarted", state.cause or REPLACED)

    def _follow(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_SECS):
            self.update()
