"""A loader without the workers that it waits for, and its end where no launcher looks after it."""

from __future__ import annotations

import socket
import threading

import pytest

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control.fleet_client import FleetClient
from psfleet.control.server import serving
from psfleet.errors import DeadlineError, LostPeerError
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.tls.loader_plane import LoaderPlane
from worker_service.loader.service import LoaderServicer, data_service

RUN = "loaded-1"


def test_a_loader_waits_for_the_first_call_without_limit_and_for_the_next_one_with_a_deadline() -> None:
    loader = LoaderServicer(RUN)
    loader.require_caller(0.0)
    loader.Describe(pb.DescribeRequest(), None)
    loader.require_caller(60.0)
    with pytest.raises(DeadlineError, match="0 s waiting for a call of the chief"):
        wait_until(lambda: loader.require_caller(0.0), 1.0, "the deadline")


def test_a_loader_that_was_started_again_waits_for_any_call_with_a_deadline() -> None:
    loader = LoaderServicer(RUN, "killed")
    with pytest.raises(DeadlineError, match="waiting for a call of the chief"):
        wait_until(lambda: loader.require_caller(0.0), 1.0, "the deadline")


@pytest.mark.parametrize(("host", "code", "hears"), [("[::1]", 0, True), ("[::1]", 70, False), ("127.0.0.1", 0, False)])
def test_a_loader_of_a_container_that_is_starting_hears_of_the_end_of_a_run_that_is_done(
    host: str, code: int, hears: bool
) -> None:
    """The first host stands for one that has no launcher."""
    (free,) = free_addresses(1)
    address, loader = Address(host, free.port), LoaderServicer(RUN)
    with FleetClient([], RUN, loaders=[address]) as fleet:
        told = threading.Thread(target=fleet.release_loaders, args=[pb.Outcome(exit_code=code)])
        told.start()
        told.join(1.5)
        assert told.is_alive() == hears
        with serving(address, loader):
            told.join(10.0)
            assert loader.finished.is_set() == hears


def test_a_loader_in_a_container_says_which_of_its_ports_is_taken() -> None:
    (free,) = free_addresses(1)
    at = Address("loader-0", free.port)
    taken = rf"port {free.port} or {free.port + 4} of loader-0 is in use"
    with socket.create_server(("", free.port)), pytest.raises(LostPeerError, match=taken):
        data_service(LoaderPlane(at, at.batches))
