"""The number of a run's loaders, to which `psfleet scale` can add some."""

from __future__ import annotations

import logging
import threading

from psfleet.control.fleet_client import FleetClient
from psfleet.errors import LostPeerError
from psfleet.tls.data_plane import DataPlane

logger = logging.getLogger("psfleet.worker")

LOOK_SECS = 5.0
"""Between two looks for an added loader."""


class LiveLoaders:
    """Finds the loaders that are added to a run, and makes them reachable; loaders that are removed count on.

    Args of the constructor:
        num_loaders: That the run has begun with.
        most_loaders: That it can have.

    Attributes:
        number: Of loaders: a worker's own is that of its index modulo this number.
    """

    def __init__(self, fleet: FleetClient, plane: DataPlane, num_loaders: int, most_loaders: int) -> None:
        self._fleet = fleet
        self._plane = plane
        self._most = most_loaders
        self.number = 0
        self._meet(num_loaders)

    def follow(self) -> None:
        """Looks for further loaders, on a thread that ends with the process."""
        if self.number < self._most:
            threading.Thread(target=self._follow, name="live-loaders", daemon=True).start()

    def update(self) -> None:
        """Looks once."""
        try:
            self._meet(self._fleet.find_loaders())
        except LostPeerError as error:
            logger.warning("a loader that was added is not used yet: %s", error)

    def _meet(self, number: int) -> None:
        for index in range(self.number, number):
            self._plane.meet_loader(index)
            self.number = index + 1

    def _follow(self) -> None:
        pause = threading.Event()
        while self.number < self._most and not pause.wait(LOOK_SECS):
            self.update()
