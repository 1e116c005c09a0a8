"""A loader without the workers that it waits for, and its end where no launcher looks after it."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control import fleet_client
from psfleet.control.fleet_client import FleetClient
from psfleet.control.server import serving
from psfleet.errors import DONE, LOST_PEERS, DeadlineError, LostPeerError
from psfleet.job.sections import Deadlines
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.tls.loader_plane import LoaderPlane
from worker_service.joining import finish_as_chief
from worker_service.loader.service import LoaderServicer, data_service
from worker_service.loader_watch import Loader, LoaderWatch

RUN = "loaded-1"
DEADLINES = Deadlines()


class Clock:
    """Stands still unless it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_loader_waits_for_its_first_call_until_a_chief_must_have_built_the_model() -> None:
    clock = Clock()
    loader = LoaderServicer(RUN, clock=clock)
    clock.now += 179.0 + 3 * 1800.0
    loader.require_caller(DEADLINES)
    clock.now += 2.0
    with pytest.raises(DeadlineError, match="5580 s waiting for a call of the chief or of a worker"):
        loader.require_caller(DEADLINES)


@pytest.mark.parametrize("cause", ["", "killed"])
def test_a_loader_that_was_called_or_started_again_waits_for_a_call_as_long_as_the_fleet_for_a_step(cause: str) -> None:
    clock = Clock()
    loader = LoaderServicer(RUN, cause, clock)
    if not cause:
        loader.Describe(pb.DescribeRequest(), None)
    clock.now += 599.0
    loader.require_caller(DEADLINES)
    clock.now += 2.0
    with pytest.raises(DeadlineError, match="600 s waiting for a call of the chief or of a worker"):
        loader.require_caller(DEADLINES)


def test_a_loader_from_which_a_worker_reads_does_not_end_while_the_chief_is_away() -> None:
    clock, (address,) = Clock(), free_addresses(1)
    loader = LoaderServicer(RUN, "killed", clock)
    with serving(address, loader, watchers=loader.watchers):
        with LoaderWatch(Loader(0, address, address)) as watch:
            assert watch.has_begun()
            clock.now += 3600.0
            loader.require_caller(DEADLINES)
            clock.now += 3600.0
            loader.require_caller(DEADLINES)
        wait_until(lambda: not loader.watchers.number, 5.0, "the end of the stream")
        clock.now += 3600.0
        with pytest.raises(DeadlineError):
            loader.require_caller(DEADLINES)


@pytest.mark.parametrize(("host", "code", "hears"), [("[::1]", 0, True), ("[::1]", 70, False), ("127.0.0.1", 0, False)])
def test_a_loader_of_a_container_that_is_starting_hears_of_the_end_of_a_run_that_is_done(
    host: str, code: int, hears: bool
) -> None:
    """The first host stands for one that has no launcher."""
    (free,) = free_addresses(1)
    address, loader = Address(host, free.port), LoaderServicer(RUN)
    with FleetClient([], RUN, loaders=[address]) as fleet:
        release = threading.Thread(target=fleet.release_loaders, args=[pb.Outcome(exit_code=code)])
        release.start()
        release.join(1.5)
        assert release.is_alive() == hears
        with serving(address, loader):
            release.join(10.0)
            assert loader.finished.is_set() == hears


@pytest.mark.parametrize(("code", "is_over"), [(DONE, True), (LOST_PEERS, False)], ids=["done", "resumed later"])
@pytest.mark.parametrize("is_replacement", [False, True])
def test_a_loader_hears_of_the_end_of_a_run_that_is_done_though_all_ps_are_gone(
    code: int, is_over: bool, is_replacement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end before the loaders: a chief that is killed in between leaves the loaders to its replacement."""
    monkeypatch.setattr(fleet_client, "FINISH_SECS", 0.2)
    ps, address = free_addresses(2)
    loader, outcome = LoaderServicer(RUN), pb.Outcome(exit_code=code)
    settings: Any = SimpleNamespace(index=0, cause="killed", address=Address("chief", 2222))
    job: Any = SimpleNamespace(fleet=SimpleNamespace(worker_limit=1))
    with serving(address, loader), FleetClient([ps], RUN, loaders=[address]) as fleet:
        informed = finish_as_chief(fleet, settings, job, outcome) if is_replacement else fleet.finish(outcome)
    assert (informed, loader.finished.is_set()) == (0, is_over)


def test_a_loader_in_a_container_says_which_of_its_ports_is_taken() -> None:
    (free,) = free_addresses(1)
    at = Address("loader-0", free.port)
    taken = rf"port {free.port} or {free.port + 4} of loader-0 is in use"
    with socket.create_server(("", free.port)), pytest.raises(LostPeerError, match=taken):
        data_service(LoaderPlane(at, at.batches))
