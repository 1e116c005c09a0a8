"""The chief's events of restarted loaders."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc
from support.program_samples import sample_job

from psfleet.control import control_pb2 as pb
from psfleet.control.fleet_client import FleetClient
from psfleet.control.server import serving
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from worker_service.chief.events import Events
from worker_service.chief.loader_restarts import LoaderRestarts
from worker_service.loader.service import LoaderServicer

RUN = "loaded-1"


def test_each_restart_is_one_event_also_of_a_restarted_chief(tmp_path: Path) -> None:
    addresses = free_addresses(2)
    events = Events(tmp_path, sample_job())
    with FleetClient([], RUN, loaders=addresses) as fleet, serving(addresses[1], LoaderServicer(RUN)):
        restarts = LoaderRestarts(fleet, events)
        for cause in ("", "killed", "out of memory"):
            with serving(addresses[0], LoaderServicer(RUN, cause)):
                wait_until(lambda: None not in fleet.describe_loaders(), 5.0, "the loaders to answer")
                for _ in range(2):
                    restarts.update()
                LoaderRestarts(fleet, events).update()
            restarts.update()
    found = [(event.role, event.index, event.kind, event.cause) for event in events.all()]
    assert found == [("loader", 0, "restarted", cause) for cause in ("killed", "out of memory")]


def test_a_process_that_knows_no_cause_and_replaces_another_one_was_restarted(tmp_path: Path) -> None:
    """As on Kubernetes, which passes no cause to a process that it restarts."""
    addresses = free_addresses(1)
    events = Events(tmp_path, sample_job())
    with FleetClient([], RUN, loaders=addresses) as fleet:
        restarts = LoaderRestarts(fleet, events)
        for _ in range(2):
            with serving(addresses[0], LoaderServicer(RUN)):
                wait_until(lambda: None not in fleet.describe_loaders(), 5.0, "the loader to answer")
                restarts.update()
    assert [(event.role, event.cause) for event in events.all()] == [("loader", "it was replaced")]


class Frozen(LoaderServicer):
    """A loader that does not answer from the second call on, until `thawed` is set."""

    def __init__(self) -> None:
        super().__init__(RUN)
        self.thawed = threading.Event()
        self._is_new = True

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.ShardState:
        if not self._is_new:
            self.thawed.wait(10.0)
        self._is_new = False
        return super().Describe(request, context)


def test_a_loader_that_gives_no_answer_for_too_long_is_one_event_and_one_that_is_away_is_none(tmp_path: Path) -> None:
    addresses = free_addresses(1)
    events, now, frozen = Events(tmp_path, sample_job()), [0.0], Frozen()
    with FleetClient([], RUN, loaders=addresses) as fleet:
        restarts = LoaderRestarts(fleet, events, lambda: now[0])

        def look(*times: float) -> None:
            for now[0] in times:
                restarts.update()

        look(0.0, 100.0)
        assert not events.all(), "one that is not there is being started"
        with serving(addresses[0], frozen):
            wait_until(lambda: None not in fleet.describe_loaders(), 5.0, "the loader to answer")
            look(200.0, 215.0)
            assert not events.all()
            look(215.1, 300.0)
            frozen.thawed.set()
            look(301.0)
    assert [(event.kind, event.cause) for event in events.all()] == [("unresponsive", "it has not answered for 15 s")]
