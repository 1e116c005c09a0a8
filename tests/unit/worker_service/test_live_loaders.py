"""Loaders that are added to a run are found, reached and ended with it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from psfleet.control import control_pb2 as pb
from psfleet.control import fleet_client
from psfleet.control.fleet_client import FleetClient
from psfleet.control.server import serving
from psfleet.errors import DONE, LostPeerError
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from worker_service import live_loaders
from worker_service.live_loaders import LiveLoaders
from worker_service.loader.service import LoaderServicer

RUN = "loaded-1"


class Plane:
    """Notes the loaders that are met; the first call for each of `failing` fails."""

    def __init__(self, *failing: int) -> None:
        self.met: list[int] = []
        self.failing = list(failing)

    def meet_loader(self, index: int) -> None:
        if index in self.failing:
            self.failing.remove(index)
            raise LostPeerError("no tunnel")
        self.met.append(index)


def test_added_loaders_are_found_in_their_order_and_met_before_they_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_loaders, "LOOK_SECS", 0.01)
    addresses, plane = free_addresses(4), Plane(2)
    with FleetClient([], RUN, loaders=addresses, num_loaders=1) as fleet, serving(addresses[2], LoaderServicer(RUN)):
        given: Any = plane
        live = LiveLoaders(fleet, given, 1, 4)
        live.update()
        assert (live.number, plane.met, len(fleet.describe_loaders())) == (1, [0], 1)
        with serving(addresses[1], LoaderServicer(RUN)):
            live.follow()
            wait_until(lambda: live.number == 3, 5.0, "both loaders, the second one at a second try")
        assert plane.met == [0, 1, 2]
        assert len(fleet.describe_loaders()) == 3
        assert live.number == 3, "one that is gone may be starting again"


def test_the_end_of_the_run_ends_a_loader_that_was_added_and_that_nobody_has_found_yet() -> None:
    addresses = free_addresses(2)
    with FleetClient([], RUN, loaders=addresses, num_loaders=1) as fleet:
        added = LoaderServicer(RUN)
        with serving(addresses[1], added):
            fleet.release_loaders(pb.Outcome(exit_code=DONE))
        assert added.finished.is_set()


@pytest.mark.parametrize("removed_secs", [60.0, -1.0])
def test_the_end_of_the_run_waits_for_no_loader_that_has_been_away_for_long(
    removed_secs: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_client, "REMOVED_SECS", removed_secs)
    monkeypatch.setattr(fleet_client, "RELEASE_SECS", 2.0)
    (free,) = free_addresses(1)
    # Stands for a host that has no launcher.
    address = type(free)("[::1]", free.port)
    with FleetClient([], RUN, loaders=[address]) as fleet:
        assert fleet.describe_loaders() == [None]
        began = time.monotonic()
        fleet.release_loaders(pb.Outcome(exit_code=DONE))
        waited = time.monotonic() - began
    assert (waited >= 2.0) == (removed_secs > 0)
